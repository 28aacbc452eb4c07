"""Tables 1 and 4: WCA-Net and no defence, ResNet-18 on CIFAR-10, by the paper's protocol and by the adaptive suite."""

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.honest import add_honest_cells
from wca_tf.experiments.paper import CONTROLS, STRONGER
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

ROWS = CONTROLS[:2]  # no defence, and WCA-Net


def reproduce(run: Run) -> Table:
    """A row per net; the paper's FGSM, PGD and Square beside ours, then what the adaptive suite leaves."""
    [dataset] = run.datasets
    backbone = run.net(dataset, "none").backbone
    table = Table(f"{dataset}, {backbone}, epsilon = 8/255: Tables 1 and 4 of the paper (CIFAR-10, ResNet-18)", [])
    for label, variant, _, paper in ROWS:
        add_honest_cells(table, label, run, dataset, variant, paper, STRONGER["square", variant][4] / 100)
    table.notes = run.notes(dataset, ROWS, ["square"])
    bar_chart(table, run.report_dir, "headline", ("paper, CIFAR-10", f"here, {dataset}"))
    return table
