"""Section 4.1: accuracy under attacks whose gradients average over 1 to 100 draws; the paper stops at 50."""

from functools import partial

from wca_tf.experiments.ablation import TWO_RADII
from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import ABLATION_LABELS, EPSILON, RADII
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

# The paper: accuracy "begins to saturate from around 35" draws, "converges at 40"; it takes 50.
DRAWS = (1, 5, 10, 20, 35, 40, 50, 100)
ATTACKS = ("fgsm", "pgd")
NOISY = ABLATION_LABELS[1:]
# On CIFAR-10 attacks leave nothing of a short training at the paper's radius: then the number of draws shows nothing.
OTHER_RADII = {"cifar10": ("1/255",)}


def reproduce(run: Run) -> Table:
    """Return a table with a row per net, attack and radius, and a column per number of draws.

    Its numbers are expected accuracies, which do not depend on the luck of a single draw.
    """
    [dataset] = run.datasets
    radii = (EPSILON, *OTHER_RADII.get(dataset, ()))
    table = Table(f"Draws of EoT on {dataset}: section 4.1 of the paper", [])
    table.legend = (
        "Expected accuracy in %, ± the 95 % half-width, by the number of draws that a gradient averages over."
    )
    found: dict[tuple[str, str], Series] = {(attack, radius): {} for radius in radii for attack in ATTACKS}
    for label, variant in NOISY:
        fill = partial(_add_rows, run, dataset, label, variant, radii)
        rows = kept_rows(run, table, label, [run.net(dataset, variant)], fill, [DRAWS, radii])
        for panel, values in zip(found, rows or [], strict=bool(rows)):  # no rows of a net that diverged
            found[panel][label] = list(zip(map(float, DRAWS), values, strict=True))
    table.notes = run.notes(dataset, NOISY, list(ATTACKS))
    table.notes.append("the paper prints no numbers: accuracy saturates from about 35 draws and converges at 40")
    table.notes += [TWO_RADII] if dataset == "fashion_mnist" else []
    figure, axes = panels(len(found))
    for (attack, radius), axis in zip(found, axes, strict=True):
        curves(axis, found[attack, radius], f"{attack}, ε = {radius}", "draws of EoT", logarithmic=False)
    legend(axes[-1])
    save(figure, run.report_dir, "eot_convergence")
    return table


def _add_rows(
    run: Run, dataset: str, label: str, variant: str, radii: tuple[str, ...], table: Table
) -> list[list[float]]:
    """Train a net and fill its rows; return for each radius and attack the accuracy for each number of draws."""
    written = {(attack, draws): f"{attack}:eot_samples={draws}" for attack in ATTACKS for draws in DRAWS}
    evaluated = run.evaluated(dataset, variant, list(written.values()), ",".join(radii))
    found = []
    for radius in radii:
        for attack in ATTACKS:
            numbers = {
                str(draws): evaluated.number(written[attack, draws], RADII[radius], "expected_accuracy")
                for draws in DRAWS
            }
            for draws, number in numbers.items():
                table.add(f"{label}, {attack}, {radius}", draws, number)
            found.append([number["value"] for number in numbers.values()])
    return found
