"""The four numbers of a stochastic classifier, each with a 95 % interval, and their worst case over attacks.

accuracy            one draw per image: the paper's protocol
expected_accuracy   mean of P(correct), exact up to a stated error: what a single query meets on average
noise_free_accuracy of the net without its noise
n_query_accuracy    mean of P(correct)ⁿ: an attacker may ask n times and needs one error
"""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import stats

from wca_tf import alignment
from wca_tf.attacks.batch import Batch
from wca_tf.attacks.sharding import sharded_graph
from wca_tf.errors import InputError
from wca_tf.nets.targets import AnyTarget, HeadNoiseTarget, RandomNetTarget, is_gaussian
from wca_tf.orthant import probability_correct
from wca_tf.seeds import fold_in, make_seed, normal_by_index

QUERIES = (1, 10, 100)
# Folded into the evaluation's seed, so that the draws that judge are none of the draws that an attack saw.
JUDGING_DRAW = 2
# Raise it with every change after which the same images are judged to have other numbers.
JUDGING_ALGORITHM = 3
# Draws that estimate P(correct) of a net with noise before its last layer: a 95 % half-width of 0.07 or less.
ESTIMATING_DRAWS = 200
JACKKNIFE_GROUPS = 20

Number = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What one set of images meets at the net, per image, [N].

    Attributes:
        correct: whether one draw of the noise gives the label.
        noise_free_correct: whether the net without noise does; NaN where no such net is known.
        probability_correct: P(label | image), over the noise.
        probability_error: 95 % half-width of that number.
        z_margin: distance to the nearest class, in standard deviations; the plain margin for a net without noise; for a
            net with noise anywhere, the margin's mean over draws, over its deviation.
        hits: bool [N, draws], whether each of the draws from which the probability is estimated gives the label; of no
            draws where the probability is exact.
        blocks: whole numbers [N], equal for images that were attacked with the same draws.
    """

    correct: np.ndarray
    noise_free_correct: np.ndarray
    probability_correct: np.ndarray
    probability_error: np.ndarray
    z_margin: np.ndarray
    hits: np.ndarray
    blocks: np.ndarray

    @property
    def draws(self) -> int:
        """How many draws the probability is estimated from; 0 where it is exact."""
        return self.hits.shape[1]

    def numbers(self) -> dict[str, Any]:
        """Return the four numbers as they stand in results.json; None for a noise-free net that is not known."""
        known = not np.isnan(self.noise_free_correct).any()
        return {
            "accuracy": self._with_interval(self.correct, design_effect_of_a_draw(self.hits)),
            "expected_accuracy": self.n_query_accuracy(1),
            "noise_free_accuracy": self._with_interval(self.noise_free_correct) if known else None,
            "n_query_accuracy": {str(n): self.n_query_accuracy(n) for n in QUERIES},
        }

    def n_query_accuracy(self, queries: int) -> Number:
        """Return the mean of P(correct)ⁿ.

        The interval allows for the error of P(correct), shared by images or not, and for draws that images of a block
        were attacked with.
        """
        return self._with_interval(self.n_query_probability(queries), design_effect_over_draws(self.hits, queries))

    def _with_interval(self, values: np.ndarray, of_judging: float = 1.0) -> Number:
        """Return the mean with an interval that allows for the draws of the judge and of the attack."""
        return mean_with_interval(values, of_judging + design_effect_of_blocks(values, self.blocks) - 1)

    def n_query_probability(self, queries: int) -> np.ndarray:
        """Return P(correct)ⁿ per image [N]; from draws without bias, as the share of n draws that are all correct."""
        return _all_correct(self.hits, queries) if self.draws else self.probability_correct**queries

    @classmethod
    def concatenate(cls, parts: list["Judgement"]) -> "Judgement":
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def judge(
    target: AnyTarget,
    images: tf.Tensor,
    labels: tf.Tensor,
    indices: tf.Tensor,
    seed: int | tf.Tensor,
) -> Judgement:
    """Judge images [B, H, W, channels]; an image's numbers depend on `seed` and its index, not on its batch.

    Those of a net with noise anywhere are estimates from `ESTIMATING_DRAWS` draws.

    Raises:
        InputError: logits that are NaN or Inf.
    """
    if not is_gaussian(target):
        return _judge_by_draws(target, images, labels, np.asarray(indices), make_seed(seed))
    batch = Batch(images, *(tf.cast(values, tf.int64) for values in (labels, indices)))
    mean, noisy, z_margins = (value.numpy() for value in _logits(target, batch, make_seed(seed)))
    _check_finite(mean)
    labels = np.asarray(labels)
    scale = target.scale_of(target.features(images)) if target.scale_per_image else target.logit_scale
    probability, error = probability_correct(mean, labels, scale.numpy())
    return Judgement(
        correct=noisy.argmax(axis=1) == labels,
        noise_free_correct=(mean.argmax(axis=1) == labels).astype(np.float64),
        probability_correct=probability,
        probability_error=error,
        z_margin=z_margins,
        hits=np.zeros((len(labels), 0), bool),
        blocks=np.asarray(indices),
    )


def _judge_by_draws(
    target: RandomNetTarget, images: tf.Tensor, labels: tf.Tensor, indices: np.ndarray, seed: tf.Tensor
) -> Judgement:
    classes = tf.cast(labels, tf.int64)
    hits, margins = (values.numpy() for values in _draws(target, images, classes, indices, fold_in(seed, JUDGING_DRAW)))
    _check_finite(margins)
    noise_free = np.full(len(classes), np.nan)
    if target.noise_free_logits is not None:
        noise_free[:] = target.noise_free_logits(images).numpy().argmax(axis=1) == classes.numpy()
    intervals = [mean_with_interval(column) for column in hits.T]
    mean, deviation = margins.mean(axis=0, dtype=np.float64), margins.std(axis=0, dtype=np.float64)
    return Judgement(
        correct=hits[0],
        noise_free_correct=noise_free,
        probability_correct=hits.mean(axis=0),
        probability_error=np.array([(number["high"] - number["low"]) / 2 for number in intervals]),
        z_margin=np.divide(mean, deviation, out=mean.copy(), where=deviation > 1e-5 * np.abs(mean)),
        hits=hits.T,
        blocks=indices,
    )


@tf.function(jit_compile=False)
def _draws(
    target: RandomNetTarget, images: tf.Tensor, labels: tf.Tensor, indices: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """(whether each draw is correct, its margin), each [draws, B]."""
    logits = target.logits(images, seed, ESTIMATING_DRAWS, tf.cast(indices, tf.int64))
    return tf.argmax(logits, axis=-1) == labels, alignment.margin(logits, labels)


def _check_finite(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise InputError("expected finite logits, received NaN or Inf: the net's logits overflow")


@sharded_graph
def _logits(target: HeadNoiseTarget, batch: Batch, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Noise-free logits [B, C], logits under one draw per image [B, C], z-margins [B]."""
    features = target.features(batch.images)
    mean, scale = target.noise_free_logits(features), target.scale_of(features)
    draw = normal_by_index(fold_in(seed, JUDGING_DRAW), batch.indices, (scale.shape[-1],))
    if target.scale_per_image:
        noise = tf.einsum("br,bcr->bc", draw, scale)
    else:
        noise = tf.matmul(draw, scale, transpose_b=True)
    return mean, mean + noise, alignment.z_margin(mean, batch.labels, target.difference_scale(features))


def percent(value: Number | float | None) -> str:
    """A share, or a number of results.json, in per cent with one decimal; a dash for one that is not known.

    >>> percent(0.1234), percent({"value": 1.0}), percent(None)
    ('12.3', '100.0', '–')
    """
    share = value["value"] if isinstance(value, dict) else value
    return "–" if share is None else f"{100 * share:.1f}"


def distance_text(distance: float | None) -> str:
    """Return a distance of results.json in three digits; ∞ where there is none, as when no image was found.

    >>> distance_text(0.51234), distance_text(None)
    ('0.512', '∞')
    """
    return "∞" if distance is None else f"{distance:.3g}"


def _all_correct(hits: np.ndarray, queries: int) -> np.ndarray:
    """Return, per row of hits [N, J], the share of all choices of n of the J draws in which every draw is a hit."""
    correct, left = hits.sum(axis=1)[:, np.newaxis], np.arange(queries)
    return np.prod(np.clip(correct - left, 0, None) / np.maximum(hits.shape[1] - left, 1), axis=1)


def design_effect_of_a_draw(hits: np.ndarray) -> float:
    """Return the variance of one draw's accuracy over that of N images chosen at random whose noise is independent.

    It is above 1 where images share noise, which moves them together, as in a net with noisy weights.

    Args:
        hits: bool [N, J]; the draws are the same ones for all images. Of fewer than two draws, it is 1.
    """
    images, draws = hits.shape
    if draws < 2:
        return 1.0
    share = hits.mean(axis=1)
    independent = (share * (1 - share)).sum() / images**2 * draws / (draws - 1)
    return _design_effect(hits.mean(axis=0).var(ddof=1) - independent, share)


def design_effect_over_draws(hits: np.ndarray, queries: int = 1) -> float:
    """Return the variance of the mean of P(correct)ⁿ over that of N images chosen at random whose P is known.

    The variance over the choice of draws is that of a jackknife over groups of draws.

    Args:
        hits: bool [N, J]; the draws are the same ones for all images. Of fewer than two draws, it is 1.
        queries: n.
    """
    if hits.shape[1] < 2:
        return 1.0
    groups = np.array_split(np.arange(hits.shape[1]), min(JACKKNIFE_GROUPS, hits.shape[1]))
    means = [_all_correct(np.delete(hits, group, axis=1), queries).mean() for group in groups]
    variance = max((len(means) - 1) * np.var(means), _least_variance(hits, queries))
    return _design_effect(variance, _all_correct(hits, queries))


def _least_variance(hits: np.ndarray, queries: int) -> float:
    """Return the variance of Pⁿ over the choice of draws, were P the same for all images and nearly 1.

    Of draws that all are hits the jackknife knows none. P is that of two draws more, of which one is a miss (Laplace);
    the share of a draw's variance that images have in common is the one seen, and 1 where no miss was seen. It is too
    little where a part of the images shares its noise and shows no miss: then 85 of 100 intervals cover.
    """
    draws, mean = hits.shape[1], float(hits.mean())
    smoothed = (draws * mean + 1) / (draws + 2)
    shared = min(float(hits.mean(axis=0).var()) / (mean * (1 - mean)), 1.0) if 0 < mean < 1 else 1.0
    return shared * (queries * smoothed ** (queries - 1)) ** 2 * smoothed * (1 - smoothed) / draws


def design_effect_of_blocks(values: np.ndarray, blocks: np.ndarray) -> float:
    """Return the variance of a mean over blocks of images over that of as many independent images; 1 or more.

    The first is that of cluster sampling, widened as Student's t is of so few blocks.

    Args:
        values: [N].
        blocks: whole numbers [N]; images of the same number move together. Of fewer than two blocks, it is 1.
    """
    numbers, places = np.unique(blocks, return_inverse=True)
    count = len(numbers)
    independent = float(np.var(values)) / len(values)
    if count in (1, len(values)) or independent == 0:
        return 1.0
    deviations = np.bincount(places, weights=values - values.mean())  # of a block's sum
    between = count / (count - 1) * float(np.sum(deviations**2)) / len(values) ** 2
    few = float(stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975)) ** 2
    return max(few * between / independent, 1.0)


def _design_effect(variance: float, values: np.ndarray) -> float:
    """Return 1 + the variance of a mean of `values` [N] in [0, 1], over the largest that N independent ones have."""
    mean = float(values.mean())
    return 1 + max(float(variance), 0.0) * len(values) / max(mean * (1 - mean), 1 / (4 * len(values)))


def least_probability(judgements: list[Judgement]) -> Judgement:
    """Return the judgement of each image under the attack that leaves it least: the worst case over attacks.

    An attack is never judged by the draws that chose it: what is estimated from draws is chosen on one half of them and
    judged on the other, and once more the other way round.

    Args:
        judgements: of the same images under each attack, by the same number of draws.
    """
    stacked = {
        field.name: np.stack([getattr(judgement, field.name) for judgement in judgements])
        for field in dataclasses.fields(Judgement)
    }
    chosen = stacked["probability_correct"].argmin(axis=0)
    least = {name: values[chosen, np.arange(len(chosen))] for name, values in stacked.items()}
    if judgements[0].draws:
        hits = _chosen_on_halves(stacked["hits"])
        # `correct` is of one draw: each of these is judged by the choice of the other half.
        least |= {"hits": hits, "probability_correct": hits.mean(axis=1), "correct": hits[:, -1]}
    return Judgement(**{**least, "blocks": stacked["blocks"][-1]})  # of an attack, where there is one


def _chosen_on_halves(hits: np.ndarray) -> np.ndarray:
    """Return, from hits [attacks, N, J], those [N, J] of the attack that the other half of the draws chooses."""
    images, middle = np.arange(hits.shape[1]), hits.shape[2] // 2
    first, second = hits[:, :, :middle], hits[:, :, middle:]
    judged = [
        judging[choosing.mean(axis=2).argmin(axis=0), images]
        for judging, choosing in ((first, second), (second, first))
    ]
    return np.concatenate(judged, axis=1)


def mean_with_interval(values: np.ndarray, design_effect: float = 1.0) -> Number:
    """Return the mean of numbers in [0, 1] and Wilson's 95 % score interval.

    For numbers between 0 and 1 the interval is wider than needed, never narrower: their variance is at most that of
    zeros and ones with the same mean.

    Args:
        values: [N], of images that are a random choice.
        design_effect: Kish's: how much larger the mean's variance is than that of N independent values. The interval is
            that of so many times fewer values.

    >>> {name: round(number, 3) for name, number in mean_with_interval(np.array([1.0, 1.0, 1.0, 0.0])).items()}
    {'value': 0.75, 'low': 0.301, 'high': 0.954}
    """
    count, mean = len(values) / design_effect, float(np.mean(values))
    z = float(stats.norm.ppf(0.975))
    centre = (mean + z**2 / (2 * count)) / (1 + z**2 / count)
    half_width = z / (1 + z**2 / count) * math.sqrt(mean * (1 - mean) / count + z**2 / (4 * count**2))
    low, high = max(0.0, centre - half_width), min(1.0, centre + half_width)
    return {"value": mean, "low": min(low, mean), "high": max(high, mean)}  # at 0 and 1, rounding
