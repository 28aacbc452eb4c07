"""The evidence of the study: what each attack left of each image of each net, and how each net was trained.

evidence/
    trainings.jsonl    a line for each training: its settings, its epochs, its seconds, and the machine
    NET/PART.zip       an evaluation with the numbers of each image, as `Evaluation.save` writes it
    own/NAME.json      the numbers of an experiment that has no attacks on images
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
from pathlib import Path
from typing import Any

import wca_tf
from reproduce.nets import Net
from wca_tf import InputError, parse_attack

DIGITS = 6  # of the numbers of epochs


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A folder of evidence, of one scale."""

    folder: Path
    scale: str

    def training(self, net: Net) -> dict[str, Any] | None:
        """Return the line of a net's training; `None` where it has none.

        The line has "net", "config", "epochs" (the metrics of each), "best" (the epoch that is judged), "diverged",
        "seconds", "machine" and "versions".
        """
        return self.trainings.get(net.training(self.scale))

    @functools.cached_property
    def trainings(self) -> dict[str, dict[str, Any]]:
        """The lines of all trainings, by the name of the training."""
        path = self.folder / "trainings.jsonl"
        if not path.exists():
            return {}
        try:
            return {line["net"]: line for line in map(json.loads, path.read_text().splitlines())}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"expected a JSON object with a net in each line of {path}: {error}") from None

    def add_training(self, net: Net, directory: wca_tf.ModelDirectory, diverged: bool = False) -> None:
        """Write the line of a training."""
        epochs = [{name: _rounded(value) for name, value in line.items()} for line in directory.read_metrics()]
        line = {
            "net": net.training(self.scale),
            "config": json.loads(json.dumps(net.config(self.scale))),
            "diverged": diverged,
            "best": None if diverged else int(directory.best_epoch()["epoch"]),
            "seconds": round(sum(line.get("seconds", 0.0) for line in epochs)),
            "machine": machine(),
            "versions": directory.read_config()["versions"] if directory.config.exists() else {},
            "epochs": epochs,
        }
        self.trainings[line["net"]] = line
        lines = [json.dumps(self.trainings[name]) for name in sorted(self.trainings)]
        _write(self.folder / "trainings.jsonl", "\n".join(lines) + "\n")

    def evaluation(self, net: Net, part: str) -> wca_tf.Evaluation | None:
        """Return a part of a net's evaluation; `None` where it has none."""
        return _read(self._path(net, part))

    def add_evaluation(self, net: Net, part: str, evaluation: wca_tf.Evaluation) -> None:
        """Write a part of a net's evaluation."""
        path = self._path(net, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        evaluation.save(path)
        _read.cache_clear()

    def own(self, name: str) -> Any:
        """Return the numbers of an experiment of its own; `None` where it has none."""
        path = self.folder / "own" / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def add_own(self, name: str, numbers: Any) -> None:
        """Write the numbers of an experiment of its own."""
        _write(self.folder / "own" / f"{name}.json", json.dumps(numbers, allow_nan=False) + "\n")

    def is_trained(self, net: Net) -> bool:
        """Return whether the training of a net, by today's settings, has a line."""
        line = self.training(net)
        return line is not None and _comparable(line["config"]) == _comparable(net.config(self.scale))

    def parts(self, net: Net) -> list[str]:
        """Return the parts of a net's evaluation that there are."""
        return sorted(path.stem for path in (self.folder / net.name(self.scale)).glob("*.zip"))

    def has(self, net: Net, part: str, attack: str, radius: str | None, certified: str = "") -> bool:
        """Return whether there is a net's outcome of an attack, by today's version of the attack."""
        evaluation = self.evaluation(net, part)
        if certified and evaluation and "certificates" not in evaluation.results:
            return False
        try:
            found = evaluation.attack(attack, radius) if evaluation else None
        except InputError:
            return False
        return found is not None and found.config["algorithm"] == parse_attack(attack).version

    def _path(self, net: Net, part: str) -> Path:
        return self.folder / net.name(self.scale) / f"{part}.zip"


@functools.cache
def _read(path: Path) -> wca_tf.Evaluation | None:
    return wca_tf.Evaluation.read(path) if path.exists() else None


def machine() -> str:
    """Return the processor and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        lines = []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that say what is trained: a machine may compute in another precision."""
    return {name: value for name, value in json.loads(json.dumps(config)).items() if name != "precision"}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _write(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)
