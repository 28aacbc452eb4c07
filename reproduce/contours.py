"""Figure 3: class weights and the noise's covariance in a bottleneck of two dimensions."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from reproduce import readings as read
from reproduce.charts import COLOURS, STYLE
from reproduce.engine import Need
from reproduce.nets import TITLES, Net
from reproduce.study import Study
from reproduce.tables import Cell, Filled, Missing, Reading, Row, Site, Table

NETS = {"isotropic": "plane_isotropic", "anisotropic": "plane_anisotropic"}
RANDOM_ANGLE = 22.5  # degrees, mean angle of a random direction of the plane to the nearer of two axes


def declare(dataset: str, scale: str) -> tuple[Table, ...]:
    """Declare Figure 3: the angles between each class's weights and the nearest principal axis of the noise."""
    return (
        Table(
            f"Figure 3: a bottleneck of two dimensions on {TITLES[dataset]}",
            [Row(label, (Net(dataset, variant),)) for label, variant in NETS.items()],
            [
                read.clean(),
                read.one_draw("pgd", "PGD at 8/255"),
                Reading("mean angle to an axis", lambda site: _degrees(angles_to_axes(*_head(site)).mean()), ("fgsm",)),
                Reading("largest angle", lambda site: _degrees(angles_to_axes(*_head(site)).max()), ("fgsm",)),
                Reading("deviations", lambda site: Cell(text=_deviations(_head(site)[1])), ("fgsm",)),
            ],
            notes=[
                f"A random direction is {RANDOM_ANGLE} degrees from the nearest axis on average.",
                "Deviations: of the noise along its axes. The paper's figure is a picture without numbers.",
            ],
            charts=[_draw],
        ),
    )


def measure(study: Study, dataset: str) -> None:
    """Train the nets, and write the weights of their heads as evidence."""
    for variant in NETS.values():
        net = Net(dataset, variant)
        study.engine.provide([Need(net)])
        if study.evidence.own("contours", net) is None and (directory := study.engine.trained(net)) is not None:
            model = directory.load_best()
            head = {"weights": model.classifier.kernel, "scale_tril": model.noise.scale_tril}
            numbers = {key: np.asarray(value).tolist() for key, value in head.items()}
            study.evidence.add_own("contours", numbers, net)


def angles_to_axes(weights: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return the degrees [C] between each column of weights [D, C] and the nearest eigenvector of covariance [D, D]."""
    _, directions = np.linalg.eigh(covariance)
    cosines = np.abs(directions.T @ (weights / np.linalg.norm(weights, axis=0)))
    return np.degrees(np.arccos(np.clip(cosines.max(axis=0), 0, 1)))


def _head(site: Site) -> tuple[np.ndarray, np.ndarray]:
    """Return the class weights W [2, C] and the covariance of the noise [2, 2]."""
    found: Any = site.study.evidence.own("contours", site.net)
    if found is None:
        raise Missing(f"contours of {site.net.name(site.study.scale)}")
    scale = np.array(found["scale_tril"])
    return np.array(found["weights"]), scale @ scale.T


def _degrees(value: float) -> Cell:
    return Cell(text=f"{value:.1f}°")


def _deviations(covariance: np.ndarray) -> str:
    return " and ".join(f"{deviation:.1f}" for deviation in np.sqrt(np.linalg.eigvalsh(covariance)))


def _draw(filled: Filled) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        axes = figure.subplots(1, len(NETS))
    for axis, row in zip(axes, filled.table.rows, strict=True):
        [net] = filled.nets[row.label]
        try:
            weights, covariance = _head(Site(filled.study, net, row.part, (), None))
        except Missing:
            continue
        _draw_head(axis, weights, covariance, f"{row.label} noise")
    return figure


def _draw_head(axis: Axes, weights: np.ndarray, covariance: np.ndarray, title: str) -> None:
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
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axis.set_title(f"{title}\nlongest weight {np.linalg.norm(weights, axis=0).max():.3f}")
