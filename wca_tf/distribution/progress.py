"""The progress bar of all long work: on standard error, with the time left."""

import sys
from typing import Any

from tqdm import tqdm

from wca_tf.distribution.cluster import is_chief

# A log file gets a line every half minute, a terminal a bar that moves.
LOG_INTERVAL = 30.0


def progress_bar(total: int, unit: str, description: str = "", initial: int = 0, show: bool = True) -> "tqdm[Any]":
    """Return a tqdm bar over `total` units, which only the chief shows; use it as a context, and call `update(n)`."""
    return tqdm(
        total=total,
        initial=initial,
        unit=f" {unit}",
        unit_scale=True,
        desc=description,
        smoothing=0.05,
        mininterval=0.1 if sys.stderr.isatty() else LOG_INTERVAL,
        maxinterval=LOG_INTERVAL,
        miniters=0,  # else a bar that slows down stands still
        dynamic_ncols=True,
        disable=not (show and is_chief()),
    )
