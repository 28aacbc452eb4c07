"""What helps nets of orthogonal layers: the optimizer; and by validation images the shape, the loss and the images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reproduce import readings as read
from reproduce.certificates import certified
from reproduce.engine import Need
from reproduce.image_bounds import Bounds
from reproduce.nets import TITLES, Changes, Net
from reproduce.study import Study
from reproduce.tables import Cell, Chosen, Missing, Reading, Row, Site, Table

OWN = "orthogonal_choice"  # the name of the evidence
ANY = "fgsm:norm=l2"  # an evaluation has an attack at least
# By optimizer: the variant, and the rates of which that with the best accuracy on validation images is taken.
OPTIMIZERS = {
    "manifold and Muon's sign": ("orthogonal_none", (0.015, 0.03, 0.06, 0.12)),
    "manifold without the sign": ("orthogonal_nesterov", (3e-3, 1e-2, 3e-2, 1e-1)),
    "Adam and retraction": ("orthogonal_adam", (1e-3, 3e-3, 1e-2, 3e-2)),
}
FEWER = {"tiny": {}, "small": {"max_train_examples": 20_000}, "paper": {}}  # images of the table of optimizers
EPOCHS = {"tiny": 2, "small": 4, "paper": 20}
SPLITS = ("validation", "train")
HOW_CHOSEN = (
    "Rows differ from the first in what they name. Trained on nine tenths of the images, judged on the others: half of "
    "an interval is 1.4 points at most.",
    "The nets above were chosen by earlier such runs, which are not kept.",
)
# Each changes one setting of the first, whose label says its own.
CHOICES: dict[str, dict[str, Changes]] = {
    "cifar10": {
        "width 64, 2 blocks, flips, margin radius 0.2": {},
        "width 96": {"backbone": "orthogonal_net:width=96"},
        "4 blocks": {"backbone": "orthogonal_net:blocks=4"},
        "no flips": {"augmentation": "none"},
        "crops, 2 pixels": {"augmentation": "translate_flip"},
        "temperature 0.125": {"temperature": 0.125},
        "256 features in the head": {"defence": "none:feature_dim=256"},
        "margin radius 0.14": {"margin_radius": 0.14},
        "margin radius 0.28": {"margin_radius": 0.28},
        "rate 0.015": {"learning_rate": 0.015},
        "batch 128": {"batch_size": 128},
    },
    "mnist": {
        "width 64, 2 blocks, margin radius 0.4": {},
        "margin radius 0.6": {"margin_radius": 0.6},
        "margin radius 1.6": {"margin_radius": 1.6},
        "margin radius 2.5": {"margin_radius": 2.5},
        "margin radius 1.6, width 128": {"margin_radius": 1.6, "backbone": "orthogonal_net:width=128"},
    },
}
_FIRST, *_, _LAST = CHOICES["cifar10"].items()
CHOICES["digits"] = dict([_FIRST, _LAST])


def by_optimizer(dataset: str, scale: str, at: str) -> Table:
    """Declare what the manifold and the sign give, each with its own rate."""
    rows = []
    for label, (variant, rates) in OPTIMIZERS.items():
        net = Net(dataset, variant).but(epochs=1, validation_split=0.1, **FEWER[scale])
        nets = tuple(net.but(learning_rate=rate) for rate in rates)
        rows.append(Row(label, (Chosen(nets, _most_accurate),), radius=at))
    options: dict[str, Any] = {"part": "certified_all", "certified": at}
    images = f"{FEWER[scale]['max_train_examples']:,}" if FEWER[scale] else "all"
    return Table(
        f"What helps: one epoch of {images} images of {TITLES[dataset]}, {at.replace(':', ' ')}",
        rows,
        [
            Reading("rate", lambda site: Cell(text=f"{dict(site.net.changes)['learning_rate']:g}"), trains_only=True),
            Reading("CPU seconds", lambda site: Cell(text=f"{cpu_seconds(site):.0f}"), trains_only=True),
            read.clean_expected(attack=ANY, **options),
            Reading("certified", certified, (ANY,), **options),
        ],
        notes=[
            "The rate: of four, the most accurate on validation images.",
            "Retraction: after each step of Adam the weights become the nearest orthogonal matrix.",
        ],
    )


def _most_accurate(sites: Sequence[Site]) -> int:
    return int(np.argmax([site.epoch["val_accuracy"] for site in sites]))


def cpu_seconds(site: Site) -> float:
    """Return the CPU time of a training up to the epoch that is judged."""
    last = site.net.epoch or len(site.training["epochs"])
    return float(sum(line["cpu_seconds"] for line in site.training["epochs"][:last]))


def nets_of_choices(dataset: str, scale: str) -> dict[str, Net]:
    """Return a net for each of `CHOICES`, by its label."""
    augmentation, variant = ("none", "orthogonal_none") if dataset == "mnist" else ("flip", "orthogonal_long")
    own: Changes = {"backbone": "orthogonal_net", "augmentation": augmentation, "validation_split": 0.1}
    net = Net(dataset, variant).but(**own, epochs=EPOCHS[scale])
    return {label: net.but(**changes) for label, changes in CHOICES[dataset].items()}


def by_choice(dataset: str, scale: str, radii: Sequence[str]) -> Table:
    """Declare what settings give, by validation images."""

    def share(split: str, at: str) -> Any:
        def of(site: Site) -> Cell:
            own = site.study.evidence.own(OWN, site.net)
            if own is None:
                raise Missing(f"validation images of {site.net.name(site.study.scale)}")
            return Cell(own[split][at])

        return of

    columns = [
        Reading(f"{name}, {at.replace(':', ' ')}", share(split, at), trains_only=True)
        for at in radii
        for split, name in zip(SPLITS, ("certified", "training images"), strict=True)
    ]
    nets = nets_of_choices(dataset, scale)
    return Table(
        f"Settings by validation images: {TITLES[dataset]}, {EPOCHS[scale]} epochs",
        [Row(label, (net,)) for label, net in nets.items()],
        [Reading("CPU minutes", lambda site: Cell(text=f"{cpu_seconds(site) / 60:.1f}"), trains_only=True), *columns],
        notes=HOW_CHOSEN if dataset != "mnist" else (),  # which stands above
        baseline=next(iter(nets)),
    )


def measure_choices(study: Study, dataset: str, radii: Sequence[str]) -> None:
    """Write the certified accuracy of the nets of `by_choice`, on validation and on training images."""
    for net in nets_of_choices(dataset, study.scale).values():
        study.engine.provide([Need(net)])
        if study.evidence.own(OWN, net) is not None or (directory := study.engine.trained(net)) is None:
            continue
        bounds = {split: Bounds.of(study, directory, split) for split in SPLITS}
        shares = {split: {at: each.with_deviation(0.0, at)[0] for at in radii} for split, each in bounds.items()}
        study.evidence.add_own(OWN, shares, net)
