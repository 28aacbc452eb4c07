"""Table 5: no defence, isotropic and anisotropic noise, under FGSM and PGD."""

from functools import partial

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import ABLATION_LABELS, CONTROL_COLUMNS, EPSILON, Row, ablation_rows
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

OTHER_RADII = {"fashion_mnist": {"0.3": 0.3}, "cifar10": {"1/255": 1 / 255, "2/255": 2 / 255}}
TWO_RADII = "the paper gives the radius of its Fashion-MNIST numbers as 8/255 in section 4.4 and as 0.3 in section 4.1"


def reproduce(run: Run) -> Table:
    """Return the table of Table 5, with one draw per image, as in the paper."""
    table = Table("Ablation: Table 5 of the paper", [])
    for dataset in run.datasets:
        radii = {EPSILON: 8 / 255, **OTHER_RADII.get(dataset, {})}
        for row in ablation_rows(dataset):
            name, fill = f"{dataset}, {row.label}", partial(_add_row, run, dataset, row, radii)
            kept_rows(run, table, name, [run.net(dataset, row.variant)], fill, list(radii))
        table.notes += run.notes(dataset, ABLATION_LABELS, ["pgd"])
    if "fashion_mnist" in run.datasets:
        table.notes.append(TWO_RADII)
    bar_chart(table, run.report_dir, "ablation", ("paper, epsilon = 8/255", "here"))
    return table


def _add_row(run: Run, dataset: str, row: Row, radii: dict[str, float], table: Table) -> None:
    """Train a net and fill its cells of one data set."""
    evaluated = run.evaluated(dataset, row.variant, ["fgsm", "pgd"], ",".join(radii))
    table.add(row.label, f"{dataset} clean", evaluated.number("clean"), row.paper[0] if row.paper else None)
    for text, radius in radii.items():
        for place, attack in enumerate(CONTROL_COLUMNS[1:], 1):
            paper = row.paper[place] if row.paper and text == EPSILON else None
            table.add(row.label, f"{dataset} {attack} {text}", evaluated.number(attack, radius), paper)
