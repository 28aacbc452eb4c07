"""Means over images, with 95 % intervals. The images are a random choice, and may share the draws of their noise."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping

from wca_tf.core.lazily import np, scipy
from wca_tf.gaussian.several_draws import all_correct, means_without_draws

# With fewer independent parts, the luck that the images of a part share is not well known.
FEW_PARTS = 10
QUANTILE = statistics.NormalDist().inv_cdf(0.975)  # of 95 % intervals


class Number(dict[str, float]):
    """A share and its 95 % interval, as in results.json: "value", "low" and "high". It formats itself, in per cent.

    A difference of two shares is in points. A worst case that is no more than an upper bound has "upper_bound" too.

    Examples:
        >>> Number(value=0.5, low=0.4, high=0.62).with_interval()
        '50.0 [40.0, 62.0]'
        >>> Number(value=0.01, low=-0.02, high=0.04).with_interval(signed=True)
        '+1.0 [−2.0, +4.0]'
        >>> Number.of(None).with_interval()
        '–'
    """

    @classmethod
    def of(cls, given: Mapping[str, float] | float | None) -> Number:
        """Return a number of results.json, a share without an interval, or, for `None`, a number that is not known."""
        if isinstance(given, Mapping):
            return cls(given)
        return cls() if given is None else cls(value=given)

    def percent(self, signed: bool = False) -> str:
        """Return the value with one decimal, after ≤ for an upper bound; a dash where it is not known."""
        bound = "≤\u00a0" if "upper_bound" in self else ""  # a space where no line ends
        return bound + self._text("value", signed) if self else "–"

    def interval(self, signed: bool = False) -> str:
        """Return the 95 % interval in brackets."""
        return f"[{self._text('low', signed)}, {self._text('high', signed)}]"

    def with_interval(self, signed: bool = False) -> str:
        """Return the value and its 95 % interval; a dash where it is not known."""
        return f"{self.percent(signed)} {self.interval(signed)}" if self else "–"

    def _text(self, key: str, signed: bool) -> str:
        text = f"{100 * self[key]:{'+' * signed}.1f}"
        return text.replace("-", "−") if signed else text


def percent(share: Mapping[str, float] | float | None) -> str:
    """Return a share, or a number of results.json, in per cent with one decimal; a dash for `None`.

    Examples:
        >>> percent(0.1234), percent({"value": 1.0}), percent(None)
        ('12.3', '100.0', '–')
    """
    return Number.of(share).percent()


def mean_with_interval(values: np.ndarray, design_effect: float = 1.0) -> Number:
    """Return the mean of numbers in [0, 1] and Wilson's 95 % score interval.

    The first images of a split stand for a random choice. Wilson's interval is made for zeros and ones; for numbers
    between them it is wider than needed, because their variance is smaller.

    Args:
        values: [N], a number for each image of a random choice.
        design_effect: Kish's design effect: the variance of the mean, divided by its variance for N independent values.
            The interval is that of N / `design_effect` values.

    Examples:
        >>> mean_with_interval(np.array([1.0, 1.0, 1.0, 0.0])).with_interval()
        '75.0 [30.1, 95.4]'
    """
    count, mean = len(values) / design_effect, float(np.mean(values))
    z = QUANTILE
    centre = (mean + z**2 / (2 * count)) / (1 + z**2 / count)
    half_width = z / (1 + z**2 / count) * math.sqrt(mean * (1 - mean) / count + z**2 / (4 * count**2))
    low, high = max(0.0, centre - half_width), min(1.0, centre + half_width)
    return Number(value=mean, low=min(low, mean), high=max(high, mean))  # against rounding, at means of 0 and 1


def design_effect_of_a_draw(hits: np.ndarray) -> float:
    """Return the design effect of the accuracy in one draw.

    It is the variance of this accuracy, divided by its variance for N images chosen at random whose noise is
    independent. It is above 1 where images share noise, because then their errors come together. An example is a net
    with noisy weights.

    Args:
        hits: [N, J], as for `all_correct`; all images have the same draws. With fewer than two draws, the design effect
            is 1.
    """
    images, draws = hits.shape
    if draws < 2:
        return 1.0
    share = hits.mean(axis=1)
    spread = share * (1 - share) if hits.dtype == bool else hits.var(axis=1)
    independent = spread.sum() / images**2 * draws / (draws - 1)
    return _design_effect(hits.mean(axis=0).var(ddof=1) - independent, share)


def design_effect_over_draws(hits: np.ndarray, queries: int = 1, shared_noise: bool = False) -> float:
    """Return the design effect of the mean of P(correct)ⁿ.

    It is the variance of this mean, divided by its variance for N images chosen at random whose P is known.

    Args:
        hits: [N, J], as for `all_correct`; all images have the same draws. With fewer than two draws, the design effect
            is 1.
        queries: n.
        shared_noise: as for `variance_over_draws`.
    """
    if hits.shape[1] < 2:
        return 1.0
    return _design_effect(variance_over_draws(hits, queries, shared_noise), all_correct(hits, queries))


def variance_over_draws(hits: np.ndarray, queries: int = 1, shared_noise: bool = False) -> float:
    """Return the variance of the mean of P(correct)ⁿ over the choice of draws, by a jackknife over groups of draws.

    Args:
        hits: [N, J], as for `all_correct`; all images have the same draws. With fewer than two, the variance is 0.
        queries: n.
        shared_noise: whether the images are known to share the noise of a draw.
    """
    if hits.shape[1] < 2:
        return 0.0
    means = means_without_draws(hits, queries)
    least = [_min_variance(hits, queries), _variance_of_an_unseen_miss(hits, queries) if shared_noise else 0.0]
    return max(float((len(means) - 1) * np.var(means)), *least)


def _variance_of_an_unseen_miss(hits: np.ndarray, queries: int) -> float:
    """Return the variance of the mean of Pⁿ, if the images without any miss miss together, once in J + 2 draws.

    `_min_variance` sees no shared noise in a set of images of which some are always hits and the others never.
    """
    draws = hits.shape[1]
    sure, smoothed = float((hits == 1).all(axis=1).mean()), (draws + 1) / (draws + 2)
    return (sure * queries * smoothed ** (queries - 1)) ** 2 * smoothed * (1 - smoothed) / draws


def _min_variance(hits: np.ndarray, queries: int) -> float:
    """Return the variance of Pⁿ over the choice of draws, if P is the same for all images and nearly 1.

    The jackknife finds no variance in draws that are all hits. Here P is estimated with two more draws, one of which is
    a miss (Laplace). The share of a draw's variance that images have in common is the observed share, and 1 where no
    miss was seen. The result is too small where some of the images share their noise and show no miss: then 85 of 100
    intervals cover.
    """
    draws, mean = hits.shape[1], float(hits.mean())
    smoothed = (draws * mean + 1) / (draws + 2)
    shared = min(float(hits.mean(axis=0).var()) / (mean * (1 - mean)), 1.0) if 0 < mean < 1 else 1.0
    return shared * (queries * smoothed ** (queries - 1)) ** 2 * smoothed * (1 - smoothed) / draws


def design_effect_of_blocks(values: np.ndarray, blocks: np.ndarray) -> float:
    """Return the design effect of a mean over blocks of images, 1 or more.

    It is the variance of the mean, divided by its variance for as many independent images. The first variance is that
    of cluster sampling, with one more block whose images share half of their luck. It is at most that of blocks whose
    images are all alike. Then it is made larger for few blocks, as Student's t distribution requires for nine degrees
    of freedom or more.

    Args:
        values: [N].
        blocks: whole numbers [N]; the values of images with the same number depend on each other. With fewer than two
            blocks, the design effect is 1. Where all values are equal, nothing but the one more block counts.
    """
    _, places, sizes = np.unique(blocks, return_inverse=True, return_counts=True)
    count = len(sizes)
    if count in (1, len(values)):
        return 1.0
    largest = float(np.sum(sizes**2)) / len(values)  # of blocks whose images are all alike
    found = one_more = (1 + largest) / 2
    if (values != values[0]).any():
        deviations = np.bincount(places, weights=values - values.mean())  # of the sum over each block
        between = count / (count - 1) * float(np.sum(deviations**2)) / len(values) ** 2
        independent = float(np.var(values)) / len(values)
        found = ((count - 1) * between / independent + one_more) / count
    few = (_quantile_of_student(max(count, FEW_PARTS) - 1) / QUANTILE) ** 2
    return few * min(max(found, 1 / few), largest)


@functools.cache
def _quantile_of_student(freedom: int) -> float:
    return float(scipy.stats.t.ppf(0.975, freedom))


def _design_effect(variance: float, values: np.ndarray) -> float:
    """Return 1 + `variance` / the largest variance that the mean of N independent values in [0, 1] can have.

    That is the variance for zeros and ones with the mean of `values` [N]; at least 1 / (4 N²).
    """
    mean = float(values.mean())
    return 1 + max(float(variance), 0.0) * len(values) / max(mean * (1 - mean), 1 / (4 * len(values)))


def mean_difference(differences: np.ndarray, design_effect: float = 1.0, variance: float = 0.0) -> Number:
    """Return the mean of paired differences and its 95 % interval, by the central limit theorem.

    The variance has two more pairs, which differ by 1 and −1 (Agresti and Min, Statistics in Medicine, 2005). Otherwise
    the interval is too short where few pairs differ, and has no width where no pair differs.

    Args:
        differences: [N], numbers in [−1, 1], one for each image; with one image the interval is [−1, 1].
        design_effect: as for `mean_with_interval`.
        variance: of the mean, from causes other than the choice of images.

    Examples:
        >>> mean_difference(np.array([1.0, -0.5] * 20)).with_interval(signed=True)
        '+25.0 [+1.0, +49.0]'
    """
    mean, count = float(differences.mean()), len(differences)
    if count < 2:
        return Number(value=mean, low=-1.0, high=1.0)
    spread = (float(np.sum((differences - mean) ** 2)) + 2) / (count + 1)
    error = math.sqrt(spread * design_effect / count + variance)
    half_width = QUANTILE * error
    return Number(value=mean, low=max(mean - half_width, -1.0), high=min(mean + half_width, 1.0))


def distance_text(distance: float | None) -> str:
    """Return a distance of results.json in three digits; ∞ for `None`, as when no image was found.

    Examples:
        >>> distance_text(0.51234), distance_text(None)
        ('0.512', '∞')
    """
    return "∞" if distance is None else f"{distance:.3g}"
