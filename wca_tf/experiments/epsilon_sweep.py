"""Figure 1: the nets of the ablation under FGSM and PGD for epsilon = 2^n/255, n = 0 .. 7."""

from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.paper import ABLATION_LABELS, ABLATION_NUMBERS, EPSILON, RADII
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

ATTACKS = ("fgsm", "pgd")


def reproduce(run: Run) -> Table:
    """Return a table with a row per net and attack, and a column per radius.

    The paper prints numbers only for CIFAR-10 at 8/255.
    """
    [dataset] = run.datasets
    table = Table(f"Attack strength on {dataset}: Figure 1 of the paper", ["clean"])
    paper: dict[str, Series] = {attack: {} for attack in ATTACKS}
    ours: dict[str, Series] = {attack: {} for attack in ATTACKS}
    for place, (label, variant) in enumerate(ABLATION_LABELS):
        evaluated = run.evaluated(dataset, variant, list(ATTACKS), ",".join(RADII))
        for number, attack in enumerate(ATTACKS, 1):
            row = f"{label}, {attack}"
            printed = ABLATION_NUMBERS["cifar10"][place][number] / 100
            paper[attack][label] = [(8.0, printed)]
            ours[attack][label] = []
            table.add(row, "clean", evaluated.number("clean"))
            for text, radius in RADII.items():
                measured = evaluated.number(attack, radius)
                table.add(row, text, measured, printed if text == EPSILON and dataset == "cifar10" else None)
                ours[attack][label].append((255 * radius, measured["value"]))
    table.notes = run.notes(dataset, ABLATION_LABELS, list(ATTACKS))
    _draw(run, dataset, paper, ours)
    return table


def _draw(run: Run, dataset: str, paper: dict[str, Series], ours: dict[str, Series]) -> None:
    figure, axes = panels(4, 3.4, 3.4)
    for number, attack in enumerate(ATTACKS):
        curves(axes[number], paper[attack], f"paper, CIFAR-10, {attack}\n(printed in Table 5)", "epsilon · 255")
        curves(axes[2 + number], ours[attack], f"here, {dataset}, {attack}", "epsilon · 255")
    for axis in axes:
        axis.set_xlim(0.9, 142)
    legend(axes[-1])
    save(figure, run.report_dir, "epsilon_sweep")
