"""Tables 1 and 4: WCA-Net and no defence on CIFAR-10, by the paper's protocol and by strong attacks.

The nets are compared at smaller radii too, where their accuracy may be above zero. Each is trained three times.
"""

from functools import partial

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.honest import CHART, add_honest_cells
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import CONTROLS, EPSILON, RADII, STRONGER, Row
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, by_seed

ROWS = CONTROLS[:2]
SMALLER_RADII = ("1/255", "2/255")
AT_SMALLER = ["pgd", "z_margin:steps=10"]
WORST = "worst case at {}, expected"
SEEDS_WORST = "worst case, 3 seeds"


def reproduce(run: Run) -> Table:
    """Return a table with a row per net.

    A row has the paper's FGSM, PGD and Square beside ours, then the accuracy that the strong attacks leave.
    """
    [dataset] = run.datasets
    backbone = run.net(dataset, "none").backbone
    table = Table(f"{dataset}, {backbone}, epsilon = 8/255: Tables 1 and 4 of the paper (CIFAR-10, ResNet-18)", [])
    for row in ROWS:
        kept_rows(run, table, row.label, [run.net(dataset, row.variant)], partial(_add_row, run, dataset, row))
    table.notes = run.notes(dataset, ROWS, ["square"])
    table.notes.append(f"3 seeds: nets that differ in their seed alone; {SEEDS_WORST} is over pgd and adaptive alone")
    table.notes.append(f"at smaller radii: the worst case of {' and '.join(AT_SMALLER)}, by the same images")
    shown = [*CHART, *map(WORST.format, SMALLER_RADII)]
    bar_chart(table, run.report_dir, "headline", ("paper, CIFAR-10", f"here, {dataset}"), shown)
    return table


def _add_row(run: Run, dataset: str, row: Row, table: Table) -> None:
    """Train a net three times, and fill its row."""
    label, variant, _, paper = row
    square = STRONGER.get(("square", variant))
    add_honest_cells(table, label, run, dataset, variant, paper, square[4] / 100 if square else None)
    evaluated = run.evaluated(dataset, variant, AT_SMALLER, ",".join(SMALLER_RADII))
    _add_seeds(table, run, dataset, label, variant)
    for radius in SMALLER_RADII:
        epsilon = RADII[radius]
        table.add(label, f"pgd at {radius}, expected", evaluated.number("pgd", epsilon, "expected_accuracy"))
        table.add(label, WORST.format(radius), evaluated.worst_case(AT_SMALLER, epsilon))


def _add_seeds(table: Table, run: Run, dataset: str, label: str, variant: str) -> None:
    """Fill the columns of the three nets that differ in their seed alone."""
    attacks, radius = ["pgd", run.budget.written("adaptive")], RADII[EPSILON]
    found = [run.evaluated(dataset, variant, attacks)]
    found += [run.evaluated_at(path, attacks) for path in run.other_seeds(dataset, variant)]
    table.add(label, "clean, 3 seeds", text=by_seed([each.number("clean") for each in found]))
    table.add(label, "pgd, 3 seeds", text=by_seed([each.number("pgd", radius) for each in found]))
    table.add(label, SEEDS_WORST, text=by_seed([each.worst_case(attacks, radius) for each in found]))
