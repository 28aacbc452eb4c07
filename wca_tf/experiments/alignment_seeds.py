"""Forms of the alignment term on CIFAR-10: nets that differ in their seed, and one trained adversarially, for each."""

import dataclasses
import itertools
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wca_tf.core.errors import DivergedError
from wca_tf.experiments.baselines import load_net, without_noise
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import COMMON, RATIO, noise_numbers, number_text
from wca_tf.experiments.paper import RADII
from wca_tf.experiments.robustness_columns import PGD, TWIN, WORST, add_robustness_row
from wca_tf.experiments.run import OTHER_SEEDS, Run
from wca_tf.experiments.tables import Table, add_all_seeds
from wca_tf.nets.targets import has_noise
from wca_tf.runs.model_dir import ModelDirectory

# At this radius too, by `adaptive`: at 8/255 little may be left of nets that were trained on clean images.
SMALLER = ("1/255",)
AT_SMALLER = {epsilon: (f"worst case at {epsilon}", f"noise off: at {epsilon}") for epsilon in SMALLER}
OF_SEEDS = ("clean", PGD, WORST, TWIN, *itertools.chain(*AT_SMALLER.values()))  # the columns of the row for all seeds
SEEDS = (0, *OTHER_SEEDS)
# Metrics of training -> their names. Nets without such noise do not have them.
NOISE = {"common_noise_share": COMMON, "noise_to_margin": RATIO}


class Form(NamedTuple):
    """A net that is trained with several seeds.

    Attributes:
        label: the name of its rows.
        variant: a key of variants.VARIANTS; with "_at" the one that is trained adversarially.
        changes: changes to its TrainConfig.
    """

    label: str
    variant: str
    changes: dict[str, Any]


def add_seeds(table: Table, run: Run, dataset: str, form: Form) -> dict[str, list[float]]:
    """Fill a row for each seed, one for all of them, and one for adversarial training.

    Returns:
        Where the noise of the first net went, as `noise_over_training` has it.
    """
    label = f"{dataset}, {form.label}"
    labels = [f"{label}, seed {seed}" for seed in SEEDS]
    found = [_kept(run, table, dataset, form, each, seed) for each, seed in zip(labels, SEEDS, strict=True)]
    add_all_seeds(table, label, labels, OF_SEEDS)
    adversarial = form._replace(variant=f"{form.variant}_at")
    _kept(run, table, dataset, adversarial, f"{label}, AT")
    return {metric: found[0].get(metric, []) for metric in NOISE}


def noise_over_training(directory: ModelDirectory) -> dict[str, list[float]]:
    """Return a number for each epoch and metric of `NOISE`, of validation images; empty without such noise."""
    lines = directory.read_metrics()
    return {metric: [line[f"val_{metric}"] for line in lines if f"val_{metric}" in line] for metric in NOISE}


def _kept(run: Run, table: Table, dataset: str, form: Form, label: str, seed: int = 0) -> dict[str, Any]:
    """Fill a row, or take it from an earlier run; return what `_add_row` does, or nothing if training diverged."""
    changes = {**form.changes, **({"seed": seed} if seed else {})}  # the name of the net with seed 0 has no seed
    net = dataclasses.replace(run.net(dataset, form.variant), **changes)
    fill = partial(_add_row, run, dataset, form.variant, changes, label)
    return kept_rows(run, table, label, [net], fill, list(SMALLER)) or {}


def _add_row(run: Run, dataset: str, variant: str, changes: dict[str, Any], label: str, table: Table) -> dict[str, Any]:
    """Train a net and fill its row; a run that diverges leaves a row that says so.

    Returns:
        Where the noise went, as `noise_over_training` has it.
    """
    try:
        path = run.trained(dataset, variant, **changes)
    except DivergedError:
        table.add(label, "clean", text="diverged")
        return {}
    add_robustness_row(table, run, label, path)
    _add_smaller_radii(table, run, label, path)
    directory = ModelDirectory(path)
    kept, trained = directory.best_epoch()["epoch"], len(directory.read_metrics())
    table.add(label, "epochs", text=f"{kept:.0f} of {trained}")
    for column, value in noise_numbers(run, directory).items():
        table.add(label, column, text=number_text(column, value))
    return noise_over_training(directory)


def _add_smaller_radii(table: Table, run: Run, label: str, path: Path) -> None:
    """Fill the columns of the smaller radii: what `adaptive` leaves of the net, and of the net without its noise."""
    net = load_net(run, path)
    for epsilon, (column, noise_off) in AT_SMALLER.items():
        radius = RADII[epsilon]
        found = run.evaluated_at(path, [net.adaptive], epsilon, **net.asked)
        table.add(label, column, found.worst_case([net.adaptive], radius))
        if has_noise(net.model.target()):
            twin = without_noise(run, net, [net.adaptive], epsilon)
            table.add(label, noise_off, twin.worst_case([net.adaptive], radius))
