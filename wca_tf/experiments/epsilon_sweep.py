"""Figure 1: the nets of the ablation under FGSM and PGD for epsilon = 2^n/255, n = 0 .. 7."""

from functools import partial

from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.kept_rows import kept_rows
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
    scaled = [255 * radius for radius in RADII.values()]
    for (label, variant), numbers in zip(ABLATION_LABELS, ABLATION_NUMBERS["cifar10"], strict=True):
        printed = {attack: number / 100 for attack, number in zip(ATTACKS, numbers[1:], strict=True)}
        fill = partial(_add_rows, run, dataset, label, variant, printed)
        found = kept_rows(run, table, label, [run.net(dataset, variant)], fill, [ATTACKS, list(RADII)])
        for attack in ATTACKS if found else ():
            paper[attack][label] = [(8.0, printed[attack])]
            ours[attack][label] = list(zip(scaled, found[attack], strict=True))
    table.notes = run.notes(dataset, ABLATION_LABELS, list(ATTACKS))
    _draw(run, dataset, paper, ours)
    return table


def _add_rows(
    run: Run, dataset: str, label: str, variant: str, printed: dict[str, float], table: Table
) -> dict[str, list[float]]:
    """Train a net and fill its rows; return for each attack the accuracy at each radius."""
    evaluated = run.evaluated(dataset, variant, list(ATTACKS), ",".join(RADII))
    for attack in ATTACKS:
        row = f"{label}, {attack}"
        table.add(row, "clean", evaluated.number("clean"))
        for text, radius in RADII.items():
            papers = printed[attack] if text == EPSILON and dataset == "cifar10" else None
            table.add(row, text, evaluated.number(attack, radius), papers)
    return {a: [evaluated.number(a, radius)["value"] for radius in RADII.values()] for a in ATTACKS}


def _draw(run: Run, dataset: str, paper: dict[str, Series], ours: dict[str, Series]) -> None:
    figure, axes = panels(4, 3.4, 3.4)
    for number, attack in enumerate(ATTACKS):
        curves(axes[number], paper[attack], f"paper, CIFAR-10, {attack}\n(printed in Table 5)", "epsilon · 255")
        curves(axes[2 + number], ours[attack], f"here, {dataset}, {attack}", "epsilon · 255")
    for axis in axes:
        axis.set_xlim(0.9, 142)
    legend(axes[-1])
    save(figure, run.report_dir, "epsilon_sweep")
