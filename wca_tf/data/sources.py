"""The sources of examples: scikit-learn's digits, TFDS, or a folder of images.

TFDS loads only where it is needed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import sklearn.datasets
import sklearn.model_selection

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.files import read_json
from wca_tf.core.lazily import np, tf, tfds
from wca_tf.core.paths import expand_user
from wca_tf.data.config import DataConfig
from wca_tf.data.examples import Examples
from wca_tf.data.image_files import announced_pixels
from wca_tf.data.preflight import check_dataset_present
from wca_tf.distribution.progress import progress_bar

SPLITS = ("train", "test")
DIGITS_SIZE = 28
TEST_SHARE = 0.2  # of sets without a test split
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
READ_BATCH = 1000
OWN_CLASSES = "tensorflow_datasets."


def load_examples(config: DataConfig, split: str, first: int = 0) -> Examples:
    """Return the `first` examples of `split`, "train" or "test"; 0 returns all. Of a TFDS set, only these are read.

    Raises:
        InputError: another split; a negative number; unknown, absent, empty or broken data; files that are no images;
            labels out of range.
    """
    if split not in SPLITS or first < 0:
        raise InputError(
            f"expected a split among {', '.join(SPLITS)}, and 0 examples or more; received {split!r}, {first}"
        )
    check_dataset_present(config)
    if config.dataset == "digits":
        examples = _load_digits(split)
    elif config.dataset.startswith("folder:"):
        examples = _load_folder(expand_user(config.dataset.removeprefix("folder:")), split, config)
    else:
        examples = _load_tfds(config, split, first)
    examples = examples.take(slice(0, first or None))
    if config.image_size and examples.image_shape[:2] != (config.image_size,) * 2:
        examples = dataclasses.replace(examples, images=_resize(examples.images, config.image_size))
    return examples


def _load_digits(split: str) -> Examples:
    """Load a split of scikit-learn's 1,797 digits, 8×8 pixels resized to 28×28; one in five is a test image."""
    digits = sklearn.datasets.load_digits()
    images = np.rint(digits.images[..., np.newaxis] * (255 / 16)).astype(np.uint8)
    examples = Examples(_resize(images, DIGITS_SIZE), digits.target.astype(np.int64), tuple("0123456789"))
    return _carve_split(examples, split)


def _load_tfds(config: DataConfig, split: str, first: int) -> Examples:
    builder = _tfds_builder(config)
    accepted = ("test", "validation") if split == "test" else (split,)
    found = [name for name in accepted if name in builder.info.splits]
    if not found:
        has = ", ".join(builder.info.splits)
        raise InputError(f"expected a {' or '.join(accepted)} split in {config.dataset}, which has {has}")
    split = found[0]
    image_key, label_key = _supervised_keys(config.dataset, builder.info)
    shape = builder.info.features[image_key].shape
    if None in shape[:2] and not config.image_size:
        raise InputError(f"the images of {config.dataset} differ in size: choose one with --image_size")

    def prepare(example: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        image = example[image_key]
        if config.image_size:
            image = _resize_image(image, config.image_size)
        return image, example[label_key]

    read = tfds.ReadConfig(interleave_cycle_length=1)  # this keeps the order of the files
    every = builder.info.splits[split].num_examples
    count = min(first or every, every)
    try:
        dataset = builder.as_dataset(split=split, read_config=read).take(first or -1)
        batches = dataset.map(prepare, tf.data.AUTOTUNE).batch(READ_BATCH)
        images, labels = _collect(batches, count, f"reading {config.dataset} {split}")
    except (tf.errors.OpError, AssertionError, ValueError) as error:
        raise InputError(
            f"the {split} data of {config.dataset} in {builder.data_dir} are broken: {one_line(error)}"
        ) from None
    if len(labels) != count:
        raise InputError(f"expected {count} {split} images in {builder.data_dir}, received {len(labels)}")
    return Examples(images, labels, tuple(builder.info.features[label_key].names))


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


def _load_folder(root: Path, split: str, config: DataConfig) -> Examples:
    """Load class folders of images, below root/train and root/test or below root itself.

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
    images = _read_images([files[i][0] for i in order], config)
    labels = np.array([files[i][1] for i in order], np.int64)
    examples = Examples(images, labels, tuple(class_names))
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


def _read_images(files: list[Path], config: DataConfig) -> np.ndarray:
    """Read images of one size, [N, H, W, channels]; grey images become RGB if any image is RGB."""
    images: list[np.ndarray] = []
    with progress_bar(len(files), "images", "reading images") as progress:
        for file in files:
            images.append(_read_image(file, config))
            if images[-1].shape[:2] != images[0].shape[:2]:
                sizes = f"{files[0]}: {images[0].shape}, {file}: {images[-1].shape}"
                raise InputError(f"images differ in size ({sizes}): choose one with --image_size")
            progress.update()
    channels = max(image.shape[2] for image in images)
    return np.stack([np.broadcast_to(image, (*image.shape[:2], channels)) for image in images])


def _read_image(file: Path, config: DataConfig) -> np.ndarray:
    """Read an image as uint8 [H, W, 1 or 3]; transparency is dropped."""
    try:
        contents = file.read_bytes()
        if contents[:2] == b"BM" and (bits := int.from_bytes(contents[28:30], "little")) < 24:
            raise InputError(f"expected a BMP of 24 or 32 bits a pixel in {file!s}, received {bits}")
        if (pixels := int(announced_pixels(tf.constant(contents)))) > config.max_image_pixels:
            raise InputError(
                f"expected at most {config.max_image_pixels:,} pixels (--max_image_pixels) in {file!s}, "
                f"received {pixels:,}"
            )
        image = tf.io.decode_image(contents, expand_animations=False)
        if image.shape[2] in (2, 4):
            image = tf.io.decode_image(contents, image.shape[2] - 1, expand_animations=False)
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"expected an image in {file!s}: {one_line(error)}") from None
    return (_resize_image(image, config.image_size) if config.image_size else image).numpy()


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


def _collect(dataset: tf.data.Dataset, count: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and the labels of all batches as two arrays, and show a progress bar."""
    images, labels = [], []
    with progress_bar(count, "images", what) as progress:
        for image_batch, label_batch in dataset.as_numpy_iterator():
            images.append(image_batch)
            labels.append(label_batch)
            progress.update(len(label_batch))
    return np.concatenate(images), np.concatenate(labels)


def _resize(images: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate(
        [_resize_image(images[i : i + READ_BATCH], size).numpy() for i in range(0, len(images), READ_BATCH)]
    )


def _resize_image(image: tf.Tensor, size: int) -> tf.Tensor:
    """Return images [..., size, size, channels], resized bilinearly with antialiasing.

    uint8 images stay uint8; all others become float32.
    """
    resized = tf.image.resize(image, [size, size], antialias=True)
    return tf.saturate_cast(tf.round(resized), tf.uint8) if image.dtype == tf.uint8 else resized
