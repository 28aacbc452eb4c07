"""The covariance of Gaussian logits, given by a factor: K = A Aᵀ, where A [C, R] is called `logit_scale`.

For a linear classifier of noisy features A = Wᵀ L. `class_weights` is W [D, C], as in a Keras kernel; its column i is
the paper's w_i. `scale_tril` is L [D, D] with Sigma = L Lᵀ. Sigma itself is never formed.
"""

from __future__ import annotations

from wca_tf.core.lazily import tf

MAX_NUMBERS = 4_000_000  # numbers in memory at a time


def logit_scale(class_weights: tf.Tensor, scale_tril: tf.Tensor) -> tf.Tensor:
    """Return A [C, D] with K = A Aᵀ the covariance of the logits; the noise of the logits is A ξ, ξ ~ N(0, I)."""
    return tf.matmul(class_weights, scale_tril, transpose_a=True)


def logit_difference_scale(scale: tf.Tensor) -> tf.Tensor:
    """Return the standard deviations [..., C, C] of h_i − h_j, from `logit_scale` [..., C, D].

    They are √(K_ii + K_jj − 2 K_ij), which is zero on the diagonal.
    """
    scale = tf.convert_to_tensor(scale)
    if scale.shape.rank == 3:  # one A for each image: row by row, to save memory
        return tf.stack([tf.norm(scale[:, i : i + 1] - scale, axis=2) for i in range(scale.shape[1])], axis=1)
    if scale.shape[0] ** 2 * scale.shape[1] > MAX_NUMBERS:
        return tf.map_fn(lambda row: tf.norm(row - scale, axis=1), scale)
    return tf.norm(scale[:, tf.newaxis, :] - scale[tf.newaxis, :, :], axis=2)


def common_noise_share(scale: tf.Tensor) -> tf.Tensor:
    """Return 1ᵀK1 / (C tr K), a scalar in [0, 1]: the share of the logits' variance that all classes have in common.

    Noise that moves all logits equally cancels in every difference of logits, so it does not change any answer. The
    share is 1/C for independent noise of equal size on each class, 1 when all noise cancels, and 0 without noise.

    Args:
        scale: A [C, D] with K = A Aᵀ, from `logit_scale`.

    Examples:
        >>> float(common_noise_share(tf.constant([[3.0], [3.0]]))), float(common_noise_share(tf.eye(4)))
        (1.0, 0.25)
    """
    scale = tf.convert_to_tensor(scale)
    scale = tf.math.divide_no_nan(scale, tf.reduce_max(tf.abs(scale)))  # else squares of large noise overflow
    common = tf.reduce_sum(tf.square(tf.reduce_sum(scale, axis=0)))
    total = tf.reduce_sum(tf.square(scale)) * scale.shape[0]
    return tf.minimum(tf.math.divide_no_nan(common, total), 1.0)  # rounding can give more than 1
