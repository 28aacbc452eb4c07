"""Tables 1 and 4: WCA-Net and no defence, ResNet-18 on CIFAR-10, by the paper's protocol and by the adaptive suite."""

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.honest import add_honest_cells
from wca_tf.experiments.run import Run
from wca_tf.experiments.stronger import NETS, PAPER
from wca_tf.experiments.tables import Table

ROWS = {"none": (0.933, 0.149, 0.039), "anisotropic": (0.932, 0.776, 0.714)}


def reproduce(run: Run) -> Table:
    """A row per net; the paper's FGSM, PGD and Square beside ours, then what the adaptive suite leaves."""
    [dataset] = run.datasets
    backbone = run.net(dataset, "none").backbone
    table = Table(f"{dataset}, {backbone}, epsilon = 8/255: Tables 1 and 4 of the paper (CIFAR-10, ResNet-18)", [])
    for label, variant in NETS:
        add_honest_cells(table, label, run, dataset, variant, ROWS[variant], PAPER["square", variant][4] / 100)
    table.notes = run.notes(dataset, tuple(variant for _, variant in NETS), ["square"])
    bar_chart(table, run.report_dir, "headline", ("paper, CIFAR-10", f"here, {dataset}"))
    return table
