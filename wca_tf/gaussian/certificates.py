"""Lower bounds of P(correct) under every attack in an l2 ball: certificates for Gaussian noise before a linear head.

Logits: h(x) = W (f(x) + z) + b with z ~ N(0, L Lᵀ), so that A = W L is the scale of the logits. The features f are
κ-Lipschitz from l2 to l2: an attack of radius r changes them by `change` = κ r at most. a_j = w_y − w_j for each
other class j of the label y, and m_j = mu_y − mu_j is its noise-free margin. All arrays are of NumPy, in float64.

C1 (`known_draw_certificate`) holds even when the attacker sees the draw. C2 (`gaussian_shift_certificate`) holds for an
attacker who does not see it. The bounds are exact up to the error of the orthant probability, a 95 % half-width that is
subtracted, and up to the rounding of the net's own float32, which `deterministic_certificate` takes as `logit_error`
and as a larger `change`.
"""

from __future__ import annotations

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np, scipy
from wca_tf.gaussian.bounds import union_error_bound
from wca_tf.gaussian.covariance import logit_difference_scale
from wca_tf.gaussian.probability import SINGULAR, probability_correct

# P(correct) of three classes is closed, with an error of 0: its own rounding is below this.
_ROUNDING = 1e-12


def deterministic_certificate(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    change: float | np.ndarray,
    logit_error: float | np.ndarray = 0.0,
) -> np.ndarray:
    """Return [B], whether no attack changes the answer of the net without noise: m_j > ‖a_j‖ κ r for all j ≠ y.

    Args:
        logits: mu [B, C], without noise.
        labels: y [B], whole numbers in [0, C).
        weights: W [C, D].
        change: κ r, the largest change of the features in l2, 0 or more; a number, or [B].
        logit_error: how far rounding moves a logit at most, at the image and at the attacked one; a number, or [B].

    Raises:
        InputError: a change below 0 or not finite.
    """
    raised = _raised(logits, labels, weights, change)
    rows = np.arange(len(raised))
    label = raised[rows, labels] - 4 * logit_error  # of two logits, at two images
    raised[rows, labels] = -np.inf
    return label > raised.max(axis=1)


def known_draw_certificate(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, scale: np.ndarray, change: float
) -> np.ndarray:
    """Return C1 [B]: P(correct) with each margin m_j lowered by ‖a_j‖ κ r.

    No attack changes the answer under a draw of the noise whose margins are above ‖a_j‖ κ r. So the bound holds for
    the mean over draws of the worst attack for each draw.

    Args:
        logits, labels, weights, change: as for `deterministic_certificate`.
        scale: A [C, R] with A Aᵀ the covariance of the logits; zero for a net without noise.

    Raises:
        InputError: a change below 0 or not finite.
    """
    scale = np.asarray(scale, np.float64)
    if not scale.any():
        return deterministic_certificate(logits, labels, weights, change).astype(np.float64)
    probability, error = probability_correct(_raised(logits, labels, weights, change), labels, scale, unseen=True)
    return np.maximum(probability - error, 0.0)


def gaussian_shift_certificate(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    scale: np.ndarray,
    change: float,
    quantiles: np.ndarray | None = None,
) -> np.ndarray:
    """Return C2 [B]: Φ(Φ⁻¹(P(correct)) − κ r ρ_y), for an attacker who does not see the draw.

    The attack moves the mean of the margins by a vector whose length, in deviations of the noise, is κ r ρ_y at most
    (`shift_gain`). By the Neyman-Pearson lemma no event of a Gaussian loses more, as in randomised smoothing (Cohen et
    al., ICML 2019).

    Args:
        logits, labels, weights, scale, change: as for `known_draw_certificate`.
        quantiles: [B] of `quantile_from_below`, which takes long; they are the same for every change.

    Raises:
        InputError: a change below 0 or not finite.
    """
    _check(change)
    scale, labels = np.asarray(scale, np.float64), np.asarray(labels)
    if not _distances(scale).any():  # no noise, or noise that all classes share
        return deterministic_certificate(logits, labels, weights, change).astype(np.float64)
    gains = shift_gain(weights, scale)[labels]
    shifts = np.multiply(gains, change, out=np.zeros(len(labels)), where=np.full(len(labels), change > 0))
    return scipy.special.ndtr((quantile_from_below(logits, labels, scale) if quantiles is None else quantiles) - shifts)


def shift_gain(weights: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return ρ_y [C] for each label: the largest singular value of S^(−1/2) M, with the rows a_j in M, S = Cov(m).

    It is the largest shift of the margins' mean, in deviations of their noise, by a change of the features of length 1.
    It is Inf where the noise leaves a direction of the margins free. For L of full rank it is 1/σ_min(L) at most.

    Args:
        weights: W [C, D].
        scale: A = W L [C, R].
    """
    weights, scale = np.asarray(weights, np.float64), np.asarray(scale, np.float64)
    gains = np.full(len(weights), np.inf)
    for label in range(len(weights)):
        differences, noise = (np.delete(rows[label] - rows, label, axis=0) for rows in (weights, scale))
        if noise.shape[1] < len(noise):
            continue
        factor = np.asarray(np.linalg.qr(noise.T, mode="r")).T  # lower triangular, S = factor factorᵀ
        diagonal = np.abs(np.diagonal(factor))
        if diagonal.min() > SINGULAR * np.linalg.norm(factor, axis=1).max():
            moved = scipy.linalg.solve_triangular(factor, differences, lower=True)
            gains[label] = np.linalg.norm(moved, 2)
    return gains


def quantile_from_below(logits: np.ndarray, labels: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return a lower bound of Φ⁻¹(P(correct)) [B], sound also where P(correct) rounds to 1.

    It is the larger of two bounds: Φ⁻¹ of P(correct) less its error, and −Φ⁻¹ of the union bound of the errors, which
    is computed in logarithms.
    """
    logits, scale, labels = np.asarray(logits, np.float64), np.asarray(scale, np.float64), np.asarray(labels)
    probability, error = probability_correct(logits, labels, scale, unseen=True)
    direct = scipy.special.ndtri(np.clip(probability - np.maximum(error, _ROUNDING), 0.0, 1.0))
    margins = logits[np.arange(len(logits)), labels][:, np.newaxis] - logits
    deviations = _distances(scale)[labels]
    other_classes = np.arange(logits.shape[1]) != labels[:, np.newaxis]
    limits = np.where(margins > 0, np.inf, -np.inf)
    ratios = np.divide(margins, deviations, out=limits, where=deviations > 0)
    errors = scipy.special.logsumexp(np.where(other_classes, scipy.special.log_ndtr(-ratios), -np.inf), axis=1)
    union = np.where(errors < 0, -scipy.special.ndtri_exp(np.minimum(errors, 0.0)), -np.inf)
    return np.maximum(direct, union)


def union_certificate(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, scale: np.ndarray, change: float
) -> np.ndarray:
    """Return [B]: 1 less the sum over the other classes of Φ(−(m_j − ‖a_j‖ κ r) / σ_j), 0 or more.

    It is the proof of Theorem 1 (appendix A) for each other class, before its last step, and a union bound over them.
    The last step bounds Φ by its steepest slope: with ten classes nothing is left where each ‖a_j‖ κ r is above
    0.28 σ_j. The arguments are those of `known_draw_certificate`, whose bound is never lower.
    """
    _check(change)
    return 1.0 - union_error_bound(logits, labels, scale, change * _distances(weights))


def _distances(rows: np.ndarray) -> np.ndarray:
    """Return the distances [C, C] of rows [C, R]: ‖w_i − w_j‖ of weights, or deviations of logit differences."""
    distances: np.ndarray = logit_difference_scale(np.asarray(rows, np.float64)).numpy()
    return distances


def _raised(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, change: float | np.ndarray) -> np.ndarray:
    """Return the logits [B, C], those of j ≠ y raised by ‖a_j‖ κ r, the most that an attack gains on the label."""
    _check(change)
    return np.asarray(logits, np.float64) + np.reshape(change, [-1, 1]) * _distances(weights)[np.asarray(labels)]


def _check(change: float | np.ndarray) -> None:
    if not (np.greater_equal(change, 0) & np.isfinite(change)).all():
        raise InputError(f"expected a change of the features of 0 or more, received {change}")
