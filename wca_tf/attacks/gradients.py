"""Means over draws of objectives and their gradients.

Where the noise enters in the head, a mean takes one backward pass of the backbone, whatever the number of draws. All
functions are for use inside a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from wca_tf.attacks.objectives import OBJECTIVES, SHARPNESS, margin_units, score_logits
from wca_tf.core.lazily import np, tf
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.batch import Batch, replace_rows
from wca_tf.nets.graphs import sharded_graph
from wca_tf.nets.mixture_target import MixtureTarget
from wca_tf.nets.sampled_target import PARALLEL_PARTS
from wca_tf.nets.targets import CHEAP_DRAWS, Target

ZERO = "zero"  # gradients where a net does not depend on its input
# The number of draws that decide whether a net with noise anywhere errs on an image, apart from those of gradients.
SCORING_DRAWS = 200
MIN_GRADIENT = 2.0**-120  # a CPU takes numbers below float32's normal ones, 2⁻¹²⁶, as zero


class Score(NamedTuple):
    """The distance of images from the attack's goal: smaller is better for the attacker.

    Attributes:
        p_correct: [B], share of draws under which the attack fails.
        margin: [B], mean difference of logits by which the attack fails; it decides between equal probabilities.
    """

    p_correct: tf.Tensor
    margin: tf.Tensor

    def better_for_attacker(self, other: Score) -> tf.Tensor:
        """Return bool [B], where this is better for the attacker than `other`."""
        nearer = (self.p_correct == other.p_correct) & (self.margin < other.margin)
        return (self.p_correct < other.p_correct) | nearer

    def take(self, rows: tf.Tensor) -> Score:
        return Score(tf.gather(self.p_correct, rows), tf.gather(self.margin, rows))

    def replace(self, rows: tf.Tensor, new: Score) -> Score:
        """Return this score with `new` at `rows`."""
        return Score(replace_rows(self.p_correct, rows, new.p_correct), replace_rows(self.margin, rows, new.margin))

    def where(self, condition: tf.Tensor, other: Score) -> Score:
        """Return this score where `condition` [B] is true, else `other`."""
        return Score(*(tf.where(condition, mine, theirs) for mine, theirs in zip(self, other, strict=True)))


class ValueAndGradient(NamedTuple):
    """An objective and its gradient at some images.

    Attributes:
        values: [B], the objective.
        gradient: [B, H, W, channels].
        features: the target's features of the images.
        score: the score of the images, under the same draws.
    """

    values: tf.Tensor
    gradient: tf.Tensor
    features: tf.Tensor
    score: Score


def expected_gradient(
    target: Target,
    images: tf.Tensor,
    batch: Batch,
    seed: tf.Tensor,
    *,
    objective: str,
    draws: int,
    start: tf.Tensor | None = None,
    sharpness: float | tf.Tensor = SHARPNESS,
) -> ValueAndGradient:
    """Return the objective's mean over draws and its gradient at `images`, perturbed images of `batch`.

    The draws are applied to the features, so that noise in the head costs one pass for any number of draws. Where draws
    cost passes, they are made in parts of `draws_per_pass`, and the gradients of the parts are averaged. A gradient
    goes back through the net in units of its own size, as layers in float16 would lose a small one. These units are
    powers of two, exact in float32. The members of a mixture have their turns one after the other, each with the memory
    of one net.

    Args:
        target: the net.
        images: [B, H, W, channels], perturbed images of `batch`.
        batch: the unperturbed images.
        seed: int32[2].
        objective: a name of `OBJECTIVES`.
        draws: S.
        start: for the bounded margin alone: the images [B, H, W, channels] at which the search began; `None` for the
            unperturbed images. The size of a draw's margin there is the draw's unit, throughout the search.
        sharpness: for the bounded margin alone: the unit is divided by it.
    """
    if isinstance(target, MixtureTarget):
        options: Any = {"objective": objective, "draws": draws, "start": start, "sharpness": sharpness}
        return _over_members(target, lambda member: expected_gradient(member, images, batch, seed, **options))
    indices = noise_indices(batch, draws)
    if objective == "bounded":
        start_features = target.features(batch.images if start is None else start)
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        outer.watch(images)
        features = target.features(images)

    def part(target: Target, draws: int | tf.Tensor) -> tuple[tf.Tensor, ...]:
        judged = batch
        if objective == "bounded":
            units = margin_units(target.logits(start_features, seed, draws, indices), batch)
            judged = batch._replace(units=units / sharpness)
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as inner:
            inner.watch(features)
            logits = target.logits(features, seed, draws, indices)
            values = OBJECTIVES[objective](target, features, logits, judged)
        unit = _power_of_two(tf.reduce_max(tf.abs(inner.gradient(values, logits, unconnected_gradients=ZERO)), (0, 2)))
        in_units = inner.gradient(values, features, 1 / unit, unconnected_gradients=ZERO)
        return values, _times(unit, in_units), *score_logits(target, logits, batch)

    values, feature_gradient, p_correct, margin = mean_over_draws(part, target, draws)
    gradient = feature_gradient
    if features is not images:
        unit = _power_of_two(tf.reduce_max(tf.abs(feature_gradient), axis=range(1, feature_gradient.shape.rank)))
        in_units = tf.cast(_times(1 / unit, feature_gradient), features.dtype)
        gradient = _times(unit, outer.gradient(features, images, in_units, unconnected_gradients=ZERO))
    gradient = tf.debugging.check_numerics(gradient, "the attack's gradient")
    return ValueAndGradient(values, gradient, features, Score(round_to_count(p_correct, draws), margin))


def _over_members(target: MixtureTarget, of_member: Callable[[Target], ValueAndGradient]) -> ValueAndGradient:
    """Return the sum of α_k times the results of `of_member` for member k, made one after the other."""
    found: list[ValueAndGradient] = []
    for member in target.members:
        with tf.control_dependencies([each.gradient for each in found[-1:]]):
            found.append(of_member(member))
    values, gradients, features, scores = zip(*found, strict=True)
    score = Score(*(target.weighted(each) for each in zip(*scores, strict=True)))
    return ValueAndGradient(target.weighted(values), target.weighted(gradients), features, score)


def noise_indices(batch: Batch, draws: int) -> tf.Tensor | None:
    """Return the argument `indices` of `Target.logits`.

    It is `None` for `CHEAP_DRAWS` or more: all images share them. Fewer draws differ from image to image: the error of
    few draws that all images share would not average out over images.
    """
    return batch.indices if draws < CHEAP_DRAWS else None


def _power_of_two(size: tf.Tensor) -> tf.Tensor:
    """Return the power of two next to each size, 0 or more; 1 for a size of 0.

    The result is at least `MIN_GRADIENT`, as smaller numbers are too small to divide by.
    """
    exponent = tf.math.round(tf.math.log(tf.maximum(size, MIN_GRADIENT)) / math.log(2))
    return tf.where(size > 0, tf.pow(2.0, exponent), 1.0)


def _times(factors: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return values [B, ...] in float32, those of each image times its factor [B]."""
    return tf.reshape(factors, [-1, *[1] * (values.shape.rank - 1)]) * tf.cast(values, tf.float32)


def score_images(target: Target, features: tf.Tensor, batch: Batch, seed: tf.Tensor, draws: int) -> Score:
    """Return the score of images with these features."""
    indices = noise_indices(batch, draws)

    def part(target: Target, draws: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return score_logits(target, target.logits(features, seed, draws, indices), batch)

    p_correct, margin = mean_over_draws(part, target, draws)
    return Score(p_correct if isinstance(target, MixtureTarget) else round_to_count(p_correct, draws), margin)


def round_to_count(share: tf.Tensor, draws: int) -> tf.Tensor:
    """Round a share to a multiple of 1 / `draws`, so that equal counts compare equal."""
    return tf.round(share * draws) / draws


def selection_score(target: Target, ascent: ValueAndGradient, batch: Batch, draws: int) -> Score:
    """Return the score by which to choose between an attack's images; `draws` are those of its gradients.

    All of an attack's images are compared by the same draws: where each had its own, the luckiest would be chosen.
    Where draws are cheap, they are many; else as many as those of a gradient.
    """
    if target.cheap_draws:
        return score_images(target, ascent.features, batch, make_seed(0), target.cheap_draws)
    return score_images(target, ascent.features, batch, fold_in(make_seed(0), 1), draws)


def num_scoring_draws(target: Target, draws: int) -> int:
    """Return the number of draws that decide whether the net errs on an image, `draws` at least."""
    return max(draws, target.cheap_draws or SCORING_DRAWS)


def mean_over_draws(part: Callable[..., Any], target: Target, draws: int) -> tuple[tf.Tensor, ...]:
    """Return the mean over draws of the tensors of `part(target, number of draws)`, which are means themselves."""
    most = target.draws_per_pass
    if most >= draws:
        return part(target, draws)
    total = [value * (most / draws) for value in part(target.with_draw_offset(0), most)]
    parallel = getattr(target, "parallel_parts", PARALLEL_PARTS)
    for first in tf.range(most, draws, most):
        tf.autograph.experimental.set_loop_options(parallel_iterations=parallel)
        count = tf.minimum(most, draws - first)
        values = part(target.with_draw_offset(first), count)
        total = [
            so_far + value * (tf.cast(count, tf.float32) / draws) for so_far, value in zip(total, values, strict=True)
        ]
    return tuple(total)


class CleanGradient(NamedTuple):
    """Two tests of an attack's gradient at the clean images.

    Attributes:
        zero: bool [B], whether it is zero in every pixel.
        useless: bool [B], whether it is zero, or is that of cross-entropy without the term of the label (of the wanted
            class when targeted): float32 rounds 1 − P(class) to 0 in every draw, where P is within 6e-8 of 1.
    """

    zero: np.ndarray
    useless: np.ndarray


def clean_gradient(target: Target, batch: Batch, seed: tf.Tensor, objective: str, draws: int) -> CleanGradient:
    """Return what is known of an objective's gradient at the images of a batch."""
    found = _clean_gradient_graph(target, batch, seed, objective, draws)
    return CleanGradient(*(each.numpy().astype(bool) for each in found))


@sharded_graph
def _clean_gradient_graph(target: Target, batch: Batch, seed: tf.Tensor, objective: str, draws: int) -> CleanGradient:
    ascent = expected_gradient(target, batch.images, batch, seed, objective=objective, draws=draws)
    zero = tf.reduce_all(ascent.gradient == 0, axis=[1, 2, 3])
    # Cross-entropy is ln Σ_j exp(h_j − h_y): 0 where float32's sum is 1, and then softmax_y − 1 is 0 too.
    lost = ascent.values == 0 if objective == "ce" else tf.zeros_like(zero)
    return CleanGradient(*(tf.cast(each, tf.int32) for each in (zero, zero | lost)))  # workers cannot gather bools
