"""The engine: trains the nets and runs the attacks that readings need and the evidence lacks.

models_dir/
    NET/                a directory of bin/train
    NET/evidence/PART   the report of a part of its evaluation
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import wca_tf
from reproduce.budgets import CHECKLIST_TINY, part_options
from reproduce.evidence import Evidence
from reproduce.nets import FOLDER, Net
from wca_tf import EvaluateConfig, TrainConfig

_OFFICIAL = "reproduce.official"
LEAST_LEFT = 60  # seconds left that are worth a word


@dataclasses.dataclass(frozen=True)
class Need:
    """An outcome that a reading needs.

    Attributes:
        net: the net.
        part: the part of its evaluation, a key of `budgets.PARTS`.
        attack: the attack as written; empty where the training alone is needed.
        radius: as written, such as "8/255" or "l2:0.5"; `None` for an attack without a radius.
        certified: the radii to certify, as written.
    """

    net: Net
    part: str = "judged"
    attack: str = ""
    radius: str | None = None
    certified: str = ""


@dataclasses.dataclass
class Engine:
    """Trains, attacks, and writes evidence.

    Attributes:
        evidence: gains what is missing.
        models_dir: the directory of the nets.
        data: fields of a TrainConfig that say where the data are.
        mini_imagenet: the folder of mini-ImageNet.
        dry: whether to run nothing: tables are made of the evidence that there is.
        expected: the number of nets to train or to attack.
        begun: the names of those that were begun.
        seconds: the time that they took.
    """

    evidence: Evidence
    models_dir: Path
    data: dict[str, Any]
    mini_imagenet: str = ""
    dry: bool = False
    expected: int = 0
    begun: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def provide(self, needs: Iterable[Need]) -> None:
        """Train and attack until the evidence has all needs, one net after the other."""
        of_nets: dict[Net, list[Need]] = {}
        for need in () if self.dry else needs:
            of_nets.setdefault(need.net, []).append(need)
        missing = {net: each for net, each in of_nets.items() if not self.is_there(net, each)}
        self.expected = max(self.expected, len({*self.begun, *(net.name(self.evidence.scale) for net in missing)}))
        for net, each in missing.items():
            self._provide(net, each)

    def is_there(self, net: Net, needs: Sequence[Need]) -> bool:
        """Return whether the evidence has the needs of a net, by today's settings, weights and attacks."""
        line = self.evidence.training(net)
        if line is None or not self.evidence.is_trained(net):
            return False
        return line["diverged"] or all(
            self.evidence.has(net, need.part, need.attack, need.radius, need.certified) for need in needs if need.attack
        )

    def _provide(self, net: Net, needs: Sequence[Need]) -> None:
        begun = time.monotonic()
        self._announce(net.name(self.evidence.scale))
        directory = self.trained(net)
        if directory is not None:
            for part, asked in self._asked(net, needs, directory).items():
                self._attack(net, part, asked, directory)
        self.seconds += time.monotonic() - begun

    def _announce(self, name: str) -> None:
        """Print a heading for a net, with its place among all and the time left."""
        done = len(self.begun)
        if name not in self.begun:
            self.begun.append(name)
        left = (self.expected - done) * self.seconds / max(done, 1)
        words = f"; about {duration(left)} left" if left >= LEAST_LEFT else ""
        print(
            f"== net {self.begun.index(name) + 1} of {max(self.expected, len(self.begun))}: {name}{words}", flush=True
        )

    def trained(self, net: Net) -> wca_tf.ModelDirectory | None:
        """Return the directory of a net, trained first where it is not; `None` for one that diverges."""
        scale = self.evidence.scale
        config, path = net.config(scale), self.models_dir / net.training(scale)
        if source := net.starts_from(scale):
            if (started := self.trained(source)) is None:
                return None
            config["initial_weights"] = str(started.path)
        if config["dataset"].startswith(FOLDER):
            config["dataset"] = FOLDER + self.mini_imagenet
        directory = wca_tf.ModelDirectory(path)
        if directory.config.exists():  # maybe by a machine of another fast precision
            config["precision"] = directory.train_config().precision
        try:
            wca_tf.train(TrainConfig(strategy="one_device", **{**self.data, **config}), path, net.epochs_kept)
        except wca_tf.DivergedError as error:
            snapshot = directory.snapshot(net.epoch)
            if not (net.epoch and snapshot.last.exists()):
                print(f"{net.name(scale)}: {error}")
                self.evidence.add_training(net, directory, diverged=True)
                return None
        self.evidence.add_training(net, directory)
        return directory.snapshot(net.epoch) if net.epoch else directory

    def _asked(self, net: Net, needs: Sequence[Need], directory: wca_tf.ModelDirectory) -> dict[str, list[Need]]:
        """Return what to run, by part: the needs, and what the evidence of other weights has, which counts no more."""
        asked: dict[str, list[Need]] = {}
        for need in needs:
            if need.attack:
                asked.setdefault(need.part, []).append(need)
        for part in self.evidence.parts(net):
            old = self.evidence.stored(net, part)
            if old is not None and (part in asked or self.evidence.evaluation(net, part) is None):
                certified = ",".join(
                    f"{row['norm']}:{row['radius']!r}" for row in old.results.get("certificates", {}).get("rows", [])
                )
                asked.setdefault(part, []).extend(
                    Need(net, part, each.name, each.radius.text if each.radius else None, certified)
                    for each in old.attacks
                )
        return asked

    def _attack(self, net: Net, part: str, needs: Sequence[Need], directory: wca_tf.ModelDirectory) -> None:
        """Evaluate a part of a net, and write its evidence."""
        scale = self.evidence.scale
        at: dict[str, dict[str | None, None]] = {}
        for need in needs:
            at.setdefault(need.attack, {})[need.radius] = None
        groups: dict[tuple[str, ...], list[str]] = {}
        for attack, found in at.items():
            groups.setdefault(tuple(radius for radius in found if radius is not None), []).append(attack)
        report_dir = directory.path / "evidence" / part
        options = {
            **part_options(part, scale),
            "certified_radii": next((n.certified for n in needs if n.certified), ""),
        }
        searches = CHECKLIST_TINY if scale == "tiny" else {}
        evaluation = None
        for radii, attacks in groups.items():
            config = EvaluateConfig(
                attacks=",".join(attacks),
                epsilons=",".join(radii) or "8/255",
                strategy="one_device",
                tfds_data_dir=self.data["tfds_data_dir"],
                **options,
            )
            # A file names no module to import: only the declaration of the net does.
            modules = [_OFFICIAL] if net.config(scale)["defence"].startswith(_OFFICIAL) else []
            evaluation = wca_tf.evaluate_model_dir(config, directory.path, report_dir, modules, searches)
        if evaluation is not None:
            self.evidence.add_evaluation(net, part, evaluation)


def duration(seconds: float) -> str:
    """Return a time in words, rounded to seconds below a minute, and to minutes above.

    Examples:
        >>> duration(20), duration(59.7), duration(170), duration(7500)
        ('20 s', '1 min', '3 min', '2 h 5 min')
    """
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
