"""The images that an attack perturbs, with their labels, their numbers and the wanted classes."""

from __future__ import annotations

from typing import NamedTuple

from wca_tf.core.lazily import tf


class Batch(NamedTuple):
    """Images under attack.

    Attributes:
        images: float32 [B, H, W, channels] in [0, 1], unperturbed.
        labels: int64 [B].
        indices: int64 [B], the number of each example in its split; it decides the example's random numbers.
        targets: int64 [B], the classes that a targeted attack wants, or `None`.
        units: [B, S], the unit of the bounded margin in each draw; `None` for other objectives.
    """

    images: tf.Tensor
    labels: tf.Tensor
    indices: tf.Tensor
    targets: tf.Tensor | None = None
    units: tf.Tensor | None = None

    def take(self, rows: tf.Tensor) -> Batch:
        """Return the batch of the images at `rows` [R]."""
        return Batch(*(None if field is None else tf.gather(field, rows) for field in self))


def replace_rows(tensor: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return `tensor` [B, ...] with `values` [R, ...] at `rows` [R]; no two rows may be the same."""
    return tf.tensor_scatter_nd_update(tensor, rows[:, tf.newaxis], values)


def per_image(values: tf.Tensor) -> tf.Tensor:
    """Return values [B] as [B, 1, 1, 1], so that they broadcast over images."""
    return values[:, tf.newaxis, tf.newaxis, tf.newaxis]
