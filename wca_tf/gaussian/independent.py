"""Logits that are independent Gaussians: those of a dense layer with noise on its weights, given its input."""

from __future__ import annotations

from wca_tf.core.lazily import np, tf


def probability_of_largest(logits: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the probability that the label's logit is the largest, given this logit, float64 [S, B].

    The other logits are independent N(mean, variance). The mean over draws of this probability is P(correct), with less
    variance than the share of draws that are right.

    Args:
        logits, mean, variance: [S, B, C]; the label's logit is one of `logits`.
        labels: int64 [B].
    """
    logits, mean, variance = (tf.cast(each, tf.float64) for each in (logits, mean, variance))
    of_label = tf.one_hot(labels, logits.shape[-1], on_value=True, off_value=False)
    label_logit = tf.reduce_sum(tf.where(of_label, logits, 0.0), axis=-1, keepdims=True)
    distance = label_logit - mean
    deviation = tf.sqrt(variance)
    certain = tf.where(distance > 0, tf.constant(np.inf, tf.float64), -np.inf)  # of a logit without noise
    z = tf.where(deviation > 0, distance / tf.where(deviation > 0, deviation, 1.0), certain)
    return tf.reduce_prod(tf.where(of_label, tf.ones_like(z), 0.5 * tf.math.erfc(-z / np.sqrt(2.0))), axis=-1)
