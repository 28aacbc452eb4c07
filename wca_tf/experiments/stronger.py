"""Table 4: PGD with random restarts, and the Square attack, for each epsilon."""

from functools import partial

from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.kept_rows import kept_rows
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
            fill = partial(_add_row, run, dataset, attack, label, variant)
            found = kept_rows(run, table, f"{attack}, {label}", [run.net(dataset, variant)], fill)
            scaled = [255 * radius for radius in RADII.values()]
            printed = [value / 100 for value in STRONGER[attack, variant][1:]]
            paper[label] = list(zip(scaled, printed, strict=True))
            ours[label] = list(zip(scaled, found, strict=True))
        curves(axes[2 * number], paper, f"paper, CIFAR-10, {attack}", "epsilon · 255")
        curves(axes[2 * number + 1], ours, f"here, {dataset}, {attack}", "epsilon · 255")
    legend(axes[-1])
    save(figure, run.report_dir, "stronger")
    table.notes = run.notes(dataset, NETS, ["pgd_restarts", "square"])
    return table


def _add_row(run: Run, dataset: str, attack: str, label: str, variant: str, table: Table) -> list[float]:
    """Train a net and fill the row of an attack on it; return the accuracy at each radius."""
    written = run.budget.written(attack)
    evaluated = run.evaluated(dataset, variant, [written], ",".join(RADII))
    clean, *printed = (value / 100 for value in STRONGER[attack, variant])
    table.add(f"{attack}, {label}", "clean", evaluated.number("clean"), clean)
    for (text, radius), theirs in zip(RADII.items(), printed, strict=True):
        table.add(f"{attack}, {label}", text, evaluated.number(written, radius), theirs)
    return [evaluated.number(written, radius)["value"] for radius in RADII.values()]
