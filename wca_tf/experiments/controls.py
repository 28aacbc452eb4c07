"""Table 6: penalty, constraint, E1, E2, E3, AT and CT+AT."""

from functools import partial

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import IN_TRAINING_NOTE, add_noise_in_training
from wca_tf.experiments.paper import CONTROL_COLUMNS, CONTROLS, E3_NOTE, EPSILON, RADII, Row
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.runs.model_dir import ModelDirectory


def reproduce(run: Run) -> Table:
    """Return the table of Table 6, with one draw per image, as in the paper; E2 averages 10 draws."""
    [dataset] = run.datasets
    table = Table(f"Controls on {dataset}, epsilon = {EPSILON}: Table 6 of the paper (CIFAR-10)", [])
    for row in CONTROLS:
        fill = partial(_add_row, run, dataset, row)
        kept_rows(run, table, row.label, run.nets(dataset, row.variant), fill, row.asked)
    table.notes = run.notes(dataset, CONTROLS, ["pgd"])
    table.notes += [E3_NOTE, IN_TRAINING_NOTE]
    bar_chart(table, run.report_dir, "controls", ("paper, CIFAR-10", f"here, {dataset}"))
    return table


def _add_row(run: Run, dataset: str, row: Row, table: Table) -> None:
    evaluated = run.evaluated(dataset, row.variant, ["fgsm", "pgd"], **row.asked)
    for place, attack in enumerate(CONTROL_COLUMNS):
        paper = row.paper[place] if row.paper else None
        table.add(row.label, attack, evaluated.number(attack, RADII[EPSILON]), paper)
    if "average_draws" not in row.asked:  # the noise of an answer is then not that of training
        add_noise_in_training(table, row.label, ModelDirectory(run.model_dir(dataset, row.variant)))
