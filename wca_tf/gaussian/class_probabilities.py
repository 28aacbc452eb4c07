"""P(class) for every class of Gaussian logits, as a graph that any runtime of TensorFlow can compute.

This is `probability.py` for serving: the same mathematics, in TensorFlow and float64. It uses one fixed set of
scrambled Sobol points, so that an answer depends on the image alone. Shapes: n images, C classes, P pairs of an image
and a class that may win there, J other classes of such a class, N points.
"""

from __future__ import annotations

from wca_tf.core.lazily import np, scipy, tf
from wca_tf.gaussian.probability import MAX_DEVIATIONS, SINGULAR

SOBOL_SEED = 0
# A class this many standard deviations below any other gets probability 0, and another class this far below it is
# left out: each costs at most 1e-9.
NEGLIGIBLE_DEVIATIONS = 6.0
# The most numbers in one array of the integration: 4 MB, which stay in a processor's cache.
MAX_NUMBERS = 500_000


def num_points(num_classes: int) -> int:
    """Return N, the number of points.

    tests/test_exact.py checks the errors that remain. The cost grows with the square of the number of classes.
    """
    return 1024 if num_classes <= 32 else 512


class ClassProbabilities:
    """The function mu [n, C] float32 -> P(argmax_j h_j = c) [n, C] float64, for h ~ N(mu, K).

    Without noise the probability is 1 at the largest logit. A tie counts as an error: classes that certainly tie get 0.
    Two classes have a closed form. More classes take Genz's sequential conditioning (probability.py). Each probability
    is then estimated separately, and the probabilities sum to 1 up to their errors.

    Args:
        noise_factor: T [C, r] with T Tᵀ = K, the covariance of the logits; `None` for a net without noise.
    """

    def __init__(self, noise_factor: np.ndarray | None) -> None:
        if noise_factor is None:
            self._probabilities = _certain
            return
        num_classes, rank = noise_factor.shape
        padding = max(0, num_classes - 1 - rank)  # the QR of J other classes' differences then has J rows
        self._factor = np.pad(noise_factor.astype(np.float64), ((0, 0), (0, padding)))
        self._deviations = np.stack([np.linalg.norm(row - self._factor, axis=1) for row in self._factor])
        self._probabilities = self._two_classes if num_classes == 2 else self._many_classes

    def __call__(self, noise_free_logits: tf.Tensor) -> tf.Tensor:
        return self._probabilities(tf.cast(noise_free_logits, tf.float64))

    def _two_classes(self, mean: tf.Tensor) -> tf.Tensor:
        return _ndtr(_standardise(mean - tf.reverse(mean, [1]), tf.constant(self._deviations[0, 1])))

    def _many_classes(self, mean: tf.Tensor) -> tf.Tensor:
        """Return P [n, C], computed in chunks of the pairs of an image and a class that may win there.

        The memory of the integration does not grow with n.
        """
        pairs = self._pairs(mean)
        num_classes = len(self._factor)
        size = max(1, MAX_NUMBERS // (num_points(num_classes) * num_classes))

        def step(start: tf.Tensor, probabilities: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            part = pairs[start : start + size]
            upper, factor = self._other_classes(tf.gather(mean, part[:, 0]), part[:, 1])
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
        """Return the pairs (image, class), int32 [P, 2], in which the class is not far below another class."""
        deviations = tf.constant(self._deviations)

        itself = tf.eye(len(self._factor), dtype=tf.bool)

        def nearest(row: tf.Tensor) -> tf.Tensor:
            ratios = _standardise(row[:, tf.newaxis] - row, deviations)
            return tf.reduce_min(tf.where(itself, tf.constant(MAX_DEVIATIONS, tf.float64), ratios), axis=1)

        # Image by image: ratios of all images at once would be C times as large as the logits.
        ratios = tf.map_fn(nearest, mean, fn_output_signature=tf.TensorSpec([len(self._factor)], tf.float64))
        return tf.cast(tf.where(ratios > -NEGLIGIBLE_DEVIATIONS), tf.int32)

    def _other_classes(self, mean: tf.Tensor, classes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return means [P, J] of h_c − h_j and their triangular factor [P, J, J], the likeliest other classes j first.

        J is the largest number of near classes of any pair. A pair with fewer near classes gets far classes too.
        """
        num_classes = len(self._factor)
        factor = tf.constant(self._factor)
        own = tf.gather(mean, classes, batch_dims=1)[:, tf.newaxis]
        ratios = _standardise(own - mean, tf.gather(tf.constant(self._deviations), classes))
        itself = tf.one_hot(classes, num_classes, on_value=True, off_value=False, dtype=tf.bool)
        ratios = tf.where(itself, tf.constant(np.inf, tf.float64), ratios)
        near = tf.reduce_sum(tf.cast(ratios < NEGLIGIBLE_DEVIATIONS, tf.int32), axis=1)
        count = tf.clip_by_value(tf.reduce_max(near), 1, num_classes - 1)
        other_classes = tf.argsort(ratios, axis=1)[:, :count]
        differences = tf.gather(factor, classes)[:, tf.newaxis] - tf.gather(factor, other_classes)
        return own - tf.gather(mean, other_classes, batch_dims=1), _triangular_factor(differences)


def _certain(mean: tf.Tensor) -> tf.Tensor:
    largest = mean == tf.reduce_max(mean, axis=1, keepdims=True)
    alone = tf.reduce_sum(tf.cast(largest, tf.int32), axis=1, keepdims=True) == 1
    return tf.cast(largest & alone, tf.float64)


def _triangular_factor(scale: tf.Tensor) -> tf.Tensor:
    """Return lower-triangular T [P, J, J] with T Tᵀ = S Sᵀ, by QR of S [P, J, r], r >= J; S Sᵀ may be singular."""
    factor = tf.linalg.matrix_transpose(tf.linalg.qr(tf.linalg.matrix_transpose(scale)).r)
    diagonal = tf.linalg.diag_part(factor)
    factor *= tf.where(diagonal < 0, tf.constant(-1.0, tf.float64), 1.0)[:, tf.newaxis, :]
    diagonal = tf.linalg.diag_part(factor)
    rounding = SINGULAR * tf.reduce_max(tf.abs(factor), axis=2)
    return tf.linalg.set_diag(factor, tf.where(diagonal < rounding, tf.zeros_like(diagonal), diagonal))


def _genz(upper: tf.Tensor, factor: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return P(T ε < upper) [P] by sequential conditioning at N points of the unit cube."""
    points = num_points(num_classes)
    sobol = scipy.stats.qmc.Sobol(num_classes - 2, scramble=True, rng=np.random.default_rng(SOBOL_SEED))
    # The last class needs no point; its row lets the loop treat all other classes alike.
    cube = tf.constant(np.concatenate([sobol.random(points).T, np.full((1, points), 0.5)]))

    def step(i: tf.Tensor, left: tf.Tensor, factor: tf.Tensor, product: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Condition on the first class in `left` [P, j, N], the means less the parts of the earlier classes."""
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
    """Return mean / deviation, cut to ±38.

    At a deviation of zero return ±38 with the sign of the mean, and −38 for a tie, which counts as an error.
    """
    certain = tf.where(mean > 0, tf.constant(MAX_DEVIATIONS, tf.float64), -MAX_DEVIATIONS)
    ratio = tf.where(deviation > 0, tf.math.divide_no_nan(mean, deviation), certain)
    return tf.clip_by_value(ratio, -MAX_DEVIATIONS, MAX_DEVIATIONS)


def _ndtr(value: tf.Tensor) -> tf.Tensor:
    return 0.5 * tf.math.erfc(-value * np.sqrt(0.5))
