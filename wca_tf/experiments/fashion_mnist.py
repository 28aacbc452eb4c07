"""Fashion-MNIST by the paper's protocol and by adaptive attacks, at three radii: README's table and picture."""

from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments.baselines import load_net, without_noise
from wca_tf.experiments.charts import Series, bars, curves, legend, panels, save
from wca_tf.experiments.paper import ABLATION_LABELS, ABLATION_NUMBERS, EPSILON
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Cell, Table, in_points
from wca_tf.nets.judge import Judgement

RADII = {"8/255": 8 / 255, "0.1": 0.1, "0.3": 0.3}
PAPERS_RADIUS = "0.3"  # of the paper's Fashion-MNIST numbers, by its section 4.1
# By the paper's protocol: one draw for each image.
DRAWN = {"fgsm": "FGSM", "pgd": "PGD-10", "pgd:steps=40": "PGD-40"}
# As expected accuracy. "z_margin:steps=10" beside "pgd" compares the objectives at equal steps.
WORST, QUERIES, NOISE_OFF = "worst case, expected", "worst case, 100 queries", "worst case, noise off"
# README's picture: the columns that it shows, by their names there, at these radii.
PICTURE = {"PGD-10": "the usual protocol: PGD, one draw", WORST: "worst case", QUERIES: "worst case, asked 100 times"}
PICTURE_RADII = ("8/255", "0.1")
NOTES = (
    "columns without the word expected judge one draw of the noise for each image, the paper's protocol",
    "the paper's numbers stand beside epsilon = 0.3, of its section 4.1; its section 4.4 gives 8/255 for them",
    "no useful gradient: the share of images where float32 loses the label's term of cross-entropy in every draw",
)
EXPECTED = {"margin": "margin-40", "z_margin:steps=10": "z-margin-10", "z_margin": "z-margin-40"}


def reproduce(run: Run) -> Table:
    """Return a table with a row per net and radius: the paper's protocol, the adaptive attacks, their worst case."""
    [dataset] = run.datasets
    table = Table(f"The paper's protocol and adaptive attacks on {dataset}: Table 5 of the paper, and ours", ["clean"])
    adaptive = run.budget.written("adaptive")
    attacks = [*DRAWN, *EXPECTED, adaptive]
    pgd: Series = {}
    worst: Series = {}
    worst_cases: dict[tuple[str, str], Judgement] = {}
    for place, (label, variant) in enumerate(ABLATION_LABELS):
        evaluated = run.evaluated(dataset, variant, attacks, ",".join(RADII))
        clean, *printed = (number / 100 for number in ABLATION_NUMBERS["fashion_mnist"][place])
        theirs = dict(zip(("fgsm", "pgd"), printed, strict=True))
        pgd[label] = [(0.0, evaluated.number("clean")["value"])]
        worst[label] = [(0.0, evaluated.number("clean", what="expected_accuracy")["value"])]
        for text, radius in RADII.items():
            row, is_papers = f"{label}, {text}", text == PAPERS_RADIUS
            table.add(row, "clean", evaluated.number("clean"), clean if is_papers else None)
            for attack, column in DRAWN.items():
                table.add(row, column, evaluated.number(attack, radius), theirs.get(attack) if is_papers else None)
            for attack, column in {**EXPECTED, adaptive: "adaptive"}.items():
                table.add(row, f"{column}, expected", evaluated.number(attack, radius, "expected_accuracy"))
            left = evaluated.worst_case(attacks, radius)
            table.add(row, WORST, left)
            table.add(row, QUERIES, evaluated.worst_case(attacks, radius, queries=100))
            share = evaluated.entry("pgd", radius)["no_useful_gradient_share"]
            table.add(row, "no useful gradient of PGD", text=f"{100 * share:.1f} %")
            worst_cases[label, text] = evaluated.worst_judgement(attacks, radius)
            pgd[label].append((radius, evaluated.number("pgd", radius)["value"]))
            worst[label].append((radius, left["value"]))
    table.notes = [*run.notes(dataset, ABLATION_LABELS, ["adaptive"]), *NOTES, *_gains(worst_cases)]
    table.notes += _add_noise_off(table, run, attacks, worst_cases)
    figure, axes = panels(2)
    curves(axes[0], pgd, "PGD-10, the paper's protocol", "epsilon", logarithmic=False)
    curves(axes[1], worst, "worst case of all attacks, expected", "epsilon", logarithmic=False)
    legend(axes[-1])
    save(figure, run.report_dir, "fashion_mnist")
    _draw_overstated(table, run)
    return table


def _gains(worst_cases: dict[tuple[str, str], Judgement]) -> list[str]:
    """Return notes on what the noise adds to the worst case, by net and radius, in pairs of the same image."""
    plain, *noisy = (label for label, _ in ABLATION_LABELS)
    notes = []
    for label in noisy:
        gains = {radius: worst_cases[label, radius].less(worst_cases[plain, radius]) for radius in RADII}
        texts = [f"{in_points(gain)} at {radius}" for radius, gain in gains.items()]
        notes.append(f"worst case of {label} less {plain}, in points, paired over the images: {', '.join(texts)}")
    return notes


def _add_noise_off(
    table: Table, run: Run, attacks: list[str], worst_cases: dict[tuple[str, str], Judgement]
) -> list[str]:
    """Fill the column of the nets with their noise off, at the smallest radius; return notes on what noise adds."""
    [dataset] = run.datasets
    plain, *noisy = ABLATION_LABELS
    notes = []
    for label, variant in noisy:
        twin = without_noise(run, load_net(run, run.trained(dataset, variant)), attacks, EPSILON)
        off = twin.worst_judgement(attacks, RADII[EPSILON])
        table.add(f"{label}, {EPSILON}", NOISE_OFF, off.n_query_accuracy(1))
        adds = in_points(worst_cases[label, EPSILON].less(off))
        keeps = in_points(off.less(worst_cases[plain[0], EPSILON]))
        notes.append(f"worst case of {label} less the same net with its noise off, in points: {adds} at {EPSILON}")
        notes.append(f"worst case of {label} with its noise off less {plain[0]}, in points: {keeps} at {EPSILON}")
    return notes


def _draw_overstated(table: Table, run: Run) -> None:
    """Write README's picture: for each net what the usual protocol sees, and what the worst case leaves."""
    figure, axes = panels(len(PICTURE_RADII), label="accuracy on attacked images, %")
    figure.suptitle("What the usual protocol sees, and what is left")
    for axis, radius in zip(axes, PICTURE_RADII, strict=True):
        axis.set_title(f"ε = {radius}")
        rows = [table.rows[f"{label}, {radius}"] for label, _ in ABLATION_LABELS]
        for place, (column, name) in enumerate(PICTURE.items()):
            style = {"color": COLOURS[place], "label": name}
            drawn = bars(axis, [row.get(column, Cell()) for row in rows], place, len(PICTURE), False, style)
            axis.bar_label(drawn, fmt="%.0f", padding=9, fontsize=8)  # above the intervals
        axis.set_xticks(range(len(rows)), [label.replace(" ", "\n") for label, _ in ABLATION_LABELS])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PICTURE), frameon=False)
    save(figure, run.report_dir, "overstated")
