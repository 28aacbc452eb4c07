"""Figure 3: class weights and the noise's covariance in a bottleneck of two dimensions."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments.charts import STYLE, save
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.runs.model_dir import ModelDirectory

NETS = (("isotropic", "plane_isotropic"), ("anisotropic", "plane_anisotropic"))
RANDOM_ANGLE = 22.5  # degrees, mean angle of a random direction of the plane to the nearer of two axes


def reproduce(run: Run) -> Table:
    """Return a table of the angles between each class's weights and the nearest principal axis of the noise.

    The figure draws the weights and the noise.
    """
    [dataset] = run.datasets
    table = Table(f"A bottleneck of two dimensions on {dataset}: Figure 3 of the paper", [])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.4), layout="constrained")
        axes = figure.subplots(1, 2)
    for axis, (label, variant) in zip(axes, NETS, strict=True):
        weights, scale_tril = _head(run.trained(dataset, variant))
        covariance = scale_tril @ scale_tril.T
        angles = angles_to_axes(weights, covariance)
        variances, directions = np.linalg.eigh(covariance)
        evaluated = run.evaluated(dataset, variant, ["pgd"])
        table.add(label, "clean", evaluated.number("clean"))
        table.add(label, "pgd 8/255", evaluated.number("pgd", 8 / 255))
        table.add(label, "mean angle of weights to the nearest axis of the noise", text=f"{angles.mean():.1f} degrees")
        table.add(label, "largest", text=f"{angles.max():.1f} degrees")
        tilt = np.degrees(np.arctan2(directions[1, 1], directions[0, 1])) % 90
        table.add(label, "the noise's axes are turned by", text=f"{min(tilt, 90 - tilt):.1f} degrees")
        table.add(label, "standard deviations", text=" and ".join(f"{s:.1f}" for s in np.sqrt(variances)))
        _draw(axis, weights, covariance, f"{label} ({dataset}, D = 2)")
    save(figure, run.report_dir, "contours")
    table.notes = run.notes(dataset, NETS, ["pgd"])
    table.notes.append(f"a random direction is {RANDOM_ANGLE} degrees from the nearest axis on average")
    table.notes.append("the paper's figure is a picture that its source does not hold; it has no numbers to set beside")
    return table


def angles_to_axes(weights: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the degrees [C] between each column of weights [D, C] and the nearest eigenvector of covariance [D, D]."""
    _, directions = np.linalg.eigh(covariance)
    cosines = np.abs(directions.T @ (weights / np.linalg.norm(weights, axis=0)))
    return np.degrees(np.arccos(np.clip(cosines.max(axis=0), 0, 1)))


def _head(model_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return W [D, C] and L [D, D] of a trained net."""
    directory = ModelDirectory(model_dir)
    model = directory.load_best()
    return model.classifier.kernel.numpy(), model.noise.scale_tril.numpy()


def _draw(axis: Axes, weights: np.ndarray, covariance: np.ndarray, title: str) -> None:
    """Draw ellipses at 1, 2 and 3 standard deviations, and the weights as arrows of a visible length."""
    variances, directions = np.linalg.eigh(covariance)
    tilt = np.degrees(np.arctan2(directions[1, 1], directions[0, 1]))
    reach = 3.3 * np.sqrt(variances.max())
    for deviations in (1, 2, 3):
        width, height = 2 * deviations * np.sqrt(variances[::-1])
        axis.add_patch(Ellipse((0, 0), width, height, angle=tilt, fill=False, color="#888888", linewidth=0.8))
    arrows = weights / np.linalg.norm(weights, axis=0).max() * reach * 0.85
    for number, (x, y) in enumerate(arrows.T):
        arrow = {"arrowstyle": "->", "color": COLOURS[number % len(COLOURS)], "linewidth": 1.6}
        axis.annotate("", (x, y), (0, 0), arrowprops=arrow)
        axis.text(1.08 * x, 1.08 * y, str(number), ha="center", va="center", fontsize=8)
    axis.set_xlim(-reach, reach)
    axis.set_ylim(-reach, reach)
    axis.set_aspect("equal")
    axis.set_title(f"{title}\nlongest weight {np.linalg.norm(weights, axis=0).max():.3f}")
