"""Comparisons of two attacks that end as soon as more images cannot change the verdict: a sequential test.

A search without gradients costs thousands of passes an image. Most comparisons are decided by 20 of 100 images.
"""

import math

import numpy as np
import scipy.stats

WRONG = 1e-4  # the probability that one look ends a comparison with the wrong verdict


def is_decided(differences: np.ndarray, total: int, bound: float) -> bool:
    """Return whether the mean difference of all images lies surely on one side of `bound`.

    The images were chosen at random among `total`. Two made-up differences, -1 and 1, stand in for what is rare. They
    also keep a few images that come out alike from deciding.

    Args:
        differences: [n], in [-1, 1].
        total: the number of images that the mean is over, n at least.
        bound: in [-1, 1].
    """
    if len(differences) >= total:
        return True
    seen = np.append(differences, [-1.0, 1.0])
    error = seen.std(ddof=1) / math.sqrt(len(seen)) * math.sqrt(1 - len(differences) / total)
    return bool(abs(seen.mean() - bound) > scipy.stats.t.isf(WRONG / 2, len(seen) - 1) * error)
