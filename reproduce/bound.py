"""Figure 2: accuracy of linear SVMs on MNIST's zeros and ones under attack, and Theorem 1's bound on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import wca_tf
from reproduce.charts import lines
from reproduce.nets import TITLES
from reproduce.study import Study
from reproduce.tables import Cell, Filled, Missing, Reading, Row, Site, Table
from wca_tf import DataConfig

COVARIANCES = ("isotropic", "anisotropic")
EPSILONS = (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3)
SEEDS = {"tiny": (0, 1), "small": (0, 1, 2, 3, 4), "paper": (0, 1, 2, 3, 4)}
SHOWN = {"optimum": "best attack", "pgd": "PGD", "certified": "bound before Lipschitz", "theorem_1": "Theorem 1"}
ROUNDING = 1e-5  # PGD's images are float32


def declare(dataset: str, scale: str) -> tuple[Table, ...]:
    """Declare Figure 2: a row for each covariance and quantity, a column for each radius."""
    return (
        Table(
            f"Figure 2: Theorem 1 on two classes of {TITLES[dataset]}",
            [Row(f"{name}, {covariance}") for covariance in COVARIANCES for name in SHOWN.values()],
            [Reading(f"{epsilon:g}", _cell, radius=f"{epsilon:g}") for epsilon in EPSILONS],
            notes=[
                "Linear SVMs on 32 principal components. Cells: the mean over seeds ± half of their range.",
                "Best attack: the worst image in the ball and in [0, 1], a closed form. None leaves less than a bound.",
                "The paper does not say how its SVMs were trained, and its figure is a picture without numbers.",
            ],
            charts=[lines("ε", _curves)],
        ),
    )


def measure(study: Study, dataset: str) -> None:
    """Train the SVMs of each seed, attack them, and write the evidence.

    Raises:
        RuntimeError: an attack left less than a bound, which would be a bug.
    """
    if study.evidence.own("bound") is not None:
        return
    from reproduce.linear_svm import bound_curve, train_svm  # it loads TensorFlow

    name = "digits" if study.scale == "tiny" else dataset
    train, test = (_zeros_and_ones(study, name, split) for split in ("train", "test"))
    found = {}
    for covariance in COVARIANCES:
        curves = []
        for seed in SEEDS[study.scale]:
            print(f"== SVM, {covariance} noise, seed {seed}")
            svm = train_svm(train.images[:], train.labels, covariance, seed)
            curves.append(bound_curve(svm, test.images[:], test.labels, EPSILONS, seed))
        check_bound(curves)
        found[covariance] = curves
    study.evidence.add_own("bound", found)


def check_bound(curves: Sequence[Sequence[dict[str, float]]]) -> None:
    """Raise RuntimeError when an attack left less than one of the two bounds of Theorem 1."""
    for point in (point for curve in curves for point in curve):
        least = min(point["pgd"], point["optimum"])
        if point["theorem_1"] > least + ROUNDING or point["certified"] > least + ROUNDING:
            raise RuntimeError(f"Theorem 1's bound is violated: {point}")


def _cell(site: Site) -> Cell:
    curves = site.study.evidence.own("bound")
    if curves is None:
        raise Missing("bound")
    name, covariance = site.label.rsplit(", ", 1)
    key, place = {shown: key for key, shown in SHOWN.items()}[name], EPSILONS.index(float(site.radius or 0))
    values = [curve[place][key] for curve in curves[covariance]]
    return Cell(float(np.mean(values)), min(values), max(values))


def _curves(filled: Filled) -> dict[str, dict[str, list[tuple[float, float]]]]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for label, cells in filled.cells.items():
        name, covariance = label.rsplit(", ", 1)
        points = [(epsilon, cells[f"{epsilon:g}"].value) for epsilon in EPSILONS]
        found.setdefault(f"{covariance} noise", {})[name] = [(x, y) for x, y in points if y is not None]
    return found


def _zeros_and_ones(study: Study, dataset: str, split: str) -> wca_tf.Examples:
    examples = wca_tf.load_examples(DataConfig(dataset, **study.engine.data), split)
    chosen = examples.take(np.flatnonzero(examples.labels < 2))
    return wca_tf.Examples(chosen.images, chosen.labels, examples.class_names[:2])
