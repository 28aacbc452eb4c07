"""Weight-covariance alignment, L_WCA: the term that the paper adds to the loss (Eq. 3)."""

import tensorflow as tf

from wca_tf.gaussian.covariance import logit_scale


def alignment_term(class_weights: tf.Tensor, scale_tril: tf.Tensor) -> tf.Tensor:
    """Return L_WCA = Σ_i ln(w_iᵀ Sigma w_i), a scalar (paper, Eq. 3, `loss_wca`), computed as Σ_i ln ‖Lᵀ w_i‖².

    It is -Inf when some w_i is zero. This is not patched: training raises an error.

    Examples:
        >>> float(alignment_term(tf.eye(2), tf.constant([[2.0, 0.0], [0.0, 1.0]])))  # ln 4 + ln 1
        1.3862943649291992
    """
    variances = tf.reduce_sum(tf.square(logit_scale(class_weights, scale_tril)), axis=1)
    return tf.reduce_sum(tf.math.log(variances))
