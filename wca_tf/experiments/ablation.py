"""Table 5: no defence, isotropic and anisotropic noise, under FGSM and PGD."""

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.rows import ABLATION_LABELS, CONTROL_COLUMNS, ablation_rows
from wca_tf.experiments.run import Run, parse_radii
from wca_tf.experiments.tables import Table

# The paper gives Fashion-MNIST's radius as 8/255 in section 4.4 and as 0.3 in section 4.1.
RADII = {"fashion_mnist": "8/255,0.3"}


def reproduce(run: Run) -> Table:
    """One draw an image, as in the paper."""
    table = Table("Ablation: Table 5 of the paper", [])
    for dataset in run.datasets:
        radii = RADII.get(dataset, "8/255")
        for row in ablation_rows(dataset):
            evaluated = run.evaluated(dataset, row.variant, ["fgsm", "pgd"], radii)
            table.add(row.label, f"{dataset} clean", evaluated.number("clean"), row.paper[0] if row.paper else None)
            for text, radius in zip(radii.split(","), parse_radii(radii), strict=True):
                for place, attack in enumerate(CONTROL_COLUMNS[1:], 1):
                    paper = row.paper[place] if row.paper else None
                    table.add(row.label, f"{dataset} {attack} {text}", evaluated.number(attack, radius), paper)
        table.notes += run.notes(dataset, tuple(variant for _, variant in ABLATION_LABELS), ["pgd"])
    bar_chart(table, run.report_dir, "ablation")
    return table
