"""Fast adversarial training by one or two gradient steps, without and with noise: what is left in the worst case."""

import dataclasses
from functools import partial
from typing import Any

from wca_tf.experiments.baselines import BUDGET, FEW_IMAGES
from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import CONTROLS, EPSILON, Row
from wca_tf.experiments.robustness_columns import PGD, TWIN, WORST, add_robustness_row
from wca_tf.experiments.run import OTHER_SEEDS, Run
from wca_tf.experiments.tables import Table, add_all_seeds
from wca_tf.runs.model_dir import ModelDirectory

PAPERS = {row.variant: row.paper for row in CONTROLS}  # adversarial training by PGD
# The baselines are those that keep most images without adversarial training in docs/results/defences.md.
ROWS = (
    Row("ResNet-18, No Defense: AT", "fast_none"),
    Row("No Defense: AT", "none_at"),
    Row("WCA-Net: AT", "at", {}, PAPERS["at"]),
    Row("WCA-Net: CT+AT", "ct_at", {}, PAPERS["ct_at"]),
    Row("CTRW: AT", "ctrw_at"),
    Row("smoothing: AT", "smoothing_at"),
    Row("ResNet-18, WCA-Net: AT", "fast_wca", {}, PAPERS["at"]),
)
FEW = f"No Defense: AT, {FEW_IMAGES} images"  # beside the baselines, which have noise before their last features
SEEDED = ("none_at", "at", "ct_at")  # trained three times: the net without noise, and those with WCA's
# Beside `adaptive`, which has the same with 20 steps on nets without their noise: on such nets it may be the strongest.
TARGETED = {"tiny": "multi_targeted:steps=3", "small": "multi_targeted:steps=20", "paper": "multi_targeted"}
COLUMNS = ("clean", PGD, WORST, TWIN)  # of the chart, and of the row for all seeds


def reproduce(run: Run) -> Table:
    """Return a table with a row per net. Those of `SEEDED` are trained with several seeds, the others once."""
    [dataset] = run.datasets
    table = Table(f"Fast adversarial training on {dataset}, epsilon = {EPSILON}", [])
    targeted = TARGETED[run.config.scale]
    for row in ROWS:
        net, fill = run.net(dataset, row.variant), partial(_add_row, run, dataset, row, row.label)
        kept_rows(run, table, row.label, [net], fill, targeted)
        if row.variant in SEEDED:
            _add_seeds(run, table, dataset, row)
        if row.variant == "none_at":
            kept_rows(run, table, FEW, [net], partial(_add_row, run, dataset, row, FEW), [targeted, BUDGET])
    small = run.net(dataset, "none_at").backbone
    table.notes = [
        "AT: on attacked images alone; CT+AT: on clean ones too. The paper trains with PGD",
        *(f"{row.label}: attacked in training by {run.net(dataset, row.variant).adversarial_attack}" for row in ROWS),
        f"rows without ResNet-18: backbone {small}; each defence has a decay of its own",
        f"{WORST}: over pgd, adaptive and {targeted}",
        f"CTRW, smoothing: noise before the last features, so that {BUDGET}; compare them with {FEW}",
        "attacks of training see batch normalisation as at test time; those of Wong et al. see it as in training",
        "epochs: the one that is judged, by PGD on training images, of those that were trained; catastrophic "
        "overfitting ends a run before its last epoch",
        f"{TWIN}: the same net without its noise, under its own worst case",
        "seeds: nets that differ in their seed alone; the other nets were trained once",
        *run.notes(dataset, ROWS, ["adaptive"]),
    ]
    bar_chart(table, run.report_dir, "adversarial", ("paper, CIFAR-10", f"here, {dataset}"), COLUMNS)
    return table


def _add_seeds(run: Run, table: Table, dataset: str, row: Row) -> None:
    """Fill a row for each other seed of a net, and one for all seeds."""
    labels = [row.label]
    for seed in OTHER_SEEDS:
        labels.append(f"{row.label}, seed {seed}")
        net = dataclasses.replace(run.net(dataset, row.variant), seed=seed)
        fill = partial(_add_row, run, dataset, row, labels[-1], seed=seed)
        kept_rows(run, table, labels[-1], [net], fill, TARGETED[run.config.scale])
    add_all_seeds(table, row.label, labels, COLUMNS)


def _add_row(run: Run, dataset: str, row: Row, label: str, table: Table, **changes: Any) -> None:
    """Train a net, with `changes` to its TrainConfig, and fill its row."""
    path = run.trained(dataset, row.variant, **changes)
    papers_pgd = row.paper[2] if row.paper and not changes else None
    add_robustness_row(table, run, label, path, papers_pgd, [TARGETED[run.config.scale]], few=label == FEW)
    directory = ModelDirectory(path)
    table.add(label, "epochs", text=f"{directory.best_epoch()['epoch']:.0f} of {len(directory.read_metrics())}")
