"""Certificates of nets with orthogonal layers: by radius, along the training, on training images; and the figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from reproduce import readings as read
from reproduce.certificates import certified, in_float32, left, votes
from reproduce.charts import curves, panels, plain_numbers
from reproduce.engine import Need
from reproduce.image_bounds import Bounds
from reproduce.nets import SEEDS, TITLES, Net
from reproduce.orthogonal_choices import ANY, by_choice, by_optimizer, cpu_seconds, measure_choices
from reproduce.orthogonal_nets import ATTACKS, RADII, SETS, along_of, net_of, trained_longest
from reproduce.orthogonal_noise import after_training, measure_noise, with_training
from reproduce.study import Study
from reproduce.tables import Cell, Filled, Missing, Reading, Row, Site, Table

CHOSEN_AT = {"digits": ("l2:0.1",), "cifar10": ("l2:36/255",), "mnist": ("l2:0.3", "l2:1.58")}
FAR = {"mnist": "l2:1.58"}  # radii that a net is trained for that has larger margins
# Certified accuracy on all test images that others publish, as shares: AOL's and LOT's small nets (Prach et al., 2024),
# and GloRo (Leino et al., 2021).
PUBLISHED = {
    "AOL": ("cifar10", {"l2:36/255": 0.591, "l2:72/255": 0.452, "l2:108/255": 0.324, "l2:1.0": 0.039}),
    "LOT": ("cifar10", {"l2:36/255": 0.635, "l2:72/255": 0.492, "l2:108/255": 0.361, "l2:1.0": 0.044}),
    "GloRo": ("mnist", {"l2:0.3": 0.957, "l2:1.58": 0.628}),
}
TRAINED_ON = "orthogonal_trained_on"  # the name of the evidence
# What stands in the way of more, from the evidence of this page at --scale=small.
LIMITS = (
    "What stands in the way of more. Too few images: 180 epochs from a rate of 0.01 certify 1.3 points more of the "
    "training images than 116 from 0.03, and 0.1 more of the test images, which is less than seeds differ by. A high "
    "rate: in training, the accuracy falls to 53 % at 0.03, stays near 60 % at 0.01, and rises again only as the rate "
    "falls. Width and depth: little or nothing after 4 epochs."
)
# From the evidence "orthogonal" of the net of CIFAR-10.
ROUNDING = " (of features on CIFAR-10: 0.049 on average; 2.0e-6 was measured)"
AOL = "AOL's layers: by Adam, with crops of 4 pixels and batches of 128; fewer settings were tried than for the others."


def declare(dataset: str, scale: str) -> tuple[Table, ...]:
    """Declare the tables, on one page."""
    sets = SETS if dataset == "cifar10" else (dataset,)
    return (
        _by_radius(sets, scale),
        _along(dataset, scale),
        _of_seeds(dataset, scale),
        _on_training_images(dataset, scale),
        by_optimizer(dataset, scale, RADII[dataset][0]),
        *(by_choice(each, scale, CHOSEN_AT[each]) for each in sets if each in CHOSEN_AT),
        after_training(dataset, scale),
        with_training(dataset, scale),
        votes(dataset, scale, ("l2",)),
    )


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
        Reading("certified in float32", in_float32, (ANY,), **on_all),
        Reading("certified, attacked images", certified, ATTACKS[scale], certified=every),
        Reading("left by attacks", left, ATTACKS[scale], certified=every),
        *(Reading(name, _published(name), trains_only=True) for name in PUBLISHED),
    ]
    return Table(
        "Certificates of orthogonal nets",
        rows,
        columns,
        notes=[
            "Certified: all test images, in exact arithmetic; radii are of images in [0, 1]. In float32: a bound on "
            f"rounding is subtracted{ROUNDING if 'cifar10' in sets else ''}.",
            "Attacked: the first 100, each by the strongest of the attacks on it. None is below its certificate.",
            "MNIST at 1.58: a net that was trained for larger margins.",
            "The nets answer in float32.",
            "AOL, LOT: small nets, a day on a GPU. All as published.",
        ],
        charts=[_draw(sets, scale)],
    )


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
            "The rate falls to 0 at the last epoch.",
            *([AOL] if dataset == "cifar10" else []),
        ],
    )


def _of_seeds(dataset: str, scale: str) -> Table:
    """Declare what another seed changes, by radius."""
    nets, radii = tuple(Net(dataset, "orthogonal_minutes").of_seed(seed) for seed in SEEDS), RADII[dataset]
    options: dict[str, Any] = {"part": "certified_all", "certified": ",".join(radii)}
    return Table(
        f"Seeds: {TITLES[dataset]}, {nets[0].config(scale)['epochs']} epochs",
        [Row(at.replace(":", " "), nets, radius=at) for at in radii],
        [
            read.clean_expected(attack=ANY, **options),
            Reading("certified", certified, (ANY,), **options),
            Reading("certified in float32", in_float32, (ANY,), **options),
        ],
    )


def _on_training_images(dataset: str, scale: str) -> Table:
    at = RADII[dataset][0]

    def trained_on(site: Site) -> Cell:
        own = site.study.evidence.own(TRAINED_ON, site.net)
        if own is None:
            raise Missing(f"training images of {site.net.name(site.study.scale)}")
        return Cell(own[at])

    return Table(
        f"On training images: {TITLES[dataset]}, {at.replace(':', ' ')}",
        [Row(label, (net,), radius=at) for label, net in trained_longest(dataset, scale).items()],
        [
            Reading("certified", certified, (ANY,), part="certified_all", certified=at),
            Reading("training images", trained_on, trains_only=True),
        ],
        notes=["Training images: 10,000, without augmentation.", *([LIMITS] if dataset == "cifar10" else [])],
    )


def measure(study: Study, dataset: str) -> None:
    """Write what settings give by validation images, and what rounding and noise do to the trained net.

    Raises:
        InputError: an attack went below a certificate.
    """
    for each in SETS if dataset == "cifar10" else (dataset,):
        if each in CHOSEN_AT:
            measure_choices(study, each, CHOSEN_AT[each])
    at = RADII[dataset][0]
    for net in trained_longest(dataset, study.scale).values():
        study.engine.provide([Need(net)])
        if study.evidence.own(TRAINED_ON, net) is None and (directory := study.engine.trained(net)) is not None:
            [share, *_] = Bounds.of(study, directory, "train").with_deviation(0.0, at)
            study.evidence.add_own(TRAINED_ON, {at: share}, net)
    measure_noise(study, dataset)


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
        axes[0].legend(loc="upper left", frameon=False, fontsize="small")
        shown = {
            label: line for axis in axes[1:] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=7, frameon=False)
        return figure

    return draw


def _number(radius: str) -> float:
    top, _, bottom = radius.partition(":")[2].partition("/")
    return float(top) / float(bottom or 1)
