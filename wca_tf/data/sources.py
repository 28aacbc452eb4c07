"""The sources of examples: scikit-learn's digits, TFDS, or a folder of images.

A source is opened, which decodes no image, then divided, and what is left is read into memory where it fits. TFDS loads
only where it is needed.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import psutil
import sklearn.datasets
import sklearn.model_selection

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.lazily import np, tf
from wca_tf.core.paths import expand_user
from wca_tf.data.cache import cached
from wca_tf.data.config import DataConfig
from wca_tf.data.encoded import ImageFiles, IndexedImages
from wca_tf.data.examples import Examples
from wca_tf.data.image_files import announced_shape
from wca_tf.data.preflight import check_dataset_present
from wca_tf.data.resizing import Size, resize
from wca_tf.data.tfds_sets import open_tfds
from wca_tf.distribution.progress import progress_bar

SPLITS = ("train", "test")
DIGITS_SIZE = 28
TEST_SHARE = 0.2  # of sets without a test split
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
READ_BATCH = 1000
MEMORY_SHARE = 0.25  # of the free memory, which decoded images may take


def load_examples(config: DataConfig, split: str, first: int = 0) -> Examples:
    """Return the `first` examples of `split`, "train" or "test"; 0 returns all. Only these are read.

    Their images are an array, or, where `config.in_memory` says so, `IndexedImages`, which are read when indexed.

    Raises:
        InputError: another split; a negative number; unknown, absent, empty or broken data; files that are no images;
            labels out of range.
    """
    [placed] = place(config, open_examples(config, split, first).take(slice(0, first or None)))
    return placed


def place(config: DataConfig, *parts: Examples) -> list[Examples]:
    """Return the parts, in memory if the configuration says so: by default if a quarter of what is free holds them."""
    images = [part.images for part in parts if isinstance(part.images, IndexedImages)]
    fits = sum(each.nbytes for each in images) <= MEMORY_SHARE * psutil.virtual_memory().available
    bytes_alone = all(each.dtype == np.uint8 for each in images)
    if bytes_alone and (config.in_memory == "false" or config.crops_files or (config.in_memory == "auto" and not fits)):
        return list(parts)
    return [part.in_memory(f"reading {config.dataset}") for part in parts]


def open_examples(config: DataConfig, split: str, first: int = 0) -> Examples:
    """Return all examples of a split, with images on disk; of a TFDS set only the first, if their number is given.

    Divide them and take what you need: `place` then reads that alone into memory.

    Raises:
        InputError: as `load_examples`.
    """
    if split not in SPLITS or first < 0:
        raise InputError(
            f"expected a split among {', '.join(SPLITS)}, and 0 examples or more; received {split!r}, {first}"
        )
    check_dataset_present(config)
    if config.dataset == "digits":
        return _load_digits(split, config.size)
    if config.dataset.startswith("folder:"):
        return _open_folder(expand_user(config.dataset.removeprefix("folder:")), split, config)
    return open_tfds(config, split, first)


def _load_digits(split: str, size: Size) -> Examples:
    """Load a split of scikit-learn's 1,797 digits, 8×8 pixels resized to 28×28; one in five is a test image."""
    digits = sklearn.datasets.load_digits()
    images = np.rint(digits.images[..., np.newaxis] * (255 / 16)).astype(np.uint8)
    images = size.of(resize(images, (DIGITS_SIZE, DIGITS_SIZE))).numpy()
    return _carve_split(Examples(images, digits.target.astype(np.int64), tuple("0123456789")), split)


def _open_folder(root: Path, split: str, config: DataConfig) -> Examples:
    """Open class folders of images, below root/train and root/test or below root itself.

    The order of the examples is the same in all runs.
    """
    has_splits = (root / "train").is_dir() or (root / "test").is_dir()
    if has_splits and not all((root / name).is_dir() for name in ("train", "test")):
        raise InputError(f"expected both {root}/train and {root}/test, received one of them")
    class_names = _class_names(root / "train" if has_splits else root)
    class_root = root / split if has_splits else root
    if _class_names(class_root) != class_names:
        raise InputError(f"expected the classes of {root}/train in {class_root}, received {_class_names(class_root)}")
    files = [(path, label) for label, name in enumerate(class_names) for path in _image_files(class_root / name)]
    order = np.random.default_rng(0).permutation(len(files))  # so that the first images are of all classes
    images = _image_file_set([files[i][0] for i in order], config)
    labels = np.array([files[i][1] for i in order], np.int64)
    examples = Examples(IndexedImages.every(images, len(files)), labels, tuple(class_names))
    return examples if has_splits else _carve_split(examples, split)


def _class_names(directory: Path) -> list[str]:
    names = sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise InputError(f"expected two or more class folders in {directory}, received {len(names)}")
    return names


def _image_files(directory: Path) -> list[Path]:
    files = [path for path in sorted(directory.iterdir()) if path.suffix.lower() in IMAGE_SUFFIXES]
    files = [path for path in files if not path.name.startswith(".")]
    if not files:
        raise InputError(f"expected images ({', '.join(IMAGE_SUFFIXES)}) in {directory}, which has no such file")
    return files


def _image_file_set(files: list[Path], config: DataConfig) -> ImageFiles:
    """Return the images of files, of one size after resizing; grey images become RGB if any image is RGB."""
    size = config.size
    images = ImageFiles(files, (0, 0, 0), Size())
    shapes = cached(images.key(np.arange(len(files))), functools.partial(_announced, images))["shapes"]
    for number in np.flatnonzero(shapes[:, 2] == 0)[:1]:
        bits = int.from_bytes(files[number].read_bytes()[28:30], "little")
        raise InputError(f"expected a BMP of 24 or 32 bits a pixel in {files[number]!s}, received {bits}")
    pixels = shapes[:, 0] * shapes[:, 1]
    for number in np.flatnonzero(pixels > config.max_image_pixels)[:1]:
        raise InputError(
            f"expected at most {config.max_image_pixels:,} pixels (--max_image_pixels) in {files[number]!s}, "
            f"received {pixels[number]:,}"
        )
    for number in np.flatnonzero((shapes[:, :2] != shapes[0, :2]).any(axis=1))[:1] if not size.side else ():
        sizes = f"{files[0]}: {tuple(shapes[0].tolist())}, {files[number]}: {tuple(shapes[number].tolist())}"
        raise InputError(f"images differ in size ({sizes}): choose one with --image_size")
    height, width = (size.side, size.side) if size.side else shapes[0, :2]
    return images.of_shape((height, width, shapes[:, 2].max()), size)


def _announced(images: ImageFiles) -> dict[str, np.ndarray]:
    """Return the shape that each file announces, {"shapes": [N, 3]}."""
    shapes = []
    paths = tf.data.Dataset.from_tensor_slices(images.paths)
    announced = paths.map(lambda path: announced_shape(tf.io.read_file(path)), tf.data.AUTOTUNE).batch(READ_BATCH)
    with progress_bar(len(images.files), "images", "finding images") as progress:
        try:
            for some in announced.as_numpy_iterator():
                shapes.append(some)
                progress.update(len(some))
        except tf.errors.OpError as error:
            for file in images.files[sum(map(len, shapes)) :]:
                try:
                    announced_shape(tf.io.read_file(os.fsencode(file)))
                except tf.errors.OpError as cause:
                    raise InputError(f"expected an image in {file}: {one_line(cause)}") from None
            raise InputError(f"expected images that can be read: {one_line(error)}") from None
    return {"shapes": np.concatenate(shapes)}


def _carve_split(examples: Examples, split: str) -> Examples:
    """Return a split of examples that have no test split.

    The same fifth of each class is the test split in every run, for every seed.
    """
    try:
        train, test = sklearn.model_selection.train_test_split(
            np.arange(len(examples)), test_size=TEST_SHARE, random_state=0, stratify=examples.labels
        )
    except ValueError as error:
        raise InputError(f"{len(examples)} images do not divide into train and test: {one_line(error)}") from None
    return examples.take(train if split == "train" else test)
