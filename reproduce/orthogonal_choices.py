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
EPOCHS = {"tiny": 1, "small": 4, "paper": 20}
# Each changes one setting of the first.
BASELINE = "width 64, 2 blocks, flips"
CHOICES: dict[str, Changes] = {
    BASELINE: {},
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
}


def by_optimizer(dataset: str, scale: str, at: str) -> Table:
    """Declare what the manifold and the sign give, each with its own rate."""
    rows = []
    for label, (variant, rates) in OPTIMIZERS.items():
        net = Net(dataset, variant).but(epochs=1, validation_split=0.1, **FEWER[scale])
        nets = tuple(net.but(learning_rate=rate) for rate in rates)
        rows.append(Row(label, (Chosen(nets, _most_accurate),), radius=at))
    options: dict[str, Any] = {"part": "certified_all", "certified": at}
    return Table(
        f"What helps: one epoch of {TITLES[dataset]}, {at.replace(':', ' ')}",
        rows,
        [
            Reading("rate", lambda site: Cell(text=f"{dict(site.net.changes)['learning_rate']:g}"), trains_only=True),
            Reading("CPU seconds", lambda site: Cell(text=f"{cpu_seconds(site):.0f}"), trains_only=True),
            read.clean_expected(attack=ANY, **options),
            Reading("certified", certified, (ANY,), **options),
        ],
        notes=[
            "The rate: of four, the one with the best accuracy on validation images.",
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
    own: Changes = {"backbone": "orthogonal_net", "augmentation": "flip", "validation_split": 0.1}
    net = Net(dataset, "orthogonal_long").but(**own, epochs=EPOCHS[scale])
    return {label: net.but(**changes) for label, changes in CHOICES.items()}


def by_choice(dataset: str, scale: str, at: str) -> Table:
    """Declare what single settings give, by validation images."""

    def share(key: str) -> Any:
        def of(site: Site) -> Cell:
            own = site.study.evidence.own(OWN, site.net)
            if own is None:
                raise Missing(f"validation images of {site.net.name(site.study.scale)}")
            return Cell(own[key])

        return of

    return Table(
        f"Settings by validation images: {TITLES[dataset]}, {at.replace(':', ' ')}, {EPOCHS[scale]} epochs",
        [Row(label, (net,), radius=at) for label, net in nets_of_choices(dataset, scale).items()],
        [
            Reading("CPU minutes", lambda site: Cell(text=f"{cpu_seconds(site) / 60:.1f}"), trains_only=True),
            Reading("certified", share("validation"), trains_only=True),
            Reading("training images", share("train"), trains_only=True),
        ],
        notes=[
            "Each row changes one setting of the first. Chance moves 5,000 validation images by about 1.4 points; of "
            "two nets on the same images, by less.",
        ],
        baseline=BASELINE,
    )


def measure_choices(study: Study, dataset: str, at: str) -> None:
    """Write the certified accuracy of the nets of `by_choice`, on validation and on training images."""
    for net in nets_of_choices(dataset, study.scale).values():
        study.engine.provide([Need(net)])
        if study.evidence.own(OWN, net) is not None or (directory := study.engine.trained(net)) is None:
            continue
        shares = {split: Bounds.of(study, directory, split).with_deviation(0.0, at)[0] for split in SPLITS}
        study.evidence.add_own(OWN, shares, net)


SPLITS = ("validation", "train")
