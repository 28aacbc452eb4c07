"""The certificate of randomised smoothing (Cohen et al., ICML 2019): a majority vote over Gaussian noise on the image.

This certifies the vote of a net, not a single answer.
"""

from __future__ import annotations

from wca_tf.core.lazily import np, scipy

SELECTION_DRAWS, ALPHA = 100, 0.001  # Cohen et al.'s: N0 draws choose the class; the chance that a radius is wrong


def certified_radius(votes: np.ndarray, draws: int, deviation: float, alpha: float = ALPHA) -> np.ndarray:
    """Return the l2 radius [B] within which the vote cannot change; 0 where it abstains (Cohen et al., Certify).

    The radius is σ Φ⁻¹(p), where p is Clopper and Pearson's lower bound of the class's probability. The vote abstains
    where p is ½ or less.

    Args:
        votes: [B], how many of the draws gave the class, which other draws chose.
        draws: N, the number of draws.
        deviation: σ, of the noise on pixels in [0, 1].
        alpha: the chance that a radius is too large.

    Examples:
        >>> certified_radius(np.array([40, 100]), draws=100, deviation=0.5).round(3).tolist()
        [0.0, 0.75]
    """
    votes = np.asarray(votes, np.float64)
    with np.errstate(invalid="ignore"):  # no votes: the bound is 0
        low = np.where(votes > 0, scipy.stats.beta.ppf(alpha, votes, draws - votes + 1), 0.0)
    return np.where(low > 0.5, deviation * scipy.stats.norm.ppf(np.maximum(low, 0.5)), 0.0)
