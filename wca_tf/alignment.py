"""The paper's mathematics of weights and noise: the alignment term and the z-margin.

Shapes: B batch, D feature_dim, C classes. `class_weights` is [D, C], as in a Keras kernel: column i is the paper's w_i.
`scale_tril` is L [D, D] with Sigma = L Lᵀ. Logits given an image are N(mu, K) with K = W Sigma Wᵀ = A Aᵀ, where
A = W L [C, D] is called `logit_scale`; Sigma itself is never formed.
"""

import math

import tensorflow as tf

# Of 1, 2, 4 and the hard minimum, the strongest attack on validation images of Fashion-MNIST.
SOFTNESS = 2.0
SOFTNESS_OF_SPREAD = 20.0  # of a net without noise; chosen on validation images (docs/decisions.md)
MOST_NUMBERS = 4_000_000  # in memory at a time
SMALLEST_DEVIATION = 1e-6  # of a difference of logits, over the largest


def logit_scale(class_weights: tf.Tensor, scale_tril: tf.Tensor) -> tf.Tensor:
    """A [C, D] with K = A Aᵀ the covariance of the logits: the noise of the logits is A ε, ε ~ N(0, I)."""
    return tf.matmul(class_weights, scale_tril, transpose_a=True)


def alignment_term(class_weights: tf.Tensor, scale_tril: tf.Tensor) -> tf.Tensor:
    """L_WCA = Σ_i ln(w_iᵀ Sigma w_i), a scalar (paper, Eq. 3, `loss_wca`), as Σ_i ln ‖Lᵀ w_i‖².

    It is -Inf when some w_i is zero; training raises on that, it is not patched.

    >>> float(alignment_term(tf.eye(2), tf.constant([[2.0, 0.0], [0.0, 1.0]])))  # ln 4 + ln 1
    1.3862943649291992
    """
    variances = tf.reduce_sum(tf.square(logit_scale(class_weights, scale_tril)), axis=1)
    return tf.reduce_sum(tf.math.log(variances))


def logit_difference_scale(scale: tf.Tensor) -> tf.Tensor:
    """[..., C, C]: standard deviation of h_i − h_j, √(K_ii + K_jj − 2 K_ij), from `logit_scale` [..., C, D].

    It is zero on the diagonal.
    """
    scale = tf.convert_to_tensor(scale)
    if scale.shape.rank == 3:  # of each image its own: row by row, within memory
        return tf.stack([tf.norm(scale[:, i : i + 1] - scale, axis=2) for i in range(scale.shape[1])], axis=1)
    if scale.shape[0] ** 2 * scale.shape[1] > MOST_NUMBERS:
        return tf.map_fn(lambda row: tf.norm(row - scale, axis=1), scale)
    return tf.norm(scale[:, tf.newaxis, :] - scale[tf.newaxis, :, :], axis=2)


def common_noise_share(scale: tf.Tensor) -> tf.Tensor:
    """Return 1ᵀK1 / (C tr K), a scalar in [0, 1]: the share of the logits' variance that all classes have in common.

    Noise that moves every logit alike cancels in every difference of logits, and so in every answer. The share is 1/C
    for independent noise of equal size on each class, and 1 for noise that no answer can show. It is 0 without noise.

    Args:
        scale: A [C, D] with K = A Aᵀ, from `logit_scale`.

    >>> float(common_noise_share(tf.constant([[3.0], [3.0]]))), float(common_noise_share(tf.eye(4)))
    (1.0, 0.25)
    """
    scale = tf.convert_to_tensor(scale)
    scale = tf.math.divide_no_nan(scale, tf.reduce_max(tf.abs(scale)))  # else squares of large noise overflow
    common = tf.reduce_sum(tf.square(tf.reduce_sum(scale, axis=0)))
    total = tf.reduce_sum(tf.square(scale)) * scale.shape[0]
    return tf.minimum(tf.math.divide_no_nan(common, total), 1.0)  # at 1, rounding


def z_margins(noise_free_logits: tf.Tensor, labels: tf.Tensor, difference_scale: tf.Tensor) -> tf.Tensor:
    """(mu_y − mu_j) / √(K_yy + K_jj − 2 K_yj) for each class j, [B, C], Inf at the label: Theorem 1's ratio by rival.

    Args:
        noise_free_logits: mu [B, C].
        labels: y [B], whole numbers in [0, C).
        difference_scale: [C, C] or [B, C, C], from `logit_difference_scale`; all zero for a net without noise, whose
            z-margins are the plain margins mu_y − mu_j, the direction of the limit of vanishing noise.
    """
    num_classes = noise_free_logits.shape[-1]
    is_label = tf.one_hot(labels, num_classes, on_value=True, off_value=False, dtype=tf.bool)
    label_logits = tf.gather(noise_free_logits, labels, axis=1, batch_dims=1)[:, tf.newaxis]
    # Two classes that share their noise differ for certain: a small deviation in place of none keeps the order.
    smallest = SMALLEST_DEVIATION * tf.reduce_max(difference_scale)
    batch_dims = len(difference_scale.shape) - 2
    scale = tf.maximum(tf.gather(difference_scale, labels, axis=batch_dims, batch_dims=batch_dims), smallest)
    scale = tf.where(is_label | tf.reduce_all(difference_scale == 0), tf.ones_like(scale), scale)
    return tf.where(is_label, math.inf, (label_logits - noise_free_logits) / scale)


def z_margin(noise_free_logits: tf.Tensor, labels: tf.Tensor, difference_scale: tf.Tensor) -> tf.Tensor:
    """The z-margin, [B]: the least of `z_margins`, which takes the same arguments.

    >>> scale = logit_difference_scale(tf.constant([[2.0], [0.0], [1.0]]))  # h_0 − h_1 deviates by 2, h_0 − h_2 by 1
    >>> z_margin(tf.constant([[5.0, 1.0, 2.0]]), [0], scale).numpy().tolist()
    [2.0]
    """
    return tf.reduce_min(z_margins(noise_free_logits, labels, difference_scale), axis=1)


def soft_z_margin(noise_free_logits: tf.Tensor, labels: tf.Tensor, difference_scale: tf.Tensor) -> tf.Tensor:
    """Return −½ ln Σ_j exp(−2 z_j), [B]: a smooth lower bound of the z-margin, for ascent that sees every near rival.

    exp(−2 z_j) falls as fast as Φ(−z_j), rival j's part in the union bound on P(error), does at z = 1.5; unlike it, it
    does not level off. Without noise there is no unit: each image's margins are taken in units of their own spread over
    rivals, a constant of the gradient, so that the ascent does not depend on the scale of the logits.
    """
    z = z_margins(noise_free_logits, labels, difference_scale)
    softness = tf.where(tf.reduce_all(difference_scale == 0), SOFTNESS_OF_SPREAD / _spread(z), SOFTNESS)
    return -tf.reduce_logsumexp(-softness[:, tf.newaxis] * z, axis=1) / softness


def _spread(margins: tf.Tensor) -> tf.Tensor:
    """Return the mean distance of each image's margins from the least, [B], from [B, C]; 1 where they are all equal."""
    margins = tf.stop_gradient(margins)
    above = tf.where(margins < math.inf, margins - tf.reduce_min(margins, axis=1, keepdims=True), 0.0)
    mean = tf.reduce_mean(above, axis=1)
    return tf.where(mean > 0, mean, 1.0)


def nearest_rival(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return argmax_{j≠y} h_j, int64 [..., B], from logits [..., B, C].

    >>> nearest_rival(tf.constant([[5.0, 1.0, 2.0]]), tf.constant([0])).numpy().tolist()
    [2]
    """
    is_label = tf.one_hot(labels, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    return tf.argmax(tf.where(is_label, -math.inf, logits), axis=-1)


def nearest_difference(
    noise_free_logits: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ‖A_y − A_j‖ [B] and |mu_y − mu_j| [B], j the label's nearest rival: what noise does to a margin, and it.

    Args:
        noise_free_logits: mu [B, C].
        labels: whole numbers [B].
        scale: A [C, D].
    """
    rivals = nearest_rival(noise_free_logits, labels)
    deviations = tf.norm(tf.gather(scale, labels) - tf.gather(scale, rivals), axis=1)
    return deviations, tf.abs(margin(noise_free_logits, labels))


def margin(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """min_j (h_y − h_j), [..., B], from logits [..., B, C]: positive where the label has the largest logit.

    >>> margin(tf.constant([[5.0, 1.0, 2.0]]), tf.constant([0])).numpy().tolist()
    [3.0]
    """
    is_label = tf.one_hot(labels, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    label_logits = tf.reduce_max(tf.where(is_label, logits, -math.inf), axis=-1)
    return label_logits - tf.reduce_max(tf.where(is_label, -math.inf, logits), axis=-1)
