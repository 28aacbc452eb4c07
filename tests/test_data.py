import dataclasses
import functools
import io
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from wca_tf.core.errors import InputError
from wca_tf.data.batches import CROP_PADDING, crop_flip, evaluation_batches, to_float, training_batches
from wca_tf.data.config import DataConfig
from wca_tf.data.examples import Examples
from wca_tf.data.image_files import announced_pixels
from wca_tf.data.sources import load_examples
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.runs.config import TrainConfig


def make_examples(count: int = 23, shape: tuple[int, int, int] = (6, 5, 2), dtype: type = np.uint8) -> Examples:
    """Random images; each example is a class of its own, so that its label tells which one it is."""
    images = np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)
    if dtype == np.float32:
        images = (images / 255).astype(np.float32)
    return Examples(images, np.arange(count), tuple(f"class{i}" for i in range(count)))


def write_images(folder: Path, count: int, size: int = 8, channels: int = 1) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        image = np.random.default_rng([i, size]).integers(0, 256, (size, size, channels), dtype=np.uint8)
        tf.io.write_file(str(folder / f"{i:02}.png"), tf.io.encode_png(image))


def load_folder(root: Path, split: str = "train", image_size: int = 0) -> Examples:
    return load_examples(DataConfig(dataset=f"folder:{root}", image_size=image_size), split)


def rows(examples: Examples) -> set[bytes]:
    return {image.tobytes() for image in examples.images}


# Examples


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros([0, 4, 4, 1], np.uint8), [], "with pixels"),
        (np.zeros([2, 4, 4], np.uint8), [0, 1], "shape"),
        (np.zeros([2, 4, 4, 1], np.int64), [0, 1], "int64"),
        (np.zeros([2, 4, 4, 1], np.float64), [0, 1], "float64"),
        (np.full([2, 4, 4, 1], 1.01, np.float32), [0, 1], r"\[0, 1\]"),
        (np.full([2, 4, 4, 1], -0.01, np.float32), [0, 1], r"\[0, 1\]"),
        (np.zeros([2, 4, 4, 1], np.uint8), [0], "label for each"),
        (np.zeros([2, 4, 4, 1], np.uint8), [0, 2], "from 0 to 1, received 2 at example 1"),
        (np.zeros([2, 4, 4, 1], np.uint8), [-1, 0], "received -1 at example 0"),
        (np.zeros([2, 4, 4, 1], np.uint8), [0.0, 1.0], "whole numbers"),
        (np.zeros([2, 4, 4, 1], np.uint8), [[0], [1]], "whole numbers"),
    ],
)
def test_examples_that_cannot_be_used_are_an_input_error(images, labels, message):
    with pytest.raises(InputError, match=message):
        Examples(images, np.array(labels), ("a", "b"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_float_images_with_nan_or_inf_are_an_input_error_that_names_the_first(bad):
    images = np.zeros([3, 4, 4, 1], np.float32)
    images[1, 2, 3, 0] = bad
    with pytest.raises(InputError, match="1 of them, the first at 1"):
        Examples(images, np.zeros(3, np.int64), ("a",))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pixel_statistics_are_numpys_over_each_channel(dtype):
    examples = make_examples(50, (7, 6, 3), dtype)
    images = examples.images.astype(np.float64) / (255 if dtype == np.uint8 else 1)
    mean, std = examples.pixel_statistics()
    np.testing.assert_allclose(mean, images.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, images.std(axis=(0, 1, 2)), rtol=1e-9)


def test_a_constant_channel_has_deviation_one():
    images = np.zeros([4, 3, 3, 2], np.uint8)
    images[:2, ..., 1] = 255
    assert Examples(images, np.zeros(4, np.int64), ("a",)).pixel_statistics() == ((0.0, 0.5), (1.0, 0.5))


def test_a_validation_split_is_disjoint_and_complete():
    training, validation = make_examples(100).split_validation(0.2, seed=1)
    assert (len(training), len(validation)) == (80, 20)
    assert sorted([*training.labels, *validation.labels]) == list(range(100))
    images = make_examples(100).images
    np.testing.assert_array_equal(training.images, images[training.labels])


def test_a_validation_split_depends_on_the_seed_alone():
    examples = make_examples(100)
    first, again, other = (examples.split_validation(0.2, seed=seed) for seed in (1, 1, 2))
    for part in (0, 1):
        np.testing.assert_array_equal(first[part].labels, again[part].labels)
        assert set(first[part].labels) != set(other[part].labels)


def test_fewer_training_examples_are_the_first_and_leave_validation_as_it_is():
    examples = make_examples(100)
    all_training, all_validation = examples.split_validation(0.2, seed=1)
    training, validation = examples.split_validation(0.2, seed=1, most=7)
    np.testing.assert_array_equal(training.labels, all_training.labels[:7])
    np.testing.assert_array_equal(validation.labels, all_validation.labels)
    assert len(examples.split_validation(0.2, seed=1, most=1000)[0]) == 80


@pytest.mark.parametrize(("count", "share"), [(1, 0.5), (3, 0.1), (3, 0.9)])
def test_a_split_that_leaves_one_part_empty_is_an_input_error(count, share):
    with pytest.raises(InputError, match="for training and for validation"):
        make_examples(count).split_validation(share, seed=0)


# Digits


def test_digits_are_1797_images_of_ten_named_classes():
    train, test = (load_examples(DataConfig(), split) for split in ("train", "test"))
    assert len(train) + len(test) == 1797
    assert len(test) == 360
    for examples in (train, test):
        assert examples.images.shape[1:] == examples.image_shape == (28, 28, 1)
        assert examples.images.dtype == np.uint8
        assert examples.labels.dtype == np.int64
        assert examples.class_names == tuple("0123456789")
        assert set(examples.labels) == set(range(10))
        assert examples.images.max() > 240  # 16, scikit-learn's white, is 255


def test_digits_train_and_test_are_disjoint_and_stratified():
    train, test = (load_examples(DataConfig(), split) for split in ("train", "test"))
    assert not rows(train) & rows(test)
    np.testing.assert_allclose(np.bincount(test.labels) / np.bincount(train.labels), 0.25, atol=0.01)


def test_digits_are_the_same_in_every_call_and_for_every_seed():
    first = load_examples(TrainConfig(seed=0), "test")
    again = load_examples(TrainConfig(seed=9), "test")
    np.testing.assert_array_equal(first.images, again.images)
    np.testing.assert_array_equal(first.labels, again.labels)


def test_digits_are_resized_on_request():
    original = load_examples(DataConfig(), "test")
    small = load_examples(DataConfig(image_size=14), "test")
    assert small.image_shape == (14, 14, 1)
    assert small.images.dtype == np.uint8
    np.testing.assert_array_equal(small.labels, original.labels)
    assert abs(small.images.mean() - original.images.mean()) < 2


def test_validation_images_are_those_that_training_kept_aside(trained):
    from wca_tf.evaluation.config import EvaluateConfig
    from wca_tf.runs.model_dir import ModelDirectory

    directory = ModelDirectory(trained)
    config = directory.train_config()
    training, validation = load_examples(config, "train").split_validation(
        config.validation_split, config.seed, config.max_train_examples
    )
    evaluated = load_evaluation_examples(EvaluateConfig(split="validation", num_examples=0), directory)
    np.testing.assert_array_equal(evaluated.images, validation.images)
    assert not rows(evaluated) & rows(training)
    first = load_evaluation_examples(EvaluateConfig(split="validation", num_examples=5), directory)
    np.testing.assert_array_equal(first.labels, validation.labels[:5])
    assert len(load_evaluation_examples(EvaluateConfig(num_examples=10**6), directory)) == 360


# Folders


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_of_class_folders_gives_a_fifth_of_each_class_to_test(tmp_path, channels):
    write_images(tmp_path / "cat", 10, channels=channels)
    write_images(tmp_path / "ant", 20, size=8, channels=channels)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    train, test = load_folder(tmp_path), load_folder(tmp_path, "test")
    assert train.class_names == test.class_names == ("ant", "cat")
    assert train.image_shape == (8, 8, channels)
    assert np.bincount(train.labels).tolist() == [16, 8]
    assert np.bincount(test.labels).tolist() == [4, 2]


def test_images_of_a_folder_are_the_files_pixels_with_the_folders_label(tmp_path):
    for split in ("train", "test"):
        write_images(tmp_path / split / "b", 3, size=6)
        write_images(tmp_path / split / "a", 2, size=6)
    examples = load_folder(tmp_path, "train")
    found = {(label, image.tobytes()) for image, label in zip(examples.images, examples.labels.tolist(), strict=True)}
    expected = set()
    for label, name in ((0, "a/00"), (0, "a/01"), (1, "b/00"), (1, "b/01"), (1, "b/02")):
        data = tf.io.read_file(str(tmp_path / "train" / f"{name}.png"))
        expected.add((label, tf.io.decode_png(data).numpy().tobytes()))
    assert found == expected


def test_the_first_images_of_a_folder_are_of_all_classes(tmp_path):
    for split in ("train", "test"):
        for name in "abc":
            write_images(tmp_path / split / name, 20, size=6)
    labels = load_folder(tmp_path, "test").labels
    assert len(set(labels[:20].tolist())) == 3
    np.testing.assert_array_equal(labels, load_folder(tmp_path, "test").labels)


def test_what_is_no_class_and_no_image_is_passed_over_or_refused(tmp_path):
    for split in ("train", "test"):
        for name in "ab":
            write_images(tmp_path / split / name, 2, size=6)
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "train" / "a" / "._00.png").write_bytes(b"not an image")
    assert load_folder(tmp_path, "train").class_names == ("a", "b")
    write_images(tmp_path / "test" / "c", 2, size=6)
    with pytest.raises(InputError, match="expected the classes"):
        load_folder(tmp_path, "test")
    (tmp_path / "train" / "c").mkdir()
    with pytest.raises(InputError, match="expected images"):
        load_folder(tmp_path, "train")


def test_train_and_test_folders_are_used_as_they_are(tmp_path):
    for split, counts in (("train", (4, 3)), ("test", (1, 2))):
        for name, count in zip(("a", "b"), counts, strict=True):
            write_images(tmp_path / split / name, count)
    assert np.bincount(load_folder(tmp_path, "train").labels).tolist() == [4, 3]
    assert np.bincount(load_folder(tmp_path, "test").labels).tolist() == [1, 2]


def test_folder_images_of_different_sizes_need_image_size(tmp_path):
    write_images(tmp_path / "a", 10, size=8)
    write_images(tmp_path / "b", 10, size=12)
    with pytest.raises(InputError, match="--image_size"):
        load_folder(tmp_path)
    examples = load_folder(tmp_path, image_size=10)
    assert examples.image_shape == (10, 10, 1)
    assert examples.images.dtype == np.uint8


@pytest.mark.parametrize("broken", ["truncated", "empty", "text"])
def test_a_broken_image_is_an_input_error_that_names_the_file(tmp_path, broken):
    write_images(tmp_path / "a", 5)
    write_images(tmp_path / "b", 5)
    path = tmp_path / "b" / "03.png"
    data = path.read_bytes()
    path.write_bytes({"truncated": data[: len(data) // 2], "empty": b"", "text": b"no image"}[broken])
    with pytest.raises(InputError, match=r"b/03\.png") as raised:
        load_folder(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_bmp_with_a_palette_is_refused(tmp_path):
    """TensorFlow reads the numbers of its colours as grey."""
    colours = Image.fromarray(np.full((4, 4, 3), (200, 130, 127), np.uint8))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            colours.save(tmp_path / name / f"{number}.bmp")
    assert load_examples(DataConfig(dataset=f"folder:{tmp_path}"), "train").images.shape[1:] == (4, 4, 3)
    colours.convert("P").save(tmp_path / "a" / "2.bmp")
    with pytest.raises(InputError, match=r"BMP of 24 or 32 bits a pixel in .*2\.bmp, received 8"):
        load_examples(DataConfig(dataset=f"folder:{tmp_path}"), "train")


def test_folders_without_two_classes_of_images_are_an_input_error(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "no_images" / "a").mkdir(parents=True)
    (tmp_path / "no_images" / "b").mkdir()
    write_images(tmp_path / "one_class" / "a", 5)
    write_images(tmp_path / "no_folders", 5)
    for name in ("empty", "no_images", "one_class", "no_folders"):
        with pytest.raises(InputError, match=name):
            load_folder(tmp_path / name)
    with pytest.raises(InputError, match="absent"):
        load_folder(tmp_path / "absent")


@pytest.mark.parametrize("counts", [(20, 1), (2, 2)])
def test_a_class_too_small_to_be_split_is_an_input_error(tmp_path, counts):
    for name, count in zip(("a", "b"), counts, strict=True):
        write_images(tmp_path / name, count)
    with pytest.raises(InputError):
        load_folder(tmp_path)


# TFDS


class TinyShapes(tfds.core.GeneratorBasedBuilder):
    """Image i of a split is all i, of class i % 3; the test split begins at 100."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(shape=(9, 9, 1)), "label": tfds.features.ClassLabel(names="abc")}
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 12), "test": self._generate_examples(100, 6)}

    def _generate_examples(self, first, count):
        for i in range(first, first + count):
            yield i, {"image": np.full((9, 9, 1), i, np.uint8), "label": i % 3}


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    """A TFDS directory with the set `tiny_shapes`."""
    directory = tmp_path_factory.mktemp("tfds")
    TinyShapes(data_dir=str(directory)).download_and_prepare()
    return directory


def tfds_config(directory: Path, name: str = "tiny_shapes", **others: object) -> DataConfig:
    return DataConfig(dataset=name, tfds_data_dir=str(directory), **others)


@pytest.mark.parametrize(("split", "numbers"), [("train", range(12)), ("test", range(100, 106))])
def test_a_tfds_set_gives_its_images_labels_and_class_names(tfds_dir, split, numbers):
    examples = load_examples(tfds_config(tfds_dir), split)
    assert examples.images.shape == (len(numbers), 9, 9, 1)
    assert examples.images.dtype == np.uint8
    assert examples.class_names == ("a", "b", "c")
    assert sorted(examples.images[:, 0, 0, 0]) == list(numbers)
    assert (examples.images == examples.images[:, :1, :1]).all()
    np.testing.assert_array_equal(examples.labels, examples.images[:, 0, 0, 0] % 3)
    again = load_examples(tfds_config(tfds_dir), split)
    np.testing.assert_array_equal(again.images, examples.images)
    first = load_examples(tfds_config(tfds_dir), split, 4)
    np.testing.assert_array_equal(first.images, examples.images[:4])
    np.testing.assert_array_equal(first.labels, examples.labels[:4])
    assert len(load_examples(tfds_config(tfds_dir), split, 1000)) == len(examples)
    small = load_examples(tfds_config(tfds_dir, image_size=4), split)
    assert small.image_shape == (4, 4, 1)
    np.testing.assert_array_equal(small.images[:, 0, 0, 0], examples.images[:, 0, 0, 0])


def test_an_absent_tfds_set_is_an_input_error_at_once(tmp_path):
    (tmp_path / "mnist").mkdir()
    for name in ("cifar10", "mnist"):
        with pytest.raises(InputError, match=f"{name}.*{tmp_path}"):
            load_examples(tfds_config(tmp_path, name), "train")


def test_an_unknown_tfds_name_is_an_input_error(tmp_path):
    (tmp_path / "no_such_set").mkdir()
    with pytest.raises(InputError, match="no_such_set") as raised:
        load_examples(tfds_config(tmp_path, "no_such_set"), "train")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_truncated_tfrecord_is_an_input_error(tfds_dir, tmp_path, share):
    shutil.copytree(tfds_dir, tmp_path / "copy")
    [record] = (tmp_path / "copy").rglob("*-test.tfrecord*")
    os.truncate(record, int(share * record.stat().st_size))
    with pytest.raises(InputError, match="test") as raised:
        load_examples(tfds_config(tmp_path / "copy"), "test")
    assert "\n" not in str(raised.value)
    assert len(load_examples(tfds_config(tmp_path / "copy"), "train")) == 12


def test_no_more_is_read_than_is_asked_for(tfds_dir, tmp_path):
    whole = load_examples(tfds_config(tfds_dir), "test")
    shutil.copytree(tfds_dir, tmp_path / "copy")
    [record] = (tmp_path / "copy").rglob("*-test.tfrecord*")
    os.truncate(record, int(0.6 * record.stat().st_size))
    first = load_examples(tfds_config(tmp_path / "copy"), "test", 3)
    np.testing.assert_array_equal(first.images, whole.images[:3])


def test_a_missing_tfrecord_is_an_input_error(tfds_dir, tmp_path):
    shutil.copytree(tfds_dir, tmp_path / "copy")
    [record] = (tmp_path / "copy").rglob("*-test.tfrecord*")
    record.unlink()
    with pytest.raises(InputError, match="tiny_shapes"):
        load_examples(tfds_config(tmp_path / "copy"), "test")


def test_a_broken_dataset_info_is_an_input_error(tfds_dir, tmp_path):
    shutil.copytree(tfds_dir, tmp_path / "copy")
    [info] = (tmp_path / "copy").rglob("dataset_info.json")
    info.write_text(info.read_text()[:40])
    with pytest.raises(InputError, match="tiny_shapes"):
        load_examples(tfds_config(tmp_path / "copy"), "test")


def test_sets_of_a_tfds_community_whose_code_would_be_fetched_are_refused(tmp_path):
    (tmp_path / "kaggle").mkdir()  # as if it were prepared
    with pytest.raises(InputError, match="community datasets are disabled"):
        load_examples(DataConfig("kaggle:mnist", str(tmp_path)), "test")


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name"])
def test_no_module_that_a_tfds_set_names_is_imported(tmp_path, monkeypatch, key):
    (tmp_path / "evil.py").write_text("open('ran', 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    features = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(4, 4, 1)), "label": np.int64})
    data = tf.data.Dataset.from_tensor_slices({"image": np.zeros([6, 4, 4, 1], np.uint8), "label": np.arange(6)})
    tfds.dataset_builders.store_as_tfds_dataset(
        name="named", version="1.0.0", features=features, split_datasets={"train": data}, data_dir=str(tmp_path)
    )
    [file] = (tmp_path / "named").rglob("features.json")
    described = json.loads(file.read_text())
    del described["featuresDict"]["features"]["image"]["pythonClassName"]
    described["featuresDict"]["features"]["image"][key] = "evil.Evil"
    file.write_text(json.dumps(described))
    with pytest.raises(InputError, match="classes of TFDS alone.*evil.Evil"):
        load_examples(tfds_config(tmp_path, "named"), "train")
    assert not (tmp_path / "ran").exists()


def test_a_tfds_set_without_supervised_keys_is_no_image_classification(tmp_path):
    features = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(4, 4, 1)), "size": np.int64})
    data = tf.data.Dataset.from_tensor_slices({"image": np.zeros([6, 4, 4, 1], np.uint8), "size": np.arange(6)})
    tfds.dataset_builders.store_as_tfds_dataset(
        name="sizes", version="1.0.0", features=features, split_datasets={"train": data}, data_dir=str(tmp_path)
    )
    with pytest.raises(InputError, match="image classification"):
        load_examples(tfds_config(tmp_path, "sizes"), "train")
    with pytest.raises(InputError, match="test"):
        load_examples(tfds_config(tmp_path, "sizes"), "test")


def test_fashion_mnist_is_what_tfds_says_it_is(root):
    directory = Path(os.environ.get("TFDS_DATA_DIR", root.parent / "shared" / "tfds"))
    if not (directory / "fashion_mnist").is_dir():
        pytest.skip(f"no fashion_mnist in {directory}: set TFDS_DATA_DIR to where it is")
    examples = load_examples(tfds_config(directory, "fashion_mnist"), "test")
    assert examples.images.shape == (10000, 28, 28, 1)
    assert examples.images.dtype == np.uint8
    assert np.bincount(examples.labels).tolist() == [1000] * 10
    assert len(examples.class_names) == 10
    assert examples.class_names[9] == "Ankle boot"
    [info] = (directory / "fashion_mnist").rglob("dataset_info.json")
    splits = {split["name"]: split for split in json.loads(info.read_text())["splits"]}
    assert sum(map(int, splits["test"]["shardLengths"])) == len(examples)


# Batches


def epochs_of(batches: tf.data.Dataset, steps: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """The batches, `steps` to an epoch."""
    flat = list(batches.as_numpy_iterator())
    return [flat[i : i + steps] for i in range(0, len(flat), steps)]


def labels_of(epoch: list[tuple[np.ndarray, np.ndarray]]) -> list[int]:
    return np.concatenate([labels for _, labels in epoch]).tolist()


def test_a_training_epoch_is_a_permutation_without_the_last_partial_batch():
    examples = make_examples(23)
    epochs = epochs_of(training_batches(examples, 5, 3, 0, 0, "none"), 4)
    assert len(epochs) == 3
    for epoch in epochs:
        assert [len(labels) for _, labels in epoch] == [5] * 4
        assert len(set(labels_of(epoch))) == 20
        for images, labels in epoch:
            assert images.dtype == np.float32
            np.testing.assert_allclose(images, examples.images[labels] / 255, atol=1e-7)


def test_a_batch_that_is_the_whole_set_holds_every_example():
    [[(_, labels)]] = epochs_of(training_batches(make_examples(23), 23, 1, 0, 0, "none"), 1)
    assert sorted(labels) == list(range(23))


def test_orders_differ_between_epochs_and_seeds_and_are_repeated_for_a_seed():
    examples = make_examples(50)
    first, again, other = (epochs_of(training_batches(examples, 10, 3, 0, s, "none"), 5) for s in (4, 4, 5))
    orders = [labels_of(epoch) for epoch in first]
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [labels_of(epoch) for epoch in again]
    assert all(order != labels_of(epoch) for order, epoch in zip(orders, other, strict=True))


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop_flip", "translate_flip"])
def test_a_run_that_starts_at_a_later_epoch_sees_what_the_longer_run_sees(augmentation):
    examples = make_examples(21)
    whole = epochs_of(training_batches(examples, 4, 4, 0, 7, augmentation), 5)
    for first_epoch in (1, 3):
        rest = epochs_of(training_batches(examples, 4, 4, first_epoch, 7, augmentation), 5)
        assert len(rest) == 4 - first_epoch
        for epoch, same in zip(rest, whole[first_epoch:], strict=True):
            for (images, labels), (same_images, same_labels) in zip(epoch, same, strict=True):
                np.testing.assert_array_equal(images, same_images)
                np.testing.assert_array_equal(labels, same_labels)


def numpy_crop_flip(images, offsets, mirrored, padding=4, mode="constant") -> np.ndarray:
    height, width = images.shape[1:3]
    results = []
    for image, (row, column), mirror in zip(images, offsets, mirrored, strict=True):
        padded = np.pad(image, [(padding, padding), (padding, padding), (0, 0)], mode)
        crop = padded[row : row + height, column : column + width]
        results.append(np.fliplr(crop) if mirror else crop)
    return np.stack(results)


def test_crop_flip_at_the_middle_is_the_identity():
    images = to_float(tf.constant(make_examples(6).images))
    same = crop_flip(images, tf.fill([6, 2], CROP_PADDING), tf.zeros([6], tf.bool))
    np.testing.assert_array_equal(same, images)


def test_crop_flip_equals_numpys_pad_crop_and_mirror():
    rng = np.random.default_rng(0)
    images = rng.random((64, 9, 7, 3), np.float32)
    offsets, mirrored = rng.integers(0, 9, (64, 2)), rng.random(64) < 0.5
    offsets[:2] = [[0, 0], [8, 8]]
    result = crop_flip(tf.constant(images), tf.constant(offsets, tf.int32), tf.constant(mirrored))
    np.testing.assert_array_equal(result, numpy_crop_flip(images, offsets, mirrored))


def test_translated_images_reflect_at_the_border_and_are_mirrored_every_second_epoch():
    image = np.random.default_rng(1).integers(1, 256, (12, 12, 1), dtype=np.uint8)
    examples = Examples(np.repeat(image[np.newaxis], 200, 0), np.arange(200) % 2, ("a", "b"))
    known = {}
    for row, column, mirror in np.ndindex(5, 5, 2):
        places = np.array([[row, column]])
        crop = numpy_crop_flip(to_float(image[np.newaxis]).numpy(), places, np.array([mirror]), 2, "reflect")
        known[crop[0].tobytes()] = (row, column, mirror)
    distinct = dataclasses.replace(examples, images=np.arange(200, dtype=np.uint8)[:, None, None, None] + 0 * image)
    epochs = epochs_of(training_batches(examples, 200, 4, 0, 3, "translate_flip"), 1)
    orders = epochs_of(training_batches(distinct, 200, 4, 0, 3, "none"), 1)
    by_epoch = []
    for [(images, _)], [(numbered, _)] in zip(epochs, orders, strict=True):
        found = np.array([known[each.tobytes()] for each in images])
        assert len({tuple(each[:2]) for each in found}) == 25
        mirrored = np.zeros(200, int)
        mirrored[np.round(255 * numbered[:, 0, 0, 0]).astype(int)] = found[:, 2]
        by_epoch.append(mirrored)
    assert 60 < by_epoch[0].sum() < 140
    np.testing.assert_array_equal(by_epoch[1], 1 - by_epoch[0])
    np.testing.assert_array_equal(by_epoch[2], by_epoch[0])


def test_augmented_batches_are_crops_at_every_offset_and_half_are_mirrored():
    image = np.random.default_rng(1).integers(1, 256, (12, 12, 1), dtype=np.uint8)
    examples = Examples(np.repeat(image[np.newaxis], 2000, 0), np.zeros(2000, np.int64), ("a",))
    [[(images, _)]] = epochs_of(training_batches(examples, 2000, 1, 0, 0, "crop_flip"), 1)
    known = {}
    for row, column, mirror in np.ndindex(9, 9, 2):
        crop = numpy_crop_flip(to_float(image[np.newaxis]).numpy(), np.array([[row, column]]), np.array([mirror]))
        known[crop[0].tobytes()] = (row, column, mirror)
    found = np.array([known[crop.tobytes()] for crop in images])
    assert len({tuple(each) for each in found}) == 9 * 9 * 2
    assert abs(found[:, 2].mean() - 0.5) < 0.06  # five standard deviations
    assert abs(found[:, :2].mean() - 4) < 0.25


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_evaluation_batches_keep_the_order_and_fill_the_last_with_zero_weights(dtype):
    examples = make_examples(23, dtype=dtype)
    images, labels, weights = (
        np.concatenate(parts) for parts in zip(*evaluation_batches(examples, 10).as_numpy_iterator(), strict=True)
    )
    assert weights.tolist() == 23 * [1.0] + 7 * [0.0]
    assert labels[:23].tolist() == list(range(23))
    assert images.dtype == np.float32
    expected = examples.images / np.float32(255) if dtype == np.uint8 else examples.images
    np.testing.assert_allclose(images[:23], expected, atol=1e-7)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("augmentation", ["none", "crop_flip"])
def test_the_workers_shares_of_batches_are_the_batches(workers, augmentation):
    examples = make_examples(30)
    for batches in (
        functools.partial(training_batches, examples, 6, 2, 0, 7, augmentation),
        functools.partial(evaluation_batches, examples, 12),
    ):
        whole = list(batches().as_numpy_iterator())
        shares = [list(batches(worker=worker, workers=workers).as_numpy_iterator()) for worker in range(workers)]
        for number, parts in enumerate(whole):
            for place, part in enumerate(parts):
                np.testing.assert_array_equal(np.concatenate([share[number][place] for share in shares]), part)


def header(kind: str, width: int, height: int) -> bytes:
    """The beginning of an image file that announces a size."""
    if kind == "PNG":
        return b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", width, height)
    if kind == "GIF":
        return b"GIF89a" + struct.pack("<HH", width, height)
    return b"BM" + b"\0" * 16 + struct.pack("<ii", width, -height)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP"])
def test_the_header_announces_the_pixels_of_a_file(kind):
    file = io.BytesIO()
    Image.fromarray(np.zeros((7, 300, 3), np.uint8)).save(file, kind)
    assert int(announced_pixels(tf.constant(file.getvalue()))) == 7 * 300
    if kind != "JPEG":
        huge = 60_000 if kind == "GIF" else 2_000_000
        assert int(announced_pixels(tf.constant(header(kind, huge, huge)))) == huge**2


@pytest.mark.parametrize("contents", [b"", b"RIFF....WEBPVP8 ", b"\xff\xd8\xff\xe0 cut", b"BN" + b"\0" * 40])
def test_other_files_announce_nothing(contents):
    with pytest.raises(tf.errors.InvalidArgumentError):
        announced_pixels(tf.constant(contents))


def test_a_folder_refuses_a_file_of_too_many_pixels_before_it_decodes_it(tmp_path):
    for name in "ab":
        write_images(tmp_path / name, 5)
    (tmp_path / "a" / "00.png").write_bytes(header("PNG", 20_000, 20_000))
    with pytest.raises(
        InputError, match=r"at most 64,000,000 pixels \(--max_image_pixels\) in .*00.png, received 400,"
    ):
        load_folder(tmp_path)
    (tmp_path / "a" / "00.png").unlink()
    asked = DataConfig(dataset=f"folder:{tmp_path}", max_image_pixels=63)
    with pytest.raises(InputError, match="at most 63 pixels .* received 64"):
        load_examples(asked, "train")
    assert len(load_examples(dataclasses.replace(asked, max_image_pixels=64), "train")) > 0
