"""The noise's covariance Sigma = L Lᵀ from an unconstrained vector.

L is lower-triangular with a positive diagonal for every vector, so that no step of an optimizer can leave the set of
covariances (paper, section 3.2).
"""

import tensorflow as tf
import tensorflow_probability as tfp

# Keeps the diagonal of L above zero in float32: ln(wᵀ Sigma w) stays finite.
MIN_SCALE = 1e-5


def _triangular() -> tfp.bijectors.Bijector:
    return tfp.bijectors.FillScaleTriL(diag_bijector=tfp.bijectors.Softplus(), diag_shift=MIN_SCALE)


@tf.function(autograph=False)  # eagerly the bijector takes 30 times as long; the constraint needs it in every step
def scale_tril_from_vector(vector: tf.Tensor) -> tf.Tensor:
    """Return L [D, D], lower-triangular with a positive diagonal, from any vector [D (D + 1) / 2].

    Examples:
        >>> scale_tril_from_vector(tf.constant([1.0, 5.0, 1.0])).numpy().round(2).tolist()
        [[1.309999942779541, 0.0], [5.0, 1.309999942779541]]
    """
    return _triangular().forward(vector)


@tf.function(autograph=False)
def vector_from_scale_tril(scale_tril: tf.Tensor) -> tf.Tensor:
    """Return the vector [D (D + 1) / 2] that `scale_tril_from_vector` maps to `scale_tril` [D, D]."""
    return _triangular().inverse(scale_tril)


def scale_diag_from_vector(vector: tf.Tensor) -> tf.Tensor:
    """Return positive standard deviations [D] from any vector [D]."""
    return tf.nn.softplus(vector) + MIN_SCALE


def vector_from_scale_diag(scale_diag: tf.Tensor) -> tf.Tensor:
    """Return the vector [D] that `scale_diag_from_vector` maps to `scale_diag` [D]."""
    return tfp.math.softplus_inverse(scale_diag - MIN_SCALE)
