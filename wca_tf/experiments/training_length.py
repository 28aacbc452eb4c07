"""How accuracy under attack changes with the length of training, at the paper's learning rates held constant."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import tensorflow as tf
from matplotlib import ticker
from matplotlib.axes import Axes

from wca_tf.core.errors import DivergedError
from wca_tf.data.batches import to_float
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.experiments.charts import Series, panels, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import EPSILON, RADII
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.gaussian import covariance, margins
from wca_tf.nets.targets import HeadNoiseTarget
from wca_tf.runs.model_dir import ModelDirectory

RADIUS = RADII[EPSILON]
# Label -> variant, and the epochs after which its net is judged. The last is the length of its run.
LONG, SHORT = (2, 5, 10, 20, 50, 100), (2, 5, 10, 20, 30)
NETS = {
    "No Defense": ("long_none", LONG),
    "WCA-Net anisotropic": ("long_anisotropic", LONG),
    "WCA-Net isotropic": ("long_isotropic", SHORT),
    "WCA-Net as in the authors' code": ("long_official", SHORT),
    "WCA-Net anisotropic, rate divided by 10": ("long_steps", (30,)),
}
TINY = (1, 2)
IMAGES = 500
WORST = "worst case, expected"
# The columns that are panels of the figure. The first three are in %.
OF_NOISE = ("deviation of a logit", "size of the margin", "noise in common", "noise over margin")
PANELS = ("PGD (paper)", WORST, "zero gradients", *OF_NOISE)
LOGARITHMIC = ("deviation of a logit", "size of the margin", "noise over margin")


def reproduce(run: Run) -> Table:
    """Return a table with a row for each net and number of epochs, and write a figure of its columns over epochs."""
    table = Table(f"Length of training, {', '.join(run.datasets)}, epsilon = {EPSILON}", ["clean"])
    for dataset in run.datasets:
        drawn: dict[str, Series] = {column: {} for column in PANELS}
        for label, (variant, epochs) in NETS.items():
            kept = epochs if run.config.scale != "tiny" else TINY[-len(epochs) :]
            name, net = f"{dataset}, {label}", dataclasses.replace(run.net(dataset, variant), epochs=kept[-1])
            rows = kept_rows(run, table, name, [net], partial(_add_rows, run, dataset, variant, kept, name))
            for epoch, numbers in zip(kept, rows, strict=bool(rows)):  # no rows of a run that diverged
                for column, value in numbers.items():
                    drawn[column].setdefault(label, []).append((epoch, value))
        _draw(run, dataset, drawn)
        nets = [(label, variant) for label, (variant, _) in NETS.items()]
        table.notes += run.notes(dataset, nets, ["adaptive"])
    table.notes += [
        "the learning rate is constant, so that a net after 10 epochs is that of a run of 10 epochs; rate divided by "
        "10: after each third of the run, as the authors do",
        "size of the margin, noise over margin: of the label's logit and its nearest rival's, without their sign, "
        f"over {IMAGES} validation images",
        "deviation of a logit: geometric mean of the classes; noise in common cancels in every answer",
    ]
    return table


def _add_rows(
    run: Run, dataset: str, variant: str, epochs: Sequence[int], name: str, table: Table
) -> list[dict[str, float]]:
    """Train a net and fill a row for each number of epochs; return the numbers of the figure for each."""
    try:
        path = run.trained(dataset, variant, snapshots=epochs, epochs=epochs[-1])
    except DivergedError:
        table.add(name, "clean", text="diverged")
        return []
    snapshots = {epoch: ModelDirectory(path).snapshot(epoch).path for epoch in epochs}
    return [_add_row(table, run, f"{name}, {epoch} epochs", kept) for epoch, kept in snapshots.items()]


def _add_row(table: Table, run: Run, label: str, path: Path) -> dict[str, float]:
    """Fill a row; return the numbers of the figure."""
    adaptive = run.budget.written("adaptive")
    found = run.evaluated_at(path, ["pgd", adaptive], EPSILON)
    worst = found.worst_case(["pgd", adaptive], RADIUS)
    share = found.entry("pgd", RADIUS)["zero_gradient_share"]
    table.add(label, "clean", found.number("clean", what="expected_accuracy"))
    pgd = found.number("pgd", RADIUS)
    table.add(label, PANELS[0], pgd)
    table.add(label, WORST, worst)
    table.add(label, PANELS[2], text=f"{100 * share:.1f} %")
    numbers = {PANELS[0]: 100 * pgd["value"], WORST: 100 * worst["value"], PANELS[2]: 100 * share}
    for column, value in _noise(run, ModelDirectory(path)).items():
        table.add(label, column, text=f"{value:.3g}")
        numbers[column] = value
    return numbers


def _noise(run: Run, directory: ModelDirectory) -> dict[str, float]:
    """Return the numbers of the noise on validation images; for a net without noise, the margin alone."""
    model = directory.load_best()
    target = model.target()
    if not isinstance(target, HeadNoiseTarget):
        raise TypeError(f"expected a net with noise in its head alone, received {type(model).__name__}")
    asked = EvaluateConfig(split="validation", num_examples=IMAGES, tfds_data_dir=run.config.tfds_data_dir)
    examples = load_evaluation_examples(asked, directory.train_config())
    scale = target.logit_scale
    logits = model.noise_free_logits(to_float(tf.constant(examples.images)))
    deviations, distances = margins.nearest_difference(logits, tf.constant(examples.labels), scale)
    deviation, margin = float(tf.reduce_mean(deviations)), float(tf.reduce_mean(distances))
    if not target.has_noise:
        return {OF_NOISE[1]: margin}
    of_logits = tf.exp(tf.reduce_mean(tf.math.log(tf.norm(scale, axis=1))))
    numbers = (float(of_logits), margin, float(covariance.common_noise_share(scale)), deviation / margin)
    return dict(zip(OF_NOISE, numbers, strict=True))


def _draw(run: Run, dataset: str, drawn: dict[str, Series]) -> None:
    """Draw each column over the epochs, a line for each net."""
    figure, axes = panels(len(PANELS), 3.4, 3.2, label="in %, or a number", shared=False, columns=4)
    for axis, column in zip(axes, PANELS, strict=True):
        _lines(axis, column, drawn[column])
        if column in LOGARITHMIC:
            axis.set_yscale("log")
        elif column not in OF_NOISE:
            axis.set_ylim(0, 100)
    names = axes[0].get_legend_handles_labels()  # of all nets; a net without noise has no line in some panels
    figure.legend(*names, loc="outside lower center", ncols=3, frameon=False)
    save(figure, run.report_dir, f"training_length_{dataset}")


def _lines(axis: Axes, title: str, series: Series) -> None:
    axis.set(title=title, xlabel="epochs", xscale="log")
    epochs = sorted({int(epoch) for points in series.values() for epoch, _ in points})
    axis.set_xticks(epochs, [str(epoch) for epoch in epochs])
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    for label, points in series.items():
        x, y = zip(*points, strict=True)
        axis.plot(x, y, marker="o", markersize=3, color=COLOURS[list(NETS).index(label)], label=label)
