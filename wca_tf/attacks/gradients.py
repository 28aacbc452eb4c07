"""Means over draws of objectives and their gradients: one backward pass of the backbone, whatever the number of draws.

All functions are for use inside a graph.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from wca_tf.attacks.batch import Batch, per_image, replace_rows
from wca_tf.attacks.objectives import OBJECTIVES, survival_of
from wca_tf.nets.targets import CHEAP_DRAWS, Target
from wca_tf.seeds import make_seed

ZERO = tf.UnconnectedGradients.ZERO
SMALLEST = 2.0**-120  # what is below float32's normal numbers, 2⁻¹²⁶, counts as zero on a CPU


class Survival(NamedTuple):
    """How far images are from what the attack wants: smaller is better for the attacker.

    Attributes:
        probability: share of draws [B] under which the attack fails.
        margin: mean difference of logits [B] by which it does; decides between equal probabilities.
    """

    probability: tf.Tensor
    margin: tf.Tensor

    def below(self, other: "Survival") -> tf.Tensor:
        """bool [B]: where this is better for the attacker than `other`."""
        nearer = (self.probability == other.probability) & (self.margin < other.margin)
        return (self.probability < other.probability) | nearer

    def take(self, rows: tf.Tensor) -> "Survival":
        return Survival(tf.gather(self.probability, rows), tf.gather(self.margin, rows))

    def replace(self, rows: tf.Tensor, new: "Survival") -> "Survival":
        """This with `new` at `rows`."""
        return Survival(
            replace_rows(self.probability, rows, new.probability), replace_rows(self.margin, rows, new.margin)
        )

    def where(self, condition: tf.Tensor, other: "Survival") -> "Survival":
        """This where `condition` [B], else `other`."""
        return Survival(*(tf.where(condition, mine, theirs) for mine, theirs in zip(self, other, strict=True)))


class Ascent(NamedTuple):
    """An objective at some images.

    Attributes:
        values: [B].
        gradient: [B, H, W, channels].
        features: the target's.
        survival: under the same draws.
    """

    values: tf.Tensor
    gradient: tf.Tensor
    features: tf.Tensor
    survival: Survival


def expected_gradient(
    target: Target, images: tf.Tensor, batch: Batch, seed: tf.Tensor, *, objective: str, draws: int
) -> Ascent:
    """The objective's mean over draws and its gradient at `images`, perturbed images of `batch`.

    The draws meet the features, so that noise in the head costs one pass for any number of draws. A net whose draws
    cost passes gets them in parts of `draws_per_pass`, whose gradients are averaged.
    """
    indices = drawn_for(batch, draws)
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        outer.watch(images)
        features = target.features(images)

    def part(target: Target, draws: int | tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(features)
            logits = target.logits(features, seed, draws, indices)
            values = OBJECTIVES[objective](target, features, logits, batch)
        gradient = inner.gradient(values, features, unconnected_gradients=ZERO)
        return values, gradient, *survival_of(logits, batch)

    values, feature_gradient, held, margin = mean_over_draws(part, target, draws)
    gradient = feature_gradient
    if features is not images:
        # In units of its own size, as a backbone in float16 would lose a small one. Powers of two change no float32.
        unit = _power_of_two(tf.reduce_max(tf.abs(feature_gradient), axis=range(1, feature_gradient.shape.rank)))
        in_units = feature_gradient / tf.reshape(unit, [-1, *[1] * (feature_gradient.shape.rank - 1)])
        gradient = per_image(unit) * outer.gradient(features, images, in_units, unconnected_gradients=ZERO)
    gradient = tf.debugging.check_numerics(gradient, "the attack's gradient")
    return Ascent(values, gradient, features, Survival(_share(held, draws), margin))


def drawn_for(batch: Batch, draws: int) -> tf.Tensor | None:
    """Return `indices` for `Target.logits`: few draws differ from image to image, of many all images share one set.

    The error of few draws that all images share would not average out over images.
    """
    return batch.indices if draws < CHEAP_DRAWS else None


def _power_of_two(size: tf.Tensor) -> tf.Tensor:
    """The power of two next to each size, 0 or more; of those too small to divide by, the smallest that is not."""
    exponent = tf.math.round(tf.math.log(tf.maximum(size, SMALLEST)) / math.log(2))
    return tf.where(size > 0, tf.pow(2.0, exponent), 1.0)


def survival(target: Target, features: tf.Tensor, batch: Batch, seed: tf.Tensor, draws: int) -> Survival:
    """Return how far images with these features are from what the attack wants."""
    indices = drawn_for(batch, draws)

    def part(target: Target, draws: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return survival_of(target.logits(features, seed, draws, indices), batch)

    held, margin = mean_over_draws(part, target, draws)
    return Survival(_share(held, draws), margin)


def _share(share: tf.Tensor, draws: int) -> tf.Tensor:
    """The share of `draws` without the rounding of a mean of parts: equal numbers of draws are equal shares."""
    return tf.round(share * draws) / draws


def selection_survival(target: Target, ascent: Ascent, batch: Batch) -> Survival:
    """To choose between images on: many common draws where they are cheap, else those that the gradient saw."""
    if not target.cheap_draws:
        return ascent.survival
    return survival(target, ascent.features, batch, make_seed(0), target.cheap_draws)


def mean_over_draws(part: Callable[..., Any], target: Target, draws: int) -> tuple[tf.Tensor, ...]:
    """Mean over draws of what `part(target, number of draws)` returns, tensors that are means themselves."""
    most = target.draws_per_pass
    if most >= draws:
        return part(target, draws)
    total = [value * (most / draws) for value in part(target.starting_at(0), most)]
    for first in tf.range(most, draws, most):
        count = tf.minimum(most, draws - first)
        values = part(target.starting_at(first), count)
        total = [
            so_far + value * (tf.cast(count, tf.float32) / draws) for so_far, value in zip(total, values, strict=True)
        ]
    return tuple(total)
