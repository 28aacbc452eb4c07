"""The channels of images that a backbone takes, and numbers that are given for each channel."""

from typing import Any

import keras
import numpy as np

from wca_tf.core.errors import InputError


def channels_of(backbone: keras.Model) -> int | None:
    """Return the number of channels of the images that a backbone takes; `None` where it does not say."""
    inputs = getattr(backbone, "inputs", None)
    return inputs[0].shape[-1] if inputs else None


def per_channel(name: str, values: Any, channels: int | None) -> tuple[float, ...]:
    """Return finite numbers, one for each channel or one for all; raise InputError for anything else."""
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        found = ()
    if not found or not np.isfinite(found).all() or len(found) not in (1, channels or len(found)):
        expected = "for each channel" if channels is None else f"for each of {channels} channels"
        raise InputError(f"expected {name} as a finite number {expected}, or one for all, as (0.5,); received {values}")
    return found
