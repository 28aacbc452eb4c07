"""Tables 1 and 4: WCA-Net and no defence on CIFAR-10, by the paper's protocol and by strong attacks.

The nets are compared at smaller radii too, where their accuracy may be above zero. Each is trained three times.
"""

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from wca_tf.attacks import ATTACKS
from wca_tf.experiments import strong_attacks
from wca_tf.experiments.baselines import load_net, without_noise
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import IN_TRAINING_NOTE, add_noise_in_training
from wca_tf.experiments.paper import CONTROLS, EPSILON, RADII, STRONGER, Row
from wca_tf.experiments.run import OTHER_SEEDS, Run
from wca_tf.experiments.tables import Table, by_seed, in_points
from wca_tf.gaussian.intervals import mean_difference
from wca_tf.runs.model_dir import ModelDirectory

UNDEFENDED, DEFENDED = CONTROLS[0], CONTROLS[1]._replace(label="WCA-Net")
ROWS = (UNDEFENDED, DEFENDED)
LONGER = Row("WCA-Net, twice the epochs", "anisotropic")  # shows whether the other WCA-Nets had enough epochs
AIRBENCH = Row("No Defense, airbench's recipe", "none_airbench")  # each length is trained once
# About 15, 30 and 45 minutes on two cores at --scale=small. The last is attacked as the other nets are.
AIRBENCH_EPOCHS = {"tiny": (1, 2), "small": (8, 16, 24), "paper": (8, 16)}
SMALLER_RADII = strong_attacks.SMALLER["cifar10"]
OFF_RADIUS = SMALLER_RADII[0]  # the noise is switched off at the radius at which most is left
NOISE_OFF, NOISE_ADDS = f"worst case at {OFF_RADIUS}, noise off", f"noise adds at {OFF_RADIUS}"
ALL_IMAGES = {"clean": "clean, all images", "pgd": "pgd, all images"}


def reproduce(run: Run) -> Table:
    """Return a table with a row per net.

    A row has the paper's FGSM, PGD and Square beside ours, then the accuracy that the strong attacks leave.
    """
    [dataset] = run.datasets
    net = run.net(dataset, "none")
    table = Table(f"{dataset}, {net.backbone}, epsilon = 8/255: Tables 1 and 4 of the paper (CIFAR-10, ResNet-18)", [])
    _keep_airbench(run, table, dataset)
    # The first net, without changes, is that of the other experiments too.
    seeds: list[dict[str, Any]] = [{}, *({"seed": seed} for seed in OTHER_SEEDS)]
    every = {row.label: [_kept(run, table, dataset, row, changes) for changes in seeds] for row in ROWS}
    _kept(run, table, dataset, LONGER, {"epochs": 2 * net.epochs})
    for label, nets in every.items():
        found = [net for net in nets if net]  # without those that diverged
        for column in found[0]["numbers"] if found else ():
            text = by_seed([net["numbers"][column] for net in found])
            table.add(f"{label}, {len(found)} seeds", column, text=text)
    table.notes = [
        *_gains(every[DEFENDED.label], every[UNDEFENDED.label]),
        "seeds: nets that differ in their seed alone",
        f"{AIRBENCH.label}: {run.net(dataset, AIRBENCH.variant).backbone}; a run for each number of epochs, because "
        "the schedule ends with the run",
        "all images: of the test set, one draw of the noise",
        strong_attacks.smaller_note(run),
        "noise off: the same net without its noise; noise adds: the worst case with it less that without it, paired "
        "over the images",
        IN_TRAINING_NOTE,
        *run.notes(dataset, [AIRBENCH], [], epochs=AIRBENCH_EPOCHS[run.config.scale][-1]),
        *run.notes(dataset, [LONGER], [], epochs=2 * net.epochs),
        *run.notes(dataset, ROWS, ["square"]),
    ]
    table.notes = list(dict.fromkeys(table.notes))
    shown = [*strong_attacks.CHART, *map(strong_attacks.SMALLER_WORST.format, SMALLER_RADII)]
    bar_chart(table, run.report_dir, "headline", ("paper, CIFAR-10", f"here, {dataset}"), shown)
    return table


def _gains(defended: list[Any], undefended: list[Any]) -> list[str]:
    """Return a note for each radius: the worst case with noise less that without, for a net of each seed."""
    pairs = [(one["left"], other["left"]) for one, other in zip(defended, undefended, strict=True) if one and other]
    notes = []
    for radius in (EPSILON, *SMALLER_RADII):
        gains = [mean_difference(np.subtract(one[radius], other[radius])) for one, other in pairs]
        notes.append(
            f"worst case of {DEFENDED.label} less that of {UNDEFENDED.label} at {radius}, in points, paired over the "
            f"images, a net of each seed: {', '.join(map(in_points, gains))}"
        )
    return notes


def _kept(run: Run, table: Table, dataset: str, row: Row, changes: dict[str, Any]) -> Any:
    """Fill the row of a net, or take it from an earlier run; return what `_add_row` does."""
    label = ", ".join([row.label, *(f"{name} {value}" for name, value in changes.items())])
    net = dataclasses.replace(run.net(dataset, row.variant), **changes)
    return kept_rows(run, table, label, [net], partial(_add_row, run, dataset, row, changes, label), _asked(run))


def _asked(run: Run) -> list[Any]:
    return [SMALLER_RADII, strong_attacks.at_smaller(run), NOISE_OFF]


def _keep_airbench(run: Run, table: Table, dataset: str) -> None:
    """Fill a row for each length of the fast recipe, or take it from an earlier run."""
    *shorter, longest = AIRBENCH_EPOCHS[run.config.scale]
    for epochs in (*shorter, longest):
        label = f"{AIRBENCH.label}, {epochs} epochs"
        net = dataclasses.replace(run.net(dataset, AIRBENCH.variant), epochs=epochs)
        fill, asked, attacks = _add_length, list(ALL_IMAGES), ["pgd"]
        if epochs == longest:
            fill, asked, attacks = _add_row, _asked(run), list(ATTACKS)
        filled = partial(fill, run, dataset, AIRBENCH, {"epochs": epochs}, label)
        kept_rows(run, table, label, [net], filled, asked, attacks)


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
        "numbers": those of the columns given for all seeds; "left": P(correct) of each image in the worst case,
        by the radius as written.
    """
    path = run.trained(dataset, row.variant, **changes)
    first = not changes
    square = STRONGER.get(("square", row.variant))
    papers = (row.paper, square[4] / 100 if square else None) if first else ((), None)
    attacks = strong_attacks.add_strong_cells(table, label, run, path, *papers)
    numbers = _add_length(run, dataset, row, changes, label, table)
    judgements = strong_attacks.add_smaller_radii(table, label, run, path, SMALLER_RADII)
    numbers |= {
        strong_attacks.SMALLER_WORST.format(each): found.n_query_accuracy(1) for each, found in judgements.items()
    }
    if row.variant == DEFENDED.variant:
        off = without_noise(run, load_net(run, path), strong_attacks.at_smaller(run), OFF_RADIUS)
        left = off.worst_judgement(strong_attacks.at_smaller(run), RADII[OFF_RADIUS])
        table.add(label, NOISE_OFF, left.n_query_accuracy(1))
        table.add(label, NOISE_ADDS, text=f"{in_points(judgements[OFF_RADIUS].less(left))} points")
    add_noise_in_training(table, label, ModelDirectory(path))
    judgements[EPSILON] = run.evaluated_at(path, attacks).worst_judgement(attacks, RADII[EPSILON])
    numbers[strong_attacks.WORST] = judgements[EPSILON].n_query_accuracy(1)
    return {
        "numbers": numbers,
        "left": {each: found.probability_correct.tolist() for each, found in judgements.items()},
    }
