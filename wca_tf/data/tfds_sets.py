"""TFDS sets in TFRecord and array_record, whose records are read by index."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.files import read_json
from wca_tf.core.lazily import np, tf, tfds
from wca_tf.core.paths import expand_user
from wca_tf.data.cache import cached
from wca_tf.data.config import DataConfig
from wca_tf.data.encoded import EncodedImages, IndexedImages, digest_of, stamp_of
from wca_tf.data.examples import Examples
from wca_tf.distribution.progress import progress_bar

OWN_CLASSES = "tensorflow_datasets."
READ_BATCH = 1000
RECORD_HEADER, RECORD_FOOTER = 12, 4  # of a TFRecord: the length with its checksum before the data, a checksum after


class TFDSRecords(EncodedImages):
    """Records of a prepared TFDS set.

    Args:
        features: the set's features.
        image_key: that of the image.
        read_records: a function of numbers [B] that returns the records, a list of bytes.
        shards: [N], the number of the file of each record.
        files, image_shape, size, dtype: as for `EncodedImages`.
    """

    def __init__(self, features: Any, image_key: str, read_records: Any, shards: np.ndarray, *about: Any) -> None:
        super().__init__(*about)
        self.features, self.image_key, self.read_records, self.shards = features, image_key, read_records, shards

    def contents(self, numbers: tf.Tensor) -> tf.Tensor:
        def read(numbers: np.ndarray) -> np.ndarray:
            return np.array([*self.read_records(numbers), None], object)[:-1]  # always an array of objects

        return tf.ensure_shape(tf.numpy_function(read, [numbers], tf.string), numbers.shape)

    def decode(self, contents: tf.Tensor) -> tf.Tensor:
        return self.features.deserialize_example(contents)[self.image_key]

    def name(self, number: int) -> str:
        return f"record {number} ({self.files[self.shards[number]]})"

    def files_of(self, numbers: np.ndarray) -> np.ndarray:
        return self.shards[numbers]


def read_tfrecords(files: Sequence[str], places: np.ndarray, numbers: np.ndarray) -> list[bytes]:
    """Return TFRecords by number; `places` has the file, the offset and the length of each, [N, 3]."""
    records = []
    for file, offset, length in places[numbers].tolist():
        with open(files[file], "rb", buffering=0) as opened:
            records.append(os.pread(opened.fileno(), length, offset))
        if len(records[-1]) != length:
            raise OSError(f"{files[file]} ends before byte {offset + length}")
    return records


def open_tfds(config: DataConfig, split: str, first: int) -> Examples:
    """Return the examples of a split of a TFDS set, with images on disk: the `first`, or all for 0.

    Raises:
        InputError: absent or broken data; no images with one class each; no such split.
    """
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
    return Examples(IndexedImages.every(images, count), labels, tuple(builder.info.features[label_key].names))


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
