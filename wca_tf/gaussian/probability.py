"""P(correct) of a Gaussian classifier: the probability that the label's logit is the largest.

With logits N(mu, A Aᵀ), the differences h_y − h_j are Gaussian, and P(correct) is the probability of an orthant. It
has a closed form for two classes, and Owen's (Ann. Math. Stat. 1956) for three. For more classes, Genz's sequential
conditioning (Genz, J. Comput. Graph. Stat. 1992) turns it into an integral over a unit cube. Randomised
quasi-Monte-Carlo computes this integral: scrambled Sobol points, whose independent scramblings give the error estimate.
The functions use NumPy and SciPy, in float64.
"""

from __future__ import annotations

import math

from wca_tf.core.lazily import np, scipy

REPLICATES = 12
# Points per replicate, tried in turn until the error is below the tolerance.
POINTS = (64, 512, 4096, 16384)
# Beyond this many standard deviations the normal cumulative distribution is 0 or 1 in float64.
MAX_DEVIATIONS = 38.0
# Numbers in memory at a time.
_CHUNK = 4_000_000
# Below this share of a difference's own deviation, its conditional deviation is rounding: the others decide it.
SINGULAR = 1e-9
# Below this ratio of the same two, the integrand is so steep that all points can miss where another class wins.
_STEEP = 0.3


def probability_correct(
    noise_free_logits: np.ndarray,
    labels: np.ndarray,
    logit_scale: np.ndarray,
    tolerance: float = 5e-4,
    seed: int = 0,
    unseen: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return P(argmax_j h_j = y) for h ~ N(mu, A Aᵀ), and its error.

    Args:
        noise_free_logits: mu [B, C].
        labels: y [B], whole numbers in [0, C).
        logit_scale: A [C, D], or [B, C, D] with one A for each image; zero for a deterministic net.
        tolerance: the error to reach; it stays larger where the most points allowed do not reach it.
        seed: decides the scramblings. The scramblings and the result of an example do not depend on the batch.
        unseen: whether the error includes, for every other class, the errors that all points can miss. Near a
            probability of 1 all points may miss them, and agree with each other.

    Returns:
        (probability [B], error [B]), float64. The error is a 95 % half-width. It is 0 where the probability is exact,
        as with two and three classes.

    Examples:
        >>> probability, error = probability_correct([[1.0, 1.0]], [0], [[1.0], [0.0]])  # a tie, and noise on the label
        >>> probability.tolist(), error.tolist()
        ([0.5], [0.0])
    """
    upper, scale = _ordered_differences(
        np.asarray(noise_free_logits, np.float64), np.asarray(labels), np.asarray(logit_scale, np.float64)
    )
    if not scale.any() or upper.shape[1] == 1:
        return np.prod(scipy.special.ndtr(_ratios(upper, scale)), axis=1), np.zeros(len(upper))
    factor = _triangular_factor(scale)
    if upper.shape[1] == 2:
        return _with_first(upper, factor)[:, 1], np.zeros(len(upper))
    probability, error = np.zeros(len(upper)), np.full(len(upper), np.inf)
    for points in POINTS:
        todo = np.flatnonzero(error > tolerance)
        if len(todo):
            probability[todo], error[todo] = _integrate(upper[todo], factor[todo], points, seed, unseen)
    return probability, error


def _ordered_differences(mean: np.ndarray, labels: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means [B, C−1] and scales [B, C−1, D] of h_y − h_j.

    The likeliest other classes j come first, which saves points.
    """
    rows = np.arange(len(mean))[:, np.newaxis]
    other_classes = np.arange(mean.shape[1] - 1)[np.newaxis] + (np.arange(mean.shape[1] - 1) >= labels[:, np.newaxis])
    upper = mean[rows, labels[:, np.newaxis]] - mean[rows, other_classes]
    if scale.ndim == 3:
        differences = scale[rows, labels[:, np.newaxis]] - scale[rows, other_classes]
    else:
        differences = scale[labels][:, np.newaxis] - scale[other_classes]
    deviations = np.linalg.norm(differences, axis=2)
    order = np.argsort(_standardise(upper, deviations), axis=1, kind="stable")
    return np.take_along_axis(upper, order, 1), np.take_along_axis(differences, order[..., np.newaxis], 1)


def _triangular_factor(scale: np.ndarray) -> np.ndarray:
    """Return lower-triangular T [B, C−1, C−1] with T Tᵀ = S Sᵀ, by QR of S.

    This works also where S Sᵀ is singular.
    """
    count, dimensions = scale.shape[1:]
    if dimensions < count:
        scale = np.concatenate([scale, np.zeros((len(scale), count, count - dimensions))], axis=2)
    factor = np.swapaxes(np.linalg.qr(np.swapaxes(scale, 1, 2), mode="r"), 1, 2)
    diagonal = np.diagonal(factor, axis1=1, axis2=2)
    factor = factor * np.where(diagonal < 0, -1.0, 1.0)[:, np.newaxis, :]
    rounding = SINGULAR * np.abs(factor).max(axis=2, keepdims=True)
    return np.where(np.eye(count, dtype=bool) & (factor < rounding), 0.0, factor)


def standardise(mean: np.typing.ArrayLike, deviation: np.typing.ArrayLike) -> np.ndarray:
    """Return mean / deviation.

    At a deviation of zero return ±Inf with the sign of the mean, and −Inf for a tie, which counts as an error.
    """
    mean, deviation = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(deviation, np.float64))
    limit = np.where(mean > 0, math.inf, -math.inf)
    return np.divide(mean, deviation, out=limit, where=deviation > 0)


def _standardise(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the result of `standardise`, cut to ±38."""
    return np.clip(standardise(mean, deviation), -MAX_DEVIATIONS, MAX_DEVIATIONS)


def _integrate(
    upper: np.ndarray, factor: np.ndarray, points: int, seed: int, unseen: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean [B] over the scrambled point sets, and its 95 % half-width [B].

    The half-width is the one that the scatter of the point sets gives. Where all sets may miss a larger part of the
    probability, it is that part.
    """
    estimates = np.zeros((len(upper), REPLICATES))
    size = max(1, _CHUNK // (points * upper.shape[1]))
    for replicate in range(REPLICATES):
        sobol = scipy.stats.qmc.Sobol(upper.shape[1] - 1, scramble=True, rng=np.random.default_rng([seed, replicate]))
        cube = sobol.random(points)
        for start in range(0, len(upper), size):
            part = slice(start, start + size)
            estimates[part, replicate] = _genz(upper[part], factor[part], cube)
    half_width = scipy.stats.t.ppf(0.975, REPLICATES - 1) * estimates.std(axis=1, ddof=1) / np.sqrt(REPLICATES)
    # The rule of three: 95 % of point sets have a point in a part of the cube this large.
    mean = estimates.mean(axis=1)
    part = 3 / (points * REPLICATES) * scipy.special.ndtr(_ratios(upper, factor)[:, 0])
    missed = _steep_probability(upper, factor)
    if unseen:  # at most what the union bound of the errors has above the errors seen
        union = scipy.special.ndtr(-_ratios(upper, factor)).sum(axis=1)
        missed = np.maximum(missed, np.maximum(union - (1 - mean), 0.0))
    return mean, np.maximum(half_width, np.minimum(part, missed))


def _steep_probability(upper: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Bound the part [B] of P that a steep integrand can hide.

    In this part the likeliest other class loses and another class with a steep integrand wins.
    """
    steep = np.diagonal(factor, axis1=1, axis2=2) < _STEEP * np.linalg.norm(factor, axis=2)
    wins = scipy.special.ndtr(_ratios(upper, factor)[:, :1]) - _with_first(upper, factor)
    return np.where(steep, wins, 0.0).sum(axis=1)


def _with_first(upper: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return P(x_0 < upper_0 and x_j < upper_j) [B, C−1] for x = T ε, by Owen's T function (1956, equation 2.1).

    The result is exact up to rounding, also where x_j is almost ±x_0. The column j = 0 has no meaning.
    """
    deviation = np.linalg.norm(factor, axis=2)
    unit = np.where(deviation > 0, deviation, 1.0)
    ratios = _ratios(upper, factor)
    k = np.where(ratios == 0, 1e-100, ratios)  # Owen's formula divides by both limits
    h = k[:, :1]
    correlation = factor[:, :, 0] / unit
    rest = np.maximum(np.linalg.norm(factor[:, :, 1:], axis=2) / unit, SINGULAR)
    wedges = scipy.special.owens_t(h, (k - correlation * h) / (h * rest))
    wedges += scipy.special.owens_t(k, (h - correlation * k) / (k * rest))
    return np.clip((scipy.special.ndtr(h) + scipy.special.ndtr(k) - (h * k < 0)) / 2 - wedges, 0.0, 1.0)


def _ratios(upper: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return upper_j over the deviation of x_j = (T ε)_j, [B, C−1], cut to [−38, 38]; the first is the smallest."""
    return _standardise(upper, np.linalg.norm(factor, axis=2))


def _genz(upper: np.ndarray, factor: np.ndarray, cube: np.ndarray) -> np.ndarray:
    """Return P(T ε < upper) [B] by sequential conditioning at the points `cube` [N, C−2] of the unit cube."""
    count = upper.shape[1]
    normal = np.zeros((len(upper), count - 1, len(cube)))
    product = np.ones((len(upper), len(cube)))
    for i in range(count):
        known = np.matmul(factor[:, i, np.newaxis, :i], normal[:, :i])[:, 0]
        conditional = scipy.special.ndtr(_standardise(upper[:, i, np.newaxis] - known, factor[:, i, i, np.newaxis]))
        product *= conditional
        if i < count - 1:
            normal[:, i] = scipy.special.ndtri(np.clip(cube[:, i] * conditional, 1e-300, 1 - 1e-16))
    return product.mean(axis=1)
