"""What an attack is given of some images: the images, what they are, and what they should become."""

from typing import NamedTuple

import tensorflow as tf


class Batch(NamedTuple):
    """Images under attack.

    Attributes:
        images: float32 [B, H, W, channels] in [0, 1], unperturbed.
        labels: int64 [B].
        indices: int64 [B], each example's number in its split; they decide its random numbers.
        targets: int64 [B], the classes that a targeted attack wants, or None.
    """

    images: tf.Tensor
    labels: tf.Tensor
    indices: tf.Tensor
    targets: tf.Tensor | None = None

    def take(self, rows: tf.Tensor) -> "Batch":
        """The images at `rows` [R]."""
        return Batch(*(None if field is None else tf.gather(field, rows) for field in self))


def replace_rows(tensor: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """`tensor` [B, ...] with `values` [R, ...] at `rows` [R], which must differ."""
    return tf.tensor_scatter_nd_update(tensor, rows[:, tf.newaxis], values)


def per_image(values: tf.Tensor) -> tf.Tensor:
    """[B] as [B, 1, 1, 1], to meet images."""
    return values[:, tf.newaxis, tf.newaxis, tf.newaxis]
