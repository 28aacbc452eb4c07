"""The terms of a net's training loss beside the cross-entropy, and sums over the rows of a batch."""

from typing import Any, NamedTuple

import tensorflow as tf

Ratio = tuple[tf.Tensor, tf.Tensor]  # sums over this replica's rows: a metric's numerator and denominator


class Terms(NamedTuple):
    """The terms of the loss beside the cross-entropy, by name.

    Attributes:
        of_images: [B], whose means are added.
        losses: scalars that are added.
        rewards: scalars that are subtracted.
    """

    of_images: dict[str, tf.Tensor]
    losses: dict[str, tf.Tensor]
    rewards: dict[str, tf.Tensor]

    def regulariser(self) -> tf.Tensor:
        """Return the losses less the rewards, a scalar that does not depend on the images."""
        return tf.convert_to_tensor(sum(self.losses.values(), 0.0) - sum(self.rewards.values(), 0.0), tf.float32)

    def ratios(self, weight: tf.Tensor) -> dict[str, Ratio]:
        """Return the means of `of_images`, weighted by `weight` [B], as ratios."""
        total = tf.reduce_sum(weight)
        return {name: (tf.reduce_sum(weight * each), total) for name, each in self.of_images.items()}


_SMALLEST = 1e-12  # added to squared distances, because √ has no gradient at 0


class LipschitzMargin(NamedTuple):
    """Logits for the cross-entropy of Lipschitz-margin training (Tsuzuku et al., NeurIPS 2018).

    The logit of each other class is raised by the most that an attack of the radius can gain on the label,
    ‖w_y − w_j‖ κ r. The temperature then divides all logits. For rows of W at distance √2 it is the loss of
    Prach & Lampert (ECCV 2022), but for their factor t.

    Attributes:
        change: κ r, the largest change of the features by an attack of the radius, in l2.
        temperature: above 0.
    """

    change: float
    temperature: float

    def logits(self, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None) -> tf.Tensor:
        """Return logits [B, C] for the loss.

        Args:
            logits: [B, C], of the net.
            labels: int64 [B].
            weights: W [C, D]; not used where `change` is 0.
        """
        if self.change and weights is not None:
            centred = weights - tf.reduce_mean(weights, axis=0)  # else what all classes share costs precision
            norms = tf.reduce_sum(tf.square(centred), axis=1)
            squares = norms[:, tf.newaxis] + norms - 2 * tf.matmul(centred, centred, transpose_b=True)
            squares = tf.maximum(squares, 0.0)
            itself = tf.eye(weights.shape[0], dtype=tf.bool)
            distances = tf.where(itself, tf.zeros([], squares.dtype), tf.sqrt(squares + _SMALLEST))
            logits = logits + self.change * tf.gather(distances, labels)
        return logits / self.temperature


def mean_over_rows(losses: tf.Tensor, weight: tf.Tensor | None) -> tf.Tensor:
    """Return the sum of weighted losses [B] over the number of rows B, as Keras's own losses do."""
    return tf.reduce_mean(losses if weight is None else losses * flat(weight, tf.float32))


def flat(values: tf.Tensor, dtype: Any = tf.int64) -> tf.Tensor:
    """Return labels or weights [B] or [B, 1] as [B], cast to `dtype`."""
    return tf.cast(tf.reshape(values, [-1]), dtype)
