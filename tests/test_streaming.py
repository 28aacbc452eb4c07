"""Images that stay on disk: the same bits as in memory, wherever they are used."""

import dataclasses
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.files import sha256_of_arrays
from wca_tf.data import cache, tfds_sets
from wca_tf.data.batches import evaluation_batches, padded_batches, training_batches
from wca_tf.data.config import DataConfig
from wca_tf.data.encoded import IndexedImages
from wca_tf.data.examples import Examples
from wca_tf.data.resizing import Size, random_resized_crop
from wca_tf.data.sources import load_examples, open_examples, place
from wca_tf.nets.model_files import load_model
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.training import train

FORMATS = (("png", "L"), ("jpg", "RGB"), ("bmp", "RGB"), ("gif", "P"), ("png", "RGBA"), ("png", "LA"), ("jpg", "L"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_folder(root: Path, count: int = 21, sides: tuple[int, ...] = (12,)) -> Path:
    """Write class folders of images in several formats, and of several sizes."""
    for number in range(2 * count):
        suffix, mode = FORMATS[number % len(FORMATS)]
        random, side = np.random.default_rng(number), sides[number % len(sides)]
        image = Image.fromarray(random.integers(0, 256, (side, sides[0], 3), dtype=np.uint8))
        file = root / "ab"[number % 2] / f"{number:02}.{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.convert(mode).save(file)
    return root


def load(root: Path, in_memory: str, split: str = "train", first: int = 0, **options: int) -> Examples:
    return load_examples(DataConfig(f"folder:{root}", in_memory=in_memory, **options), split, first)


def in_both(root: Path, **options: int) -> tuple[Examples, Examples]:
    array, disk = (load(root, in_memory, **options) for in_memory in ("true", "false"))
    assert isinstance(array.images, np.ndarray) and isinstance(disk.images, IndexedImages)
    return array, disk


SIZES = {"as they are": {}, "stretched": {"image_size": 9}, "centre": {"image_size": 9, "shorter_side": 10}}


@pytest.mark.parametrize("size", SIZES)
def test_images_on_disk_are_those_in_memory(tmp_path, size):
    array, disk = in_both(write_folder(tmp_path / "f", sides=(12,) if not SIZES[size] else (12, 15, 30)), **SIZES[size])
    assert disk.image_shape == array.image_shape == ((12, 12, 3) if not SIZES[size] else (9, 9, 3))
    np.testing.assert_array_equal(disk.labels, array.labels)
    for indices in (slice(None), slice(3, 9), np.array([7, 0, 7]), 4, slice(0, 0)):
        np.testing.assert_array_equal(disk.images[indices], array.images[indices])
    np.testing.assert_array_equal(np.asarray(disk.images), array.images)
    assert disk.sha256 == array.sha256 == sha256_of_arrays(array.images, array.labels)
    assert disk.pixel_statistics() == array.pixel_statistics()
    parts = zip(disk.split_validation(0.2, 3, 5), array.split_validation(0.2, 3, 5), strict=True)
    assert all(one.sha256 == other.sha256 for one, other in parts)


def assert_same_batches(left, right) -> None:
    for one, other in zip(left, right, strict=True):
        for part, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, same)


@pytest.mark.parametrize("augmentation", ["none", "crop_flip", "resized_crop_flip"])
def test_batches_from_disk_are_those_from_memory_and_of_workers_their_shares(tmp_path, augmentation):
    array, disk = in_both(write_folder(tmp_path / "f"))
    batches = functools.partial(
        training_batches, batch_size=6, epochs=3, first_epoch=1, seed=5, augmentation=augmentation
    )
    whole = list(batches(array).as_numpy_iterator())
    assert len(whole) == 2 * (len(array) // 6)
    assert_same_batches(batches(disk).as_numpy_iterator(), whole)
    shares = zip(*(batches(disk, worker=worker, workers=2).as_numpy_iterator() for worker in range(2)), strict=True)
    assert_same_batches((map(np.concatenate, zip(*share, strict=True)) for share in shares), whole)
    if augmentation == "none":
        assert_same_batches(evaluation_batches(disk, 5), evaluation_batches(array, 5))
        assert_same_batches(padded_batches(disk, 5, 3), padded_batches(array, 5, 3))


class Shades(tfds.core.GeneratorBasedBuilder):
    """Images of two sizes, in several shards."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(shape=(None, None, 1)), "label": tfds.features.ClassLabel(names="abc")}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number in range(20):
            yield number, {"image": np.full((6 + number % 2, 7, 1), 10 * number, np.uint8), "label": number % 3}


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def shades(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    shards = tfds.download.DownloadConfig(num_shards=3)
    Shades(data_dir=str(directory), file_format=request.param).download_and_prepare(download_config=shards)
    return directory


def test_records_of_a_tfds_set_are_read_by_index_in_the_order_of_the_set(shades):
    config = DataConfig("shades", str(shades), image_size=5, in_memory="false")
    disk, array = (load_examples(dataclasses.replace(config, in_memory=each), "train") for each in ("false", "true"))
    assert isinstance(disk.images, IndexedImages) and isinstance(array.images, np.ndarray)
    builder = tfds.builder("shades", data_dir=str(shades))
    if builder.info.file_format.value == "tfrecord":
        read = tfds.ReadConfig(interleave_cycle_length=1)
        known = [int(each["image"][0, 0, 0]) for each in builder.as_dataset(split="train", read_config=read)]
    else:
        known = [int(each["image"][0, 0, 0]) for each in builder.as_data_source(split="train")]
    assert disk.images[:][:, 0, 0, 0].tolist() == known
    assert disk.sha256 == array.sha256 and disk.labels.tolist() == [value // 10 % 3 for value in known]
    np.testing.assert_array_equal(disk.images[[19, 2, 2]], array.images[[19, 2, 2]])
    first = load_examples(config, "train", 4)
    assert len(first) == 4 and first.images[:][:, 0, 0, 0].tolist() == known[:4]


def test_a_changed_record_file_is_an_input_error(shades, tmp_path):
    shutil.copytree(shades, tmp_path / "copy")
    examples = load_examples(DataConfig("shades", str(tmp_path / "copy"), image_size=5, in_memory="false"), "train")
    for file in (tmp_path / "copy").rglob("*record-0*"):
        os.utime(file, (1, 1))
    with pytest.raises(InputError, match="it has changed"):
        _ = examples.images[0]


def test_images_stay_on_disk_where_they_take_more_than_a_quarter_of_the_free_memory(tmp_path, monkeypatch):
    root = write_folder(tmp_path / "f", 10)
    size = len(load(root, "true")) * 12 * 12 * 3
    for free, kind in ((4 * size - 1, IndexedImages), (4 * size, np.ndarray)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free))
        assert type(load(root, "auto").images) is kind
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=4 * size // 2))
    assert type(load(root, "auto", first=8).images) is np.ndarray  # only what is asked for counts
    config = DataConfig(f"folder:{root}")
    for most, kind in ((0, IndexedImages), (4, np.ndarray)):
        parts = open_examples(config, "train").split_validation(0.25, 0, most)
        assert [type(part.images) for part in place(config, *parts)] == [kind] * 2


def test_only_the_images_that_are_asked_for_are_decoded(tmp_path):
    root = write_folder(tmp_path / "f")
    whole = load(root, "false")
    broken = whole.images.encoded.name(whole.images.numbers[9])
    contents = Path(broken).read_bytes()
    Path(broken).write_bytes(contents[: len(contents) * 3 // 4])  # the header stays
    np.testing.assert_array_equal(load(root, "true", first=9).images, whole.images[:9])
    for in_memory in ("true", "false"):
        with pytest.raises(InputError, match=broken):
            _ = load(root, in_memory, first=10).sha256


@pytest.mark.parametrize("what", ["is gone", "has changed"])
def test_a_file_that_is_gone_or_has_changed_is_an_input_error_that_names_it(tmp_path, what):
    examples = load(write_folder(tmp_path / "f"), "false")
    file = Path(examples.images.encoded.name(examples.images.numbers[2]))
    if what == "is gone":
        file.rename(tmp_path / "away")
    else:
        time.sleep(0.01)
        file.write_bytes(file.read_bytes())
    assert len(examples.images[3:5]) == 2
    for read in (lambda: examples.images[:4], lambda: examples.sha256, examples.check_unchanged, examples.in_memory):
        with pytest.raises(InputError, match=f"{file} as it was .*: it {what}"):
            read()


def test_what_a_slow_pass_found_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    root = write_folder(tmp_path / "f")
    monkeypatch.setattr(cache, "SLOW", -1)
    first = load(root, "false").sha256
    assert len(list(cache.directory().iterdir())) == 2  # shapes, and digest with counts
    monkeypatch.setattr(Examples, "blocks", None)  # nothing reads images any more
    examples = load(root, "false")
    assert examples.sha256 == first and len(examples.pixel_statistics()[0]) == 3
    for file in cache.directory().iterdir():
        file.write_bytes(b"broken")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load(root, "false").sha256 == first
    os.utime(next(root.rglob("*.png")), (5, 5))
    monkeypatch.setattr(Examples, "blocks", None)
    with pytest.raises(TypeError):
        _ = load(root, "false").sha256


def replace_files(root: Path, replacements: Path) -> None:
    """Replace files by others of the same names, sizes and times, as `rsync -t` and `tar` do."""
    for new in sorted(file for file in replacements.rglob("*") if file.is_file()):
        old = root / new.relative_to(replacements)
        assert new.stat().st_size == old.stat().st_size
        os.utime(new, ns=(old.stat().st_mtime_ns, old.stat().st_mtime_ns))
        new.rename(old)


def write_noise(root: Path, seed: int) -> Path:
    """Write class folders of five bitmaps each; all have the same size and time."""
    for number in range(10):
        pixels = np.random.default_rng([seed, number]).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        file = root / "ab"[number % 2] / f"{number}.bmp"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
        os.utime(file, (1.6e9, 1.6e9))
    return root


def test_files_of_the_same_names_sizes_and_times_are_read_anew(tmp_path, monkeypatch):
    root = write_noise(tmp_path / "f", 0)
    monkeypatch.setattr(cache, "SLOW", -1)
    old = load(root, "false")
    assert old.sha256 == load(root, "false").sha256
    replace_files(root, write_noise(tmp_path / "new", 1))
    new = load(root, "false")
    assert new.sha256 == sha256_of_arrays(np.asarray(new.images), new.labels)
    with pytest.raises(InputError, match="it has changed"):
        old.check_unchanged()


def test_relative_paths_of_two_directories_have_no_finding_in_common(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SLOW", -1)
    root, other = write_noise(tmp_path / "0" / "f", 0), tmp_path / "1" / "f"
    found = []
    for directory in (root, other):
        if directory == other:
            (tmp_path / "1").mkdir()
            root.rename(other)  # with its inodes
        monkeypatch.chdir(directory.parent)
        images = load(Path("f"), "false").images
        images.encoded.stamps[:] = 0
        found.append(images.key())
    assert found[0] != found[1]


def test_a_link_to_a_file_and_new_rights_do_not_change_it(tmp_path):
    examples = load(write_noise(tmp_path / "f", 0), "false")
    file = Path(examples.images.encoded.files[0])
    before = examples.images.key()
    time.sleep(0.01)
    os.link(file, tmp_path / "link")
    file.chmod(0o444)
    examples.check_unchanged()
    assert load(tmp_path / "f", "false").images.key() != before  # it is found again by the next command


def test_records_of_the_same_names_sizes_and_times_are_indexed_anew(shades, tmp_path):
    shutil.copytree(shades, tmp_path / "copy")
    builder = tfds.builder("shades", data_dir=str(tmp_path / "copy"))
    key = tfds_sets._key_of(builder.info.splits["train"], 20)
    shutil.copytree(tmp_path / "copy", tmp_path / "new")
    replace_files(tmp_path / "copy", tmp_path / "new")
    assert tfds_sets._key_of(builder.info.splits["train"], 20) != key


def test_without_a_home_nothing_is_kept(tmp_path, monkeypatch):
    root = write_noise(tmp_path / "f", 0)
    monkeypatch.setattr(cache, "SLOW", -1)
    monkeypatch.setenv("XDG_CACHE_HOME", "~nobody_of_this_name/cache")
    examples = load(root, "false")
    assert examples.sha256 == load(root, "true").sha256


BROKEN = {
    "empty": (lambda contents: b"", "assertion failed: [expected a PNG, JPEG, GIF or BMP file]"),
    "cut": (lambda contents: contents[:40], "Invalid PNG. Failed to initialize decoder."),
}


@pytest.mark.parametrize("in_memory", ["true", "false"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_image_file_is_one_line_with_its_cause(tmp_path, kind, in_memory):
    root = write_folder(tmp_path / "f")
    breaks, cause = BROKEN[kind]
    file = min(root.rglob("*.png"))
    file.write_bytes(breaks(file.read_bytes()))
    with pytest.raises(InputError) as raised:
        for split in ("train", "test"):
            _ = load(root, in_memory, split).sha256
    assert str(raised.value) == f"expected an image in {file}: {cause}"


def test_the_error_of_a_batch_is_one_line_with_its_cause(tmp_path):
    examples = load(write_folder(tmp_path / "f"), "false")
    for file in examples.images.encoded.files:
        Path(file).write_bytes(b"")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        list(training_batches(examples, 4, 1, 0, 0, "none"))
    assert one_line(raised.value) == "Input is empty."


# Sizes


def test_the_centre_is_cut_out_after_the_shorter_side_has_its_size():
    image = np.random.default_rng(0).integers(0, 256, (20, 41, 3), dtype=np.uint8)
    np.testing.assert_array_equal(Size(10, 20).of(tf.constant(image)), image[5:15, 16:26])  # 15.5 to even
    np.testing.assert_array_equal(Size(10, 20).of(tf.constant(image.swapaxes(0, 1))), image[5:15, 16:26].swapaxes(0, 1))
    half = tf.image.resize(tf.constant(image[:, :40]), (10, 20), antialias=True)
    expected = np.rint(half.numpy()[1:9, 6:14]).astype(np.uint8)
    np.testing.assert_array_equal(Size(8, 10).of(tf.constant(image[np.newaxis, :, :40]))[0], expected)


@pytest.mark.parametrize("given", [{"shorter_side": 8}, {"shorter_side": 8, "image_size": 9}])
def test_a_shorter_side_needs_an_image_size_that_fits_into_it(given):
    with pytest.raises(InputError, match="--shorter_side with an --image_size from 1 to it"):
        DataConfig(**given)


def test_random_crops_have_the_stated_areas_and_ratios_and_depend_on_their_seed_alone():
    side = 200
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    image = tf.constant(np.stack([rows, columns, 0 * rows], 2).astype(np.float32))
    crop = tf.function(lambda seed: random_resized_crop(image, seed, (100, 100)))
    found = []
    for number in range(300):
        made = crop(tf.constant([7, number])).numpy()
        height, width = (made[:, 50, 0].max() - made[0, 50, 0], made[50, :, 1].max() - made[50, 0, 1])
        found.append((height * 1.01, width * 1.01, *made[0, 0, :2]))  # from centre to centre of the outer pixels
    height, width, top, left = np.array(found).T
    areas, ratios = height * width / side**2, width / height
    assert 0.07 < areas.min() < 0.2 and 0.9 < areas.max() < 1.02
    assert 0.72 < ratios.min() < 0.8 and 1.25 < ratios.max() < 1.37
    assert len({*zip(top, left, strict=True)}) > 280
    np.testing.assert_array_equal(crop(tf.constant([7, 3])), crop(tf.constant([7, 3])))


def test_random_crops_are_cut_out_of_the_files_and_so_stay_on_disk(tmp_path):
    root = write_folder(tmp_path / "f", sides=(24, 30))
    with pytest.raises(InputError, match="--in_memory=auto or false with --augmentation=resized_crop_flip"):
        TrainConfig(f"folder:{root}", augmentation="resized_crop_flip", image_size=6, in_memory="true")
    config = TrainConfig(f"folder:{root}", augmentation="resized_crop_flip", image_size=6)
    training = load_examples(config, "train")
    assert isinstance(training.images, IndexedImages)
    [(cut, _)] = training_batches(training, len(training), 1, 0, 0, "resized_crop_flip")
    [(plain, _)] = training_batches(training, len(training), 1, 0, 0, "none")
    assert cut.shape == plain.shape == (len(training), 6, 6, 3)
    assert cut.numpy().std() > 1.3 * plain.numpy().std()  # a part of noise is averaged over fewer of its pixels


# Runs


FLAGS = ("--backbone=lenet5", "--batch_size=16", "--epochs=4", "--augmentation=crop_flip", "--validation_split=0.2")


def weights(model_dir: Path) -> dict[str, list]:
    """All of the last epoch, with the optimizer's."""
    net = load_model(model_dir / "last.keras")
    return {each.path: np.asarray(each).tolist() for each in (*net.variables, *net.optimizer.variables)}


def start(root: Path, model_dir: Path, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "bin/train", f"--dataset=folder:{root}", f"--model_dir={model_dir}", *FLAGS, *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcomes(report_dir: Path, *flags: str) -> dict[str, bytes]:
    """What bin/evaluate says of 20 images: everything but times."""
    attacks = ("--attacks=pgd:steps=2,z_margin:steps=2", "--epsilons=8/255", "--num_examples=20")
    subprocess.run([sys.executable, "bin/evaluate", f"--report_dir={report_dir}", *attacks, *flags], check=True)
    with np.load(report_dir / "examples.npz") as examples:
        return {name: examples[name].tobytes() for name in examples.files if name != "seconds"}


def wait_for_lines(model_dir: Path, count: int) -> None:
    file = model_dir / "metrics.jsonl"
    while not file.exists() or len(file.read_text().splitlines()) < count:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_streamed_run_ends_with_the_weights_of_one_in_memory_after_a_kill_and_a_lost_file(tmp_path):
    root = write_folder(tmp_path / "f", 400, sides=(28,))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert start(root, whole, "--in_memory=true").wait() == 0
    killed = start(root, broken, "--in_memory=false")
    wait_for_lines(broken, 1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    going_on = start(root, broken, "--in_memory=false")
    wait_for_lines(broken, 2)
    file = sorted((root / "a").iterdir())[17]
    file.rename(tmp_path / "away")
    _, error = going_on.communicate()
    assert going_on.returncode == 2 and f"expected {file} as it was when this command found it: it is gone" in error
    assert "Traceback" not in error
    (tmp_path / "away").rename(file)
    assert start(root, broken, "--in_memory=false").wait() == 0
    assert weights(broken) == weights(whole)
    validated = [outcomes(each / "v", f"--model_dir={each}", "--split=validation") for each in (whole, broken)]
    assert validated[0] == validated[1]
    tested = [
        outcomes(tmp_path / each, f"--model={whole}/model.keras", f"--dataset=folder:{root}", f"--in_memory={each}")
        for each in ("true", "false")
    ]
    assert tested[0] == tested[1]


def test_training_refuses_a_broken_validation_image_before_it_starts(tmp_path):
    root = write_folder(tmp_path / "f", 30, sides=(28,))
    config = TrainConfig(f"folder:{root}", backbone="lenet5", epochs=1, validation_split=0.2, in_memory="false")
    _, validation = open_examples(config, "train").split_validation(0.2, 0)
    broken = Path(validation.images.encoded.name(validation.images.numbers[2]))
    broken.write_bytes(broken.read_bytes()[:-60])
    with pytest.raises(InputError, match=f"expected an image in {broken}"):
        train(config, tmp_path / "model")
    assert not (tmp_path / "model").exists()
