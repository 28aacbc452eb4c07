"""ln P(error) of a Gaussian classifier, with a gradient: for attacks that climb the measure itself.

P(correct) of a confident net is 1 to the last bit, and its gradient is 0. P(error) is a sum of positive parts instead:
class j is the first that wins, for each j. The logarithm of every part is computed without rounding to 0. The parts are
integrated over the same points as P(correct) (Genz, J. Comput. Graph. Stat. 1992). Everything is in float64.

Shapes: B batch, C classes, J other classes, N points.
"""

from __future__ import annotations

from wca_tf.core.lazily import np, scipy, tf, tfp

POINTS = 64
SOBOL_SEED = 0
MAX_OTHER_CLASSES = 16  # the likeliest; the others add almost nothing to P(error)
# Added to the variances of the differences, as a share of the largest: two other classes may share all of their noise.
JITTER = 1e-9
# Of a conditional probability, on both sides: beyond it a point of the integral does not move.
_EDGE = 1e-12


def log_error_probability(noise_free_logits: tf.Tensor, labels: tf.Tensor, logit_scale: tf.Tensor) -> tf.Tensor:
    """Return ln P(argmax_j h_j ≠ y) for h ~ N(mu, A Aᵀ), [B] float64, differentiable by mu and A.

    It is an estimate over 64 fixed points, for the direction of an attack. `probability_correct` judges.

    Args:
        noise_free_logits: mu [B, C].
        labels: y [B], whole numbers in [0, C).
        logit_scale: A [C, R], or [B, C, R] with one A for each image; not zero.

    Examples:
        >>> value = log_error_probability(tf.constant([[1.0, 1.0]]), tf.constant([0]), tf.constant([[1.0], [0.0]]))
        >>> round(float(tf.exp(value[0])), 4)  # a tie, and noise on the label
        0.5
    """
    upper, factor = _differences(tf.cast(noise_free_logits, tf.float64), labels, tf.cast(logit_scale, tf.float64))
    count = upper.shape[1]
    cube = (
        scipy.stats.qmc.Sobol(max(1, count - 1), scramble=True, rng=np.random.default_rng(SOBOL_SEED)).random(POINTS).T
    )
    left = upper[:, :, tf.newaxis] * tf.ones([POINTS], tf.float64)  # [B, j, N]: means less the parts of earlier classes
    log_held, parts = tf.zeros_like(left[:, 0]), []
    normal = tfp.distributions.Normal(tf.constant(0.0, tf.float64), 1.0)
    for j in range(count):
        ratio = left[:, 0] / factor[:, j, j, tf.newaxis]
        parts.append(log_held + normal.log_cdf(-ratio))
        log_held += normal.log_cdf(ratio)
        drawn = tf.math.ndtri(tf.clip_by_value(cube[min(j, len(cube) - 1)] * normal.cdf(ratio), _EDGE, 1 - _EDGE))
        left = left[:, 1:] - factor[:, j + 1 :, j, tf.newaxis] * drawn[:, tf.newaxis]
    return tf.reduce_logsumexp(tf.stack(parts), axis=[0, 2]) - np.log(POINTS)


def _differences(mean: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the means [B, J] of h_y − h_j and a triangular factor [B, J, J] of their covariance.

    The likeliest other classes j come first.
    """
    if scale.shape.rank == 2:
        scale = tf.repeat(scale[tf.newaxis], tf.shape(mean)[0], axis=0)
    upper = tf.gather(mean, labels, batch_dims=1)[:, tf.newaxis] - mean
    differences = tf.gather(scale, labels, batch_dims=1)[:, tf.newaxis] - scale
    deviations = tf.norm(tf.stop_gradient(differences), axis=2)
    smallest = JITTER * tf.reduce_max(deviations, axis=1, keepdims=True)
    is_label = tf.one_hot(labels, mean.shape[1], on_value=True, off_value=False, dtype=tf.bool)
    ratios = tf.where(
        is_label, tf.constant(np.inf, tf.float64), tf.stop_gradient(upper) / tf.maximum(deviations, smallest)
    )
    count = min(mean.shape[1] - 1, MAX_OTHER_CLASSES)
    order = tf.argsort(ratios, axis=1)[:, :count]
    upper, differences = (tf.gather(values, order, batch_dims=1) for values in (upper, differences))
    covariance = tf.matmul(differences, differences, transpose_b=True)
    largest = tf.reduce_max(tf.linalg.diag_part(covariance), axis=1)[:, tf.newaxis, tf.newaxis]
    return upper, tf.linalg.cholesky(covariance + JITTER * largest * tf.eye(count, dtype=tf.float64))
