"""Table 4: PGD with random restarts, and the Square attack, for each epsilon."""

from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.epsilon_sweep import RADII
from wca_tf.experiments.run import Run, parse_radii
from wca_tf.experiments.tables import Table

NETS = (("No Defense", "none"), ("WCA-Net", "anisotropic"))
PAPER = {
    ("pgd_restarts", "none"): (93.3, 45.3, 14.6, 0, 0, 0, 0, 0, 0),
    ("pgd_restarts", "anisotropic"): (93.2, 73.2, 72.2, 72.1, 71.2, 69.7, 56.4, 28.2, 10.5),
    ("square", "none"): (93.3, 32.9, 31.7, 12.4, 6.0, 1.2, 0, 0, 0),
    ("square", "anisotropic"): (93.2, 51.7, 51.7, 50.4, 49.0, 48.8, 44.3, 36.9, 28.6),
}


def reproduce(run: Run) -> Table:
    """A row per attack and net, a column per radius."""
    [dataset] = run.datasets
    table = Table(f"Stronger attacks on {dataset}: Table 4 of the paper (CIFAR-10)", ["clean"])
    figure, axes = panels(4, 3.4, 3.4)
    for number, attack in enumerate(("pgd_restarts", "square")):
        paper: Series = {}
        ours: Series = {}
        for label, variant in NETS:
            evaluated = run.evaluated(dataset, variant, [run.scale.written(attack)], RADII)
            printed = [value / 100 for value in PAPER[attack, variant]]
            table.add(f"{attack}, {label}", "clean", evaluated.number("clean"), printed[0])
            paper[label], ours[label] = [], []
            for text, radius, theirs in zip(RADII.split(","), parse_radii(RADII), printed[1:], strict=True):
                measured = evaluated.number(run.scale.written(attack), radius)
                table.add(f"{attack}, {label}", text, measured, theirs)
                paper[label].append((255 * radius, theirs))
                ours[label].append((255 * radius, measured["value"]))
        curves(axes[2 * number], paper, f"paper, CIFAR-10, {attack}", "epsilon · 255")
        curves(axes[2 * number + 1], ours, f"here, {dataset}, {attack}", "epsilon · 255")
    legend(axes[-1])
    save(figure, run.report_dir, "stronger")
    table.notes = run.notes(dataset, tuple(variant for _, variant in NETS), ["pgd_restarts", "square"])
    return table
