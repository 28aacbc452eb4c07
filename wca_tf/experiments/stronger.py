"""Table 4: PGD with random restarts, and the Square attack, for each epsilon."""

from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.paper import NETS, RADII, STRONGER
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table


def reproduce(run: Run) -> Table:
    """Return a table with a row per attack and net, and a column per radius."""
    [dataset] = run.datasets
    table = Table(f"Stronger attacks on {dataset}: Table 4 of the paper (CIFAR-10)", ["clean"])
    figure, axes = panels(4, 3.4, 3.4)
    for number, attack in enumerate(("pgd_restarts", "square")):
        paper: Series = {}
        ours: Series = {}
        for label, variant in NETS:
            evaluated = run.evaluated(dataset, variant, [run.budget.written(attack)], ",".join(RADII))
            printed = [value / 100 for value in STRONGER[attack, variant]]
            table.add(f"{attack}, {label}", "clean", evaluated.number("clean"), printed[0])
            paper[label], ours[label] = [], []
            for (text, radius), theirs in zip(RADII.items(), printed[1:], strict=True):
                measured = evaluated.number(run.budget.written(attack), radius)
                table.add(f"{attack}, {label}", text, measured, theirs)
                paper[label].append((255 * radius, theirs))
                ours[label].append((255 * radius, measured["value"]))
        curves(axes[2 * number], paper, f"paper, CIFAR-10, {attack}", "epsilon · 255")
        curves(axes[2 * number + 1], ours, f"here, {dataset}, {attack}", "epsilon · 255")
    legend(axes[-1])
    save(figure, run.report_dir, "stronger")
    table.notes = run.notes(dataset, NETS, ["pgd_restarts", "square"])
    return table
