"""Whether an attack's result is where it may be, of either library's."""

import numpy as np

from benchmarks.suite.plan import EPSILON

WITHOUT_RADIUS = ("cw", "n_pixel")  # they return an image that falls, and none does
MOVE = ("fgsm", "pgd")  # the others may return an image that does not fall


def check_result(attack: str, result: np.ndarray, images: np.ndarray) -> None:
    """Raise unless the result [B, H, W, channels] is in [0, 1] and in the ball; and, where it must, has moved."""
    if result.min() < 0 or result.max() > 1 or not np.isfinite(result).all():
        raise RuntimeError(f"{attack} left [0, 1]: {result.min()} to {result.max()}")
    if attack in WITHOUT_RADIUS:
        return
    distances = np.abs(result - images).max(axis=(1, 2, 3))
    if distances.max() > EPSILON + 1e-6 or (attack in MOVE and distances.min() == 0):
        raise RuntimeError(f"{attack} moved images by {distances.min()} to {distances.max()}, epsilon {EPSILON}")
