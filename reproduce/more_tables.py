"""Tables that the paper does not have: what stronger attacks leave, with the noise and without it."""

from __future__ import annotations

from collections.abc import Sequence

from reproduce import readings as read
from reproduce.charts import bars, dots, lines
from reproduce.nets import SEEDS, TITLES, Net
from reproduce.paper_numbers import CONTROLS, STRONGER
from reproduce.paper_tables import ONE_DRAW, THREE, TWO, Tables, in_paper, rows_of
from reproduce.readings import STRONG
from reproduce.tables import EPSILON, Filled, Reading, Row, Table

SUITE = ("fgsm", "pgd", "z_margin", "square", "adaptive")
EXPECTED = "Worst case: the chance that one answer is right, each image under its strongest attack."
OFF = "Noise off: the same net without its noise, under its own worst case. The noise adds: the difference, paired."
HUNDRED = "100 queries: the chance that 100 answers are right; the attacker needs one that is wrong."


def quickstart(dataset: str, scale: str) -> Tables:
    """Declare the table of bin/quickstart: two small nets on digits."""
    nets = {"No Defense": "quickstart_none", "WCA-Net": "quickstart_wca"}
    attacks = ("pgd", "adaptive")
    return (
        Table(
            "The two nets of bin/quickstart: digits, ε = 0.1",
            rows_of(nets, dataset, radius="0.1"),
            [read.clean_expected(), read.one_draw("pgd", "PGD, one answer"), *judged_by(attacks)],
            notes=[EXPECTED, HUNDRED, OFF],
            charts=[bars("PGD, one answer", "worst case", "100 queries")],
        ),
    )


def judged_by(attacks: Sequence[str]) -> list[Reading]:
    """Return the columns of the worst case, and of what the noise adds."""
    return [
        read.worst_case(attacks),
        read.worst_case(attacks, 100, "100 queries"),
        read.noise_off(attacks),
        read.noise_adds(attacks),
    ]


def fashion_mnist(dataset: str, scale: str) -> Tables:
    """Declare README's table: the usual protocol and the worst case at three radii."""
    plain = Net(dataset, "none")
    rows = [
        Row(f"{label}, ε = {at}", (Net(dataset, variant),), radius=at)
        for at in (EPSILON, "0.1")
        for label, variant in THREE.items()
    ]
    shown = ("PGD, 10 steps", "worst case", "100 queries")
    return (
        Table(
            f"What the usual protocol overstates: {TITLES[dataset]}",
            rows,
            [
                read.clean_expected(),
                read.one_draw("fgsm", "FGSM"),
                read.one_draw("pgd", "PGD, 10 steps"),
                read.one_draw("pgd:steps=40", "PGD, 40 steps"),
                *judged_by(STRONG),
                read.gain_over(plain, STRONG, "gain over No Defense"),
                read.zero_gradients("pgd"),
            ],
            notes=[
                "FGSM and PGD: by one answer for each image, the usual protocol.",
                EXPECTED,
                HUNDRED,
                OFF,
                "Useless gradients: the share of images where float32 loses the label's term of cross-entropy in every "
                "draw.",
            ],
            charts=[bars(*shown, by_row=lambda label: label.split(", ")[1])],
        ),
    )


def headline(dataset: str, scale: str) -> Tables:
    """Declare Tables 1 and 4 on CIFAR-10 with strong attacks, at smaller radii too; three seeds."""
    seeds = SEEDS[:1] if scale == "tiny" else SEEDS
    longer = Net(dataset, "anisotropic").but(epochs={"tiny": 4, "small": 32, "paper": 1200}[scale])
    plain = Net(dataset, "none")
    rows = [
        *(Row(label, tuple(Net(dataset, v).of_seed(seed) for seed in seeds)) for label, v in TWO.items()),
        Row("WCA-Net, twice the epochs", (longer,)),
        Row("No Defense, airbench's recipe", (Net(dataset, "airbench_none"),)),
    ]
    smaller = [
        reading
        for at in ("1/255", "2/255")
        for reading in (
            read.worst_case(("pgd", "z_margin", "adaptive"), name=f"worst case, {at}", radius=at),
            read.noise_adds(("pgd", "z_margin", "adaptive"), f"the noise adds, {at}", radius=at),
        )
    ]
    papers = {"No Defense": CONTROLS["No Defense"], "WCA-Net": CONTROLS["penalty"]}
    square = {label: (STRONGER["square", label][4],) for label in TWO}
    return (
        Table(
            f"What is left on {TITLES[dataset]}, ε = 8/255",
            rows,
            [
                read.clean("clean, all images", part="all_images"),
                read.clean(),
                read.one_draw("fgsm", "FGSM"),
                read.one_draw("pgd", "PGD"),
                read.one_draw("square", "Square"),
                read.worst_case(SUITE),
                *smaller,
                read.gain_over(plain, ("pgd", "z_margin", "adaptive"), "gain at 1/255", radius="1/255"),
            ],
            {**in_paper(papers, ("clean", "FGSM", "PGD")), **in_paper(square, ("Square",))},
            [ONE_DRAW, EXPECTED, OFF],
            [bars("PGD", "worst case", "worst case, 1/255")],
        ),
    )


def strong_attacks(dataset: str, scale: str) -> Tables:
    """Declare every row of Tables 5 and 6 under strong attacks."""
    nets = {"No Defense": "none", "isotropic": "isotropic", "penalty": "anisotropic", "constraint": "constraint"}
    nets |= {"E3: noise trained alone": "noise_alone", "WCA-Net: AT": "at", "WCA-Net: CT+AT": "ct_at"}
    rows = rows_of({**nets, "No Defense: AT": "none_at"}, dataset)
    rows.insert(4, Row("E2: average 10 draws", (Net(dataset, "anisotropic"),), part="averaged"))
    smaller = ("1/255",) if dataset in ("cifar10", "digits") else ()
    at_smaller = [
        read.worst_case(("pgd", "z_margin", "adaptive"), name=f"worst case, {at}", radius=at) for at in smaller
    ]
    return (
        Table(
            f"Every variant under strong attacks: {TITLES[dataset]}, ε = 8/255",
            rows,
            [
                read.clean(),
                read.one_draw("fgsm", "FGSM"),
                read.one_draw("pgd", "PGD"),
                read.expected("square", "Square"),
                *judged_by(SUITE),
                read.gain_over(Net(dataset, "none"), SUITE, "gain over No Defense"),
                read.gain_over(Net(dataset, "none_at"), SUITE, "gain over No Defense: AT"),
                *at_smaller,
            ],
            in_paper({label: CONTROLS[label] for label in CONTROLS if label[:2] != "E1"}, ("clean", "FGSM", "PGD")),
            [ONE_DRAW, EXPECTED, OFF, "The paper's numbers are of CIFAR-10."],
            [bars("clean", "PGD", "worst case")],
        ),
    )


def adversarial(dataset: str, scale: str) -> Tables:
    """Declare adversarial training without and with noise: what is left in the worst case."""
    seeds = SEEDS[:1] if scale == "tiny" else SEEDS
    seeded = {"No Defense: AT": "none_at", "WCA-Net: AT": "at", "WCA-Net: CT+AT": "ct_at"}
    rows = [
        Row(label, tuple(Net(dataset, variant).of_seed(seed) for seed in seeds)) for label, variant in seeded.items()
    ]
    rows += rows_of({"CTRW: AT": "ctrw_at", "smoothing: AT": "smoothing_at"}, dataset, part="few")
    rows += rows_of({"No Defense: AT, 100 images": "none_at"}, dataset, part="few")
    resnets = {"ResNet-18, No Defense: AT": "resnet18_none_at", "ResNet-18, WCA-Net: AT": "resnet18_wca_at"}
    rows += rows_of(resnets, dataset)
    attacks = ("pgd", "adaptive", "multi_targeted")
    return (
        Table(
            f"Adversarial training on {TITLES[dataset]}, ε = 8/255",
            rows,
            [read.trained(), read.clean_expected(), read.one_draw("pgd", "PGD"), *judged_by(attacks), read.images()],
            in_paper({label: CONTROLS[label][2:] for label in ("WCA-Net: AT", "WCA-Net: CT+AT")}, ("PGD",)),
            [
                EXPECTED,
                OFF,
                "AT: on attacked images alone. CT+AT: on clean ones too. The paper trains with PGD of ten steps.",
                "Rows of 100 images: nets with noise before their last features, by smaller budgets; compare them with "
                "each other.",
            ],
            [bars("clean", "PGD", "worst case", "worst case, noise off")],
        ),
    )


def training_length(dataset: str, scale: str) -> Tables:
    """Declare how accuracy under attack changes with the length of training, at the paper's rates held constant."""
    long, short = ((2,), (2,)) if scale == "tiny" else ((2, 5, 10, 20, 50, 100), (2, 5, 10, 20, 30))
    nets = {
        "No Defense": ("long_none", long),
        "WCA-Net anisotropic": ("long_anisotropic", long),
        "WCA-Net isotropic": ("long_isotropic", short),
        "WCA-Net as in the authors' code": ("long_official", short),
        "WCA-Net anisotropic, rate divided by 10": ("long_steps", short[-1:]),
    }
    rows = [
        Row(f"{label}, {epoch} epochs", (Net(dataset, variant, (("epochs", epochs[-1]),), epoch, epochs),))
        for label, (variant, epochs) in nets.items()
        for epoch in epochs
    ]
    shown = ("PGD", "worst case")
    return (
        Table(
            f"The length of training: {TITLES[dataset]}, ε = 8/255",
            rows,
            [
                read.clean_expected(),
                read.one_draw("pgd", "PGD"),
                read.worst_case(("pgd", "adaptive")),
                read.zero_gradients("pgd"),
                read.noise("noise_to_margin", "noise over margin"),
                read.noise("common_share", "noise in common"),
                read.noise("median_z_margin", "median z-margin"),
            ],
            notes=[
                EXPECTED,
                "The learning rate is constant: a net after 10 epochs is that of a run of 10 epochs.",
                "Rate divided by 10: after each third of the run, as the authors do.",
                "Noise over margin, noise in common: of the test images that are attacked.",
            ],
            charts=[lines("epochs", lambda filled: _over_epochs(filled, shown))],
        ),
    )


def _over_epochs(filled: Filled, shown: Sequence[str]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for label, cells in filled.cells.items():
        line, epochs = label.rsplit(", ", 1)
        for column in shown:
            points = found.setdefault(column, {}).setdefault(line, [])
            if (value := cells[column].value) is not None:
                points.append((float(epochs.split()[0]), value))
    return found


def attack_suite(dataset: str, scale: str) -> Tables:
    """Declare every attack on the nets of the ablation, at ε = 0.1."""
    in_ball = (
        *("fgsm", "pgd", "pgd:steps=40", "margin", "z_margin", "z_margin:restarts=10", "apgd_ce", "apgd_dlr"),
        *("auto_rand", "multi_targeted", "transfer", "transfer:source_objective=dlr", "square", "adaptive"),
        "pgd_restarts",
    )
    nets = {label: Net(dataset, variant) for label, variant in THREE.items()}
    plain = nets["No Defense"]
    rows = [Row(f"`{attack}`", (plain,), radius="0.1", attack=attack) for attack in in_ball]
    rows += [
        Row(label, (plain,), attack=attack, part="pixels")
        for label, attack in {
            "`cw:confidence=1`": "cw:confidence=1",
            "`n_pixel`, 1 pixel": "n_pixel:pixels=1",
            "`n_pixel`, 1 pixel, margin": "n_pixel_margin:pixels=1",
        }.items()
    ]
    columns = [
        reading
        for label, net in nets.items()
        for reading in (
            read.expected("", label, net=net),
            read.distance("", f"{label}: median l2", net=net),
        )
    ]
    return (
        Table(
            f"Every attack on {TITLES[dataset]}, ε = 0.1",
            rows,
            columns,
            notes=["Numbers: the chance that one answer is right.", "C&W and n-pixel have no radius."],
            charts=[dots(*THREE)],
        ),
    )


def adaptive(dataset: str, scale: str) -> Tables:
    """Declare the cascade `adaptive` beside its members, each run whole."""
    members = ("z_margin", "apgd_dlr", "multi_targeted", "transfer", "square")
    rows = [
        Row(f"{label}, ε = {at}", (Net(dataset, variant),), radius=at)
        for label, variant in TWO.items()
        for at in (EPSILON, "0.1")
    ]
    return (
        Table(
            f"The cascade adaptive beside single attacks: {TITLES[dataset]}",
            rows,
            [
                *(read.expected(member, member) for member in members),
                read.worst_of(members, "worst of these"),
                read.expected("adaptive", "adaptive"),
                read.seconds(members, "seconds of these"),
                read.seconds(("adaptive",), "seconds of adaptive"),
            ],
            notes=[EXPECTED, "Seconds include making the graphs; other work may have run beside."],
            charts=[bars("worst of these", "adaptive")],
        ),
    )
