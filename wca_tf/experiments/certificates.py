"""Certificates of nets with 1-Lipschitz features beside attacks in l2: what noise adds to what can be proved."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wca_tf.attacks.radii import parse_radii
from wca_tf.core.errors import InputError
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.intervals import mean_with_interval
from wca_tf.evaluation.measures.certificates import CURVES, Head, extrapolated_seconds
from wca_tf.evaluation.measures.smoothing_votes import VOTED_IMAGES
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.run import OTHER_SEEDS, Evaluated, Run
from wca_tf.experiments.tables import Table, by_seed
from wca_tf.nets.targets import HeadNoiseTarget
from wca_tf.runs.model_dir import ModelDirectory

# Radii in l2 and in l∞ that are certified and attacked, and radii that are certified alone: for the curves, and to show
# where l∞ through l2 proves nothing.
RADII = {
    "digits": ("0.1",),
    "mnist": ("0.1", "0.3", "1.58"),
    "fashion_mnist": ("0.1", "0.3", "1.0"),
    "cifar10": ("36/255", "72/255"),
}
IN_LINF = {
    "digits": ("linf:0.01",),
    "mnist": ("linf:0.01", "linf:0.03"),
    "fashion_mnist": ("linf:0.01", "linf:0.03"),
    "cifar10": ("linf:1/255", "linf:0.01"),
}
CERTIFIED_ALONE = {
    "digits": ("0.2",),
    "mnist": ("0.6", "1.0", "linf:0.1"),
    "fashion_mnist": ("0.2", "0.6", "linf:0.1"),
    "cifar10": ("18/255", "108/255", "linf:8/255"),
}
# Deterministic certified accuracy that others publish, and the net to compare it with.
ANCHORS = {
    ("mnist", "certified_none", "0.3"): "95.7 (GloRo)",
    ("mnist", "certified_far", "1.58"): "62.8 (GloRo)",
    ("cifar10", "certified_none", "36/255"): "59.1 (AOL, small net)",
}
FAR = "No Defense, larger margins"
NETS = {
    "No Defense": "certified_none",
    FAR: "certified_far",
    "bounded weights, almost no noise": "certified_quiet",
    "WCA-Net isotropic": "certified_isotropic",
    "WCA-Net anisotropic": "certified_anisotropic",
    "WCA-Net pairwise": "certified_pairwise",
}
SMOOTHING, WITHOUT_TRAINING = "smoothing, the vote", "noise without training"
VOTING_DRAWS = {"tiny": 1_000, "small": 20_000, "paper": 100_000}
THREE_SEEDS = ("certified_none", "certified_isotropic", "certified_anisotropic")
TRAINED_ONCE = ("cifar10",)
# At a rate of 0.01 the change of variables of C&W hardly moves a pixel that is black or white.
ATTACKS = {
    "tiny": "pgd:steps=3:norm=l2,cw:steps=10:searches=2:learning_rate=0.1",
    "small": "pgd:steps=40:norm=l2,apgd_ce:steps=50:norm=l2,margin:steps=40:norm=l2,z_margin:steps=40:norm=l2,"
    "cw:steps=50:learning_rate=0.1:searches=3:initial_constant=0.1",
    "paper": "pgd:steps=40:norm=l2,apgd_ce:norm=l2,adaptive:norm=l2,cw:steps=200:learning_rate=0.1:searches=6",
}
ATTACKS_IN_LINF = {
    "tiny": "pgd:steps=3",
    "small": "pgd:steps=40,margin:steps=40,z_margin:steps=40",
    "paper": "pgd:steps=40,adaptive",
}
ATTACKED_IMAGES = {"tiny": 20, "small": 250, "paper": 0}
COLUMNS = {
    "certificate": "certified",
    "known_draw": "C1",
    "gaussian_shift": "C2",
    "deterministic": "noise off",
    "union": "union bound",
    "majority": "vote certified",
    "attacked": "left by attacks",
}
OVER_IMAGES = ("certificate", "known_draw", "gaussian_shift", "deterministic")
# Deviations of isotropic noise that is put on the features of the net with bounded weights, without training.
DEVIATIONS = {"tiny": (0.05,), "small": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28), "paper": (0.02, 0.08, 0.32)}
DEVIATION_IMAGES = {"tiny": 20, "small": 2_000, "paper": 0}


def reproduce(run: Run) -> Table:
    """Return a table with a row for each net and radius: certificates, the strongest attacks, and the time.

    Raises:
        InputError: an attack went below a certificate; the rows that were made are kept.
    """
    table = Table("Certificates in l2, accuracy under every attack", ["clean", *COLUMNS.values(), "100 queries"])
    table.legend = "In %, ± the 95 % half-width; certificates are lower bounds, attacks an upper bound."
    drawn: dict[str, Series] = {}
    of_deviation: dict[str, Series] = {}
    violations: list[str] = []
    for dataset in run.datasets:
        for label, variant in nets_of(dataset).items():
            name, nets = f"{dataset}, {label}", [run.net(dataset, variant)]
            fill = partial(_add_attacked, run, dataset, label, variant)
            asked = [attacked_radii(dataset), _radii(dataset), _attacks(run), ATTACKED_IMAGES[run.config.scale]]
            found = kept_rows(run, table, name, nets, fill, asked)
            drawn[name] = found["curves"]
            fill = partial(_add_all_images, run, dataset, label, variant)
            seeds = [dataclasses.replace(nets[0], seed=seed) for seed in _seeds(run, dataset, variant)]
            kept = kept_rows(run, table, f"{name}, all images", [*nets, *seeds], fill, [_radii(dataset)])
            violations += found["violations"] + kept["violations"]
        scale = run.config.scale
        asked = [DEVIATIONS[scale], DEVIATION_IMAGES[scale]]
        of_deviation |= _keep(run, table, dataset, "certified_quiet", WITHOUT_TRAINING, _add_deviations, asked)
        asked = [VOTING_DRAWS[scale], VOTED_IMAGES]
        _keep(run, table, dataset, "certified_smoothing", SMOOTHING, _add_smoothing, asked)
    if violations:
        raise InputError(f"expected no attack below a certificate, received {'; '.join(violations)}: not Lipschitz")
    _draw(run, "certificates", drawn, "l2 radius", logarithmic=False)
    _draw(run, "deviations", of_deviation, "deviation of the noise", logarithmic=True)
    table.notes = _notes(run)
    return table


def _keep(
    run: Run, table: Table, dataset: str, variant: str, words: str, fill: Callable[..., Any], asked: list[Any]
) -> Any:
    """Fill rows that a net has besides its own, or take them from an earlier run."""
    net, settings = run.net(dataset, variant), [_radii(dataset), *asked]
    return kept_rows(run, table, f"{dataset}, {words}", [net], partial(fill, run, dataset), settings)


def _seeds(run: Run, dataset: str, variant: str) -> tuple[int, ...]:
    """Return the seeds of a net's other trainings; empty at --scale=tiny, and for a net that is trained once."""
    once = _few(run) or dataset in TRAINED_ONCE or variant not in THREE_SEEDS
    return () if once else OTHER_SEEDS


def nets_of(dataset: str) -> dict[str, str]:
    """Return label -> variant of a data set's nets."""
    return {label: variant for label, variant in NETS.items() if label != FAR or dataset == "mnist"}


def _notes(run: Run) -> list[str]:
    trained = [(d, label, run.net(d, variant)) for d in run.datasets for label, variant in nets_of(d).items()]
    smoothed = {run.net(dataset, "certified_smoothing").backbone for dataset in run.datasets}
    return [
        "certified: the larger of C1 (the attacker sees the draw) and C2 (does not see it), for each image",
        "noise off: the certificate of the same net without its noise; it may lie above what attacks leave with noise",
        "union bound: Theorem 1's proof for each rival, without its last step",
        "l∞ radii are certified by the l2 ball around them; 0.0 says that nothing is proved",
        "vote certified: the share of images whose certificate is above 1/2, so that a majority vote of all draws is "
        "right; for smoothing, its own certificate",
        f"attacks: {_attacks(run)}, on {ATTACKED_IMAGES[run.config.scale] or 'all'} test images",
        "s per 10,000: seconds to certify 10,000 images at all radii; smoothing's is extrapolated from its 20 images",
        f"all images: certified on {'these' if _few(run) else 'all test'} images; each: nets that differ in their seed",
        "published: certified accuracy of nets without noise, by other authors, on all test images",
        f"{WITHOUT_TRAINING}: isotropic noise on the features of the net with bounded weights, "
        f"{DEVIATION_IMAGES[run.config.scale] or 'all'} images",
        f"{SMOOTHING}: Cohen et al.'s certificate of {', '.join(sorted(smoothed))}, {VOTING_DRAWS[run.config.scale]:,} "
        "draws, α = 0.001; clean is the vote's accuracy; 20 images, so ± 20 points",
        *(f"{d}, {label}: --defence={net.defence} --margin_radius={net.margin_radius:g}" for d, label, net in trained),
        *[note for d in run.datasets for note in run.notes(d, [*nets_of(d).items()], [])],
    ]


def _radii(dataset: str) -> tuple[str, ...]:
    return attacked_radii(dataset) + CERTIFIED_ALONE[dataset]


def attacked_radii(dataset: str) -> tuple[str, ...]:
    """Return the radii of a data set that are attacked, in l2 and in l∞."""
    return RADII[dataset] + IN_LINF[dataset]


def _attacks(run: Run) -> str:
    return f"{ATTACKS[run.config.scale]},{ATTACKS_IN_LINF[run.config.scale]}"


def _add_attacked(run: Run, dataset: str, label: str, variant: str, table: Table) -> dict[str, Any]:
    """Train a net, attack it, and fill its rows; return its curves over l2 radii, and attacks below a bound."""
    path = run.trained(dataset, variant)
    attacked = attacked_radii(dataset)
    radii = ",".join(radius if ":" in radius else f"l2:{radius}" for radius in attacked)
    found = _evaluated(run, path, dataset, _attacks(run), radii, num_examples=ATTACKED_IMAGES[run.config.scale])
    certificates = found.results["certificates"]
    clean = found.number("clean", what="expected_accuracy")
    points: Series = {name: [(0.0, clean["value"])] for name in CURVES}
    points["deterministic"] = [(0.0, found.number("clean", what="noise_free_accuracy")["value"])]
    violations = []
    for text, row in zip(_radii(dataset), certificates["rows"], strict=True):
        name = f"{dataset}, {label}, {text}"
        table.add(name, "clean", clean)
        for key, column in COLUMNS.items():
            if row[key] and (key != "attacked" or text in attacked):
                table.add(name, column, row[key])
        table.add(name, "100 queries", row["n_query"]["certificate"]["100"])
        if anchor := ANCHORS.get((dataset, variant, text)):
            table.add(name, "published", text=anchor)
        if row["violations"]:
            violations.append(f"{name}: {row['violations']} images")
        if row["norm"] == "l2":
            for key in CURVES:
                if key != "attacked" or text in attacked:  # a smaller attack counts at a larger radius too
                    points[key].append((row["radius"], row[key]["value"]))
    return {"curves": {key: sorted(values) for key, values in points.items()}, "violations": violations}


def _evaluated(run: Run, path: Path, dataset: str, attacks: str, radii: str, **changes: Any) -> Evaluated:
    """Evaluate a net with certificates at all radii of its data set, and attacks at some of them."""
    asked = {"certified_radii": ",".join(_radii(dataset)), **changes}
    return run.evaluated_at(path, attacks.split(","), radii, **asked)


def _add_all_images(run: Run, dataset: str, label: str, variant: str, table: Table) -> dict[str, Any]:
    """Fill columns with the certificates of all test images, also of nets that differ in their seed alone.

    Returns:
        Where one step of an attack, at the smallest radius, is below a bound.
    """
    paths = [run.trained(dataset, variant)]
    paths += [run.trained(dataset, variant, seed=seed) for seed in _seeds(run, dataset, variant)]
    images, radius = ATTACKED_IMAGES["tiny"] if _few(run) else 0, f"l2:{RADII[dataset][0]}"
    found = [_evaluated(run, path, dataset, "fgsm:norm=l2", radius, num_examples=images) for path in paths]
    certificates = [each.results["certificates"] for each in found]
    clean = by_seed([each.number("clean", what="expected_accuracy") for each in found])
    seconds = extrapolated_seconds(certificates[0], found[0].results["num_examples"])
    for number, text in enumerate(_radii(dataset)):
        name = f"{dataset}, {label}, {text}"
        table.add(name, "s per 10,000", text=f"{seconds:.0f}")
        table.add(name, "clean, all images", text=clean)
        for key in OVER_IMAGES:
            text_of = by_seed([each["rows"][number][key] for each in certificates])
            table.add(name, f"{COLUMNS[key]}, all images", text=text_of)
    below = [sum(row["violations"] for row in each["rows"]) for each in certificates]
    return {"violations": [f"{dataset}, {label}: {count} images" for count in below if count]}


def _few(run: Run) -> bool:
    return run.config.scale == "tiny"


def _add_deviations(run: Run, dataset: str, table: Table) -> dict[str, Series]:
    """Fill a row for each deviation of isotropic noise on a net's features; return curves over them for each radius."""
    directory = ModelDirectory(run.trained(dataset, "certified_quiet"))
    asked: dict[str, Any] = {"num_examples": DEVIATION_IMAGES[run.config.scale]}
    config = EvaluateConfig(tfds_data_dir=run.config.tfds_data_dir, **asked)
    examples = load_evaluation_examples(config, directory.train_config())
    model = directory.load_best()
    target = model.target()
    if not isinstance(target, HeadNoiseTarget):
        raise TypeError(f"expected a net with noise in its head alone, received {type(model).__name__}")
    quiet = Head.of(target, model, examples, config.batch_size)
    drawn: dict[str, Series] = {
        f"{dataset}, l2 radius {text}": {COLUMNS[key]: [] for key in OVER_IMAGES} for text in RADII[dataset]
    }
    for deviation in DEVIATIONS[run.config.scale]:
        head = dataclasses.replace(quiet, scale=deviation * quiet.weights)  # its quantiles serve every radius
        for text in RADII[dataset]:
            bounds = head.bounds(quiet.lipschitz * parse_radii(text)[0].epsilon)
            name = f"{dataset}, {WITHOUT_TRAINING}, deviation {deviation:g}, {text}"
            for key in OVER_IMAGES:
                number = mean_with_interval(bounds[key])
                table.add(name, COLUMNS[key], number)
                drawn[f"{dataset}, l2 radius {text}"][COLUMNS[key]].append((deviation, number["value"]))
    return drawn


def _add_smoothing(run: Run, dataset: str, table: Table) -> None:
    """Fill the rows of randomised smoothing's vote."""
    path = run.trained(dataset, "certified_smoothing")
    asked: dict[str, Any] = {"num_examples": VOTED_IMAGES, "certified_draws": VOTING_DRAWS[run.config.scale]}
    radius = f"l2:{RADII[dataset][0]}"
    found = _evaluated(run, path, dataset, "fgsm:norm=l2", radius, eot_samples=1, **asked)
    certificates = found.results["certificates"]
    for text, row in zip(_radii(dataset), certificates["rows"], strict=True):
        name = f"{dataset}, {SMOOTHING}, {text}"
        table.add(name, "clean", certificates["votes"]["accuracy"])
        table.add(name, COLUMNS["majority"], row["vote"])
        table.add(name, "abstained", row["abstained"])
        table.add(name, "s per 10,000", text=f"{extrapolated_seconds(certificates):.0f}")


def _draw(run: Run, name: str, drawn: dict[str, Series], label: str, logarithmic: bool) -> None:
    """Draw a panel for each entry: certificates and attacks over radii, or certificates over deviations."""
    figure, axes = panels(len(drawn), 3.4, 3.2, columns=min(len(drawn), 4))
    for axis, (title, series) in zip(axes, drawn.items(), strict=True):
        named = {COLUMNS.get(key, key): points for key, points in series.items()}
        curves(axis, named, title.replace(", ", "\n", 1), label, logarithmic=False)
        if logarithmic:
            axis.set_xscale("log")
    legend(axes[-1])
    save(figure, run.report_dir, name)
