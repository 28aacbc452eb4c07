"""The four numbers of a stochastic classifier, each with a 95 % interval.

accuracy            one draw per image: the paper's protocol
expected_accuracy   mean of P(correct), exact up to a stated error: what a single query meets on average
noise_free_accuracy of the net without its noise
n_query_accuracy    mean of P(correct)ⁿ: an attacker may ask n times and needs one error
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf
from scipy import stats

from wca_tf import alignment
from wca_tf.attacks.target import HeadNoiseTarget
from wca_tf.orthant import probability_correct
from wca_tf.seeds import fold_in, make_seed, normal_by_index

QUERIES = (1, 10, 100)
# Folded into the evaluation's seed, so that the draws that judge are none of the draws that an attack saw.
JUDGING_DRAW = 2

Number = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What one set of images meets at the net, per image, [N].

    Attributes:
        correct: whether one draw of the noise gives the label.
        noise_free_correct: whether the net without noise does.
        probability_correct: P(label | image), over the noise.
        probability_error: 95 % half-width of that number.
        z_margin: distance to the nearest class, in standard deviations; the plain margin for a net without noise.
    """

    correct: np.ndarray
    noise_free_correct: np.ndarray
    probability_correct: np.ndarray
    probability_error: np.ndarray
    z_margin: np.ndarray

    def numbers(self) -> dict[str, Number | dict[str, Number]]:
        """The four numbers as they stand in results.json."""
        return {
            "accuracy": mean_with_interval(self.correct),
            "expected_accuracy": mean_with_interval(self.probability_correct),
            "noise_free_accuracy": mean_with_interval(self.noise_free_correct),
            "n_query_accuracy": {str(n): mean_with_interval(self.probability_correct**n) for n in QUERIES},
        }

    @classmethod
    def concatenate(cls, parts: list["Judgement"]) -> "Judgement":
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def judge(
    target: HeadNoiseTarget, images: tf.Tensor, labels: tf.Tensor, indices: tf.Tensor, seed: int | tf.Tensor
) -> Judgement:
    """Judge images [B, H, W, channels]; an image's numbers depend on `seed` and its index, not on its batch."""
    mean, noisy, z_margins = (value.numpy() for value in _logits(target, images, labels, indices, make_seed(seed)))
    labels = np.asarray(labels)
    probability, error = probability_correct(mean, labels, target.logit_scale.numpy())
    return Judgement(
        correct=noisy.argmax(axis=1) == labels,
        noise_free_correct=mean.argmax(axis=1) == labels,
        probability_correct=probability,
        probability_error=error,
        z_margin=z_margins,
    )


@tf.function(jit_compile=False)
def _logits(
    target: HeadNoiseTarget, images: tf.Tensor, labels: tf.Tensor, indices: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Noise-free logits [B, C], logits under one draw per image [B, C], z-margins [B]."""
    mean = target.noise_free_logits(target.features(images))
    draw = normal_by_index(fold_in(seed, JUDGING_DRAW), indices, (target.logit_scale.shape[1],))
    noisy = mean + tf.matmul(draw, target.logit_scale, transpose_b=True)
    return mean, noisy, alignment.z_margin(mean, labels, target.difference_scale)


def mean_with_interval(values: np.ndarray) -> Number:
    """Mean of numbers in [0, 1] and Wilson's 95 % score interval.

    For numbers between 0 and 1 the interval is wider than needed, never narrower: their variance is at most that of
    zeros and ones with the same mean.
    """
    count, mean = len(values), float(np.mean(values))
    z = float(stats.norm.ppf(0.975))
    centre = (mean + z**2 / (2 * count)) / (1 + z**2 / count)
    half_width = z / (1 + z**2 / count) * math.sqrt(mean * (1 - mean) / count + z**2 / (4 * count**2))
    low, high = max(0.0, centre - half_width), min(1.0, centre + half_width)
    return {"value": mean, "low": min(low, mean), "high": max(high, mean)}  # at 0 and 1, rounding
