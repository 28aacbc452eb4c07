"""A checked set of labelled images, in memory or on disk, and its parts."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from typing import Any, TypeAlias

from wca_tf.core.errors import InputError
from wca_tf.core.files import bytes_of
from wca_tf.core.lazily import np
from wca_tf.data.cache import cached
from wca_tf.data.encoded import IndexedImages, rows_of
from wca_tf.distribution.progress import progress_bar

Images: TypeAlias = "np.ndarray | IndexedImages"

BRIGHT = 128  # of 255
INFINITE = -1  # tf.data.INFINITE_CARDINALITY


@dataclasses.dataclass(frozen=True)
class Examples:
    """Labelled images, in memory as an array or on disk as `IndexedImages`.

    Attributes:
        images: [N, H, W, channels], uint8, or float32 in [0, 1]. `images[indices]` is an array in both cases.
        labels: [N], whole numbers in [0, len(class_names)).
        class_names: the name of each class.

    Raises:
        InputError: no examples; another rank, dtype or range than above; NaN or Inf; not one label for each image; a
            label that is no class.

    Examples:
        >>> examples = Examples(np.zeros((4, 2, 2, 1), np.uint8), np.array([0, 1, 1, 0]), ("cat", "dog"))
        >>> len(examples.take(slice(0, 3))), examples.image_shape
        (3, (2, 2, 1))
    """

    images: Images
    labels: np.ndarray
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_images(self.images)
        check_labels(self.labels, len(self.class_names))
        if len(self.labels) != len(self.images):
            raise InputError(f"expected a label for each of {len(self.images)} images, received {len(self.labels)}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, channels)."""
        return tuple(self.images.shape[1:])

    def take(self, indices: np.ndarray | slice) -> Examples:
        """Return the examples at `indices`, in that order; those on disk stay there."""
        every = self.images
        images = every.select(indices) if isinstance(every, IndexedImages) else every[indices]
        return Examples(images, self.labels[indices], self.class_names)

    def in_memory(self, what: str = "") -> Examples:
        """Return the examples with an array of images; `what` is the text of a progress bar, shown where they are read.

        Raises:
            InputError: a file is gone, has changed, or is no image.
        """
        if not isinstance(self.images, IndexedImages):
            return self
        return dataclasses.replace(self, images=self.images.loaded(what))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the images in order, in blocks of at most 32 MB."""
        if isinstance(self.images, IndexedImages):
            yield from self.images.blocks()
            return
        rows = rows_of(self.image_shape, self.images.itemsize)
        for first in range(0, len(self), rows):
            yield self.images[first : first + rows]

    def check_readable(self) -> None:
        """Decode each image on disk once; raise InputError, which names the file, where one cannot be read."""
        if isinstance(self.images, IndexedImages):
            _ = self.sha256

    def check_unchanged(self) -> None:
        """Raise InputError where a file of images on disk is gone or has changed since it was found."""
        if isinstance(self.images, IndexedImages):
            self.images.check_unchanged()

    @functools.cached_property
    def sha256(self) -> str:
        """The SHA-256 of images and labels, in hexadecimal: that of `sha256_of_arrays`, in memory and on disk."""
        return str(self._summary["sha256"])

    @functools.cached_property
    def _summary(self) -> dict[str, np.ndarray]:
        """The digest, and how often each channel of uint8 images has each value, [channels, 256].

        Those of images on disk are kept for later commands.
        """
        if not isinstance(self.images, IndexedImages):
            return self._found_in_one_pass()
        labels = hashlib.sha256(bytes_of(self.labels)).hexdigest()
        return cached(hashlib.sha256((self.images.key() + labels).encode()).hexdigest(), self._found_in_one_pass)

    def _found_in_one_pass(self) -> dict[str, np.ndarray]:
        hashed, counts = hashlib.sha256(), np.zeros([self.image_shape[2], 256], np.int64)
        hashed.update(f"{self.images.dtype}{self.images.shape}".encode())
        on_disk = isinstance(self.images, IndexedImages)
        with progress_bar(len(self), "images", "checking images", show=on_disk) as progress:
            for block in self.blocks():
                hashed.update(bytes_of(block))
                for channel in range(len(counts)) if block.dtype == np.uint8 else ():
                    counts[channel] += np.bincount(block[..., channel].ravel(), minlength=256)
                progress.update(len(block))
        hashed.update(f"{self.labels.dtype}{self.labels.shape}".encode())
        hashed.update(bytes_of(self.labels))
        return {"sha256": np.array(hashed.hexdigest()), "counts": counts}

    def pixel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the mean and standard deviation of each channel, for images in [0, 1].

        A constant channel gets deviation 1.
        """
        if self.images.dtype == np.uint8:  # by counting: a float copy of the images would take 8 times their memory
            values, counts = np.arange(256) / 255, self._summary["counts"]
            shares = [count / count.sum() for count in counts]
            mean = np.array([share @ values for share in shares])
            std = np.sqrt([share @ (values - m) ** 2 for share, m in zip(shares, mean, strict=True)])
        else:
            channels = np.moveaxis(self.images[:], -1, 0)
            mean = np.array([channel.mean(dtype=np.float64) for channel in channels])
            std = np.array([channel.std(dtype=np.float64) for channel in channels])
        return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())

    def split_validation(self, share: float, seed: int, most: int = 0) -> tuple[Examples, Examples | None]:
        """Return (training, validation): disjoint, shuffled by `seed`.

        At most `most` examples are for training; 0 sets no limit. A share of 0 gives `None` for validation.

        Raises:
            InputError: either part would be empty.
        """
        order = np.random.default_rng(seed).permutation(len(self))
        if share == 0:
            return self.take(order[: most or None]), None
        num_validation = round(share * len(self))
        if not 0 < num_validation < len(self):
            raise InputError(f"expected images for training and for validation: {len(self)} were split at {share}")
        return self.take(order[num_validation:][: most or None]), self.take(order[:num_validation])


def as_arrays(images: Any, labels: Any = None) -> tuple[Any, np.ndarray]:
    """Return images and labels as NumPy arrays.

    Args:
        images: arrays, tensors of TensorFlow, torch or JAX, or lists: uint8 or floats, [N, H, W, channels], or
            [N, H, W] of grey images. Or, without labels, a `tf.data.Dataset` of (images, labels) batches.
            `IndexedImages` stay as they are.
        labels: whole numbers of any type, [N] or [N, 1], or one-hot rows [N, C].

    Returns:
        images, uint8 or float32, and labels, of a type of whole numbers where they are such numbers.

    Raises:
        InputError: rows differ in length; a data set has no labels, or there are none; bytes are 0 and 1 alone.
    """
    if labels is None:
        images, labels = _gathered(images)
    if isinstance(images, IndexedImages):
        return images, _whole_labels(np.asarray(labels))
    try:
        images, labels = np.asarray(images), np.asarray(labels)
    except ValueError:
        raise InputError("expected arrays of images and of labels, received rows of different lengths") from None
    if images.dtype.name in ("bool", "float16", "bfloat16", "float64"):
        images = images.astype(np.float32)
    if images.dtype == np.uint8 and images.size and images.max() == 1:
        raise InputError("expected uint8 images up to 255, received none with a pixel above 1: give them as floats")
    if images.dtype != np.uint8 and np.issubdtype(images.dtype, np.integer) and images.size:
        if images.min() >= 0 and BRIGHT <= images.max() <= 255:
            images = images.astype(np.uint8)
    if images.ndim == 3 and labels.ndim:  # grey images, as Keras's MNIST has them
        images = images[..., np.newaxis]
    return images, _whole_labels(labels)


def in_unit_range(images: np.ndarray) -> tuple[np.ndarray, tuple[float, float] | None]:
    """Return float images up to 255 as images up to 1, with (0, 255), the pixels that their net takes; others as is.

    Only images with a pixel of 128 or more count: darker ones may be of another mistake.
    """
    floats = images.dtype == np.float32 and images.size > 0
    if floats and images.min() >= 0 and BRIGHT <= images.max() <= 255.5:  # resizing rounds
        return np.minimum(images / np.float32(255), 1), (0.0, 255.0)
    return images, None


def _gathered(batches: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of a data set's batches."""
    if getattr(batches, "cardinality", None) and int(batches.cardinality()) == INFINITE:
        raise InputError("expected a finite tf.data.Dataset, received one that repeats for ever: .take(100)")
    if hasattr(batches, "num_batches") and hasattr(batches, "__getitem__"):  # a PyDataset, as of ImageDataGenerator
        batches = (batches[number] for number in range(batches.num_batches or 0))
    elif not hasattr(batches, "element_spec"):
        raise InputError(
            "expected labels, or a tf.data.Dataset or keras.utils.PyDataset of (images, labels) batches; received no "
            "labels"
        )
    expected, parts = "expected a data set of (images, labels) batches", []
    for batch in batches:
        if isinstance(batch, dict):
            raise InputError(f"{expected}, received dictionaries: tfds.load(..., as_supervised=True)?")
        if not isinstance(batch, tuple) or len(batch) < 2:
            raise InputError(f"{expected}, received batches of one element")
        if len(np.shape(batch[0])) not in (3, 4) or len(np.shape(batch[1])) == 0:
            raise InputError(f"{expected}, received shape {np.shape(batch[0])} without batches: .batch(100)?")
        parts.append(tuple(map(np.asarray, batch[:2])))
    if not parts:
        raise InputError(f"{expected}, received an empty one")
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _whole_labels(labels: np.ndarray) -> np.ndarray:
    """Return labels [N] for a column [N, 1], for one-hot rows, and for whole numbers of a float type; others as are."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and labels.shape[1] > 1 and (labels.dtype == bool or np.issubdtype(labels.dtype, np.number)):
        if ((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all():
            return labels.argmax(axis=1)
    if labels.ndim == 1 and labels.dtype == bool:
        return labels.astype(np.int64)
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.floating) and (labels == np.round(labels)).all():
        return labels.astype(np.int64)
    return labels


def check_images(images: Images) -> None:
    """Raise InputError unless `images` are [N, H, W, channels], N > 0, uint8 or float32 in [0, 1].

    Of images on disk the shape alone is checked.
    """
    if images.ndim != 4 or 0 in images.shape:
        raise InputError(f"expected images of shape [N, H, W, channels] with pixels, received {images.shape}")
    if images.dtype == np.uint8 or isinstance(images, IndexedImages):
        return
    if images.dtype != np.float32:
        raise InputError(f"expected uint8 or float32 images, received {images.dtype}")
    if not np.isfinite(images).all():
        bad = np.flatnonzero(~np.isfinite(images).all(axis=(1, 2, 3)))
        raise InputError(f"expected finite images, received NaN or Inf in {len(bad)} of them, the first at {bad[0]}")
    if images.min() < 0 or images.max() > 1:
        low, high = float(images.min()), float(images.max())
        raise InputError(f"expected float images in [0, 1], received {low:.4g} to {high:.4g}: {_advice(low, high)}")


def _advice(low: float, high: float) -> str:
    """Return what to do with float images from `low` to `high`. A wrong range of pixels would be another epsilon."""
    if -1.01 <= low <= -0.9 and 0.9 <= high <= 1.01:
        return "give (images + 1) / 2, and pixel_range=(-1, 1)"
    if low < 0:
        return (
            "give them as they were before, as uint8 or from 0 to 1, to a model that begins with your preprocessing, "
            "such as keras.Sequential([keras.layers.Normalization(mean=..., variance=...), model])"
        )
    return (
        "divide by the largest value that a pixel can have, and give pixel_range=(0, that value); images up to 255 may "
        "be uint8"
    )


def check_labels(labels: np.ndarray, num_classes: int) -> None:
    """Raise InputError unless `labels` are whole numbers in [0, num_classes)."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"expected whole numbers of shape [N] as labels, received {labels.dtype} {labels.shape}")
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        raise InputError(
            f"expected labels from 0 to {num_classes - 1}, received {labels[bad[0]]} at example {bad[0]}"
            f" ({len(bad)} such labels)"
        )
