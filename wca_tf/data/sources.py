"""The sources of examples: scikit-learn's digits, TFDS, or a folder of images.

A source is opened, which decodes no image, then divided, and what is left is read into memory where it fits. TFDS loads
only where it is needed.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import psutil
import sklearn.datasets
import sklearn.model_selection

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.files import read_json
from wca_tf.core.lazily import np, tf, tfds
from wca_tf.core.paths import expand_user
from wca_tf.data.cache import cached
from wca_tf.data.config import DataConfig
from wca_tf.data.encoded import (
    RECORD_FOOTER,
    RECORD_HEADER,
    EncodedImages,
    ImageFiles,
    IndexedImages,
    TFDSRecords,
    digest_of,
    read_tfrecords,
    stamp_of,
)
from wca_tf.data.examples import Examples
from wca_tf.data.image_files import announced_shape
from wca_tf.data.preflight import check_dataset_present
from wca_tf.data.resizing import Size, resize
from wca_tf.distribution.progress import progress_bar

SPLITS = ("train", "test")
DIGITS_SIZE = 28
TEST_SHARE = 0.2  # of sets without a test split
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
READ_BATCH = 1000
OWN_CLASSES = "tensorflow_datasets."
MEMORY_SHARE = 0.25  # of the free memory, which decoded images may take


def load_examples(config: DataConfig, split: str, first: int = 0) -> Examples:
    """Return the `first` examples of `split`, "train" or "test"; 0 returns all. Only these are read.

    Their images are an array, or, where `config.in_memory` says so, `IndexedImages`, which are read when indexed.

    Raises:
        InputError: another split; a negative number; unknown, absent, empty or broken data; files that are no images;
            labels out of range.
    """
    if split not in SPLITS or first < 0:
        raise InputError(
            f"expected a split among {', '.join(SPLITS)}, and 0 examples or more; received {split!r}, {first}"
        )
    examples = _open(config, split, first).take(slice(0, first or None))
    [placed] = _placed(config, split, examples)
    return placed


def load_training_examples(
    config: DataConfig, validation_split: float, seed: int, most: int = 0
) -> tuple[Examples, Examples | None]:
    """Return (training, validation) examples of the train split, as `Examples.split_validation` divides them.

    Only these are read. (`load_examples(config, "train").split_validation(...)` has every image in memory, and copies.)

    Raises:
        InputError: as `load_examples` and `split_validation`.
    """
    parts = _open(config, "train").split_validation(validation_split, seed, most)
    training, *validation = _placed(config, "train", *(part for part in parts if part))
    return training, validation[0] if validation else None


def _placed(config: DataConfig, split: str, *parts: Examples) -> list[Examples]:
    """Return the parts, in memory if the configuration says so: by default if a quarter of what is free holds them."""
    images = [part.images for part in parts if isinstance(part.images, IndexedImages)]
    fits = sum(each.nbytes for each in images) <= MEMORY_SHARE * psutil.virtual_memory().available
    bytes_alone = all(each.dtype == np.uint8 for each in images)
    if bytes_alone and (config.in_memory == "false" or config.crops_files or (config.in_memory == "auto" and not fits)):
        return list(parts)
    return [part.in_memory(f"reading {config.dataset} {split}") for part in parts]


def _open(config: DataConfig, split: str, first: int = 0) -> Examples:
    """Return all examples of a split, with images on disk; of a TFDS set only the first, if their number is given."""
    check_dataset_present(config)
    if config.dataset == "digits":
        return _load_digits(split, config.size)
    if config.dataset.startswith("folder:"):
        return _open_folder(expand_user(config.dataset.removeprefix("folder:")), split, config)
    return _open_tfds(config, split, first)


def _load_digits(split: str, size: Size) -> Examples:
    """Load a split of scikit-learn's 1,797 digits, 8×8 pixels resized to 28×28; one in five is a test image."""
    digits = sklearn.datasets.load_digits()
    images = np.rint(digits.images[..., np.newaxis] * (255 / 16)).astype(np.uint8)
    images = size.of(resize(images, (DIGITS_SIZE, DIGITS_SIZE))).numpy()
    return _carve_split(Examples(images, digits.target.astype(np.int64), tuple("0123456789")), split)


def _open_tfds(config: DataConfig, split: str, first: int) -> Examples:
    builder = _tfds_builder(config)
    accepted = ("test", "validation") if split == "test" else (split,)
    found = [name for name in accepted if name in builder.info.splits]
    if not found:
        has = ", ".join(builder.info.splits)
        raise InputError(f"expected a {' or '.join(accepted)} split in {config.dataset}, which has {has}")
    info = builder.info.splits[found[0]]
    image_key, label_key = _supervised_keys(config.dataset, builder.info)
    feature, size = builder.info.features[image_key], config.size
    if None in feature.shape[:2] and not size.side:
        raise InputError(f"the images of {config.dataset} differ in size: choose one with --image_size")
    shape = (size.side, size.side, feature.shape[2]) if size.side else feature.shape
    dtype = np.float32 if size.side and feature.np_dtype != np.uint8 else feature.np_dtype
    count = min(first or info.num_examples, info.num_examples)

    def label_of(record: tf.Tensor) -> tf.Tensor:
        skipped = {image_key: tfds.decode.SkipDecoding()}
        return tf.cast(builder.info.features.deserialize_example(record, decoders=skipped)[label_key], tf.int64)

    try:
        open_records = _array_records if builder.info.file_format.value == "array_record" else _tfrecords
        read, shards, labels = open_records(builder, info, count, label_of)
        images = TFDSRecords(builder.info.features, image_key, read, shards, info.filepaths, shape, size, dtype)
    except (tf.errors.OpError, AssertionError, ValueError, OSError) as error:
        raise InputError(
            f"the {found[0]} data of {config.dataset} in {builder.data_dir} are broken: {one_line(error)}"
        ) from None
    if len(labels) != count:
        raise InputError(f"expected {count} {found[0]} images in {builder.data_dir}, received {len(labels)}")
    return Examples(_all(images, count), labels, tuple(builder.info.features[label_key].names))


def _all(encoded: EncodedImages, count: int) -> IndexedImages:
    return IndexedImages(encoded, np.arange(count))


def _tfrecords(builder: Any, info: Any, count: int, label_of: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a function that reads TFRecords by number, and the shard and the label of each of the first `count`.

    One pass finds where each record begins, and checks the sum of each.
    """
    files = [str(file) for file in info.filepaths]

    def find() -> dict[str, np.ndarray]:
        places, labels, left = [], [], count
        with progress_bar(count, "records", f"finding the records of {info.name}") as progress:
            for number, file in enumerate(files):
                records = tf.data.TFRecordDataset(file).take(left)
                described = records.map(lambda record: (tf.strings.length(record), label_of(record)), tf.data.AUTOTUNE)
                offset = 0
                for lengths, some in described.batch(READ_BATCH).as_numpy_iterator():
                    ends = offset + np.cumsum(lengths.astype(np.int64) + RECORD_HEADER + RECORD_FOOTER)
                    starts = ends - lengths - RECORD_FOOTER
                    places.append(np.stack([np.full(len(some), number), starts, lengths], 1))
                    labels.append(some)
                    offset, left = int(ends[-1]), left - len(some)
                    progress.update(len(some))
                if not left:
                    break
        return {"places": np.concatenate(places or [np.zeros([0, 3], int)]), "labels": np.concatenate(labels or [[]])}

    found = cached(_key_of(info, count), find)
    return functools.partial(read_tfrecords, files, found["places"]), found["places"][:, 0], found["labels"]


def _array_records(builder: Any, info: Any, count: int, label_of: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return what `_tfrecords` returns, of a set in array_record, which has an index of its own."""
    try:
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        source = builder.as_data_source(split=info.name, deserialize_method=raw)
    except ImportError:
        raise InputError(f"{builder.data_dir} is in array_record: pip install 'wca_tf[stream]'") from None

    def read(numbers: np.ndarray) -> list[bytes]:
        return list(source.__getitems__(numbers.tolist()))

    def find() -> dict[str, np.ndarray]:
        labels = []
        with progress_bar(count, "records", f"reading the labels of {info.name}") as progress:
            for first in range(0, count, READ_BATCH):
                records = tf.constant(read(np.arange(first, min(first + READ_BATCH, count))))
                labels.append(tf.map_fn(label_of, records, fn_output_signature=tf.int64).numpy())
                progress.update(len(labels[-1]))
        return {"labels": np.concatenate(labels)}

    shards = np.repeat(np.arange(len(info.filepaths)), info.shard_lengths)[:count]
    return read, shards, cached(_key_of(info, count), find)["labels"]


def _key_of(info: Any, count: int) -> str:
    files = [str(file) for file in info.filepaths]
    return digest_of(f"labels of {count}", files, np.array([stamp_of(file) for file in files]))


def _tfds_builder(config: DataConfig) -> Any:
    """Return a TFDS builder whose data are on disk; download them only if the configuration says so."""
    directory = expand_user(config.tfds_data_dir)
    for description in sorted((directory / config.dataset.split("/")[0].split(":")[0]).rglob("features.json")):
        _check_classes(read_json(description), description)
    public = tfds.core.visibility.DatasetType.TFDS_PUBLIC  # sets of a community are code, which TFDS would import
    try:
        with tfds.core.visibility.set_availables_tmp([public]):
            builder = tfds.builder(config.dataset, data_dir=str(directory))
        if config.download and not Path(builder.data_dir).exists():
            builder.download_and_prepare()
        if builder.info.splits:
            return builder
    except Exception as error:  # TFDS passes on any error of its parsers and of the network
        raise InputError(f"the TFDS set {config.dataset} in {directory} cannot be read: {one_line(error)}") from None
    raise InputError(f"expected prepared TFDS data of {config.dataset} in {builder.data_dir}: there are none")


def _check_classes(described: Any, file: Path) -> None:
    """Raise InputError if a set's description names a class from outside TFDS, since TFDS would import its module."""
    parts = described if isinstance(described, list) else []
    if isinstance(described, dict):
        for key in ("pythonClassName", "python_class_name"):
            name = described.get(key, OWN_CLASSES)
            if not isinstance(name, str) or not name.startswith(OWN_CLASSES):
                raise InputError(f"expected classes of TFDS alone in {file}, received {name!r}")
        parts = list(described.values())
    for part in parts:
        _check_classes(part, file)


def _supervised_keys(dataset: str, info: Any) -> tuple[str, str]:
    keys = info.supervised_keys
    if (
        not keys
        or len(keys) != 2
        or not isinstance(info.features[keys[0]], tfds.features.Image)
        or not isinstance(info.features[keys[1]], tfds.features.ClassLabel)
    ):
        raise InputError(f"expected an image classification set, received {dataset} with {sorted(info.features)}")
    return keys


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
    examples = Examples(_all(images, len(files)), labels, tuple(class_names))
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
