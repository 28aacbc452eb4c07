"""Batches for training and evaluation. The batches of an epoch depend on (seed, epoch) alone.

With several workers, each reads its share of every batch: worker r of n reads rows r·b to (r + 1)·b of n·b rows.
"""

import tensorflow as tf

from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.data.examples import Examples

CROP_PADDING = 4


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

    The last partial batch of each epoch is left out. Order and augmentation depend on (seed, epoch). So a resumed run
    sees the same images as an uninterrupted one, and several workers together see the same images as one.
    """
    images, labels = _on_host(examples)
    count = len(examples)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        epoch_seed = fold_in(make_seed(seed), epoch)
        order = tf.random.experimental.stateless_shuffle(tf.range(count), fold_in(epoch_seed, 0))
        offsets = tf.random.stateless_uniform([count, 2], fold_in(epoch_seed, 1), 0, 2 * CROP_PADDING + 1, tf.int32)
        mirrored = tf.random.stateless_uniform([count], fold_in(epoch_seed, 2)) < 0.5
        rows = tf.data.Dataset.from_tensor_slices((order, offsets, mirrored))
        return rows.batch(batch_size, drop_remainder=True)

    def make_batch(*rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        order, offsets, mirrored = (_share(values, batch_size, worker, workers) for values in rows)
        batch = to_float(tf.gather(images, order))
        if augmentation == "crop_flip":
            batch = crop_flip(batch, offsets, mirrored)
        return batch, tf.gather(labels, order)

    numbers = tf.data.Dataset.range(first_epoch, epochs)
    return numbers.flat_map(one_epoch).map(make_batch, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def crop_flip(images: tf.Tensor, offsets: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """Pad by 4 zeros on each side, crop back at an offset, and mirror: the usual augmentation for CIFAR.

    Args:
        images: [B, H, W, channels].
        offsets: [B, 2], row and column of each crop, whole numbers from 0 to 8; 4 leaves an image in place.
        mirrored: [B], bool.
    """
    height, width = images.shape[1:3]
    padding = [CROP_PADDING] * 2
    padded = tf.pad(images, [[0, 0], padding, padding, [0, 0]])
    rows = tf.gather(padded, offsets[:, :1] + tf.range(height), axis=1, batch_dims=1)
    cropped = tf.gather(rows, offsets[:, 1:] + tf.range(width), axis=2, batch_dims=1)
    return tf.where(mirrored[:, tf.newaxis, tf.newaxis, tf.newaxis], cropped[:, :, ::-1], cropped)


def evaluation_batches(examples: Examples, batch_size: int, worker: int = 0, workers: int = 1) -> tf.data.Dataset:
    """Return a dataset of (images, labels, weights) in order; images of weight 0 fill up the last batch."""
    images, labels = _on_host(examples)
    count = len(examples)
    indices = tf.data.Dataset.range(-(-count // batch_size) * batch_size).batch(batch_size)

    def make_batch(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        indices = _share(indices, batch_size, worker, workers)
        rows = tf.minimum(indices, count - 1)
        return to_float(tf.gather(images, rows)), tf.gather(labels, rows), tf.cast(indices < count, tf.float32)

    return indices.map(make_batch, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _on_host(examples: Examples) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.device("CPU:0"):  # a GPU gets batches, not the data set
        return tf.constant(examples.images), tf.constant(examples.labels)


def _share(rows: tf.Tensor, batch_size: int, worker: int, workers: int) -> tf.Tensor:
    size = batch_size // workers
    return rows[worker * size : (worker + 1) * size]
