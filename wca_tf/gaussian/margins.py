"""Margins of logits, and the z-margin: margins in standard deviations of their noise.

Shapes: B batch, C classes. Logits given an image are N(mu, A Aᵀ) with A [C, R].
"""

from __future__ import annotations

import math

from wca_tf.core.lazily import tf

# Among 1, 2, 4 and the hard minimum, this gives the strongest attack on validation images of Fashion-MNIST.
SOFTNESS = 2.0
SOFTNESS_OF_SPREAD = 20.0  # for a net without noise; chosen on validation images (docs/decisions.md)
MIN_DEVIATION = 1e-6  # of a difference of logits, as a share of the largest


def z_margins(noise_free_logits: tf.Tensor, labels: tf.Tensor, difference_scale: tf.Tensor) -> tf.Tensor:
    """Return (mu_y − mu_j) / √(K_yy + K_jj − 2 K_yj) for each class j, [B, C]; Inf at the label.

    This is the ratio of Theorem 1 for each class. A deviation below 1e-6 of the largest counts as 1e-6 of the largest.

    Args:
        noise_free_logits: mu [B, C].
        labels: y [B], whole numbers in [0, C).
        difference_scale: [C, C] or [B, C, C], from `logit_difference_scale`; all zero for a net without noise. The
            z-margins are then the plain margins mu_y − mu_j, which give the direction of the limit of vanishing noise.
    """
    num_classes = noise_free_logits.shape[-1]
    is_label = tf.one_hot(labels, num_classes, on_value=True, off_value=False, dtype=tf.bool)
    label_logits = tf.gather(noise_free_logits, labels, axis=1, batch_dims=1)[:, tf.newaxis]
    # The difference of two classes that share their noise is certain: a small deviation in place of 0 keeps the order.
    largest = tf.reduce_max(difference_scale, axis=(-2, -1))[..., tf.newaxis]  # of each image, if each has its own
    smallest = MIN_DEVIATION * largest
    batch_dims = len(difference_scale.shape) - 2
    scale = tf.maximum(tf.gather(difference_scale, labels, axis=batch_dims, batch_dims=batch_dims), smallest)
    scale = tf.where(is_label | (largest == 0), tf.ones_like(scale), scale)
    return tf.where(is_label, math.inf, (label_logits - noise_free_logits) / scale)


def z_margin(noise_free_logits: tf.Tensor, labels: tf.Tensor, difference_scale: tf.Tensor) -> tf.Tensor:
    """Return the z-margin, [B]: the least of `z_margins`, which takes the same arguments.

    Examples:
        >>> from wca_tf.gaussian.covariance import logit_difference_scale
        >>> scale = logit_difference_scale(tf.constant([[2.0], [0.0], [1.0]]))  # of h_0 − h_1: 2, of h_0 − h_2: 1
        >>> z_margin(tf.constant([[5.0, 1.0, 2.0]]), [0], scale).numpy().tolist()
        [2.0]
    """
    return tf.reduce_min(z_margins(noise_free_logits, labels, difference_scale), axis=1)


def soft_z_margin(noise_free_logits: tf.Tensor, labels: tf.Tensor, difference_scale: tf.Tensor) -> tf.Tensor:
    """Return −½ ln Σ_j exp(−2 z_j), [B]: a smooth lower bound of the z-margin, for ascent that sees every near class.

    Φ(−z_j) is class j's part in the union bound on P(error). At z = 1.5, exp(−2 z_j) falls as fast as Φ(−z_j). Unlike
    Φ(−z_j), it does not level off.

    Without noise there is no unit. 20 / spread then takes the place of 2. The spread is the mean distance of the
    image's margins from the least, and a constant of the gradient. The ascent then does not depend on the scale of the
    logits.
    """
    z = z_margins(noise_free_logits, labels, difference_scale)
    softness = tf.where(tf.reduce_all(difference_scale == 0), SOFTNESS_OF_SPREAD / _spread(z), SOFTNESS)
    return -tf.reduce_logsumexp(-softness[:, tf.newaxis] * z, axis=1) / softness


def _spread(margins: tf.Tensor) -> tf.Tensor:
    """Return the mean distance of each image's margins from the least, [B], from [B, C]; 1 where all are equal."""
    margins = tf.stop_gradient(margins)
    above = tf.where(margins < math.inf, margins - tf.reduce_min(margins, axis=1, keepdims=True), 0.0)
    mean = tf.reduce_mean(above, axis=1)
    return tf.where(mean > 0, mean, 1.0)


def nearest_other_class(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return argmax_{j≠y} h_j, int64 [..., B], from logits [..., B, C].

    Examples:
        >>> nearest_other_class(tf.constant([[5.0, 1.0, 2.0]]), tf.constant([0])).numpy().tolist()
        [2]
    """
    is_label = tf.one_hot(labels, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    return tf.argmax(tf.where(is_label, -math.inf, logits), axis=-1)


def nearest_difference(
    noise_free_logits: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ‖A_y − A_j‖ [B] and |mu_y − mu_j| [B], with j the label's nearest other class.

    The first is the standard deviation of the margin, the second the size of the margin without noise.

    Args:
        noise_free_logits: mu [B, C].
        labels: whole numbers [B].
        scale: A [C, D].
    """
    other_classes = nearest_other_class(noise_free_logits, labels)
    deviations = tf.norm(tf.gather(scale, labels) - tf.gather(scale, other_classes), axis=1)
    return deviations, tf.abs(margin(noise_free_logits, labels))


def margin(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return min_{j≠y} (h_y − h_j), [..., B], from logits [..., B, C]: positive where the label has the largest logit.

    Examples:
        >>> margin(tf.constant([[5.0, 1.0, 2.0]]), tf.constant([0])).numpy().tolist()
        [3.0]
    """
    is_label = tf.one_hot(labels, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    label_logits = tf.reduce_max(tf.where(is_label, logits, -math.inf), axis=-1)
    return label_logits - tf.reduce_max(tf.where(is_label, -math.inf, logits), axis=-1)
