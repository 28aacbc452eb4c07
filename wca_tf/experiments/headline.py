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
from wca_tf.experiments.paper import CONTROLS, EPSILON, RADII, STRONGER, Row
from wca_tf.experiments.run import OTHER_SEEDS, Run
from wca_tf.experiments.tables import Table, by_seed, in_points
from wca_tf.runs.model_dir import ModelDirectory

UNDEFENDED, DEFENDED = CONTROLS[0], CONTROLS[1]._replace(label="WCA-Net")
ROWS = (UNDEFENDED, DEFENDED)
AIRBENCH = Row("No Defense, airbench's recipe", "none_airbench")  # trained once
SMALLER_RADII = ("1/255", "2/255")
AT_SMALLER = ["pgd", "z_margin:steps=10"]
WORST = "worst case at {}, expected"
ALL_IMAGES = {"clean": "clean, all images", "pgd": "pgd, all images"}
NOISE = {"common_noise_share": "noise in common", "noise_to_margin": "noise over margin"}


def reproduce(run: Run) -> Table:
    """Return a table with a row per net.

    A row has the paper's FGSM, PGD and Square beside ours, then the accuracy that the strong attacks leave.
    """
    [dataset] = run.datasets
    backbone = run.net(dataset, "none").backbone
    table = Table(f"{dataset}, {backbone}, epsilon = 8/255: Tables 1 and 4 of the paper (CIFAR-10, ResNet-18)", [])
    _kept(run, table, dataset, AIRBENCH, 0)
    seeds = (0, *OTHER_SEEDS)
    found = {row.label: [_kept(run, table, dataset, row, seed) for seed in seeds] for row in ROWS}
    for label, nets in found.items():
        for column in nets[0]["numbers"]:
            text = by_seed([net["numbers"][column] for net in nets])
            table.add(f"{label}, {len(seeds)} seeds", column, text=text)
    gains = [np.subtract(*(found[row.label][seed]["left"] for row in (DEFENDED, UNDEFENDED))) for seed in seeds]
    told = ", ".join(in_points(mean_difference(gain)) for gain in gains)
    table.notes = [
        f"worst case of {DEFENDED.label} less that of {UNDEFENDED.label}, in points, paired over the images, a net of "
        f"each seed: {told}",
        f"seeds: nets that differ in their seed alone; {AIRBENCH.label}: {run.net(dataset, AIRBENCH.variant).backbone}",
        "all images: of the test set, one draw of the noise",
        f"at smaller radii: the worst case of {' and '.join(AT_SMALLER)}, by the same images",
        "noise in common: the share of the logits' variance that cancels in every answer; noise over margin: the "
        "deviation of the deciding difference over the margin; both on training images in the last epoch",
        *run.notes(dataset, [AIRBENCH, *ROWS], ["square"]),
    ]
    shown = [*honest.CHART, *map(WORST.format, SMALLER_RADII)]
    bar_chart(table, run.report_dir, "headline", ("paper, CIFAR-10", f"here, {dataset}"), shown)
    return table


def _kept(run: Run, table: Table, dataset: str, row: Row, seed: int) -> Any:
    """Fill the row of a net with this seed, or take it from an earlier run; return what `_add_row` does."""
    label = f"{row.label}, seed {seed}" if seed else row.label
    net = dataclasses.replace(run.net(dataset, row.variant), seed=seed)
    return kept_rows(run, table, label, [net], partial(_add_row, run, dataset, row, seed, label))


def _add_row(run: Run, dataset: str, row: Row, seed: int, label: str, table: Table) -> dict[str, Any]:
    """Train a net and fill its row.

    Returns:
        The numbers of the columns that are told for all seeds; P(correct) of each image in the worst case.
    """
    changes: dict[str, Any] = {"seed": seed} if seed else {}  # the first net is that of the other experiments
    path = run.trained(dataset, row.variant, **changes)
    square = STRONGER.get(("square", row.variant))
    papers = (row.paper, square[4] / 100 if square else None) if seed == 0 else ((), None)
    attacks = honest.add_honest_cells(table, label, run, path, *papers)
    on_all = run.evaluated_at(path, ["pgd"], num_examples=0)
    numbers = {column: on_all.number(what, RADII[EPSILON]) for what, column in ALL_IMAGES.items()}
    smaller = run.evaluated_at(path, AT_SMALLER, ",".join(SMALLER_RADII))
    for radius in SMALLER_RADII:
        epsilon = RADII[radius]
        table.add(label, f"pgd at {radius}, expected", smaller.number("pgd", epsilon, "expected_accuracy"))
        numbers[WORST.format(radius)] = smaller.worst_case(AT_SMALLER, epsilon)
    for column, number in numbers.items():
        table.add(label, column, number)
    line = ModelDirectory(path).best_epoch()
    for metric, column in NOISE.items():
        if metric in line:
            table.add(label, column, text=f"{line[metric]:.3g}")
    found = run.evaluated_at(path, attacks)
    left = found.worst_judgement(attacks, RADII[EPSILON])
    numbers[honest.WORST] = left.n_query_accuracy(1)
    return {"numbers": numbers, "left": left.probability_correct.tolist()}
