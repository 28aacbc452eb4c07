"""The index of `bin/reproduce --experiment=all`: a page with every experiment's table and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wca_tf.evaluation.report.page import render
from wca_tf.experiments import EXPERIMENTS
from wca_tf.experiments.config import ReproduceConfig
from wca_tf.experiments.tables import load_table


def index_page(directory: Path, asked: Mapping[str, ReproduceConfig], states: Mapping[str, str]) -> str:
    """Return the page in HTML: what became of each experiment, then the tables and figures that are there.

    Args:
        directory: has a directory for each experiment.
        asked: the name of each directory -> its experiment; all have one scale.
        states: the name of a directory -> "done", or why it failed or was skipped; others are still to come.
    """
    described = [_described(name, one, directory / name, states.get(name, "to come")) for name, one in asked.items()]
    scale = next(one.scale for one in asked.values())
    done = sum(one["state"] == "done" for one in described)
    return render("experiments.html.j2", experiments=described, scale=scale, done=done)


def _described(name: str, asked: ReproduceConfig, directory: Path, state: str) -> dict[str, Any]:
    table = load_table(directory)
    return {
        "name": name,
        "about": EXPERIMENTS[asked.experiment],
        "state": state,
        "table": table,
        "rows": table.texts() if table else [],
        "figures": sorted(path.name for path in directory.glob("*.svg")) if table else [],
    }
