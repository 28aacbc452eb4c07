"""Appendix B: learning rate and weight decay by grid search, on the validation images."""

import dataclasses
import math
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from wca_tf.core.errors import DivergedError
from wca_tf.experiments.charts import panels, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import CHOSEN, NETS
from wca_tf.experiments.run import Run
from wca_tf.experiments.settings import train_changes
from wca_tf.experiments.tables import Table
from wca_tf.gaussian.intervals import Number
from wca_tf.runs.model_dir import ModelDirectory

GRID = {"tiny": (1e-2, 1e-3), "small": (1e-1, 1e-2, 1e-3, 1e-4), "paper": (1e-1, 1e-2, 1e-3, 1e-4)}
SMALL: dict[str, Any] = {"epochs": 4, "max_train_examples": 20_000, "validation_split": 0.1, "batch_size": 128}
CHANGES: dict[str, dict[str, Any]] = {"tiny": {"epochs": 1}, "small": SMALL, "paper": {}}
# z-margin at a radius at which something is left: PGD alone may prefer a pair only because its gradients vanish.
MEASURED = ("clean", "pgd 8/255", "z_margin 1/255")


def reproduce(run: Run) -> Table:
    """Return a table with a row per learning rate, and columns per weight decay; write it as a heat map.

    A column has the accuracy on the validation images: clean, under PGD, or under z-margin.
    """
    [dataset] = run.datasets
    changes, grid = CHANGES[run.config.scale], GRID[run.config.scale]
    table = Table(f"Grid search on {dataset}: appendix B of the paper", [])
    found: dict[tuple[float, float], list[float] | None] = {}
    for rate in grid:
        for decay in grid:
            setting: dict[str, Any] = {
                "learning_rate": rate,
                "defence": _with_decay(run.net(dataset, "anisotropic").defence, decay),
            }
            net = dataclasses.replace(run.net(dataset, "anisotropic"), **setting, **changes)
            fill = partial(_add_cells, run, dataset, rate, decay, {**setting, **changes})
            found[rate, decay] = kept_rows(run, table, f"{rate:g} {decay:g}", [net], fill, MEASURED)
    papers_rate = train_changes(dataset, "anisotropic", "paper")["learning_rate"]  # the grid's rates are no difference
    table.notes = run.notes(dataset, NETS[1:], ["pgd"], split="validation", learning_rate=papers_rate, **changes)
    table.notes.append("a short search finds the best setting for short runs")
    table.notes.append(f"{MEASURED[0]}: all validation images, the best of a run's epochs; z_margin: expected accuracy")
    best = max((pair for pair, values in found.items() if values), key=lambda pair: found[pair] or [], default=None)
    if best:
        table.notes.append(f"best on clean images: learning rate {best[0]:g}, weight decay {best[1]:g}")
    if dataset in CHOSEN:
        rate, decay = CHOSEN[dataset]
        table.notes.append(f"the paper's choice: learning rate {rate:g}, weight decay {decay:g}")
    _draw(run, dataset, grid, found)
    return table


def _with_decay(defence: str, decay: float) -> str:
    """Return a defence as in `--defence`, with this weight decay of the classifier and the noise."""
    name, _, options = defence.partition(":")
    return ":".join([name, f"weight_decay={decay:g}", *([options] if options else [])])


def _add_cells(
    run: Run, dataset: str, rate: float, decay: float, changes: dict[str, Any], table: Table
) -> list[float] | None:
    """Train a net and fill its cells; return its accuracy for each of `MEASURED`, `None` where training diverged."""
    row, columns = f"learning rate {rate:g}", f"weight decay {decay:g}"
    try:
        model_dir = run.trained(dataset, "anisotropic", **changes)
    except DivergedError:
        table.add(row, columns, text="diverged")
        return None
    accuracy = ModelDirectory(model_dir).best_epoch()["val_accuracy"]
    under_pgd = run.evaluated_at(model_dir, ["pgd"], split="validation").number("pgd", 8 / 255)
    weak = run.evaluated_at(model_dir, ["z_margin"], "1/255", split="validation")
    under_z_margin = weak.number("z_margin", 1 / 255, "expected_accuracy")
    table.add(row, columns, Number(value=accuracy))
    for column, number in zip(MEASURED[1:], (under_pgd, under_z_margin), strict=True):
        table.add(row, f"{columns}, {column}", number)
    return [accuracy, under_pgd["value"], under_z_margin["value"]]


def _draw(
    run: Run, dataset: str, grid: tuple[float, ...], found: dict[tuple[float, float], list[float] | None]
) -> None:
    """Draw a heat map for each of `MEASURED`: learning rates down, weight decays across."""
    figure, axes = panels(len(MEASURED), 4.2, 3.8, label="learning rate", shared=False)
    for number, (axis, title) in enumerate(zip(axes, MEASURED, strict=True)):
        axis.set(title=f"{title}, {dataset}", xlabel="weight decay")
        _heat_map(axis, grid, {pair: 100 * values[number] for pair, values in found.items() if values})
    save(figure, run.report_dir, "grid_search")


def _heat_map(axis: Axes, grid: tuple[float, ...], percent: dict[tuple[float, float], float]) -> None:
    """Draw accuracies in %, a square for each pair (rate, decay); a pair without one says that it diverged."""
    shown = [[percent.get((rate, decay), float("nan")) for decay in grid] for rate in grid]
    axis.imshow(shown, vmin=0, vmax=100, cmap="viridis")
    names = [f"{value:g}" for value in grid]
    axis.set_xticks(range(len(grid)), names)
    axis.set_yticks(range(len(grid)), names)
    for y, row in enumerate(shown):
        for x, value in enumerate(row):
            text = "diverged" if math.isnan(value) else f"{value:.1f}"
            axis.text(x, y, text, ha="center", va="center", color="white" if value < 60 else "black", fontsize=8)
