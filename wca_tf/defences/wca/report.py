"""The section of the report on a WCAHead's noise: its spectrum, its alignment with the weights, and its effect."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.defences.wca.head import WCAHead
from wca_tf.evaluation.report import figures
from wca_tf.evaluation.report.figures import Stroke
from wca_tf.evaluation.report.sections import Panel, ReportSection
from wca_tf.gaussian import covariance, margins
from wca_tf.gaussian.intervals import percent

IMAGES_AT_A_TIME = 100
# What each form of the alignment term rewards noise along.
REWARDED = {
    "per_class": "the classes’ weights",
    "centred": "the classes’ weights less their mean",
    "pairwise": "differences of the classes’ weights",
    "pairwise_normalised": "differences of the classes’ weights, whatever their length",
}


def noise_section(
    head: WCAHead, net: Any, examples: Examples, z_margins: np.ndarray, average_draws: int
) -> ReportSection:
    """Return the section on the noise of a net.

    The effect of the noise is that on the net as it was judged, which answers with the mean logits of `average_draws`
    draws.

    Args:
        head: the head of the net.
        net: the whole net, with `noise_free_logits` and `class_weights`.
        examples: the clean images.
        z_margins: the z-margin of each image.
        average_draws: the number of draws whose mean logits are an answer.
    """
    numbers = _numbers(head, net, examples, average_draws)
    text = {name: f"{value:.3g}" for name, value in numbers.items() if isinstance(value, float)}
    common, span = percent(numbers["common_share"]), percent(numbers["leading"])
    features, classes = head.feature_dim, head.num_classes
    paragraphs = [
        f"Σ = LLᵀ is the covariance of the noise on the {features} features, K = WΣWᵀ that of the {classes} logits. "
        f"Training rewards noise along {REWARDED[head.alignment]}. wᵀΣw / ‖w‖² is the variance of the noise in a "
        "weight vector’s direction, at most the largest eigenvalue of Σ, and near the mean eigenvalue for a direction "
        "that has nothing to do with the noise.",
        f"Here it is {text['smallest_quotient']} to {text['largest_quotient']} across classes; the largest eigenvalue "
        f"is {text['largest']}, the mean {text['mean']}. On average, {span} % of a weight vector’s squared length lies "
        f"in the span of the {numbers['classes']} leading eigenvectors of {features}.",
        f"What counts is the noise of differences of logits. {common} % of the logits’ variance is common to all "
        "classes: it moves every logit alike, cancels in every difference, and changes no answer. The logits deviate "
        f"by {text['deviation']} on average, the differences of two logits by {text['smallest_difference']} to "
        f"{text['largest_difference']}. The difference that decides, the label’s logit less its nearest other class’s, "
        f"deviates by {text['to_margin']} times its own size (noise_to_margin: both averaged over the clean images). "
        f"For half of these the label leads every other class by {float(np.median(z_margins)):.3g} deviations or more.",
    ]
    card = (
        f"Learned Gaussian noise ({head.covariance}) is added to the last features on every answer, so that answers "
        f"to the same image differ. {common} % of the variance of the logits is common to all classes, and changes no "
        "answer. The difference that decides an answer, the label's logit less its nearest other class's, deviates by "
        f"{text['to_margin']} times its own size, on average over the clean images."
    )
    return ReportSection("The noise", paragraphs, numbers["panels"], card)


def _numbers(head: WCAHead, net: Any, examples: Examples, average_draws: int) -> dict[str, Any]:
    """Return the spectrum of the noise, its alignment with the weights, and its effect, as numbers and panels."""
    scale_tril = np.asarray(head.noise.scale_tril, np.float64)
    weights = np.asarray(net.class_weights, np.float64).T
    values, vectors = np.linalg.eigh(scale_tril @ scale_tril.T)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    logit_scale = weights.T @ scale_tril
    logit_values = np.maximum(np.linalg.eigvalsh(logit_scale @ logit_scale.T)[::-1], 0)
    squares = np.maximum(np.sum(weights**2, axis=0), np.finfo(np.float64).tiny)  # weights of zero give zeros
    cosines = (weights.T @ vectors) ** 2 / squares[:, np.newaxis]
    quotients = np.sum(logit_scale**2, axis=1) / squares
    judged_scale = logit_scale / math.sqrt(average_draws)
    differences = np.asarray(covariance.logit_difference_scale(judged_scale))
    differences = differences[~np.eye(len(differences), dtype=bool)]
    named = len(examples.class_names)
    names = [*examples.class_names, *map(str, range(named, len(quotients)))]  # a class without a name has its number
    return {
        "largest": float(values[0]),
        "mean": float(values.mean()),
        "smallest_quotient": float(quotients.min()),
        "largest_quotient": float(quotients.max()),
        "leading": float(cosines[:, : len(names)].sum(axis=1).mean()),
        "common_share": float(covariance.common_noise_share(logit_scale)),
        "smallest_difference": float(differences.min()),
        "largest_difference": float(differences.max()),
        "to_margin": _noise_to_margin(net, examples, judged_scale),
        "deviation": float(np.linalg.norm(judged_scale, axis=1).mean()),
        "classes": len(names),
        "panels": [
            Panel("Eigenvalues of Σ, the noise of the features", figures.spectrum(values, "Σ")),
            Panel("Eigenvalues of K = WΣWᵀ, the noise of the logits", figures.spectrum(logit_values, "K")),
            Panel("Weights and eigenvectors", figures.alignment_map(cosines, names)),
            Panel(
                "wᵀΣw / ‖w‖² of each class",
                figures.noise_along_weights(quotients, names, values[0], float(values.mean())),
                [("largest eigenvalue of Σ", Stroke(figures.INK)), ("mean", Stroke(figures.INK, figures.DASHES[1]))],
            ),
        ],
    }


def _noise_to_margin(net: Any, examples: Examples, scale: np.ndarray) -> float:
    """Return the mean deviation of the label's lead over the nearest other class, over the mean size of that lead."""
    sums = np.zeros(2)
    for first in range(0, len(examples), IMAGES_AT_A_TIME):
        some = examples.take(slice(first, first + IMAGES_AT_A_TIME))
        noise_free = net.noise_free_logits(to_float(tf.constant(some.images)))
        pair = margins.nearest_difference(noise_free, tf.constant(some.labels), tf.constant(scale, tf.float32))
        sums += [float(tf.reduce_sum(each)) for each in pair]
    return float(sums[0] / sums[1]) if sums[1] else 0.0
