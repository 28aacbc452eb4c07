"""P(class) for every class of Gaussian logits, as a graph that any runtime of TensorFlow computes.

`wca_tf.orthant` for serving: the same mathematics in TensorFlow, float64, at one fixed set of scrambled Sobol points,
so that an answer depends on nothing but the image. Shapes: n images, C classes, P pairs of an image and a class that
may win there, J rivals of such a class, N points.
"""

import numpy as np
import tensorflow as tf
from scipy.stats import qmc

SOBOL_SEED = 0
# A class that any one rival beats by so many standard deviations does not win, a rival so far below is none: 1e-9 each.
FAR = 6.0
# Standard deviations beyond which a normal number is not found in float64's cumulative distribution.
WIDEST = 38.0
# A conditional deviation this much below the difference's own is rounding: the difference is decided by the others.
SINGULAR = 1e-9
# Numbers that one array of the integration has at most: 4 MB, which stay in a processor's cache.
CHUNK = 500_000


def num_points(num_classes: int) -> int:
    """N. tests/test_exact.py holds the errors that this leaves; the cost grows with the square of the classes."""
    return 1024 if num_classes <= 32 else 512


class ClassProbabilities:
    """mu [n, C] float32 -> P(argmax_j h_j = c) [n, C] float64, for h ~ N(mu, K).

    Without noise it is 1 at the largest logit; a tie counts as an error, so that classes which tie for certain get 0.
    Two classes have a closed form. More take Genz's sequential conditioning (see `wca_tf.orthant`); each probability is
    then an estimate of its own, and they sum to 1 up to their errors.

    Args:
        noise_factor: T [C, r] with T Tᵀ = K, the covariance of the logits; None for a net without noise.
    """

    def __init__(self, noise_factor: np.ndarray | None) -> None:
        if noise_factor is None:
            self._probabilities = _certain
            return
        num_classes, rank = noise_factor.shape
        padding = max(0, num_classes - 1 - rank)  # the QR of J rivals' differences then has J rows
        self._factor = np.pad(noise_factor.astype(np.float64), ((0, 0), (0, padding)))
        self._deviations = np.stack([np.linalg.norm(row - self._factor, axis=1) for row in self._factor])
        self._probabilities = self._two_classes if num_classes == 2 else self._many_classes

    def __call__(self, noise_free_logits: tf.Tensor) -> tf.Tensor:
        return self._probabilities(tf.cast(noise_free_logits, tf.float64))

    def _two_classes(self, mean: tf.Tensor) -> tf.Tensor:
        return _ndtr(_standardise(mean - tf.reverse(mean, [1]), tf.constant(self._deviations[0, 1])))

    def _many_classes(self, mean: tf.Tensor) -> tf.Tensor:
        """Chunk by chunk over the pairs of an image and a class that may win there: memory does not grow with n."""
        pairs = self._pairs(mean)
        num_classes = len(self._factor)
        size = max(1, CHUNK // (num_points(num_classes) * num_classes))

        def step(start: tf.Tensor, probabilities: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            part = pairs[start : start + size]
            upper, factor = self._rivals(tf.gather(mean, part[:, 0]), part[:, 1])
            return start + size, tf.tensor_scatter_nd_update(probabilities, part, _genz(upper, factor, num_classes))

        _, probabilities = tf.while_loop(
            lambda start, _: start < tf.shape(pairs)[0],
            step,
            (tf.constant(0), tf.zeros_like(mean)),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, num_classes])),
            parallel_iterations=1,
        )
        return probabilities

    def _pairs(self, mean: tf.Tensor) -> tf.Tensor:
        """[P, 2] int32: (image, class) where the class is not far below another one."""
        deviations = tf.constant(self._deviations)

        itself = tf.eye(len(self._factor), dtype=tf.bool)

        def nearest(row: tf.Tensor) -> tf.Tensor:
            ratios = _standardise(row[:, tf.newaxis] - row, deviations)
            return tf.reduce_min(tf.where(itself, tf.constant(WIDEST, tf.float64), ratios), axis=1)

        # Image by image: ratios of all images at once would be C times as large as the logits.
        ratios = tf.map_fn(nearest, mean, fn_output_signature=tf.TensorSpec([len(self._factor)], tf.float64))
        return tf.cast(tf.where(ratios > -FAR), tf.int32)

    def _rivals(self, mean: tf.Tensor, classes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Means [P, J] of h_c − h_j and their triangular factor [P, J, J], the likeliest rivals j first.

        J is what the pair with the most rivals has; a pair with fewer gets far ones too.
        """
        num_classes = len(self._factor)
        factor = tf.constant(self._factor)
        own = tf.gather(mean, classes, batch_dims=1)[:, tf.newaxis]
        ratios = _standardise(own - mean, tf.gather(tf.constant(self._deviations), classes))
        itself = tf.one_hot(classes, num_classes, on_value=True, off_value=False, dtype=tf.bool)
        ratios = tf.where(itself, tf.constant(np.inf, tf.float64), ratios)
        near = tf.reduce_sum(tf.cast(ratios < FAR, tf.int32), axis=1)
        count = tf.clip_by_value(tf.reduce_max(near), 1, num_classes - 1)
        rivals = tf.argsort(ratios, axis=1)[:, :count]
        differences = tf.gather(factor, classes)[:, tf.newaxis] - tf.gather(factor, rivals)
        return own - tf.gather(mean, rivals, batch_dims=1), _triangular_factor(differences)


def _certain(mean: tf.Tensor) -> tf.Tensor:
    largest = mean == tf.reduce_max(mean, axis=1, keepdims=True)
    alone = tf.reduce_sum(tf.cast(largest, tf.int32), axis=1, keepdims=True) == 1
    return tf.cast(largest & alone, tf.float64)


def _triangular_factor(scale: tf.Tensor) -> tf.Tensor:
    """Lower-triangular T [P, J, J] with T Tᵀ = S Sᵀ, by QR of S [P, J, r], r >= J; S Sᵀ may be singular."""
    factor = tf.linalg.matrix_transpose(tf.linalg.qr(tf.linalg.matrix_transpose(scale)).r)
    diagonal = tf.linalg.diag_part(factor)
    factor *= tf.where(diagonal < 0, tf.constant(-1.0, tf.float64), 1.0)[:, tf.newaxis, :]
    diagonal = tf.linalg.diag_part(factor)
    rounding = SINGULAR * tf.reduce_max(tf.abs(factor), axis=2)
    return tf.linalg.set_diag(factor, tf.where(diagonal < rounding, tf.zeros_like(diagonal), diagonal))


def _genz(upper: tf.Tensor, factor: tf.Tensor, num_classes: int) -> tf.Tensor:
    """P(T ε < upper) [P] by sequential conditioning at N points of the unit cube."""
    points = num_points(num_classes)
    sobol = qmc.Sobol(num_classes - 2, scramble=True, rng=np.random.default_rng(SOBOL_SEED))
    # The last rival needs no point: its row lets the loop treat all alike.
    cube = tf.constant(np.concatenate([sobol.random(points).T, np.full((1, points), 0.5)]))

    def step(i: tf.Tensor, left: tf.Tensor, factor: tf.Tensor, product: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Condition on the first rival in `left` [P, j, N], the means less what the rivals before have taken."""
        conditional = _ndtr(_standardise(left[:, 0], factor[:, 0, 0, tf.newaxis]))
        normal = tf.math.ndtri(tf.clip_by_value(cube[i] * conditional, 1e-300, 1 - 1e-16))
        left = left[:, 1:] - factor[:, 1:, 0, tf.newaxis] * normal[:, tf.newaxis]
        return i + 1, left, factor[:, 1:, 1:], product * conditional

    left = upper[:, :, tf.newaxis] * tf.ones([points], tf.float64)
    *_, product = tf.while_loop(
        lambda i, left, *_: tf.shape(left)[1] > 0,
        step,
        (tf.constant(0), left, factor, tf.ones_like(left[:, 0])),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([None, None, points]),
            tf.TensorShape([None, None, None]),
            tf.TensorShape([None, points]),
        ),
    )
    return tf.reduce_mean(product, axis=1)


def _standardise(mean: tf.Tensor, deviation: tf.Tensor) -> tf.Tensor:
    """mean / deviation, cut to ±38; a deviation of zero leaves the mean's sign (a tie counts as an error)."""
    certain = tf.where(mean > 0, tf.constant(WIDEST, tf.float64), -WIDEST)
    ratio = tf.where(deviation > 0, tf.math.divide_no_nan(mean, deviation), certain)
    return tf.clip_by_value(ratio, -WIDEST, WIDEST)


def _ndtr(value: tf.Tensor) -> tf.Tensor:
    return 0.5 * tf.math.erfc(-value * np.sqrt(0.5))
