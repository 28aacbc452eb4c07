"""An evaluation as it is on disk."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

Radius = tuple[str, float]  # norm, epsilon


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A report directory as it is on disk.

    Attributes:
        path: the directory.
        results: the contents of results.json.
        arrays: the contents of examples.npz.
    """

    path: Path
    results: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def radii(self) -> list[Radius]:
        """The radii at which there are attacks."""
        return [(worst["norm"], worst["epsilon"]) for worst in self.results["worst_case"]]

    def attacks_at(self, radius: Radius) -> dict[str, dict[str, Any]]:
        """Return the attacks at a radius by an identity: the name and every option, as text.

        The precision of the net that an attack saw counts as one of its options.
        """
        shared = {"attack_precision": self.results["config"].get("attack_precision")}
        entries = [
            {**entry, "config": {**entry["config"], **shared}}
            for entry in self.results["attacks"]
            if (entry["norm"], entry["epsilon"]) == radius
        ]
        return {json.dumps([entry["name"], entry["config"]], sort_keys=True): entry for entry in entries}
