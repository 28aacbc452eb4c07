"""The evidence of the study: what each attack left of each image of each net, and how each net was trained.

evidence/
    trainings.jsonl    a line for each training: its settings, its epochs, its seconds, and the machine
    NET/PART.zip       an evaluation with the numbers of each image, as `Evaluation.save` writes it
    own/NAME.json      the numbers of an experiment that has no attacks on images
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import wca_tf
from reproduce.budgets import PARTS
from reproduce.nets import Net
from wca_tf import InputError, parse_attack

DIGITS = 6  # of the numbers of epochs
KEYS = {"net", "config", "epochs", "best", "diverged", "models", "seconds", "machine"}  # of the line of a training


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A folder of evidence, of one scale."""

    folder: Path
    scale: str

    def training(self, net: Net) -> dict[str, Any] | None:
        """Return the line of a net's training; `None` where it has none.

        The line has "net", "config", "epochs" (the metrics of each), "best" (the epoch that is judged), "diverged",
        "models" (the SHA-256 of the nets that it left, by name), "seconds", "machine" and "versions".
        """
        return self.trainings.get(net.training(self.scale))

    @functools.cached_property
    def trainings(self) -> dict[str, dict[str, Any]]:
        """The lines of all trainings, by the name of the training."""
        return self._lines()

    def _lines(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "trainings.jsonl"
        try:
            lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        except ValueError as error:
            raise InputError(f"expected JSON in each line of {path}: {error}") from None
        if not all(isinstance(line, dict) and line.keys() >= KEYS for line in lines):
            raise InputError(f"expected a training with {', '.join(sorted(KEYS))} in each line of {path}")
        return {line["net"]: line for line in lines}

    def add_training(self, net: Net, directory: wca_tf.ModelDirectory, diverged: bool = False) -> None:
        """Write the line of a training."""
        epochs = [{name: _rounded(value) for name, value in line.items()} for line in directory.read_metrics()]
        line = {
            "net": net.training(self.scale),
            "config": json.loads(json.dumps(net.config(self.scale))),
            "diverged": diverged,
            "models": {} if diverged else _digests(net, self.scale, directory),
            "best": None if diverged else int(directory.best_epoch()["epoch"]),
            "seconds": round(sum(line.get("seconds", 0.0) for line in epochs)),
            "machine": machine(),
            "versions": directory.read_config()["versions"] if directory.config.exists() else {},
            "epochs": epochs,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another run may have added lines
            self.trainings.update({**self._lines(), line["net"]: line})
            lines = [json.dumps(self.trainings[name]) for name in sorted(self.trainings)]
            write_text(self.folder / "trainings.jsonl", "\n".join(lines) + "\n")

    def evaluation(self, net: Net, part: str) -> wca_tf.Evaluation | None:
        """Return a part of a net's evaluation; `None` where it has none, or where it is of other weights."""
        found, line = self.stored(net, part), self.training(net)
        if found is None or line is None:
            return None
        return found if found.described["model"]["sha256"] == line["models"].get(net.name(self.scale)) else None

    def stored(self, net: Net, part: str) -> wca_tf.Evaluation | None:
        """Return a part of a net's evaluation, of whatever weights; `None` where there is none."""
        return _read(self._path(net, part))

    def add_evaluation(self, net: Net, part: str, evaluation: wca_tf.Evaluation) -> None:
        """Write a part of a net's evaluation."""
        path = self._path(net, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        evaluation.save(path)
        _read.cache_clear()

    def own(self, name: str, net: Net | None = None) -> Any:
        """Return the numbers of an experiment of its own, of a net; `None` where it has none of today's weights."""
        path = self._own_path(name, net)
        found = json.loads(path.read_text()) if path.exists() else {}
        return found.get("numbers") if found.get("model") == self._digest(net) else None

    def add_own(self, name: str, numbers: Any, net: Net | None = None) -> None:
        """Write the numbers of an experiment of its own."""
        contents = {"model": self._digest(net), "numbers": numbers}
        write_text(self._own_path(name, net), json.dumps(contents, allow_nan=False) + "\n")

    def _own_path(self, name: str, net: Net | None) -> Path:
        return self.folder / "own" / (f"{name}-{net.name(self.scale)}.json" if net else f"{name}.json")

    def _digest(self, net: Net | None) -> str | None:
        line = self.training(net) if net else None
        return line["models"].get(net.name(self.scale)) if net and line else None

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
        if evaluation is None or not _measures(evaluation, part, certified) <= evaluation.results.keys():
            return False
        try:
            found = evaluation.attack(attack, radius)
        except InputError:
            return False
        return bool(found.config["algorithm"] == parse_attack(attack).version)

    def _path(self, net: Net, part: str) -> Path:
        return self.folder / net.name(self.scale) / f"{part}.zip"


@functools.cache
def _read(path: Path) -> wca_tf.Evaluation | None:
    return wca_tf.Evaluation.read(path) if path.exists() else None


def _measures(evaluation: wca_tf.Evaluation, part: str, certified: str) -> set[str]:
    """Return the names of the measures that a part needs; those of the noise are not of a net without it."""
    options, noisy = PARTS[part], evaluation.described["has_noise"]
    asked = {
        "noise_off": noisy and options.get("noise_off", True),
        "checklist": "checklist" in options,
        "certificates": bool(certified),
    }
    return {name for name, is_asked in asked.items() if is_asked}


def _digests(net: Net, scale: str, directory: wca_tf.ModelDirectory) -> dict[str, str]:
    """Return the SHA-256 of the nets that a training left, by name: of its best epoch, and of those that it kept."""
    nets = {net.training(scale): directory.best}
    nets |= {f"{net.training(scale)}-epoch={epoch}": directory.snapshot(epoch).best for epoch in net.epochs_kept}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in nets.items() if path.exists()}


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


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.replace(path)
