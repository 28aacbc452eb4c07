"""Theorem 1: how much of a stochastic classifier's P(correct) an attack can take away (paper, section 3.1).

Binary models: h(x) = wᵀ(f(x) + z) + b with z ~ N(0, Sigma) and y in {−1, +1}. The margin y h(x) is Gaussian, of mean
m = y (wᵀf(x) + b), here `margin`, and of deviation sigma = √(wᵀ Sigma w), here `deviation`. Delta, `output_change`, is
the most by which the attack changes the noise-free output. Several classes: the same for each rival, and a union bound.

A deviation of zero is the limit of vanishing noise: probabilities are 0 or 1, and a tie counts as an error. NumPy and
SciPy, in float64; arguments broadcast.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from wca_tf import alignment
from wca_tf.errors import InputError

# The norm of a linear function's weights that gives its largest change over the unit ball of each norm.
DUAL_NORMS = {"linf": 1, "l2": 2}


def output_deviation(weight: np.ndarray, scale_tril: np.ndarray) -> float:
    """sigma = √(wᵀ Sigma w) = ‖Lᵀ w‖, from w [D] and L [D, D]."""
    return float(np.linalg.norm(np.asarray(scale_tril, np.float64).T @ np.asarray(weight, np.float64)))


def linear_output_change(input_weights: np.ndarray, epsilon: float, norm: str = "linf") -> np.ndarray:
    """Delta of a linear model: epsilon ‖v‖₁ in the ball of norm linf, epsilon ‖v‖₂ in that of l2.

    The first is the paper's ("Empirical Evaluation of Theorem 1", after Gouk et al.).

    Args:
        input_weights: v [inputs, ...], the weights of each input; a column for each output.
        epsilon: the ball's radius, in the inputs' units, 0 or more.
        norm: "linf" or "l2".

    Returns:
        [...], without the axis of the inputs.

    Raises:
        InputError: another norm, a negative epsilon.

    >>> float(linear_output_change(np.array([3.0, -4.0]), epsilon=0.5))
    3.5
    """
    if norm not in DUAL_NORMS:
        raise InputError(f"expected norm among {', '.join(DUAL_NORMS)}; received {norm!r}")
    if not 0 <= epsilon < math.inf:
        raise InputError(f"expected epsilon of 0 or more, received {epsilon}")
    return epsilon * np.linalg.norm(np.asarray(input_weights, np.float64), ord=DUAL_NORMS[norm], axis=0)


def certified_probability(margin: ArrayLike, output_change: ArrayLike, deviation: ArrayLike) -> np.ndarray:
    """Φ((m − Delta) / sigma), which P(correct) is at least under attack (paper, appendix A, Eq. `theory_adv`).

    Some attack attains it when Delta is not larger than it need be.

    >>> float(certified_probability(margin=1.0, output_change=1.0, deviation=2.0))
    0.5
    """
    return special.ndtr(_standardise(np.subtract(margin, output_change), deviation))


def adversarial_gap_bound(output_change: ArrayLike, deviation: ArrayLike) -> np.ndarray:
    """Theorem 1: an attack takes at most Delta / √(2π wᵀ Sigma w) from P(correct); Inf without noise, 0 for no change.

    1 / √(2π) is the steepest slope of Φ: the bound is loose wherever the margin is not near zero.

    >>> round(float(adversarial_gap_bound(output_change=1.0, deviation=2.0)), 4)
    0.1995
    """
    change, deviation = np.broadcast_arrays(np.asarray(output_change, np.float64), np.asarray(deviation, np.float64))
    limit = np.where(change > 0, math.inf, 0.0)
    return np.divide(change, math.sqrt(2 * math.pi) * deviation, out=limit, where=deviation > 0)


def theorem_1_probability(margin: ArrayLike, output_change: ArrayLike, deviation: ArrayLike) -> np.ndarray:
    """P(correct) without attack less Theorem 1's gap, 0 or more: the paper's bound, below `certified_probability`."""
    clean = certified_probability(margin, 0.0, deviation)
    return np.maximum(clean - adversarial_gap_bound(output_change, deviation), 0.0)


def union_error_bound(
    noise_free_logits: np.ndarray, labels: np.ndarray, logit_scale: np.ndarray, output_changes: np.ndarray
) -> np.ndarray:
    """Σ_j≠y Φ(−(mu_y − mu_j − Delta_yj) / sigma_yj), which P(error) is at most under attack; [B], cut to 1.

    Args:
        noise_free_logits: mu [B, C].
        labels: y [B], whole numbers in [0, C).
        logit_scale: A [C, D], the logits' covariance being A Aᵀ; zero for a deterministic net.
        output_changes: Delta [C, C], the most by which the attack changes mu_i − mu_j; 0 on the diagonal.
    """
    margins, changes, deviations = _rivals(noise_free_logits, labels, logit_scale, output_changes)
    return np.minimum(special.ndtr(-_standardise(margins - changes, deviations)).sum(axis=1), 1.0)


def union_gap_error_bound(
    noise_free_logits: np.ndarray, labels: np.ndarray, logit_scale: np.ndarray, output_changes: np.ndarray
) -> np.ndarray:
    """Σ_j≠y [Φ(−(mu_y − mu_j) / sigma_yj) + Delta_yj / (√(2π) sigma_yj)], [B], cut to 1: Theorem 1 for each rival.

    It takes the arguments of `union_error_bound` and is never below it.
    """
    margins, changes, deviations = _rivals(noise_free_logits, labels, logit_scale, output_changes)
    clean, gaps = special.ndtr(-_standardise(margins, deviations)), adversarial_gap_bound(changes, deviations)
    return np.minimum(np.sum(clean + gaps, axis=1), 1.0)


def _rivals(
    noise_free_logits: np.ndarray, labels: np.ndarray, logit_scale: np.ndarray, output_changes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mu_y − mu_j, Delta_yj, sigma_yj), each [B, C]; at the label (Inf, 0, 0), which no error comes from."""
    difference_scale = alignment.logit_difference_scale(np.asarray(logit_scale, np.float64)).numpy()
    # Divided by the deviations below, not there: near zero `z_margins` raises them, which is no bound.
    margins = alignment.z_margins(np.asarray(noise_free_logits, np.float64), labels, np.zeros_like(difference_scale))
    return margins.numpy(), np.asarray(output_changes, np.float64)[labels], difference_scale[labels]


def _standardise(margin: ArrayLike, deviation: ArrayLike) -> np.ndarray:
    """margin / deviation; at a deviation of zero ±Inf by the margin's sign, −Inf for a tie."""
    margin, deviation = np.broadcast_arrays(np.asarray(margin, np.float64), np.asarray(deviation, np.float64))
    limit = np.where(margin > 0, math.inf, -math.inf)
    return np.divide(margin, deviation, out=limit, where=deviation > 0)
