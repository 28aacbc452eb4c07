"""Which range of pixels a model was trained on, by the accuracy of its answers."""

from __future__ import annotations

import math
from collections.abc import Callable

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np

PixelRange = tuple[float, float]
UNIT: PixelRange = (0.0, 1.0)
RANGES: tuple[PixelRange, ...] = (UNIT, (0.0, 255.0), (-1.0, 1.0))
MOST_IMAGES = 256
LOOKS = (32, 64, 128, 256)  # the numbers of images after which the accuracies are compared
WRONG = 1e-4  # the largest probability of an error about a net that answers equally well in all ranges
DOUBT = 0.05  # such a probability is worth a line, and no error
BATCH = 32


def check_range(pixel_range: PixelRange) -> PixelRange:
    """Return (low, high) as floats; raise InputError unless low is below high, and both are finite."""
    try:
        low, high = map(float, pixel_range)
    except (TypeError, ValueError):
        raise InputError(f"expected two numbers as pixel_range, low and high, received {pixel_range!r}") from None
    if not -math.inf < low < high < math.inf:
        raise InputError(f"expected pixel_range with low below high, received {pixel_range!r}")
    return low, high


def better_range(
    predict: Callable[[np.ndarray, PixelRange], np.ndarray],
    advice: Callable[[float, float], str],
    images: np.ndarray,
    labels: np.ndarray,
    noisy: bool = False,
    ranges: tuple[PixelRange, ...] = RANGES,
) -> tuple[str, bool]:
    """Return a note that says what is not sure, and whether [0, 1] is surely the best range.

    Ranges are compared on up to 256 images, in pairs of the same image (McNemar, Psychometrika 1947). The comparison
    ends early where [0, 1] is as sure to be better.

    Args:
        predict: (images in [0, 1], range) -> classes.
        advice: (low, high) -> what to do where this range is better.
        images: [N, H, W, channels], in [0, 1].
        labels: [N].
        noisy: whether the answers have noise. It vanishes beside larger pixels, where the net may answer better for it
            alone. Then only a net that answers by chance with pixels from 0 to 1 is an error.
        ranges: those to compare, [0, 1] first.

    Raises:
        InputError: another range is surely better.
    """
    right: dict[PixelRange, list[bool]] = {pixel_range: [] for pixel_range in ranges}
    chosen = np.random.default_rng(0).permutation(len(images))[:MOST_IMAGES]  # sets may be sorted by class
    level = WRONG / (len(LOOKS) * (len(ranges) - 1))
    sure = False
    for end in LOOKS:
        rows = chosen[len(right[UNIT]) : end]
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            for pixel_range, hits in right.items():
                hits += (predict(images[some], pixel_range) == labels[some]).tolist()
        lower, higher = [], []
        for pixel_range in ranges[1:]:
            wins, losses = _differences(right[pixel_range], right[UNIT])
            higher += [pixel_range] * (_sign_test(wins, losses) < level)
            lower.append(_sign_test(losses, wins) < level)
        if higher and not (noisy and _is_above_chance(right[UNIT], labels)):
            best = max(higher, key=lambda each: sum(right[each]))
            raise InputError(f"expected a net of pixels from 0 to 1: {_message(best, right)}: {advice(*best)}")
        sure = all(lower)
        if sure or end >= len(chosen):
            break
    best = max(ranges, key=lambda each: sum(right[each]))  # the first of equals
    if _sign_test(*_differences(right[best], right[UNIT])) < DOUBT:
        return f"{_message(best, right)}, which is not sure. If these are its pixels, {advice(*best)}", False
    if 0.5 ** len(chosen) >= level:
        return f"{len(chosen)} images are too few to measure which pixels the net takes: [0, 1] is assumed", False
    return "", sure


def _is_above_chance(right: list[bool], labels: np.ndarray) -> bool:
    """Return whether more images are right than a constant answer gets, by two standard errors."""
    share = np.bincount(labels).max() / len(labels)
    return bool(np.mean(right) > share + 2 * math.sqrt(share * (1 - share) / len(right)))


def _differences(left: list[bool], right: list[bool]) -> tuple[int, int]:
    """Return how many images the left alone gets right, and how many the right alone."""
    pairs = list(zip(left, right, strict=True))
    return sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)


def _sign_test(wins: int, losses: int) -> float:
    """Return the probability of so many wins or more among wins and losses that are equally likely.

    Examples:
        >>> _sign_test(3, 0), _sign_test(0, 0)
        (0.125, 1.0)
    """
    count = wins + losses
    return sum(math.comb(count, number) for number in range(wins, count + 1)) / 2**count


def _message(better: PixelRange, right: dict[PixelRange, list[bool]]) -> str:
    """Return how a net answers with pixels from 0 to 1, and in a better range."""
    low, high = (f"{bound:g}" for bound in better)
    given, its = (f"{100 * np.mean(right[each]):.1f} %" for each in (UNIT, better))
    return (
        f"the net gets {given} of {len(right[UNIT])} images right with pixels from 0 to 1, and {its} with pixels from "
        f"{low} to {high}"
    )
