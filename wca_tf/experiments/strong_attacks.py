"""Every row of the ablation and the controls again, under strong attacks: what is left of the robustness."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.experiments.charts import bar_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import ABLATION_LABELS, CONTROLS, E3_NOTE, EPSILON, RADII, Row, ablation_rows
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, in_points
from wca_tf.gaussian.intervals import mean_difference
from wca_tf.nets.judge import Judgement

WITHOUT_NOISE = ("none", "none_at")  # the variants that the others are compared with
WORST = "worst case, expected"
QUERIES = "clean, 100 queries"
CHART = ("clean", "fgsm", "pgd", WORST, QUERIES)  # the columns of the chart
# Radii at which nets without adversarial training keep something, for data on which nothing is left at 8/255. Digits
# stand for all data at --scale=tiny.
SMALLER = dict.fromkeys(("cifar10", "digits"), ("1/255", "2/255"))
SMALLER_WORST = "worst case at {}, expected"


def reproduce(run: Run) -> Table:
    """Return a table with a row per variant.

    A row has the paper's protocol, each adaptive attack, and the worst case per image over all of them.
    """
    first, *others = run.datasets
    table = Table(f"Every variant under strong attacks, {', '.join(run.datasets)}, epsilon = {EPSILON}", [])
    left: dict[tuple[str, str], list[float]] = {}
    for row in strong_rows():
        if found := _keep_row(table, row.label, run, first, row):
            left[row.variant, row.label] = found
    table.notes = [*run.notes(first, strong_rows(), ["square"]), *_gains(left)]
    for dataset in others:
        for row in ablation_rows(dataset):
            _keep_row(table, f"{dataset}, {row.label}", run, dataset, row)
        table.notes += run.notes(dataset, ABLATION_LABELS, ["square"])
    if set(run.datasets) & set(SMALLER):
        table.notes.append(smaller_note(run))
    table.notes.append(f"{WORST}: over fgsm, pgd, {', '.join(run.budget.suite)}")
    table.notes.append("E1 changes the attack, not the net: under attacks that need no draws, it is the penalty's row")
    table.notes.append(E3_NOTE)
    table.notes.append("in brackets: the paper's numbers for CIFAR-10 (Tables 5 and 6), where a row names no data set")
    bar_chart(table, run.report_dir, "strong_attacks", ("paper, CIFAR-10", f"here, {first}"), CHART)
    return table


def _keep_row(table: Table, label: str, run: Run, dataset: str, row: Row) -> list[float] | None:
    """Fill a row, or take it from an earlier run; return P(correct) of each image in the worst case.

    Return `None` for a net that diverged.
    """

    def fill(part: Table) -> list[float]:
        path = run.trained(dataset, row.variant)
        attacks = add_strong_cells(part, label, run, path, row.paper, **row.asked)
        if dataset in SMALLER:
            add_smaller_radii(part, label, run, path, SMALLER[dataset], **row.asked)
        worst = run.evaluated_at(path, attacks, **row.asked).worst_judgement(attacks, RADII[EPSILON])
        probabilities: list[float] = worst.probability_correct.tolist()
        return probabilities

    found: list[float] | None = kept_rows(run, table, label, run.nets(dataset, row.variant), fill, row.asked)
    return found


def _gains(left: dict[tuple[str, str], list[float]]) -> list[str]:
    """Return notes on the worst case of each row less that of the nets without noise, in pairs of the same image.

    `left` has P(correct) of the same images in the worst case, by variant and label.
    """
    notes = []
    for (variant, label), without in left.items():
        if variant in WITHOUT_NOISE:
            gains = {
                other: mean_difference(np.subtract(values, without))
                for (_, other), values in left.items()
                if other != label
            }
            text = ", ".join(f"{other} {in_points(gain)}" for other, gain in gains.items())
            notes.append(f"worst case less that of {label}, in points, paired over the images: {text}")
    return notes


def strong_rows() -> list[Row]:
    """Return the rows of the table: isotropic noise of the ablation, and every row of the controls except E1.

    E1 changes the attack, not the net. The paper's numbers are for CIFAR-10.
    """
    isotropic = [row for row in ablation_rows("cifar10") if row.variant == "isotropic"]
    controls = [row for row in CONTROLS if "eot_samples" not in row.asked]
    return controls[:1] + isotropic + controls[1:]


def add_strong_cells(
    table: Table,
    label: str,
    run: Run,
    path: Path,
    paper: tuple[float, ...],
    papers_square: float | None = None,
    **asked: Any,
) -> list[str]:
    """Fill a row: the paper's protocol, the suite's expected accuracies, and their worst case per image.

    Args:
        table: gains the row.
        label: the name of the row.
        run: the run, with the budget of the attacks.
        path: the directory of the trained net.
        paper: the paper's clean, FGSM and PGD accuracy, as shares; empty where the paper has none.
        papers_square: the paper's accuracy under Square, as a share.
        **asked: changes to the EvaluateConfig.

    Returns:
        The attacks of the worst case, as written.
    """
    radius = RADII[EPSILON]
    suite = list(run.budget.suite)
    evaluated = run.evaluated_at(path, ["fgsm", "pgd", *suite], **asked)
    theirs = dict(zip(("clean", "fgsm", "pgd"), paper, strict=False))
    for attack in ("clean", "fgsm", "pgd"):
        table.add(label, attack, evaluated.number(attack, radius), theirs.get(attack))
    for attack in suite:
        if attack.startswith("square") and papers_square is not None:
            table.add(label, attack, evaluated.number(attack, radius), papers_square)
        table.add(label, f"{attack}, expected", evaluated.number(attack, radius, "expected_accuracy"))
    worst = evaluated.worst_case(["fgsm", "pgd", *suite], radius)
    table.add(label, WORST, worst)
    overstated = evaluated.number("pgd", radius, "expected_accuracy")["value"] - worst["value"]
    table.add(label, "pgd overstates by", text=f"{100 * overstated:.1f} points")
    queries = evaluated.number("clean", None, "n_query_accuracy")["100"]
    table.add(label, QUERIES, queries)
    share = evaluated.entry("pgd", radius)["no_useful_gradient_share"]
    table.add(label, "no useful gradient", text=f"{100 * share:.1f} %")
    return ["fgsm", "pgd", *suite]


def add_smaller_radii(
    table: Table, label: str, run: Run, path: Path, radii: Sequence[str], **asked: Any
) -> dict[str, Judgement]:
    """Fill the columns of smaller radii: PGD, and the worst case; return the judgement of the worst case at each."""
    attacks = at_smaller(run)
    found = run.evaluated_at(path, attacks, ",".join(radii), **asked)
    worst = {radius: found.worst_judgement(attacks, RADII[radius]) for radius in radii}
    for radius, judgement in worst.items():
        table.add(label, f"pgd at {radius}, expected", found.number("pgd", RADII[radius], "expected_accuracy"))
        table.add(label, SMALLER_WORST.format(radius), judgement.n_query_accuracy(1))
    return worst


def at_smaller(run: Run) -> list[str]:
    """Return the attacks at smaller radii, as written."""
    return ["pgd", "z_margin", run.budget.written("adaptive")]


def smaller_note(run: Run) -> str:
    """Return the note on the columns of smaller radii."""
    return f"at smaller radii: the worst case of {', '.join(at_smaller(run))}, by the same images"
