"""Where a net's noise goes: its size, that of the margin, and the part of it that all classes share."""

import numpy as np
import tensorflow as tf

from wca_tf.data.batches import to_float
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.gaussian import covariance, margins
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.targets import GaussianLogitsTarget
from wca_tf.runs.model_dir import ModelDirectory

IMAGES = 500
DEVIATION, MARGIN, COMMON, RATIO = "deviation of a logit", "size of the margin", "noise in common", "noise over margin"
PAIRS, LEAST = "deviation of a difference", "least deviation of a difference"
NOTES = [
    f"{MARGIN}, {RATIO}: of the label's logit and its nearest other class's, without their sign, over {IMAGES} "
    "validation images",
    f"{DEVIATION}, {PAIRS}: geometric mean of the classes, and of all pairs of classes; {COMMON}: the share of the "
    "logits' variance that cancels in every answer",
]

# Metrics of training with WCA's noise -> the columns of tables that show them.
IN_TRAINING = {"common_noise_share": COMMON, "noise_to_margin": RATIO}
IN_TRAINING_NOTE = (
    f"{COMMON}: the share of the logits' variance that cancels in every answer; {RATIO}: the deviation of the deciding "
    "difference over the margin; both on training images in the epoch that is judged"
)


def add_noise_in_training(table: Table, label: str, directory: ModelDirectory) -> None:
    """Fill the columns that say where the noise of a net went in training; a net without such noise has none."""
    line = directory.best_epoch()
    for metric, column in IN_TRAINING.items():
        if metric in line:
            table.add(label, column, text=number_text(column, line[metric]))


def number_text(column: str, value: float) -> str:
    """Return a number of a column as text. A share in common near 1 is given by its difference to 1: 1 − 4.2e-05."""
    return f"1 − {1 - value:.1e}" if column == COMMON and value > 0.99 else f"{value:.3g}"


def noise_numbers(run: Run, directory: ModelDirectory) -> dict[str, float]:
    """Return the numbers of a net's noise on validation images; for a net without noise, the size of the margin alone.

    Raises:
        TypeError: a net with noise before its last features.
    """
    model = directory.load_best()
    target = _head_of(model)
    asked = EvaluateConfig(split="validation", num_examples=IMAGES, tfds_data_dir=run.config.tfds_data_dir)
    examples = load_evaluation_examples(asked, directory)
    scale = target.logit_scale
    logits = model.noise_free_logits(to_float(tf.constant(examples.images)))
    deviations, distances = margins.nearest_difference(logits, tf.constant(examples.labels), scale)
    deviation, margin = float(tf.reduce_mean(deviations)), float(tf.reduce_mean(distances))
    if not target.has_noise:
        return {MARGIN: margin}
    pairs = covariance.logit_difference_scale(scale).numpy()[np.triu_indices(len(scale), 1)]
    of_logits = np.linalg.norm(scale.numpy(), axis=1)
    common = float(covariance.common_noise_share(tf.cast(scale, tf.float64)))  # it may be within 1e-8 of 1
    geometric = {DEVIATION: _geometric_mean(of_logits), PAIRS: _geometric_mean(pairs)}
    return {**geometric, LEAST: float(pairs.min()), MARGIN: margin, COMMON: common, RATIO: deviation / margin}


def pair_deviations(directory: ModelDirectory) -> list[list[float]]:
    """Return the deviation of the noise of each difference of two logits, [C, C], of a net with noise in its head."""
    pairs = covariance.logit_difference_scale(_head_of(directory.load_best()).logit_scale).numpy()
    return [[float(f"{value:.4g}") for value in row] for row in pairs]


def _head_of(model: StochasticClassifier) -> GaussianLogitsTarget:
    """Return the target of a net; raise TypeError for noise before its last features."""
    target = model.target()
    if not isinstance(target, GaussianLogitsTarget):
        raise TypeError(f"expected a net with noise in its head alone, received {type(model).__name__}")
    return target


def _geometric_mean(values: np.ndarray) -> float:
    """Return the geometric mean of numbers of 0 or more; 0 where one of them is 0."""
    return float(np.exp(np.log(values).mean())) if values.all() else 0.0
