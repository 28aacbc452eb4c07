"""Figure 2: accuracy of linear SVMs on MNIST's zeros and ones under attack, and Theorem 1's bound on it."""

import numpy as np

from wca_tf.data.config import DataConfig
from wca_tf.data.examples import Examples
from wca_tf.data.sources import load_examples
from wca_tf.experiments.charts import Series, curves, legend, panels, save
from wca_tf.experiments.linear_svm import DESCENT, bound_curve, train_svm
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.gaussian.intervals import Number

COVARIANCES = ("isotropic", "anisotropic")
EPSILONS = (0.0, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3)
SEEDS = {"tiny": (0, 1), "small": (0, 1, 2, 3, 4), "paper": (0, 1, 2, 3, 4)}
SHOWN = {"optimum": "best attack", "pgd": "PGD", "certified": "bound before Lipschitz", "theorem_1": "Theorem 1"}
ROUNDING = 1e-5  # PGD's images are float32


def reproduce(run: Run) -> Table:
    """Return a table with a row per covariance and quantity, and a column per radius.

    A cell has the mean over seeds, with the smallest and the largest value of a seed.
    """
    [dataset] = run.datasets
    table = Table(
        f"Theorem 1 on {dataset}, 0 against 1, linear SVM on 32 principal components: Figure 2 of the paper", []
    )
    table.legend = "Accuracy in %: the mean over seeds ± half of their range."
    train, test = (_zeros_and_ones(run, dataset, split) for split in ("train", "test"))
    figure, axes = panels(2)
    for axis, covariance in zip(axes, COVARIANCES, strict=True):
        found = []
        for seed in SEEDS[run.config.scale]:
            print(f"== SVM, {covariance} noise, seed {seed}")
            svm = train_svm(train.images, train.labels, covariance, seed)
            found.append(bound_curve(svm, test.images, test.labels, EPSILONS, seed))
        _check_bound(found)
        series: Series = {}
        for key, name in SHOWN.items():
            values = np.array([[point[key] for point in curve] for curve in found])
            for place, epsilon in enumerate(EPSILONS):
                low, high = values[:, place].min(), values[:, place].max()
                mean = Number(value=float(values[:, place].mean()), low=float(low), high=float(high))
                table.add(f"{covariance}, {name}", f"{epsilon:g}", mean)
            series[name] = list(zip(EPSILONS, values.mean(axis=0), strict=True))
        curves(axis, series, f"{covariance} noise", "epsilon", logarithmic=False)
    legend(axes[-1])
    save(figure, run.report_dir, "bound")
    table.notes = [
        f"{len(train)} training and {len(test)} test images; {len(SEEDS[run.config.scale])} seeds",
        f"{DESCENT}: the paper does not say how its SVMs were trained",
        "best attack: the worst image in the ball and in [0, 1], in closed form; no attack found less than the bound",
        "the paper's figure is a picture that its source does not hold; it has no numbers to set beside",
    ]
    return table


def _zeros_and_ones(run: Run, dataset: str, split: str) -> Examples:
    config = DataConfig(dataset, tfds_data_dir=run.config.tfds_data_dir, download=run.config.download)
    examples = load_examples(config, split)
    chosen = examples.take(np.flatnonzero(examples.labels < 2))
    return Examples(chosen.images, chosen.labels, examples.class_names[:2])


def _check_bound(curves_found: list[list[dict[str, float]]]) -> None:
    """Raise RuntimeError when an attack left less than one of the two bounds of Theorem 1, which would be a bug."""
    for point in (point for curve in curves_found for point in curve):
        least = min(point["pgd"], point["optimum"])
        if point["theorem_1"] > least + ROUNDING or point["certified"] > least + ROUNDING:
            raise RuntimeError(f"Theorem 1's bound is violated: {point}")
