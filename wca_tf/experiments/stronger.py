"""Table 4: PGD with random restarts, and the Square attack, for each epsilon. Each net is trained three times."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import NETS, RADII, STRONGER
from wca_tf.experiments.run import OTHER_SEEDS, Run
from wca_tf.experiments.tables import Table, by_seed

SEEDS = (0, *OTHER_SEEDS)
ATTACKS = ("pgd_restarts", "square")


def reproduce(run: Run) -> Table:
    """Return a table with a row per attack, net and seed, and a column per radius; figures show means of seeds."""
    [dataset] = run.datasets
    table = Table(f"Stronger attacks on {dataset}: Table 4 of the paper (CIFAR-10)", ["clean"])
    paper: dict[str, Series] = {attack: {} for attack in ATTACKS}
    ours: dict[str, Series] = {attack: {} for attack in ATTACKS}
    scaled = [255 * radius for radius in RADII.values()]
    for label, variant in NETS:
        of_seeds = [_kept(run, table, dataset, label, variant, seed) for seed in SEEDS]
        found = [of_seed for of_seed in of_seeds if of_seed]  # without those that diverged
        for attack in ATTACKS if found else ():
            for column in ("clean", *RADII):
                numbers = [of_seed[attack][column] for of_seed in found]
                table.add(f"{attack}, {label}, {len(found)} seeds", column, text=by_seed(numbers))
            means = [np.mean([of_seed[attack][text]["value"] for of_seed in found]) for text in RADII]
            printed = [value / 100 for value in STRONGER[attack, variant][1:]]
            paper[attack][label] = list(zip(scaled, printed, strict=True))
            ours[attack][label] = list(zip(scaled, map(float, means), strict=True))
    table.notes = run.notes(dataset, NETS, list(ATTACKS))
    table.notes.append("seeds: nets that differ in their seed alone; the paper prints one number")
    _draw(run, dataset, paper, ours)
    return table


def _kept(run: Run, table: Table, dataset: str, label: str, variant: str, seed: int) -> Any:
    """Fill the rows of a net with this seed, or take them from an earlier run; return what `_add_rows` does."""
    name = f"{label}, seed {seed}" if seed else label
    net = dataclasses.replace(run.net(dataset, variant), seed=seed)
    return kept_rows(run, table, name, [net], partial(_add_rows, run, dataset, name, variant, seed), ATTACKS)


def _add_rows(run: Run, dataset: str, name: str, variant: str, seed: int, table: Table) -> dict[str, dict[str, Any]]:
    """Train a net and fill a row for each attack on it; return the numbers of each row by column."""
    changes: dict[str, Any] = {"seed": seed} if seed else {}  # the first net is that of the other experiments
    written = {attack: run.budget.written(attack) for attack in ATTACKS}
    path = run.trained(dataset, variant, **changes)
    evaluated = run.evaluated_at(path, list(written.values()), ",".join(RADII))
    found = {}
    for attack in ATTACKS:
        radii = {text: evaluated.number(written[attack], radius) for text, radius in RADII.items()}
        found[attack] = {"clean": evaluated.number("clean"), **radii}
        papers = [None] * len(found[attack]) if seed else [value / 100 for value in STRONGER[attack, variant]]
        for (column, number), theirs in zip(found[attack].items(), papers, strict=True):
            table.add(f"{attack}, {name}", column, number, theirs)
    return found


def _draw(run: Run, dataset: str, paper: dict[str, Series], ours: dict[str, Series]) -> None:
    """Draw accuracy against the radius, for each attack the paper's numbers beside ours."""
    figure, axes = panels(4, 3.4, 3.4)
    for number, attack in enumerate(ATTACKS):
        curves(axes[2 * number], paper[attack], f"paper, CIFAR-10, {attack}", "epsilon · 255")
        curves(axes[2 * number + 1], ours[attack], f"here, {dataset}, {attack}", "epsilon · 255")
    legend(axes[-1])
    save(figure, run.report_dir, "stronger")
