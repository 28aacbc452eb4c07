"""Forms of the alignment term: where each puts the noise, and what it leaves under attack."""

import dataclasses
import itertools
from functools import partial
from pathlib import Path
from typing import Any

from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments.charts import legend, panels, save
from wca_tf.experiments.judged import RADIUS, TWIN, add_judged_row
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.runs.model_dir import ModelDirectory

FORMS = {"per_class": "per class (paper)", "centred": "centred", "pairwise": "pairwise"}
LIMITS, FEATURES = ("penalty", "constraint"), ("free", "normalised")
# The weight of the term, chosen for each net on validation images by the accuracy that this attack leaves.
WEIGHTS = {"tiny": (1.0,), "small": (0.01, 0.1, 1.0, 10.0), "paper": (0.01, 0.1, 1.0, 10.0)}
CHOOSING = "z_margin:steps=10"
NOISE = {"common_noise_share": "noise in common", "noise_to_margin": "noise over margin"}


def reproduce(run: Run) -> Table:
    """Return a table with a row for the undefended net and for each form of the term, limit and kind of features."""
    [dataset] = run.datasets
    table = Table(f"Alignment of what decides, on {dataset}, epsilon = {EPSILON}", [])
    kept_rows(run, table, "No Defense", [run.net(dataset, "aligned_none")], partial(_add_undefended, run, dataset))
    drawn, wca = {}, run.net(dataset, "aligned_wca")
    for form, limit, features in itertools.product(FORMS, LIMITS, FEATURES):
        label = f"{FORMS[form]}, {limit}, {features}"
        defence = f"{wca.defence}:alignment={form}:regularizer={limit}:features={features}"
        net = dataclasses.replace(wca, defence=defence)
        drawn[label] = kept_rows(run, table, label, [net], partial(_add_aligned, run, dataset, label, defence))
    _draw(run, drawn)
    table.notes = [
        f"weight: of the alignment term, chosen by {CHOOSING} at {EPSILON} on validation images",
        "noise in common: the share of the logits' variance that cancels in every answer, on validation images",
        "noise over margin: the deviation of the deciding difference over the margin, on validation images",
        f"{TWIN}: the same net without its noise, under its own worst case",
        *run.notes(dataset, [("No Defense", "aligned_none"), ("WCA-Net", "aligned_wca")], ["adaptive"]),
    ]
    return table


def _add_undefended(run: Run, dataset: str, table: Table) -> None:
    add_judged_row(table, run, "No Defense", run.trained(dataset, "aligned_none"))


def _add_aligned(run: Run, dataset: str, label: str, defence: str, table: Table) -> dict[str, list[float]]:
    """Fill the row of a form of the term; return where the noise went, a number for each epoch and metric."""
    path, weight = _chosen(run, dataset, defence)
    add_judged_row(table, run, label, path)
    table.add(label, "weight", text=f"{weight:g}")
    last = ModelDirectory(path).best_epoch()
    for metric, column in NOISE.items():
        table.add(label, column, text=f"{last[f'val_{metric}']:.3g}")
    lines = ModelDirectory(path).read_metrics()
    return {metric: [line[f"val_{metric}"] for line in lines] for metric in NOISE}


def _chosen(run: Run, dataset: str, defence: str) -> tuple[Path, float]:
    """Return the net that keeps most on validation images among the weights of the term, and its weight."""
    found = []
    for weight in WEIGHTS[run.config.scale]:
        try:
            path = run.trained(dataset, "aligned_wca", defence=f"{defence}:alignment_weight={weight}")
        except DivergedError:
            continue  # a weight with which training diverges is no candidate
        evaluated = run.evaluated_at(path, [CHOOSING], EPSILON, split="validation")
        found.append((evaluated.number(CHOOSING, RADIUS, "expected_accuracy")["value"], weight, path))
    if not found:
        raise DivergedError(f"every weight of the alignment term diverged with --defence={defence}")
    _, weight, path = max(found)
    return path, weight


def _draw(run: Run, drawn: dict[str, dict[str, list[float]]]) -> None:
    """Draw over the epochs of training where the noise goes, a line for each net."""
    figure, axes = panels(len(NOISE), label="by epoch", shared=False)
    for axis, (metric, title) in zip(axes, NOISE.items(), strict=True):
        axis.set_title(title)
        axis.set_xlabel("epoch")
        for number, (label, values_of) in enumerate(drawn.items()):
            values = values_of[metric]
            style: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": "-" if number < len(COLOURS) else "--",
            }
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=label, **style)
    legend(axes[-1])
    save(figure, run.report_dir, "where_the_noise_goes")
