"""How accuracy under attack changes with the length of training, at the paper's learning rates held constant."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib import ticker
from matplotlib.axes import Axes

from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments import strong_attacks
from wca_tf.experiments.ablation import TWO_RADII
from wca_tf.experiments.charts import Series, panels, plain_numbers, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import COMMON, DEVIATION, MARGIN, NOTES, RATIO, noise_numbers, number_text
from wca_tf.experiments.paper import ABLATION_NUMBERS, EPSILON, RADII
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.runs.model_dir import ModelDirectory

RADIUS = RADII[EPSILON]
# Label -> variant, and the epochs after which its net is judged. The last is the length of its run.
LONG, SHORT = (2, 5, 10, 20, 50, 100), (2, 5, 10, 20, 30)
NETS = {
    "No Defense": ("long_none", LONG),
    "WCA-Net anisotropic": ("long_anisotropic", LONG),
    "WCA-Net isotropic": ("long_isotropic", SHORT),
    "WCA-Net anisotropic, rate divided by 10": ("long_steps", (30,)),
}
TINY = (1, 2)
WORST = "worst case, expected"
AT_SMALLER = ["pgd", "z_margin"]  # at the smaller radius: two attacks for each of many nets
SMALLER_WORST = strong_attacks.SMALLER_WORST.format("1/255")
USELESS, ZERO = "no useful gradient", "zero gradients"  # ZERO: of kept rows, which counted gradients of exactly zero
# The columns that are panels of the figure.
OF_NOISE = (DEVIATION, MARGIN, COMMON, RATIO)
PANELS = ("PGD (paper)", WORST, USELESS, ZERO, *OF_NOISE, SMALLER_WORST)


def reproduce(run: Run) -> Table:
    """Return a table with a row for each net and number of epochs, and write a figure of its columns over epochs."""
    table = Table(f"Length of training, {', '.join(run.datasets)}, epsilon = {EPSILON}", ["clean"])
    for dataset in run.datasets:
        drawn: dict[str, Series] = {column: {} for column in PANELS}
        lengths: dict[int, list[tuple[str, str]]] = {}
        for label, (variant, written) in NETS.items():
            epochs = written if run.config.scale != "tiny" else TINY[-len(written) :]
            lengths.setdefault(epochs[-1], []).append((label, variant))
            net = dataclasses.replace(run.net(dataset, variant), epochs=epochs[-1])
            images = f" of {net.max_train_examples:,} images" if net.max_train_examples else ""
            for epoch in epochs:
                name = f"{dataset}, {label}, {epoch} epochs{images}"
                numbers = kept_rows(
                    run, table, name, [net], partial(_add_row, run, dataset, variant, epochs, epoch, name), epoch
                )
                for column in PANELS if numbers else ():  # a net that diverged has no numbers
                    if column in numbers:
                        drawn[column].setdefault(label, []).append((epoch, numbers[column]))
        _draw(run, dataset, drawn)
        for length, nets in lengths.items():
            table.notes += run.notes(dataset, nets, ["adaptive"], epochs=length)
    table.notes = list(dict.fromkeys(table.notes)) + [
        "the learning rate is constant, so that a net after 10 epochs is that of a run of 10 epochs; rate divided by "
        "10: after each third of the run, as the authors do",
        f"{SMALLER_WORST}: of {' and '.join(AT_SMALLER)}",
        "No Defense: trained at the rate of the nets with noise, so that the noise alone differs",
        *([TWO_RADII] if "fashion_mnist" in run.datasets else []),
        *NOTES,
    ]
    return table


def _trained(run: Run, dataset: str, variant: str, epochs: Sequence[int], epoch: int) -> Path:
    """Train a net to the last of `epochs`; return the directory of the net as it was after `epoch`.

    Raises:
        DivergedError: the run diverged before that epoch.
    """
    snapshot = ModelDirectory(run.model_dir(dataset, variant, epochs=epochs[-1])).snapshot(epoch)
    try:
        run.trained(dataset, variant, snapshots=epochs, epochs=epochs[-1])
    except DivergedError:
        if not snapshot.last.exists():
            raise
    return snapshot.path


def _add_row(
    run: Run, dataset: str, variant: str, epochs: Sequence[int], epoch: int, label: str, table: Table
) -> dict[str, float]:
    """Train a net, and fill the row of the net after an epoch; return the numbers of the figure."""
    path = _trained(run, dataset, variant, epochs, epoch)
    adaptive = run.budget.written("adaptive")
    found = run.evaluated_at(path, ["pgd", adaptive], EPSILON)
    worst = found.worst_case(["pgd", adaptive], RADIUS)
    share = found.entry("pgd", RADIUS)["no_useful_gradient_share"]
    table.add(label, "clean", found.number("clean", what="expected_accuracy"))
    pgd = found.number("pgd", RADIUS)
    table.add(label, PANELS[0], pgd)
    table.add(label, WORST, worst)
    table.add(label, USELESS, text=f"{100 * share:.1f} %")
    numbers = {PANELS[0]: 100 * pgd["value"], WORST: 100 * worst["value"], USELESS: 100 * share}
    if dataset in strong_attacks.SMALLER:
        smaller = run.evaluated_at(path, AT_SMALLER, "1/255").worst_case(AT_SMALLER, RADII["1/255"])
        table.add(label, SMALLER_WORST, smaller)
        numbers[SMALLER_WORST] = 100 * smaller["value"]
    for column, value in noise_numbers(run, ModelDirectory(path)).items():
        table.add(label, column, text=number_text(column, value))
        numbers[column] = value
    return numbers


def _draw(run: Run, dataset: str, drawn: dict[str, Series]) -> None:
    """Draw each column over the epochs, a line for each net."""
    shown = [column for column in PANELS if drawn[column]]
    figure, axes = panels(len(shown), 3.4, 3.2, label="in %, or a number", shared=False, columns=4)
    images = run.net(dataset, NETS["No Defense"][0]).max_train_examples
    for axis, column in zip(axes, shown, strict=True):
        _lines(axis, column, drawn[column])
        axis.set_xlabel(f"epochs of {images:,} images" if images else "epochs")
        if column in OF_NOISE:
            axis.set_yscale("log")
            plain_numbers(axis.yaxis)
        else:
            axis.set_ylim(0, 100)
    if dataset in ABLATION_NUMBERS:
        papers_pgd = ABLATION_NUMBERS[dataset][-1][-1]
        axes[0].axhline(papers_pgd, color="grey", linestyle="--", label="WCA-Net anisotropic, the paper")
    names = axes[0].get_legend_handles_labels()  # of all nets; a net without noise has no line in some panels
    figure.legend(*names, loc="outside lower center", ncols=3, frameon=False)
    save(figure, run.report_dir, f"training_length_{dataset}")


def _lines(axis: Axes, column: str, series: Series) -> None:
    axis.set(title=f"1 − {column}" if column == COMMON else column, xscale="log")
    epochs = sorted({int(epoch) for points in series.values() for epoch, _ in points})
    axis.set_xticks(epochs, [str(epoch) for epoch in epochs])
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    for label, points in series.items():
        x, y = zip(*((epoch, 1 - value if column == COMMON else value) for epoch, value in points), strict=True)
        axis.plot(x, y, marker="o", markersize=3, color=COLOURS[list(NETS).index(label)], label=label)
