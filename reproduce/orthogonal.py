"""Certificates of nets with orthogonal layers: by data set, along the training, by optimizer, and with noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from reproduce import readings as read
from reproduce.certificates import BOUNDS, KNOWING, certified, row_at
from reproduce.charts import curves, panels, plain_numbers
from reproduce.engine import Need
from reproduce.image_bounds import Bounds
from reproduce.nets import TITLES, Net
from reproduce.orthogonal_choices import ANY, by_choice, by_optimizer, cpu_seconds, measure_choices
from reproduce.study import Study
from reproduce.tables import Cell, Filled, Missing, Reading, Row, Site, Table
from wca_tf import InputError

RADII = {
    "digits": ("l2:0.1",),
    "cifar10": ("l2:36/255", "l2:72/255", "l2:108/255", "l2:1.0"),
    "mnist": ("l2:0.3", "l2:1.58"),
    "fashion_mnist": ("l2:0.3", "l2:1.0"),
}
CHOSEN_AT = {"digits": ("l2:0.1",), "cifar10": ("l2:36/255",), "mnist": ("l2:0.3", "l2:1.58")}
FAR = {"mnist": "l2:1.58"}  # radii that a net is trained for that has larger margins
SETS = ("cifar10", "mnist", "fashion_mnist")
# Certified accuracy on all test images that others publish, as shares: AOL's and LOT's small nets (Prach et al., 2024),
# and GloRo (Leino et al., 2021).
PUBLISHED = {
    "AOL": ("cifar10", {"l2:36/255": 0.591, "l2:72/255": 0.452, "l2:108/255": 0.324, "l2:1.0": 0.039}),
    "LOT": ("cifar10", {"l2:36/255": 0.635, "l2:72/255": 0.492, "l2:108/255": 0.361, "l2:1.0": 0.044}),
    "GloRo": ("mnist", {"l2:0.3": 0.957, "l2:1.58": 0.628}),
}
ATTACKS = {
    "tiny": ("pgd:steps=3:norm=l2",),
    "small": ("pgd:steps=40:norm=l2", "apgd_ce:steps=50:norm=l2", "margin:steps=40:norm=l2"),
    "paper": ("pgd:steps=40:norm=l2", "apgd_ce:steps=50:norm=l2"),  # on all images
}
KEPT = (1, 2, 4, 8, 16, 32, 64, 96)  # epochs; and the last
DEVIATIONS = {"tiny": (0.0, 0.05), "small": (0.0, 0.02, 0.08, 0.32), "paper": (0.0, 0.02, 0.08, 0.32)}
# What stands in the way of more, from the evidence of this page at --scale=small.
LIMITS = (
    "What stands in the way of more. The rate: while it is near 0.03, the accuracy on training images stays near 53 %, "
    "and it rises only as the rate falls. Whether a lower one is better for long is not measured. Width: a fifth of "
    "the time at width 64 gives almost as much. Depth: no gain after 4 epochs. Images: the long net is certified for 3 "
    "points more of its training images. Time: from 10 to 36 CPU minutes, a doubling gives about 2 points."
)
AOL = "AOL's layers: fewer settings were tried than for orthogonal ones."
ROUNDED, TRAINED = "no noise, with a bound on the rounding of float32", "no noise, on training images"


def declare(dataset: str, scale: str) -> tuple[Table, ...]:
    """Declare the tables, on one page."""
    sets = SETS if dataset == "cifar10" else (dataset,)
    return (
        _by_radius(sets, scale),
        _along(dataset, scale),
        by_optimizer(dataset, scale, RADII[dataset][0]),
        *(by_choice(each, scale, CHOSEN_AT[each]) for each in sets if each in CHOSEN_AT),
        _with_noise(dataset, scale),
        _trained_with_noise(dataset, scale),
    )


def net_of(dataset: str, scale: str) -> Net:
    """Return the net of a data set that is trained for longest, with the epochs that are kept."""
    net = Net(dataset, "orthogonal_long" if dataset == "cifar10" else "orthogonal_none")
    return _kept(net, scale) if dataset in ("cifar10", "digits") else net


def _kept(net: Net, scale: str) -> Net:
    last = net.config(scale)["epochs"]
    return dataclasses.replace(net, epochs_kept=(*(epoch for epoch in KEPT if epoch < last), last))


def along_of(dataset: str, scale: str) -> dict[str, Net]:
    """Return the trainings whose epochs are judged, by label; those that keep no epochs are judged at their end."""
    nets = [net_of(dataset, scale)]
    if dataset == "cifar10":
        aol, short = Net(dataset, "certified_none").but(epochs=20), Net(dataset, "orthogonal_none")
        short = _kept(short.but(augmentation="flip"), scale)
        nets = [_kept(aol, scale), short, Net(dataset, "orthogonal_minutes"), *nets]
    return {_kind(net, scale): net for net in nets}


def _kind(net: Net, scale: str) -> str:
    """Return the name of a training in the table and the figure, such as "orthogonal, width 96, 116 epochs"."""
    config = net.config(scale)
    _, _, options = config["backbone"].partition(":")
    family = "AOL's layers" if net.variant.startswith("certified") else "orthogonal"
    return ", ".join([family, *([options.replace("=", " ")] if options else []), f"{config['epochs']} epochs"])


def _by_radius(sets: Sequence[str], scale: str) -> Table:
    rows = []
    for dataset in sets:
        for at in RADII[dataset]:
            net = Net(dataset, "orthogonal_far") if at == FAR.get(dataset) else net_of(dataset, scale)
            label = f"{TITLES[dataset]}, {at.replace(':', ' ')}"
            rows.append(Row(label, (net,), radius=at, part="certified"))
    every = ",".join(dict.fromkeys(at for dataset in sets for at in RADII[dataset]))
    on_all: dict[str, Any] = {"part": "certified_all", "certified": every}

    columns = [
        read.clean_expected(attack=ANY, **on_all),
        Reading("certified", certified, (ANY,), **on_all),
        Reading("certified, attacked images", certified, ATTACKS[scale], certified=every),
        Reading("left by attacks", _left, ATTACKS[scale], certified=every),
        *(Reading(name, _published(name), trains_only=True) for name in PUBLISHED),
    ]
    return Table(
        "Certificates of orthogonal nets",
        rows,
        columns,
        notes=[
            "Certified: all test images; l2, images in [0, 1]; in exact arithmetic: what float32 adds is below. "
            "Attacked: the first 100, each by the strongest of the attacks on it. None is below its certificate.",
            "MNIST at 1.58: a net that was trained for larger margins.",
            *_precision(scale),
            "AOL, LOT: small nets, a day on a GPU. All as published.",
        ],
        charts=[_draw(sets, scale)],
    )


def _left(site: Site) -> Cell:
    """Read what attacks leave; raise InputError where an image is below its certificate."""
    row = row_at(site, str(site.radius))
    if row["violations"]:
        raise InputError(f"expected no attack below a certificate, received {row['violations']} images below it")
    return Cell.of(row["attacked"])


def _published(name: str) -> Any:
    dataset, shares = PUBLISHED[name]
    return lambda site: Cell(shares.get(str(site.radius)) if site.net.dataset == dataset else None)


def _along(dataset: str, scale: str) -> Table:
    at = RADII[dataset][0]
    rows = [
        Row(f"{label}, epoch {epoch}", (dataclasses.replace(net, epoch=epoch) if net.epochs_kept else net,), radius=at)
        for label, net in along_of(dataset, scale).items()
        for epoch in net.epochs_kept or (net.config(scale)["epochs"],)
    ]
    options: dict[str, Any] = {"part": "certified_all", "certified": at}
    return Table(
        f"Along the training: {TITLES[dataset]}, {at.replace(':', ' ')}",
        rows,
        [
            Reading("CPU minutes", lambda site: Cell(text=f"{cpu_seconds(site) / 60:.1f}"), trains_only=True),
            read.clean_expected(attack=ANY, **options),
            Reading("certified", certified, (ANY,), **options),
        ],
        notes=[
            "The rate falls to 0 at the last epoch. Two idle cores give two CPU minutes in a minute.",
            *(
                ["AOL's layers: fewer settings were tried than for orthogonal ones.", LIMITS]
                if dataset == "cifar10"
                else []
            ),
            *_precision(scale, " The 12 epochs: in float32."),
        ],
    )


def _precision(scale: str, but: str = "") -> list[str]:
    return [] if scale == "tiny" else [f"Trained in mixed_bfloat16; the nets answer in float32.{but}"]


def _with_noise(dataset: str, scale: str) -> Table:
    at = RADII[dataset][0]
    net = net_of(dataset, scale)
    labels = [ROUNDED, TRAINED, *(f"deviation {value:g}" for value in DEVIATIONS[scale])]
    rows = [Row(label, (net,), radius=at) for label in labels]

    def cell(place: int) -> Any:
        def of(site: Site) -> Cell:
            own = site.study.evidence.own("orthogonal", site.net)
            if own is None:
                raise Missing(f"noise on {site.net.name(site.study.scale)}")
            if site.label in (ROUNDED, TRAINED):
                value = own["rounding"]["certified"] if site.label == ROUNDED else own["trained_on"]
                return Cell(text="–") if place else Cell(value)
            found = next(each for each in own["deviations"] if f"deviation {each[0]:g}" == site.label)
            return Cell(found[1 + place])

        return of

    return Table(
        f"Rounding, and noise on the features of the trained net: {TITLES[dataset]}, {at.replace(':', ' ')}",
        rows,
        [Reading(name, cell(place), trains_only=True) for place, name in enumerate(BOUNDS.values())],
        notes=[
            "Training images: 10,000, as they are.",
            "The bound on rounding is far above what rounding does. Noise: isotropic.",
            "C1: the attacker sees the draw. C2: not. Certified: the larger of the two for each image.",
        ],
    )


def _trained_with_noise(dataset: str, scale: str) -> Table:
    nets = [
        (dataset, "isotropic"),
        (dataset, "anisotropic"),
        *([("mnist", "isotropic")] if dataset == "cifar10" else []),
    ]
    rows = [
        Row(f"{TITLES[name]}, {kind}, {at.replace(':', ' ')}", (Net(name, f"orthogonal_{kind}"),), radius=at)
        for name, kind in nets
        for at in RADII[name][:2]
    ]
    every = ",".join(dict.fromkeys(row.radius for row in rows))
    on_all: dict[str, Any] = {"part": "certified_all", "certified": every}

    def bound(key: str) -> Any:
        return lambda site: Cell.of(row_at(site, str(site.radius))[key])

    return Table(
        "Nets trained with WCA's noise",
        rows,
        [
            read.clean_expected(attack=ANY, **on_all),
            *(Reading(name, bound(key), (ANY,), **on_all) for key, name in BOUNDS.items()),
            Reading("certified, attacked images", certified, ATTACKS[scale], part="certified", certified=every),
            Reading("left by attacks", _left, ATTACKS[scale], part="certified", certified=every),
        ],
        notes=[
            "By the constraint in place of the penalty. Noise off: the certificate of the same net without its noise."
        ],
    )


def measure(study: Study, dataset: str) -> None:
    """Write what noise on the features of the trained net would add, and attack it where the draw is known.

    Raises:
        InputError: an attack went below a certificate.
    """
    for each in SETS if dataset == "cifar10" else (dataset,):
        if each in CHOSEN_AT:
            measure_choices(study, each, CHOSEN_AT[each])
    net = net_of(dataset, study.scale)
    study.engine.provide([Need(net)])
    if study.evidence.own("orthogonal", net) is not None or (directory := study.engine.trained(net)) is None:
        return
    at, bounds = RADII[dataset][0], Bounds.of(study, directory)
    bounds.check([at], KNOWING[study.scale])
    found = [[value, *bounds.with_deviation(value, at)] for value in DEVIATIONS[study.scale]]
    [trained_on, *_] = Bounds.of(study, directory, "train").with_deviation(0.0, at)
    numbers = {"deviations": found, "rounding": bounds.rounding(at), "trained_on": trained_on}
    study.evidence.add_own("orthogonal", numbers, net)


def _draw(sets: Sequence[str], scale: str) -> Any:
    """Return the figure: certified accuracy and attacks by radius, beside what others publish."""

    def draw(filled: Filled) -> Figure:
        figure, axes = panels(len(sets) + 1, 3.6)
        for axis, dataset in zip(axes[1:], sets, strict=True):
            rows = [row for row in filled.table.rows if row.label.startswith(f"{TITLES[dataset]}, ")]
            series = {  # also those without points, so that each has one colour in all panels
                column.name: [
                    (_number(row.radius), value)
                    for row in rows
                    if (value := filled.cells[row.label][column.name].value) is not None
                ]
                for column in filled.table.columns[1:]
            }
            curves(axis, series, TITLES[dataset], "l2 radius")
        trainings: dict[str, list[tuple[float, float]]] = {}
        for label, cells in filled.study.fill(_along(sets[0], scale)).cells.items():
            if cells["certified"].value is not None:
                point = float(cells["CPU minutes"].text), cells["certified"].value
                trainings.setdefault(label.rpartition(",")[0], []).append(point)
        curves(axes[0], trainings, TITLES[sets[0]], "CPU minutes of training")
        axes[0].set_xscale("log")
        plain_numbers(axes[0].xaxis)
        axes[0].legend(loc="lower right", frameon=False, fontsize="small")
        shown = {
            label: line for axis in axes[1:] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=6, frameon=False)
        return figure

    return draw


def _number(radius: str) -> float:
    top, _, bottom = radius.partition(":")[2].partition("/")
    return float(top) / float(bottom or 1)
