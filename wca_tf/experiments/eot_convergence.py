"""Section 4.1: accuracy under attacks whose gradients average over 1 to 100 draws; the paper stops at 50."""

from wca_tf.experiments.ablation import TWO_RADII
from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.paper import ABLATION_LABELS, EPSILON, RADII
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

# The paper: accuracy "begins to saturate from around 35" draws, "converges at 40"; it takes 50.
DRAWS = (1, 5, 10, 20, 35, 40, 50, 100)
ATTACKS = ("fgsm", "pgd")
NOISY = ABLATION_LABELS[1:]


def reproduce(run: Run) -> Table:
    """Return a table with a row per net and attack, and a column per number of draws.

    Its numbers are expected accuracies, which do not depend on the luck of a single draw.
    """
    [dataset] = run.datasets
    table = Table(f"Draws of EoT on {dataset}, epsilon = {EPSILON}: section 4.1 of the paper", [])
    table.legend = (
        "Expected accuracy in %, ± the 95 % half-width, by the number of draws that a gradient averages over."
    )
    found: dict[str, Series] = {attack: {} for attack in ATTACKS}
    for label, variant in NOISY:
        written = [f"{attack}:eot_samples={draws}" for attack in ATTACKS for draws in DRAWS]
        evaluated = run.evaluated(dataset, variant, written, EPSILON)
        for attack in ATTACKS:
            found[attack][label] = []
            for draws in DRAWS:
                number = evaluated.number(f"{attack}:eot_samples={draws}", RADII[EPSILON], "expected_accuracy")
                table.add(f"{label}, {attack}", str(draws), number)
                found[attack][label].append((float(draws), number["value"]))
    table.notes = run.notes(dataset, NOISY, list(ATTACKS))
    table.notes.append("the paper prints no numbers: accuracy saturates from about 35 draws and converges at 40")
    table.notes += [TWO_RADII] if dataset == "fashion_mnist" else []
    figure, axes = panels(len(ATTACKS))
    for attack, axis in zip(ATTACKS, axes, strict=True):
        curves(axis, found[attack], attack, "draws of EoT", logarithmic=False)
    legend(axes[-1])
    save(figure, run.report_dir, "eot_convergence")
    return table
