"""Images that stay on disk as files or records, and are read and decoded by index when they are asked for."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.lazily import np, tf
from wca_tf.data.resizing import Size, random_resized_crop
from wca_tf.distribution.progress import progress_bar

BLOCK_BYTES = 2**25  # of decoded images that are in memory at a time
LARGEST = 2**63 - 1  # of int64; some file systems have inodes of 64 bits


def _shape(sides: Sequence[int]) -> tuple[int, int, int]:
    height, width, channels = map(int, sides)
    return height, width, channels


def stamp_of(file: str) -> tuple[int, int, int, int]:
    """Return a file's size, time of change (ns), inode and time of change of its inode (ns); -1 where there is none.

    Copies with `rsync -t` and `tar` keep size and time; no user can set the inode's time. Links and rights change it.
    """
    try:
        status = os.stat(file)
    except OSError:
        return -1, -1, -1, -1
    return status.st_size, status.st_mtime_ns, status.st_ino & LARGEST, status.st_ctime_ns


def digest_of(told: str, files: Sequence[str], stamps: np.ndarray) -> str:
    """Return a digest of files as they are on disk and of what is `told` of them, the key of a `cached` finding."""
    names = "\0".join([told, tf.__version__, *map(os.path.abspath, files)])
    return hashlib.sha256(names.encode("utf-8", "surrogateescape") + stamps.tobytes()).hexdigest()


def rows_of(image_shape: Sequence[int], itemsize: int = 1) -> int:
    """Return the number of images in a block of `BLOCK_BYTES`."""
    return max(1, BLOCK_BYTES // (int(np.prod(image_shape)) * itemsize))


class EncodedImages(abc.ABC):
    """Encoded images on disk, by number; each is decoded to uint8 [H, W, channels].

    Args:
        files: the files that hold them.
        image_shape: the shape of each image, once it has its size.
        size: the size that images get.
        dtype: the type of their pixels.
    """

    def __init__(self, files: Sequence[Path], image_shape: Sequence[int], size: Size, dtype: Any = "uint8") -> None:
        self.files = [os.fspath(file) for file in files]
        self.image_shape = _shape(image_shape)
        self.size, self.dtype = size, np.dtype(dtype)
        self.stamps = np.array([stamp_of(file) for file in self.files], np.int64).reshape(-1, 4)

    @abc.abstractmethod
    def contents(self, numbers: tf.Tensor) -> tf.Tensor:
        """Return the encoded images [B], strings, of these numbers [B]. It is for graphs."""

    @abc.abstractmethod
    def decode(self, contents: tf.Tensor) -> tf.Tensor:
        """Return the image [H, W, channels] of its own size from a string []. It is for graphs."""

    @abc.abstractmethod
    def name(self, number: int) -> str:
        """Return what an error calls an image."""

    @abc.abstractmethod
    def files_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers of the files that hold these images."""

    def images(self, numbers: tf.Tensor) -> tf.Tensor:
        """Return the images [B, H, W, channels] of these numbers [B], in their size. It is for graphs."""
        return self._decoded(numbers, lambda contents: self.size.of(self._original(contents)))

    def crops(self, numbers: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Return a random rectangle of each image as it is on disk, in the size of the images. It is for graphs."""
        cut = functools.partial(random_resized_crop, size=self.image_shape[:2])
        return self._decoded(numbers, lambda row: cut(self._original(row[0]), row[1]), seeds)

    def _original(self, contents: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(self.decode(contents), (None, None, self.image_shape[2]))

    def _decoded(self, numbers: tf.Tensor, decode: Any, *others: tf.Tensor) -> tf.Tensor:
        rows = (self.contents(numbers), *others) if others else self.contents(numbers)
        made = tf.map_fn(decode, rows, fn_output_signature=tf.TensorSpec(self.image_shape, self.dtype))
        return tf.ensure_shape(made, (None, *self.image_shape))

    @functools.cached_property
    def read(self) -> Any:
        """`images` as a compiled function of numbers, int64 [B]."""

        def on_host(numbers: tf.Tensor) -> tf.Tensor:
            with tf.device("CPU:0"):  # a GPU would round otherwise than the batches of training
                return self.images(numbers)

        signature = [tf.TensorSpec([None], tf.int64)]
        return tf.function(on_host, input_signature=signature, autograph=False, jit_compile=False)

    def check_unchanged(self, numbers: np.ndarray) -> None:
        """Raise InputError, naming a file of these images whose size, time or inode is not as it was found."""
        for file in np.unique(self.files_of(numbers)):
            if stamp_of(self.files[file])[:3] != tuple(self.stamps[file, :3]):  # a link or chmod is no change
                what = "has changed" if os.path.exists(self.files[file]) else "is gone"
                raise InputError(
                    f"expected {self.files[file]} as it was when this command found it: it {what}. What is complete is "
                    "kept: put it back, and start the same command again"
                )

    def key(self, numbers: np.ndarray) -> str:
        """Return a digest of what decides the pixels of these images: the files, as they are, the size, TensorFlow."""
        used = np.unique(self.files_of(numbers))
        which = hashlib.sha256(np.asarray(numbers, np.int64).tobytes()).hexdigest()
        told = f"{type(self).__name__} {self.size} {self.image_shape} {self.dtype} {which}"
        return digest_of(told, [self.files[file] for file in used], self.stamps[used])


class ImageFiles(EncodedImages):
    """Image files, one for each number."""

    @functools.cached_property
    def paths(self) -> tf.Tensor:
        """The files, strings [N]."""
        with tf.init_scope(), tf.device("CPU:0"):  # a graph may ask first
            return tf.constant([os.fsencode(file) for file in self.files])

    def of_shape(self, image_shape: Sequence[int], size: Size) -> ImageFiles:
        """Return the same files as images of a shape."""
        same = copy.copy(self)
        same.image_shape, same.size = _shape(image_shape), size
        return same

    def contents(self, numbers: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(tf.io.read_file, tf.gather(self.paths, numbers), fn_output_signature=tf.string)

    def decode(self, contents: tf.Tensor) -> tf.Tensor:
        return tf.io.decode_image(contents, self.image_shape[2], expand_animations=False)

    def name(self, number: int) -> str:
        return self.files[number]

    def files_of(self, numbers: np.ndarray) -> np.ndarray:
        return numbers


@dataclasses.dataclass(frozen=True, eq=False)
class IndexedImages:
    """Some encoded images. It has the shape, type and indices of an array [N, H, W, channels], and no pixels in memory.

    Attributes:
        encoded: where they are.
        numbers: which of them, in order, int64 [N].

    Raises:
        InputError: when it is indexed: a file is gone, has changed, or is no image.
    """

    encoded: EncodedImages
    numbers: np.ndarray

    @classmethod
    def every(cls, encoded: EncodedImages, count: int) -> IndexedImages:
        """Return all `count` images of a source."""
        return cls(encoded, np.arange(count))

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, H, W, channels)."""
        return len(self.numbers), *self.encoded.image_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the pixels."""
        return self.encoded.dtype

    @property
    def ndim(self) -> int:
        """4."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in memory that the decoded images would have, in bytes."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, indices: Any) -> np.ndarray:
        """Read the images at `indices`: a number, a slice or an array."""
        numbers = self.numbers[indices]
        if np.ndim(numbers) == 0:
            return self[[indices]][0]
        if 0 < len(numbers) <= rows_of(self.encoded.image_shape):
            try:
                images = self.encoded.read(numbers).numpy()
            except tf.errors.OpError as error:
                raise self._named(error, numbers) from None
            self.encoded.check_unchanged(numbers)
            return images
        return IndexedImages(self.encoded, numbers).loaded()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.loaded(), dtype)

    def select(self, indices: np.ndarray | slice) -> IndexedImages:
        """Return the images at `indices`, in that order, and read none."""
        return IndexedImages(self.encoded, self.numbers[indices])

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the images in order, in blocks of at most 32 MB; the next block is read while one is used."""
        rows, done = rows_of(self.encoded.image_shape), 0
        batches = tf.data.Dataset.from_tensor_slices(self.numbers).batch(rows)
        try:
            for block in batches.map(self.encoded.images, 2).prefetch(1).as_numpy_iterator():
                yield block
                done += len(block)
        except tf.errors.OpError as error:
            raise self._named(error, self.numbers[done : done + rows]) from None
        self.check_unchanged()

    def loaded(self, what: str = "") -> np.ndarray:
        """Return all images as an array, with a progress bar if `what` says what for."""
        images, first = np.empty(self.shape, self.dtype), 0
        with progress_bar(len(self), "images", what, show=bool(what)) as progress:
            for block in self.blocks():
                images[first : first + len(block)] = block
                first += len(block)
                progress.update(len(block))
        return images

    def images(self, indices: tf.Tensor) -> tf.Tensor:
        """Return the images [B, H, W, channels] at indices [B]. It is for graphs."""
        return self.encoded.images(tf.gather(self._on_host, indices))

    def crops(self, indices: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Return a random rectangle of each image, in the size of the images. It is for graphs."""
        return self.encoded.crops(tf.gather(self._on_host, indices), seeds)

    @functools.cached_property
    def _on_host(self) -> tf.Tensor:
        with tf.init_scope(), tf.device("CPU:0"):  # a graph may ask first
            return tf.constant(self.numbers)

    def key(self) -> str:
        """Return a digest of what decides the pixels."""
        return self.encoded.key(self.numbers)

    def check_unchanged(self) -> None:
        """Raise InputError where a file is gone or has changed since it was found."""
        self.encoded.check_unchanged(self.numbers)

    def _named(self, error: Exception, numbers: np.ndarray) -> InputError:
        """Return an error of reading these images as one that names the first that cannot be read."""
        self.encoded.check_unchanged(numbers)
        for number in numbers:
            try:
                self.encoded.read(np.array([number]))
            except tf.errors.OpError as cause:
                return InputError(f"expected an image in {self.encoded.name(number)}: {one_line(cause)}")
        return InputError(f"expected images that can be read: {one_line(error)}")
