"""Batches for training and evaluation. The batches of an epoch depend on (seed, epoch) alone.

With several workers, each reads its share of every batch: worker r of n reads rows r·b to (r + 1)·b of n·b rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wca_tf.core.lazily import np, tf
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.encoded import IndexedImages
from wca_tf.data.examples import Examples
from wca_tf.data.resizing import random_resized_crop

CROP_PADDING = 4


class Augmentation(NamedTuple):
    """How training images are moved and mirrored.

    Attributes:
        padding: the number of pixels by which they move at most; 0 for images as they are.
        mode: what comes in at the border, as for `crop_flip`.
        alternating: whether an image is mirrored in every second epoch, in place of by chance.
        resized: whether they are random rectangles, resized (`random_resized_crop`).
    """

    padding: int = 0
    mode: str = "CONSTANT"
    alternating: bool = False
    resized: bool = False


AUGMENTATIONS = {
    "none": Augmentation(),
    "flip": Augmentation(alternating=True),
    "crop_flip": Augmentation(CROP_PADDING),
    "translate_flip": Augmentation(2, "REFLECT", alternating=True),
    "resized_crop_flip": Augmentation(resized=True),
}


def to_float(images: tf.Tensor) -> tf.Tensor:
    """Return float32 images in [0, 1] from uint8 or float images."""
    return tf.image.convert_image_dtype(images, tf.float32)


def training_batches(
    examples: Examples,
    batch_size: int,
    epochs: int,
    first_epoch: int,
    seed: int,
    augmentation: str,
    worker: int = 0,
    workers: int = 1,
) -> tf.data.Dataset:
    """Return a dataset of (images, labels) of epochs first_epoch .. epochs − 1, one after the other.

    `augmentation` is a name of `AUGMENTATIONS`.

    The last partial batch of each epoch is left out. Order and augmentation depend on (seed, epoch). So a resumed run
    sees the same images as an uninterrupted one, and several workers together see the same images as one.
    """
    images, labels = _by_index(examples)
    count, how = len(examples), AUGMENTATIONS[augmentation]

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        epoch_seed = fold_in(make_seed(seed), epoch)
        crop_seed = fold_in(epoch_seed, Purpose.CROP)
        order = tf.random.experimental.stateless_shuffle(tf.range(count), fold_in(epoch_seed, Purpose.ORDER))
        if how.resized:
            crops = tf.random.stateless_uniform([count, 2], crop_seed, None, None, tf.int32)  # the seed of each
        else:
            crops = tf.random.stateless_uniform([count, 2], crop_seed, 0, 2 * how.padding + 1, tf.int32)
        if how.alternating:
            mirrored = tf.gather(tf.random.stateless_uniform([count], make_seed(seed)) < 0.5, order)
            mirrored = tf.math.logical_xor(mirrored, epoch % 2 == 1)
        else:
            mirrored = tf.random.stateless_uniform([count], fold_in(epoch_seed, Purpose.MIRROR)) < 0.5
        rows = tf.data.Dataset.from_tensor_slices((order, crops, mirrored))
        return rows.batch(batch_size, drop_remainder=True)

    def make_batch(*rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        order, crops, mirrored = (_of_worker(values, batch_size, worker, workers) for values in rows)
        if how.padding:
            batch = crop_flip(images.images(order), crops, mirrored, how.padding, how.mode)
        elif how == AUGMENTATIONS["none"]:
            batch = images.images(order)
        else:
            batch = flip(images.crops(order, crops) if how.resized else images.images(order), mirrored)
        return to_float(batch), tf.gather(labels, order)

    numbers = tf.data.Dataset.range(first_epoch, epochs)
    return numbers.flat_map(one_epoch).map(make_batch, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def crop_flip(
    images: tf.Tensor, offsets: tf.Tensor, mirrored: tf.Tensor, padding: int = CROP_PADDING, mode: str = "CONSTANT"
) -> tf.Tensor:
    """Pad on each side, crop back at an offset, and mirror: the usual augmentation for CIFAR.

    Args:
        images: [B, H, W, channels], of any type; bytes are faster than floats.
        offsets: [B, 2], row and column of each crop, whole numbers from 0 to 2 `padding`; `padding` leaves an image in
            place.
        mirrored: [B], bool.
        padding: the number of pixels on each side.
        mode: "CONSTANT" for zeros, "REFLECT" for the image's own pixels.
    """
    shape, around = images.shape[1:], [[padding] * 2, [padding] * 2, [0, 0]]

    def move(row: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        image, offset, mirror = row
        cropped = tf.slice(tf.pad(image, around, mode), tf.pad(offset, [[0, 1]]), shape)
        return tf.cond(mirror, lambda: tf.reverse(cropped, [1]), lambda: cropped)  # [:, ::-1] takes ten times as long

    return tf.map_fn(move, (images, offsets, mirrored), fn_output_signature=images.dtype)


def flip(images: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """Mirror the images [B, H, W, channels] whose entry in `mirrored` [B] is true."""
    return tf.where(mirrored[:, tf.newaxis, tf.newaxis, tf.newaxis], tf.reverse(images, [2]), images)


def evaluation_batches(examples: Examples, batch_size: int, worker: int = 0, workers: int = 1) -> tf.data.Dataset:
    """Return a dataset of (images, labels, weights) in order; images of weight 0 fill up the last batch."""
    images, labels = _by_index(examples)
    count = len(examples)
    indices = tf.data.Dataset.range(-(-count // batch_size) * batch_size).batch(batch_size)

    def make_batch(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        indices = _of_worker(indices, batch_size, worker, workers)
        rows = tf.minimum(indices, count - 1)
        return to_float(images.images(rows)), tf.gather(labels, rows), tf.cast(indices < count, tf.float32)

    return indices.map(make_batch, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


class _ArrayByIndex:
    """An array of images, read by index as `IndexedImages` are; TensorFlow makes no copy of it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def images(self, indices: tf.Tensor) -> tf.Tensor:
        batch = tf.numpy_function(self.array.__getitem__, [indices], self.array.dtype)
        return tf.ensure_shape(batch, (*indices.shape, *self.array.shape[1:]))

    def crops(self, indices: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        _, height, width, channels = self.array.shape
        rows, signature = (self.images(indices), seeds), tf.TensorSpec([height, width, channels], self.array.dtype)
        return tf.map_fn(
            lambda row: random_resized_crop(row[0], row[1], (height, width)), rows, fn_output_signature=signature
        )


def _by_index(examples: Examples) -> tuple[_ArrayByIndex | IndexedImages, tf.Tensor]:
    with tf.device("CPU:0"):  # a GPU gets batches, not the data set
        labels = tf.constant(examples.labels)
    images = examples.images
    return images if isinstance(images, IndexedImages) else _ArrayByIndex(images), labels


def _of_worker(rows: tf.Tensor, batch_size: int, worker: int, workers: int) -> tf.Tensor:
    size = batch_size // workers
    return rows[worker * size : (worker + 1) * size]


def padded_batches(
    examples: Examples, batch_size: int, start: int = 0, number: int = 0
) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor, int]]:
    """Yield (images, labels, indices, number of images that are not padding), from example `start` on.

    All batches have the same size, so that an attack is traced once. The index of the first example is `number`.
    """
    size = min(batch_size, len(examples))
    for first in range(start, len(examples), size):
        indices = np.minimum(np.arange(first, first + size), len(examples) - 1)
        images = to_float(tf.constant(examples.images[indices]))
        labels, numbers = tf.constant(examples.labels[indices]), tf.constant(number + indices)
        yield images, labels, numbers, min(size, len(examples) - first)
