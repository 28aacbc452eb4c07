"""The tables and figures of the paper as declarations: a function (data set, scale) -> tables for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import wca_tf
from reproduce import readings as read
from reproduce.charts import bars, lines
from reproduce.nets import SEEDS, TITLES, Net
from reproduce.paper_numbers import (
    ABLATION,
    CHOSEN,
    CLEAN_OF_TABLE_2,
    CONTROLS,
    CW,
    IMAGENET,
    PIXELS,
    RADII,
    STRONGER,
    WIDE,
)
from reproduce.tables import Filled, Reading, Row, Table

Tables = tuple[Table, ...]
THREE = {"No Defense": "none", "WCA-Net isotropic": "isotropic", "WCA-Net anisotropic": "anisotropic"}
TWO = {"No Defense": "none", "WCA-Net": "anisotropic"}
TWO_RADII = "The paper gives two radii of its Fashion-MNIST numbers, 8/255 in section 4.4. In section 4.1 it is 0.3."
ONE_DRAW = "Each image is judged by one draw of the noise, as in the paper."


def rows_of(nets: Mapping[str, str], dataset: str, **options: Any) -> list[Row]:
    """Return a row for each net, {label: variant}."""
    return [Row(label, (Net(dataset, variant),), **options) for label, variant in nets.items()]


def in_paper(numbers: Mapping[str, Sequence[float]], columns: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return the paper's numbers of rows, {label: in %}, as shares by label and column."""
    return {
        (label, column): value / 100
        for label, values in numbers.items()
        for column, value in zip(columns, values, strict=True)
    }


def ablation(dataset: str, scale: str) -> Tables:
    """Declare Table 5."""
    others = {"fashion_mnist": ("0.3",), "cifar10": ("1/255", "2/255")}.get(dataset, ())
    more = [read.one_draw(attack, f"{name}, {at}", radius=at) for at in others for attack, name in _FGSM_PGD.items()]
    numbers = dict(zip(THREE, ABLATION.get(dataset, ()), strict=False))
    return (
        Table(
            f"Table 5: the ablation on {TITLES[dataset]}, ε = 8/255",
            rows_of(THREE, dataset),
            [read.clean(), read.one_draw("fgsm", "FGSM"), read.one_draw("pgd", "PGD"), *more],
            in_paper(numbers, ("clean", "FGSM", "PGD")),
            [ONE_DRAW, *([TWO_RADII] if dataset == "fashion_mnist" else [])],
            [bars("clean", "FGSM", "PGD")],
        ),
    )


_FGSM_PGD = {"fgsm": "FGSM", "pgd": "PGD"}


def epsilon_sweep(dataset: str, scale: str) -> Tables:
    """Declare Figure 1: the nets of the ablation under FGSM and PGD by radius."""
    rows = [
        row
        for attack, name in _FGSM_PGD.items()
        for row in rows_of({f"{name}, {label}": variant for label, variant in THREE.items()}, dataset, attack=attack)
    ]
    return (
        Table(
            f"Figure 1: attack strength on {TITLES[dataset]}",
            rows,
            [read.clean(part="protocol"), *(read.one_draw("", at, radius=at, part="protocol") for at in RADII)],
            notes=[ONE_DRAW, "The paper prints Figure 1 as a picture, without numbers."],
            charts=[lines("ε · 255", _by_radius, logarithmic=True)],
        ),
    )


def _by_radius(filled: Filled) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return a panel for each attack and a line for each net, over the columns that are radii."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for label, cells in filled.cells.items():
        panel, line = label.split(", ", 1)
        points = [(255 * RADII[at], cells[at].value) for at in RADII if at in cells]
        found.setdefault(panel, {})[line] = [(x, y) for x, y in points if y is not None]
    return found


def controls(dataset: str, scale: str) -> Tables:
    """Declare Table 6."""
    rows = [
        *rows_of({"No Defense": "none", "penalty": "anisotropic", "constraint": "constraint"}, dataset),
        Row("E1: test without EoT", (Net(dataset, "anisotropic"),), part="one_draw_gradient"),
        Row("E2: average 10 draws", (Net(dataset, "anisotropic"),), part="averaged"),
        *rows_of({"E3: noise trained alone": "noise_alone", "WCA-Net: AT": "at"}, dataset),
        *rows_of({"WCA-Net: CT+AT": "ct_at", "No Defense: AT": "none_at"}, dataset),
    ]
    return (
        Table(
            f"Table 6: the controls on {TITLES[dataset]}, ε = 8/255",
            rows,
            [
                read.clean(),
                read.one_draw("fgsm", "FGSM"),
                read.one_draw("pgd", "PGD"),
                read.metric("common_noise_share", "noise in common"),
                read.metric("noise_to_margin", "noise over margin"),
            ],
            in_paper(CONTROLS, ("clean", "FGSM", "PGD")),
            [
                ONE_DRAW,
                "The paper's numbers are of CIFAR-10. No Defense: AT is not in the paper.",
                "Noise in common: the share of the logits' variance that cancels in every answer. Noise over margin: "
                "the deviation of the deciding difference over the margin. Both are of training images.",
                "E3: the noise is trained on the net without a defence. The authors train that net with the term.",
            ],
            [bars("clean", "FGSM", "PGD")],
        ),
    )


def stronger(dataset: str, scale: str) -> Tables:
    """Declare Table 4: PGD with restarts, and Square, by radius; three seeds."""
    seeds = SEEDS[:1] if scale == "tiny" else SEEDS
    rows = [
        Row(f"{attack}, {label}", tuple(Net(dataset, variant).of_seed(seed) for seed in seeds), attack=attack)
        for attack in ("pgd_restarts", "square")
        for label, variant in TWO.items()
    ]
    columns = ("clean", *RADII)
    return (
        Table(
            f"Table 4: stronger attacks on {TITLES[dataset]}",
            rows,
            [read.clean(part="protocol"), *(read.one_draw("", at, radius=at, part="protocol") for at in RADII)],
            in_paper({f"{attack}, {label}": values for (attack, label), values in STRONGER.items()}, columns),
            [ONE_DRAW, "The paper's numbers are of CIFAR-10, one for each cell."],
            [lines("ε · 255", _by_radius, logarithmic=True)],
        ),
    )


def cw_and_pixels(dataset: str, scale: str) -> Tables:
    """Declare Table 2: C&W for each κ, and n-pixel for each n, by the paper's rule and on the margin."""
    attacks = {f"C&W, κ = {kappa}": f"cw:confidence={kappa}" for kappa in CW}
    attacks |= {_pixels(n): f"n_pixel:pixels={n}" for n in PIXELS}
    attacks |= {f"{_pixels(n)}, margin": f"n_pixel_margin:pixels={n}" for n in PIXELS}
    nets = {label: Net(dataset, variant) for label, variant in TWO.items()}
    columns = [
        reading
        for label, net in nets.items()
        for reading in (
            read.one_draw("", label, net=net),
            read.distance("", f"{label}: median l2", net=net),
            read.generations("", f"{label}: median generations", net=net),
        )
    ]
    papers = {f"C&W, κ = {kappa}": (value,) for kappa, value in CW.items()}
    papers |= {_pixels(n): (value,) for n, value in PIXELS.items()}
    return (
        Table(
            f"Table 2: C&W and n-pixel on {TITLES[dataset]}",
            [Row(label, (nets["WCA-Net"],), attack=attack, part="pixels") for label, attack in attacks.items()],
            columns,
            in_paper(papers, ("WCA-Net",)),
            [
                ONE_DRAW,
                f"The paper's numbers are of WCA-Net on CIFAR-10, whose clean accuracy is {CLEAN_OF_TABLE_2} %.",
                "C&W has no radius: on a random net its accuracy says how large the noise is beside κ.",
                "Margin: n-pixel on the margin, which ends no search early. The paper's rule ends a search when its "
                "population has converged, after at most 1,000 generations.",
            ],
            [bars(*TWO)],
        ),
    )


def _pixels(count: int) -> str:
    return f"{count} pixel{'s' * (count > 1)}"


def eot_convergence(dataset: str, scale: str) -> Tables:
    """Declare section 4.1: attacks whose gradients average over 1 to 100 draws; the paper stops at 50."""
    draws = (1, 5, 10, 20, 35, 40, 50, 100)
    nets = {label: variant for label, variant in THREE.items() if variant != "none"}
    radii = ("8/255", *{"cifar10": ("1/255",)}.get(dataset, ()))
    rows = [
        row
        for at in radii
        for attack, name in _FGSM_PGD.items()
        for row in rows_of(
            {f"{name} at {at}, {label}": variant for label, variant in nets.items()},
            dataset,
            attack=attack,
            radius=at,
            part="protocol",
        )
    ]
    return (
        Table(
            f"Section 4.1: draws of EoT on {TITLES[dataset]}",
            rows,
            [read.expected(f"{{}}:eot_samples={count}", str(count)) for count in draws],
            notes=[
                "Columns: the draws that a gradient averages over. Numbers: the chance that one answer is right.",
                "The paper prints no numbers: accuracy saturates from about 35 draws and converges at 40.",
            ],
            charts=[lines("draws of EoT", lambda filled: _by_draws(filled, draws))],
        ),
    )


def _by_draws(filled: Filled, draws: Sequence[int]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for label, cells in filled.cells.items():
        panel, line = label.split(", ", 1)
        points = [(float(count), cells[str(count)].value) for count in draws]
        found.setdefault(panel, {})[line] = [(x, y) for x, y in points if y is not None]
    return found


def obfuscation(dataset: str, scale: str) -> Tables:
    """Declare section 4.5: the paper's criteria of gradient obfuscation, and those of Carlini et al. (2019)."""
    nets = {label: Net(dataset, variant) for label, variant in THREE.items()}
    return (
        Table(
            f"Section 4.5: gradient obfuscation on {TITLES[dataset]}, ε = 8/255",
            [Row(criterion, (nets["No Defense"],), part="checklist") for criterion in wca_tf.CRITERIA],
            [read.checklist(label, net=net) for label, net in nets.items()],
            notes=[
                "The paper says that WCA-Net passes its five criteria. It examines the second with pixels alone. In "
                "its Table 4 Square leaves less than PGD.",
                "The checklist is of 100 images; its evidence stands in the report of each net.",
            ],
        ),
    )


def larger_images(dataset: str, scale: str) -> Tables:
    """Declare Table 7: ResNet-18 on Imagenette or mini-ImageNet."""
    numbers = {label: values for (name, label), values in IMAGENET.items() if name == dataset}
    return (
        Table(
            f"Table 7: ResNet-18 on {TITLES[dataset]}, ε = 8/255",
            rows_of(TWO, dataset),
            [read.trained(), read.clean(), read.one_draw("fgsm", "FGSM"), read.one_draw("pgd", "PGD")],
            in_paper(numbers, ("clean", "FGSM", "PGD")),
            [ONE_DRAW],
            [bars("clean", "FGSM", "PGD")],
        ),
    )


def wide_net(dataset: str, scale: str) -> Tables:
    """Declare Table 9: Wide-ResNet-34-10 on CIFAR-10."""
    rows = rows_of({f"PGD, {label}": variant for label, variant in TWO.items()}, dataset, attack="pgd", part="wide")
    return (
        Table(
            "Table 9: Wide-ResNet-34-10 on CIFAR-10",
            rows,
            [read.trained(), read.clean(), *(read.one_draw("", at, radius=at) for at in RADII)],
            in_paper({f"PGD, {label}": values for label, values in WIDE.items()}, ("clean", *RADII)),
            [ONE_DRAW],
            [lines("ε · 255", _by_radius, logarithmic=True)],
        ),
    )


def grid_search(dataset: str, scale: str) -> Tables:
    """Declare appendix B: learning rate and weight decay by grid search, on the validation images."""
    grid = (1e-2, 1e-3) if scale == "tiny" else (1e-1, 1e-2, 1e-3, 1e-4)
    small = {"epochs": 4, "max_train_examples": 20_000, "validation_split": 0.1, "batch_size": 128}
    changes: dict[str, Any] = {"tiny": {"epochs": 1, "validation_split": 0.1}, "small": small, "paper": {}}[scale]
    base = Net(dataset, "anisotropic").but(**changes)
    rows = [Row(f"learning rate {rate:g}", (base.but(learning_rate=rate),), part="validation") for rate in grid]

    def with_decay(decay: float) -> Callable[[Net], Net]:
        return lambda net: net.but(defence=f"wca:weight_decay={decay:g}")

    measured: dict[str, Callable[[str, Any], Reading]] = {
        "clean images": lambda name, net: read.validation_accuracy(name, net=net),
        "PGD at 8/255": lambda name, net: read.one_draw("pgd", name, net=net),
        "z-margin at 1/255": lambda name, net: read.expected("z_margin", name, net=net, radius="1/255"),
    }
    rate, decay = CHOSEN.get(dataset, (None, None))
    chosen = f"The paper chose learning rate {rate:g} and weight decay {decay:g}." if rate else ""
    return tuple(
        Table(
            f"Appendix B: grid search on {TITLES[dataset]}, {what}",
            rows,
            [make(f"decay {value:g}", with_decay(value)) for value in grid],
            notes=[
                "Validation images; a short search finds the best setting for short runs.",
                *([chosen] if chosen else []),
            ],
        )
        for what, make in measured.items()
    )
