"""The Gaussian noise on a net's last features: `noise` of results.json. Its spectrum, alignment, and effect."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.evaluation.measures.measure import Context, Measure
from wca_tf.evaluation.report import figures
from wca_tf.evaluation.report.figures import Stroke
from wca_tf.evaluation.report.sections import Panel, ReportSection
from wca_tf.gaussian import covariance, margins
from wca_tf.gaussian.intervals import percent
from wca_tf.nets.gaussian_head import FeatureNoise
from wca_tf.nets.headed_net import KnownNet

IMAGES_AT_A_TIME = 100
DIGITS = 5  # of numbers that are only drawn


class Noise(Measure):
    """The noise of a net of this package that adds it to its last features, by the net's own weights.

    The effect of the noise is that on the net as it is judged, which answers with the mean logits of `average_draws`
    draws.
    """

    name = "noise"

    def key(self, context: Context) -> Any:
        model = context.model
        return {} if isinstance(model, KnownNet) and model.feature_noise() is not None else None

    def measure(self, context: Context) -> Any:
        model, draws = context.model, context.config.average_draws
        noise = model.feature_noise()
        weights = np.asarray(model.class_weights, np.float64).T
        return {
            "covariance": noise.covariance,
            "rewarded": noise.rewarded,
            **_alignment(noise, weights),
            **_effect(weights.T @ noise.scale_tril, draws),
            "noise_to_margin": _noise_to_margin(
                model, context.examples, weights.T @ noise.scale_tril / math.sqrt(draws)
            ),
            "median_z_margin": float(np.median(context.clean_z_margins)),
            "class_names": _named(context.examples.class_names, weights.shape[1]),
        }

    def section(self, results: dict[str, Any]) -> ReportSection:
        found = results[self.name]
        text = {name: f"{value:.3g}" for name, value in found.items() if isinstance(value, float)}
        common, span = percent(found["common_share"]), percent(found["leading"])
        features, classes = len(found["spectrum"]), len(found["logit_spectrum"])
        paragraphs = [
            f"Σ = LLᵀ is the covariance of the noise on the {features} features, K = WΣWᵀ that of the {classes} "
            f"logits. Training rewards noise along {found['rewarded']}. wᵀΣw / ‖w‖² is the variance of the noise in a "
            "weight vector’s direction, at most the largest eigenvalue of Σ, and near the mean eigenvalue for a "
            "direction that has nothing to do with the noise.",
            f"Here it is {text['smallest_quotient']} to {text['largest_quotient']} across classes; the largest "
            f"eigenvalue is {text['largest']}, the mean {text['mean']}. On average, {span} % of a weight vector’s "
            f"squared length lies in the span of the {len(found['class_names'])} leading eigenvectors of {features}.",
            f"What counts is the noise of differences of logits. {common} % of the logits’ variance is common to all "
            "classes: it moves every logit alike, cancels in every difference, and changes no answer. The logits "
            f"deviate by {text['deviation']} on average, the differences of two logits by "
            f"{text['smallest_difference']} to {text['largest_difference']}. The difference that decides, "
            "the label’s logit less its nearest other "
            f"class’s, deviates by {text['noise_to_margin']} times its own size (noise_to_margin: both averaged over "
            "the clean images). For half of these the label leads every other class by "
            f"{text['median_z_margin']} deviations or more.",
        ]
        card = (
            f"Learned Gaussian noise ({found['covariance']}) is added to the last features on every answer, so that "
            f"answers to the same image differ. {common} % of the variance of the logits is common to all classes, and "
            "changes no answer. The difference that decides an answer, the label's logit less its nearest other "
            f"class's, deviates by {text['noise_to_margin']} times its own size, on average over the clean images."
        )
        return ReportSection("The noise", paragraphs, _panels(found), card)


def _alignment(noise: FeatureNoise, weights: np.ndarray) -> dict[str, Any]:
    """Return the spectrum of the noise on the features, and its alignment with the weights [D, C]."""
    values, vectors = np.linalg.eigh(noise.scale_tril @ noise.scale_tril.T)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    squares = np.maximum(np.sum(weights**2, axis=0), np.finfo(np.float64).tiny)  # weights of zero give zeros
    cosines = (weights.T @ vectors) ** 2 / squares[:, np.newaxis]
    quotients = np.sum((weights.T @ noise.scale_tril) ** 2, axis=1) / squares
    return {
        "largest": float(values[0]),
        "mean": float(values.mean()),
        "smallest_quotient": float(quotients.min()),
        "largest_quotient": float(quotients.max()),
        "leading": float(cosines[:, : len(quotients)].sum(axis=1).mean()),
        "spectrum": _short(values),
        "quotients": _short(quotients),
        "squared_cosines": [_short(row) for row in cosines],
    }


def _effect(logit_scale: np.ndarray, draws: int) -> dict[str, Any]:
    """Return the size of the noise on the logits, and on their differences, of a mean over draws."""
    values = np.maximum(np.linalg.eigvalsh(logit_scale @ logit_scale.T)[::-1], 0)
    judged = logit_scale / math.sqrt(draws)
    differences = np.asarray(covariance.logit_difference_scale(judged))
    differences = differences[~np.eye(len(differences), dtype=bool)]
    return {
        "common_share": float(covariance.common_noise_share(logit_scale)),
        "smallest_difference": float(differences.min()),
        "largest_difference": float(differences.max()),
        "deviation": float(np.linalg.norm(judged, axis=1).mean()),
        "logit_spectrum": _short(values),
    }


def _panels(found: dict[str, Any]) -> list[Panel]:
    cosines, quotients = np.array(found["squared_cosines"]), np.array(found["quotients"])
    legend = [("largest eigenvalue of Σ", Stroke(figures.INK)), ("mean", Stroke(figures.INK, figures.DASHES[1]))]
    bars = figures.noise_along_weights(quotients, found["class_names"], found["largest"], found["mean"])
    return [
        Panel("Eigenvalues of Σ, the noise of the features", figures.spectrum(np.array(found["spectrum"]), "Σ")),
        Panel(
            "Eigenvalues of K = WΣWᵀ, the noise of the logits", figures.spectrum(np.array(found["logit_spectrum"]), "K")
        ),
        Panel("Weights and eigenvectors", figures.alignment_map(cosines, found["class_names"])),
        Panel("wᵀΣw / ‖w‖² of each class", bars, legend),
    ]


def _named(names: tuple[str, ...], classes: int) -> list[str]:
    """Return the names of the classes; a class without a name has its number."""
    return [*names, *map(str, range(len(names), classes))]


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _noise_to_margin(model: KnownNet, examples: Examples, scale: np.ndarray) -> float:
    """Return the mean deviation of the label's lead over the nearest other class, over the mean size of that lead."""
    sums = np.zeros(2)
    for first in range(0, len(examples), IMAGES_AT_A_TIME):
        part = slice(first, first + IMAGES_AT_A_TIME)
        images, labels = to_float(tf.constant(examples.images[part])), tf.constant(examples.labels[part])
        pair = margins.nearest_difference(model.noise_free_logits(images), labels, tf.constant(scale, tf.float32))
        sums += [float(tf.reduce_sum(each)) for each in pair]
    return float(sums[0] / sums[1]) if sums[1] else 0.0
