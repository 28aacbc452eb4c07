"""The results' file: written whole after every cell, and taken up again by the next run of the same settings.

A section is of one machine; sections of several may stand in one file, each a run of its own.
"""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.suite.targets import verdicts
from benchmarks.suite.timing import machine_load
from wca_tf.core.errors import InputError
from wca_tf.core.files import read_json, write_json

SECTIONS = ("attacks", "training", "evaluation")
LIBRARIES = ("tensorflow", "keras", "numpy", "scipy")
PEERS = ("torch", "foolbox", "adversarial-robustness-toolbox", "torchattacks", "cleverhans")


class Results:
    """What has been measured so far.

    Attributes:
        values: the contents of the file; a section is {cell's name: what was measured}.
    """

    def __init__(self, path: Path, settings: dict[str, Any], peers: Path) -> None:
        """Raises InputError when the file is of other settings or versions."""
        self._path = path
        self._load = machine_load()
        described = {"settings": settings, "versions": versions(peers)}
        self.values: dict[str, Any] = described | {name: {} for name in ("machine", "agreement", *SECTIONS)}
        if path.exists():
            stored = read_json(path)
            for name, value in described.items():
                self._expect(name, value, stored.get(name))
            self.values |= stored
        path.parent.mkdir(parents=True, exist_ok=True)

    def begin(self, section: str) -> None:
        """Raises InputError when what the section has so far was measured on another machine."""
        here = machine()
        if not self.values[section]:
            self.values["machine"].setdefault(section, here)
        self._expect(f"machine in {section}", here, self.values["machine"].get(section))

    def _expect(self, name: str, expected: Any, received: Any) -> None:
        if received != expected:
            raise InputError(
                f"{self._path} is of other {name}: expected {expected}, received {received}; move it away, or name "
                "another --out"
            )

    def has(self, section: str, name: str) -> bool:
        return name in self.values[section]

    def add(self, section: str, name: str, measured: dict[str, Any]) -> None:
        """Keep what was measured, with the load it began under, and write the file."""
        self.values[section][name] = {**measured, "load_at_start": self._load}
        self.values["targets"] = verdicts(self.values)
        write_json(self._path, self.values)


def versions(peers: Path) -> dict[str, str]:
    """Return those of Python, of what wca_tf stands on, and of the peers as `peers` (peers.txt) pins them."""
    pins = dict(line.strip().split("==") for line in peers.read_text().splitlines() if "==" in line)
    ours = {name: metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), **ours, **{name: pins[name] for name in PEERS}}


def machine() -> dict[str, Any]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"processor": models[0].partition(": ")[2] if models else platform.machine(), "cores": os.cpu_count()}
