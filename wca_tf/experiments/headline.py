"""Tables 1 and 4: WCA-Net and no defence on CIFAR-10, by the paper's protocol and by strong attacks.

The nets are compared at smaller radii too, where their accuracy may be above zero. Each is trained three times.
"""

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from wca_tf.evaluation.intervals import mean_difference
from wca_tf.experiments import honest
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import IN_TRAINING_NOTE, add_noise_in_training
from wca_tf.experiments.paper import CONTROLS, EPSILON, RADII, STRONGER, Row
from wca_tf.experiments.run import OTHER_SEEDS, Run
from wca_tf.experiments.tables import Table, by_seed, in_points
from wca_tf.runs.model_dir import ModelDirectory

UNDEFENDED, DEFENDED = CONTROLS[0], CONTROLS[1]._replace(label="WCA-Net")
ROWS = (UNDEFENDED, DEFENDED)
AIRBENCH = Row("No Defense, airbench's recipe", "none_airbench")  # each length is trained once
# About 15, 30 and 45 minutes on two cores at --scale=small. The last is attacked as the other nets are.
AIRBENCH_EPOCHS = {"tiny": (1, 2), "small": (6, 12, 18), "paper": (8, 16)}
SMALLER_RADII = ("1/255", "2/255")
AT_SMALLER = ["pgd", "z_margin:steps=10"]
WORST = "worst case at {}, expected"
ASKED = [SMALLER_RADII, AT_SMALLER]
ALL_IMAGES = {"clean": "clean, all images", "pgd": "pgd, all images"}


def reproduce(run: Run) -> Table:
    """Return a table with a row per net.

    A row has the paper's FGSM, PGD and Square beside ours, then the accuracy that the strong attacks leave.
    """
    [dataset] = run.datasets
    backbone = run.net(dataset, "none").backbone
    table = Table(f"{dataset}, {backbone}, epsilon = 8/255: Tables 1 and 4 of the paper (CIFAR-10, ResNet-18)", [])
    _keep_airbench(run, table, dataset)
    seeds = (0, *OTHER_SEEDS)
    every = {row.label: [_kept(run, table, dataset, row, seed) for seed in seeds] for row in ROWS}
    for label, nets in every.items():
        found = [net for net in nets if net]  # without those that diverged
        for column in found[0]["numbers"] if found else ():
            text = by_seed([net["numbers"][column] for net in found])
            table.add(f"{label}, {len(found)} seeds", column, text=text)
    pairs = zip(every[DEFENDED.label], every[UNDEFENDED.label], strict=True)
    gains = [np.subtract(one["left"], other["left"]) for one, other in pairs if one and other]
    told = ", ".join(in_points(mean_difference(gain)) for gain in gains)
    table.notes = [
        f"worst case of {DEFENDED.label} less that of {UNDEFENDED.label}, in points, paired over the images, a net of "
        f"each seed: {told}",
        "seeds: nets that differ in their seed alone",
        f"{AIRBENCH.label}: {run.net(dataset, AIRBENCH.variant).backbone}; a run for each number of epochs, because "
        "the schedule ends with the run",
        "all images: of the test set, one draw of the noise",
        f"at smaller radii: the worst case of {' and '.join(AT_SMALLER)}, by the same images",
        IN_TRAINING_NOTE,
        *run.notes(dataset, [AIRBENCH, *ROWS], ["square"]),
    ]
    shown = [*honest.CHART, *map(WORST.format, SMALLER_RADII)]
    bar_chart(table, run.report_dir, "headline", ("paper, CIFAR-10", f"here, {dataset}"), shown)
    return table


def _kept(run: Run, table: Table, dataset: str, row: Row, seed: int) -> Any:
    """Fill the row of a net with this seed, or take it from an earlier run; return what `_add_row` does."""
    label = f"{row.label}, seed {seed}" if seed else row.label
    net = dataclasses.replace(run.net(dataset, row.variant), seed=seed)
    changes: dict[str, Any] = {"seed": seed} if seed else {}  # the first net is that of the other experiments
    return kept_rows(run, table, label, [net], partial(_add_row, run, dataset, row, changes, label), ASKED)


def _keep_airbench(run: Run, table: Table, dataset: str) -> None:
    """Fill a row for each length of the fast recipe, or take it from an earlier run."""
    *shorter, longest = AIRBENCH_EPOCHS[run.config.scale]
    for epochs in (*shorter, longest):
        label = f"{AIRBENCH.label}, {epochs} epochs"
        net = dataclasses.replace(run.net(dataset, AIRBENCH.variant), epochs=epochs)
        fill, asked = (_add_row, ASKED) if epochs == longest else (_add_length, list(ALL_IMAGES))
        kept_rows(run, table, label, [net], partial(fill, run, dataset, AIRBENCH, {"epochs": epochs}, label), asked)


def _add_length(run: Run, dataset: str, row: Row, changes: dict[str, Any], label: str, table: Table) -> dict[str, Any]:
    """Train a net and fill the columns of all images; return their numbers."""
    path = run.trained(dataset, row.variant, **changes)
    table.add(label, "trained", text=run.trained_for(path))
    on_all = run.evaluated_at(path, ["pgd"], num_examples=0)
    numbers = {column: on_all.number(what, RADII[EPSILON]) for what, column in ALL_IMAGES.items()}
    for column, number in numbers.items():
        table.add(label, column, number)
    return numbers


def _add_row(run: Run, dataset: str, row: Row, changes: dict[str, Any], label: str, table: Table) -> dict[str, Any]:
    """Train a net and fill its row.

    Returns:
        The numbers of the columns that are told for all seeds; P(correct) of each image in the worst case.
    """
    path = run.trained(dataset, row.variant, **changes)
    first = "seed" not in changes
    square = STRONGER.get(("square", row.variant))
    papers = (row.paper, square[4] / 100 if square else None) if first else ((), None)
    attacks = honest.add_honest_cells(table, label, run, path, *papers)
    numbers = _add_length(run, dataset, row, changes, label, table)
    smaller = run.evaluated_at(path, AT_SMALLER, ",".join(SMALLER_RADII))
    for radius in SMALLER_RADII:
        epsilon = RADII[radius]
        table.add(label, f"pgd at {radius}, expected", smaller.number("pgd", epsilon, "expected_accuracy"))
        column = WORST.format(radius)
        numbers[column] = smaller.worst_case(AT_SMALLER, epsilon)
        table.add(label, column, numbers[column])
    add_noise_in_training(table, label, ModelDirectory(path))
    found = run.evaluated_at(path, attacks)
    left = found.worst_judgement(attacks, RADII[EPSILON])
    numbers[honest.WORST] = left.n_query_accuracy(1)
    return {"numbers": numbers, "left": left.probability_correct.tolist()}
