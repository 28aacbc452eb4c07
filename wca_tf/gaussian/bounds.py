"""Theorem 1: a bound on the drop of a stochastic classifier's P(correct) under attack (paper, section 3.1).

Binary models: h(x) = wᵀ(f(x) + z) + b with z ~ N(0, Sigma) and y in {−1, +1}. The margin y h(x) is Gaussian. Its mean
is m = y (wᵀf(x) + b), here `margin`. Its standard deviation is sigma = √(wᵀ Sigma w), here `deviation`. Delta, here
`output_change`, is the largest change of the noise-free output by the attack. Several classes: the same holds for each
other class, and a union bound joins the other classes.

A deviation of zero is the limit of vanishing noise: probabilities are 0 or 1, and a tie counts as an error. The
functions use NumPy and SciPy, in float64; their arguments broadcast.
"""

from __future__ import annotations

import math

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np, scipy
from wca_tf.gaussian import covariance, margins
from wca_tf.gaussian.probability import standardise

# For each norm of the ball: the norm of a linear function's weights that gives its largest change over the unit ball.
DUAL_NORMS = {"linf": 1, "l2": 2}


def output_deviation(weight: np.ndarray, scale_tril: np.ndarray) -> float:
    """Return sigma = √(wᵀ Sigma w) = ‖Lᵀ w‖, from w [D] and L [D, D]."""
    return float(np.linalg.norm(np.asarray(scale_tril, np.float64).T @ np.asarray(weight, np.float64)))


def linear_output_change(input_weights: np.ndarray, epsilon: float, norm: str = "linf") -> np.ndarray:
    """Return Delta of a linear model: epsilon ‖v‖₁ in the linf ball, epsilon ‖v‖₂ in the l2 ball.

    The formula for linf is the paper's ("Empirical Evaluation of Theorem 1", after Gouk et al.).

    Args:
        input_weights: v [inputs, ...], the weights of each input; a column for each output.
        epsilon: the ball's radius, in the inputs' units, 0 or more.
        norm: "linf" or "l2".

    Returns:
        Delta [...], the shape of `input_weights` without the axis of the inputs.

    Raises:
        InputError: another norm, or an epsilon that is negative or not finite.

    Examples:
        >>> float(linear_output_change(np.array([3.0, -4.0]), epsilon=0.5))
        3.5
    """
    if norm not in DUAL_NORMS:
        raise InputError(f"expected norm among {', '.join(DUAL_NORMS)}; received {norm!r}")
    if not 0 <= epsilon < math.inf:
        raise InputError(f"expected epsilon of 0 or more, received {epsilon}")
    return epsilon * np.linalg.norm(np.asarray(input_weights, np.float64), ord=DUAL_NORMS[norm], axis=0)


def certified_probability(
    margin: np.typing.ArrayLike, output_change: np.typing.ArrayLike, deviation: np.typing.ArrayLike
) -> np.ndarray:
    """Return Φ((m − Delta) / sigma), a lower bound of P(correct) under attack (paper, appendix A, Eq. `theory_adv`).

    Some attack reaches the bound when Delta is not larger than necessary.

    Examples:
        >>> float(certified_probability(margin=1.0, output_change=1.0, deviation=2.0))
        0.5
    """
    return scipy.special.ndtr(standardise(np.subtract(margin, output_change), deviation))


def adversarial_gap_bound(output_change: np.typing.ArrayLike, deviation: np.typing.ArrayLike) -> np.ndarray:
    """Return Delta / √(2π wᵀ Sigma w), Theorem 1's upper bound of the drop of P(correct) under attack.

    The bound is 0 where Delta is 0; without noise it is Inf for any other Delta. 1 / √(2π) is the steepest slope of Φ,
    so the bound is loose wherever the margin is not near zero.

    Examples:
        >>> round(float(adversarial_gap_bound(output_change=1.0, deviation=2.0)), 4)
        0.1995
    """
    change, deviation = np.broadcast_arrays(np.asarray(output_change, np.float64), np.asarray(deviation, np.float64))
    limit = np.where(change > 0, math.inf, 0.0)
    return np.divide(change, math.sqrt(2 * math.pi) * deviation, out=limit, where=deviation > 0)


def theorem_1_probability(
    margin: np.typing.ArrayLike, output_change: np.typing.ArrayLike, deviation: np.typing.ArrayLike
) -> np.ndarray:
    """Return P(correct) without attack less Theorem 1's bound of the drop, 0 or more.

    This is the paper's bound. It is never above `certified_probability`.
    """
    clean = certified_probability(margin, 0.0, deviation)
    return np.maximum(clean - adversarial_gap_bound(output_change, deviation), 0.0)


def union_error_bound(
    noise_free_logits: np.ndarray, labels: np.ndarray, logit_scale: np.ndarray, output_changes: np.ndarray
) -> np.ndarray:
    """Return Σ_j≠y Φ(−(mu_y − mu_j − Delta_yj) / sigma_yj), an upper bound of P(error) under attack; [B], cut to 1.

    Args:
        noise_free_logits: mu [B, C].
        labels: y [B], whole numbers in [0, C).
        logit_scale: A [C, D] with A Aᵀ the covariance of the logits; zero for a deterministic net.
        output_changes: Delta [C, C], the largest change of mu_i − mu_j by the attack; 0 on the diagonal.
    """
    margins, changes, deviations = _other_classes(noise_free_logits, labels, logit_scale, output_changes)
    return np.minimum(scipy.special.ndtr(-standardise(margins - changes, deviations)).sum(axis=1), 1.0)


def union_gap_error_bound(
    noise_free_logits: np.ndarray, labels: np.ndarray, logit_scale: np.ndarray, output_changes: np.ndarray
) -> np.ndarray:
    """Return Σ_j≠y [Φ(−(mu_y − mu_j) / sigma_yj) + Delta_yj / (√(2π) sigma_yj)], [B], cut to 1.

    This is Theorem 1 for each other class. The arguments are those of `union_error_bound`, whose result is never above.
    """
    margins, changes, deviations = _other_classes(noise_free_logits, labels, logit_scale, output_changes)
    clean, gaps = scipy.special.ndtr(-standardise(margins, deviations)), adversarial_gap_bound(changes, deviations)
    return np.minimum(np.sum(clean + gaps, axis=1), 1.0)


def _other_classes(
    noise_free_logits: np.ndarray, labels: np.ndarray, logit_scale: np.ndarray, output_changes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (mu_y − mu_j, Delta_yj, sigma_yj), each [B, C]; at the label (Inf, 0, 0), which adds no error."""
    difference_scale = covariance.logit_difference_scale(np.asarray(logit_scale, np.float64)).numpy()
    # The caller divides by the deviations: `z_margins` would raise deviations near zero, and give no bound.
    plain = margins.z_margins(np.asarray(noise_free_logits, np.float64), labels, np.zeros_like(difference_scale))
    return plain.numpy(), np.asarray(output_changes, np.float64)[labels], difference_scale[labels]
