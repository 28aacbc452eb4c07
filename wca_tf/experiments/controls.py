"""Table 6: penalty, constraint, E1, E2, E3, AT and CT+AT."""

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.rows import CONTROL_COLUMNS, CONTROLS, E3_NOTE
from wca_tf.experiments.run import EPSILON, Run, parse_radii
from wca_tf.experiments.tables import Table


def reproduce(run: Run) -> Table:
    """One draw an image, as in the paper, but for E2, whose answers average 10."""
    [dataset] = run.datasets
    [radius] = parse_radii(EPSILON)
    table = Table(f"Controls on {dataset}, epsilon = {EPSILON}: Table 6 of the paper (CIFAR-10)", [])
    for row in CONTROLS:
        evaluated = run.evaluated(dataset, row.variant, ["fgsm", "pgd"], **row.asked)
        for place, attack in enumerate(CONTROL_COLUMNS):
            table.add(row.label, attack, evaluated.number(attack, radius), row.paper[place] if row.paper else None)
    table.notes = run.notes(dataset, tuple(dict.fromkeys(row.variant for row in CONTROLS)), ["pgd"])
    table.notes.append(E3_NOTE)
    bar_chart(table, run.report_dir, "controls", ("paper, CIFAR-10", f"here, {dataset}"))
    return table
