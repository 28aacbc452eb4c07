import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.files import exclusive_directory, sha256_of_arrays
from wca_tf.data.batches import evaluation_batches
from wca_tf.data.sources import load_examples
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.model_files import load_model, save_model
from wca_tf.runs import epoch_recorder
from wca_tf.runs.epoch_recorder import EpochRecorder
from wca_tf.runs.model_dir import ModelDirectory, best_line
from wca_tf.runs.new_model import new_model
from wca_tf.runs.optimizer import compile_model
from wca_tf.runs.training import train

COMMON_KEYS = {"epoch", "loss", "accuracy", "ce", "penalty", "val_loss", "val_accuracy", "val_ce", "val_penalty"}
NOISE_METRICS = ("alignment", "noise_to_margin", "common_noise_share")
NOISE_KEYS = {prefix + name for prefix in ("", "val_") for name in NOISE_METRICS}


def weights(path):
    """The weights of a .keras file, and the optimizer's, as arrays."""
    model = load_model(path)
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]


def same(one, other):
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def largest_difference(one, other):
    return max(float(np.abs(np.float64(a) - np.float64(b)).max(initial=0)) for a, b in zip(one, other, strict=True))


SECONDS = {"seconds", "cpu_seconds"}


def without_seconds(lines):
    return [{name: value for name, value in line.items() if name not in SECONDS} for line in lines]


def parts(config):
    return load_examples(config, "train").split_validation(
        config.validation_split, config.seed, config.max_train_examples
    )


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the trained directory, to be changed."""
    return shutil.copytree(trained, tmp_path / "copy")


@pytest.fixture
def unfinished(copy):
    """The directory of a run that was killed after its last epoch, before it tidied up."""
    (copy / "backup").mkdir()
    (copy / "last.keras").rename(copy / "backup" / "latest.keras")
    return copy


# What a run leaves


def test_a_finished_directory_has_the_documented_files_and_no_backup(trained):
    names = {"config.json", "model.keras", "last.keras", "metrics.jsonl", "tensorboard", ".lock"}
    assert set(os.listdir(trained)) == names
    for split in ("train", "validation"):
        [events] = (trained / "tensorboard" / split).iterdir()
        assert events.stat().st_size > 500


def test_config_json_says_every_flag_the_versions_and_the_dataset(trained, tiny_config):
    contents = json.loads((trained / "config.json").read_text())
    assert contents["config"] == dataclasses.asdict(tiny_config)
    assert {"python", "tensorflow", "keras", "numpy", "wca_tf"} <= set(contents["versions"])
    trained_on, _ = parts(tiny_config)
    assert contents["dataset"] == {
        "class_names": list("0123456789"),
        "image_shape": [25, 25, 1],
        "num_train_examples": 256,
        "train_sha256": sha256_of_arrays(trained_on.images, trained_on.labels),
    }
    assert ModelDirectory(trained).train_config() == tiny_config


def test_metrics_have_a_line_per_epoch_with_every_part_of_the_loss(trained, tiny_config):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    for line in lines:
        assert set(line) == COMMON_KEYS | NOISE_KEYS | SECONDS
        assert abs(line["ce"] - line["alignment"] + line["penalty"] - line["loss"]) < 1e-4
        assert line["val_loss"] == pytest.approx(line["val_ce"], abs=1e-6)
        for prefix in ("", "val_"):
            assert 0 <= line[f"{prefix}accuracy"] <= 1
    assert lines[-1]["val_accuracy"] > 0.4  # it learns: chance is 0.1


def test_the_undefended_nets_metrics_have_no_noise(trained_undefended):
    for line in ModelDirectory(trained_undefended).read_metrics():
        assert set(line) == COMMON_KEYS | SECONDS
        assert line["val_loss"] == pytest.approx(line["val_ce"], abs=1e-6)


def test_the_loaded_net_has_the_validation_numbers_of_its_epoch(trained_undefended, tiny_config):
    _, validation = parts(dataclasses.replace(tiny_config, defence="none"))
    directory = ModelDirectory(trained_undefended)
    values = load_model(directory.last).evaluate(evaluation_batches(validation, 32), return_dict=True, verbose=0)
    line = directory.read_metrics()[-1]
    for name, value in values.items():
        assert abs(value - line[f"val_{name}"]) < 1e-4, name


def test_the_best_model_is_the_last_one_only_if_the_last_epoch_is_the_best(trained, trained_undefended):
    for path in (trained, trained_undefended):
        directory = ModelDirectory(path)
        lines = directory.read_metrics()
        last_is_best = lines[-1]["val_accuracy"] > max(line["val_accuracy"] for line in lines[:-1])
        assert same(weights(directory.best), weights(directory.last)) == last_is_best


def test_the_recorder_keeps_the_earliest_of_the_best_epochs_and_backs_up_the_last(tmp_path, tiny_config):
    config = dataclasses.replace(tiny_config, defence="wca:covariance=isotropic")
    directory = ModelDirectory(tmp_path)
    directory.backup.parent.mkdir()
    recorder = EpochRecorder(directory, 0)
    recorder.set_model(new_model(config, parts(config)[0]))
    bias = recorder.model.classifier.bias
    for epoch, accuracy in enumerate((0.5, 0.7, 0.6, 0.7)):
        recorder.on_epoch_begin(epoch)
        bias.assign(np.full(10, epoch + 1, np.float32))
        recorder.on_epoch_end(epoch, {"val_accuracy": accuracy})
    lines = directory.read_metrics()
    assert [(line["epoch"], line["val_accuracy"]) for line in lines] == [(1, 0.5), (2, 0.7), (3, 0.6), (4, 0.7)]
    assert best_line(lines)["epoch"] == 2
    assert load_model(directory.best).classifier.bias.numpy().tolist() == [2.0] * 10
    assert load_model(directory.backup).classifier.bias.numpy().tolist() == [4.0] * 10


def test_the_best_epoch_of_fast_adversarial_training_is_the_most_robust():
    """An epoch that overfits to the attack of training has the best clean accuracy."""
    lines = [
        {"epoch": epoch, "val_accuracy": clean, "robust_accuracy": robust}
        for epoch, (clean, robust) in enumerate(((0.6, 0.3), (0.7, 0.5), (0.9, 0.31), (0.8, 0.5)), 1)
    ]
    assert best_line(lines)["epoch"] == 2
    assert best_line([{name: line[name] for name in ("epoch", "val_accuracy")} for line in lines])["epoch"] == 3
    assert best_line([{"epoch": line["epoch"]} for line in lines])["epoch"] == 4


def test_the_best_epoch_of_training_for_a_radius_is_the_most_certified():
    lines = [
        {"epoch": epoch, "val_accuracy": clean, "val_certified": certified}
        for epoch, (clean, certified) in enumerate(((0.7, 0.4), (0.6, 0.5)), 1)
    ]
    assert best_line(lines)["epoch"] == 2


# The start


def test_first_weights_depend_on_the_seed_alone(tiny_config):
    training, _ = parts(tiny_config)
    first = [w.numpy() for w in new_model(tiny_config, training).variables]
    np.random.default_rng().random()
    again = [w.numpy() for w in new_model(dataclasses.replace(tiny_config, epochs=9), training).variables]
    other = [w.numpy() for w in new_model(dataclasses.replace(tiny_config, seed=4), training).variables]
    assert same(first, again)
    assert not same(first, other)


def test_the_net_normalises_with_the_training_images_statistics(tiny_config):
    training, _ = parts(tiny_config)
    model = new_model(tiny_config, training)
    images = training.images / 255
    assert abs(model.pixel_mean[0] - images.mean()) < 1e-9
    assert abs(model.pixel_std[0] - images.std()) < 1e-9


@pytest.mark.parametrize("steps", [12, 30, 600])
def test_the_learning_rate_is_divided_by_ten_after_each_third(tiny_config, steps):
    model = new_model(tiny_config, parts(tiny_config)[0])
    compile_model(model, 0.03, steps)
    rates = []
    for step in (0, steps // 3 - 1, steps // 3, 2 * steps // 3 - 1, 2 * steps // 3, steps - 1):
        model.optimizer.iterations.assign(step)
        rates.append(float(model.optimizer.learning_rate))
    np.testing.assert_allclose(rates, [0.03, 0.03, 0.003, 0.003, 0.0003, 0.0003], rtol=1e-5)


# Refusals


def test_a_finished_directory_is_left_as_it_is(trained, tiny_config, contents, capsys):
    before = contents(trained)
    line = train(tiny_config, trained)
    assert contents(trained) == before
    assert line == ModelDirectory(trained).best_epoch()
    assert "nothing to do" in capsys.readouterr().out


def test_where_the_data_are_may_change(trained, tiny_config, contents, tmp_path):
    before = contents(trained)
    train(dataclasses.replace(tiny_config, tfds_data_dir=str(tmp_path), download=True), trained)
    assert contents(trained) == before


@pytest.mark.parametrize(
    ("flag", "value"),
    [("seed", 4), ("epochs", 6), ("learning_rate", 2e-3), ("defence", "none"), ("dataset", "folder:.")],
)
@pytest.mark.parametrize("state", ["trained", "unfinished"])
def test_another_configuration_is_refused_by_flag_and_changes_nothing(
    request, state, flag, value, tiny_config, contents
):
    directory = request.getfixturevalue(state)
    before = contents(directory)
    with pytest.raises(InputError, match=f"--{flag}={value}"):
        train(dataclasses.replace(tiny_config, **{flag: value}), directory)
    assert contents(directory) == before


def test_a_batch_of_more_images_than_there_are_is_a_batch_of_all(tmp_path, tiny_config, capsys):
    many = dataclasses.replace(tiny_config, batch_size=1000, epochs=2)
    train(many, tmp_path / "many")
    assert "--batch_size=256: there are 256 images to train on" in capsys.readouterr().out
    train(dataclasses.replace(many, batch_size=256), tmp_path / "all")
    mine, its = (load_model(ModelDirectory(tmp_path / name).last).get_weights() for name in ("many", "all"))
    for left, right in zip(mine, its, strict=True):
        np.testing.assert_array_equal(left, right)
    assert train(many, tmp_path / "many")["epoch"]  # the directory has the batch size that was asked for


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"defence": "wca:feature_dim=9"}, "feature_dim=9"),
        ({"validation_split": 1e-4}, "for validation"),
        ({"image_size": 11}, "12×12"),
        ({"dataset": "folder:absent"}, "absent"),
        ({"dataset": "no_such_set"}, "no_such_set"),
    ],
)
def test_what_cannot_be_trained_is_an_input_error_and_makes_no_directory(tmp_path, tiny_config, changes, message):
    with pytest.raises(InputError, match=message) as raised:
        train(dataclasses.replace(tiny_config, **changes), tmp_path / "model")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "model").exists()


def test_a_directory_that_another_run_is_using_is_refused_and_unharmed(tmp_path, tiny_config, contents):
    with exclusive_directory(tmp_path / "model"):
        (tmp_path / "model" / ".wca_tf-model.keras").write_text("being written")
        before = contents(tmp_path)
        with pytest.raises(InputError, match="in use"):
            train(tiny_config, tmp_path / "model")
        assert contents(tmp_path) == before


def test_a_file_in_the_place_of_the_directory_is_an_input_error(tmp_path, tiny_config):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file"):
        train(tiny_config, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "x"


def test_a_model_without_its_configuration_is_refused(copy, tiny_config, contents):
    (copy / "config.json").unlink()
    before = contents(copy)
    with pytest.raises(InputError, match=r"config\.json"):
        train(tiny_config, copy)
    assert contents(copy) == before


def test_a_truncated_configuration_is_refused(copy, tiny_config):
    os.truncate(copy / "config.json", 50)
    with pytest.raises(InputError, match=r"config\.json"):
        train(tiny_config, copy)


def test_a_cut_backup_says_how_to_go_on_from_the_best_epoch(unfinished, trained, tiny_config):
    """Its command ends with the same weights: every epoch begins from saved weights, optimizer and random stream."""
    os.truncate(unfinished / "backup" / "latest.keras", 1000)
    with pytest.raises(InputError, match=r"complete .keras file in .*latest\.keras") as raised:
        train(tiny_config, unfinished)
    assert "\n" not in str(raised.value)
    run_advice(r"from the best epoch: (cp \S+ \S+);", raised)
    train(tiny_config, unfinished)
    assert same(weights(unfinished / "last.keras"), weights(trained / "last.keras"))
    assert same(weights(unfinished / "model.keras"), weights(trained / "model.keras"))
    lines, expected = (without_seconds(ModelDirectory(path).read_metrics()) for path in (unfinished, trained))
    assert lines == expected


@pytest.mark.slow
def test_a_cut_backup_goes_on_from_an_earlier_best_epoch(tmp_path, trained, tiny_config):
    train(tiny_config, tmp_path, snapshots=(3,))
    kept = ModelDirectory(tmp_path)
    shutil.copy(kept.snapshot(3).best, kept.best)  # as if the third had been the best so far
    kept.backup.parent.mkdir()
    kept.last.rename(kept.backup)
    os.truncate(kept.backup, 1000)
    with pytest.raises(InputError) as raised:
        train(tiny_config, tmp_path)
    run_advice(r"from the best epoch: (cp \S+ \S+);", raised)
    train(tiny_config, tmp_path)
    assert same(weights(kept.last), weights(trained / "last.keras"))
    assert without_seconds(kept.read_metrics()) == without_seconds(ModelDirectory(trained).read_metrics())


def test_a_cut_backup_without_a_whole_net_says_how_to_start_again(unfinished, tiny_config):
    for name in ("backup/latest.keras", "model.keras"):
        os.truncate(unfinished / name, 1000)
    with pytest.raises(InputError, match=r"latest\.keras") as raised:
        train(tiny_config, unfinished)
    assert "cp " not in str(raised.value)
    run_advice(r"start again: (rm \S+)$", raised)
    assert starts_again(unfinished, tiny_config)


@pytest.mark.parametrize("left", [None, [1, 2, 3], [1, 2, 4, 5], [2, 3, 4, 5]])
def test_metrics_that_lack_epochs_of_the_backup_are_refused(unfinished, tiny_config, left):
    """The best epoch would be chosen among too few."""
    metrics = unfinished / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.unlink() if left is None else metrics.write_text("".join(lines[epoch - 1] for epoch in left))
    with pytest.raises(InputError, match=r"the epochs 1 to 5 in .*metrics\.jsonl") as raised:
        train(tiny_config, unfinished)
    assert "\n" not in str(raised.value) and (unfinished / "backup" / "latest.keras").exists()
    if left is None:
        run_advice(r"start again: (rm \S+)$", raised)
        assert starts_again(unfinished, tiny_config)


def run_advice(pattern, raised):
    subprocess.run(re.search(pattern, str(raised.value)).group(1), shell=True, check=True)


def starts_again(directory, config):
    """Whether a run in the directory begins with the first epoch; it is stopped there."""

    class Stopped(BaseException):
        pass

    class Stopping(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            assert epoch == 0
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(config.parsed_defence), "callbacks", lambda defence: [Stopping()])
        with pytest.raises(Stopped):
            train(config, directory)
    return True


def test_broken_metrics_are_an_input_error_that_names_the_file(unfinished, tiny_config):
    (unfinished / "metrics.jsonl").write_text('{"epoch": 1')
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        train(tiny_config, unfinished)


# Divergence


def test_a_diverging_run_is_an_input_error_and_never_counts_as_trained(tmp_path, tiny_config):
    config = dataclasses.replace(tiny_config, learning_rate=1e30, epochs=2)
    with pytest.raises(InputError, match="diverged.*--learning_rate"):
        train(config, tmp_path)
    assert not (tmp_path / "last.keras").exists()
    assert not (tmp_path / "model.keras").exists()


def test_a_run_that_diverges_in_its_very_last_step_is_an_input_error_too(tmp_path, tiny_config):
    config = dataclasses.replace(tiny_config, learning_rate=1e30, epochs=1, batch_size=256)
    with pytest.raises(InputError, match="diverged"):
        train(config, tmp_path)
    assert not (tmp_path / "last.keras").exists()
    metrics = tmp_path / "metrics.jsonl"
    assert not metrics.exists() or "NaN" not in metrics.read_text()


# Kills


def test_a_run_killed_after_its_last_epoch_is_finished_without_training(unfinished, trained, tiny_config):
    line = train(tiny_config, unfinished)
    assert (unfinished / "last.keras").read_bytes() == (trained / "last.keras").read_bytes()
    assert (unfinished / "metrics.jsonl").read_text() == (trained / "metrics.jsonl").read_text()
    assert not (unfinished / "backup").exists()
    assert line == ModelDirectory(trained).best_epoch()


def wait_until(process, happened):
    """Wait until `happened()`; fail when the process ends before."""
    deadline = time.monotonic() + 240
    while not happened():
        assert process.poll() is None, f"ended with {process.returncode} before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_killed_again_and_again_ends_with_the_weights_of_one_that_never_was(
    tmp_path, root, trained, tiny_config, command_environment, kills
):
    """Killed while a file is being written, when the next line appears, and at a random moment; then left alone."""
    directory = ModelDirectory(tmp_path / "model")
    command = [sys.executable, str(root / "bin" / "train"), "--model_dir=model"]
    command += [f"--{name}={value}" for name, value in dataclasses.asdict(tiny_config).items()]
    delay = random.uniform(0, 4)
    print(f"the random kill comes {delay:.3f} s after the start of training")

    def start():
        return subprocess.Popen(
            command, cwd=tmp_path, env=command_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def runs_begun():
        return len(list(directory.tensorboard.rglob("events*")))

    def kill(process):
        process.kill()
        process.communicate()
        if directory.best.exists():
            load_model(directory.best)
        if directory.backup.exists():
            load_model(directory.backup)
        return directory.read_metrics()

    process = start()
    wait_until(process, lambda: directory.backup.exists() and any(directory.path.rglob(".wca_tf-*.keras")))
    done = len(kill(process))
    assert 1 <= done < tiny_config.epochs
    assert process.returncode == -signal.SIGKILL
    assert any(directory.path.rglob(".wca_tf-*.keras"))

    if kills > 1:
        process = start()
        wait_until(process, lambda: len(directory.read_metrics()) > done)
        assert len(kill(process)) <= tiny_config.epochs

        before = runs_begun()
        process = start()
        wait_until(process, lambda: runs_begun() > before)
        time.sleep(delay)
        kill(process)  # on a fast machine it may have finished

    process = start()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert re.search("resuming after epoch [1-5] of 5|nothing to do", out)

    expected, received = weights(trained / "last.keras"), weights(directory.last)
    assert same(expected, received), f"largest difference {largest_difference(expected, received)}, {delay=}"
    assert same(weights(trained / "model.keras"), weights(directory.best))
    assert without_seconds(directory.read_metrics()) == without_seconds(ModelDirectory(trained).read_metrics())
    assert not directory.backup.parent.exists()
    assert not any(directory.path.rglob(".wca_tf-*"))


def test_a_run_whose_images_changed_is_not_resumed(tmp_path, tiny_config):
    write = tmp_path / "data"
    rng = np.random.default_rng(0)
    for name in "ab":
        (write / name).mkdir(parents=True)
        for number in range(20):
            image = rng.integers(0, 256, (25, 25, 1), np.uint8)
            (write / name / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())
    config = dataclasses.replace(
        tiny_config, dataset=f"folder:{write}", defence="none", max_train_examples=0, batch_size=4, epochs=1
    )
    directory = ModelDirectory(tmp_path / "model")
    train(config, directory.path)
    described = directory.read_config()["dataset"]["num_train_examples"]
    directory.backup.parent.mkdir()
    directory.last.replace(directory.backup)  # as a run killed after its last epoch leaves it
    for name in "ab":
        for number in range(10):
            (write / name / f"{number}.png").unlink()
    with pytest.raises(InputError, match="num_train_examples"):
        train(config, directory.path)
    assert directory.backup.exists()
    directory.backup.unlink()  # as a run killed in its first epoch leaves it: it starts anew, on what is there now
    train(config, directory.path)
    assert directory.read_config()["dataset"]["num_train_examples"] == described // 2  # half of the images are left


def test_weights_that_the_last_step_of_an_epoch_made_nan_are_not_saved(tmp_path, tiny_config):
    """Without validation images nothing else looks at them before the next epoch does."""
    model = new_model(tiny_config, parts(tiny_config)[0])
    model.classifier.kernel.assign(np.nan * model.classifier.kernel)
    recorder = EpochRecorder(ModelDirectory(tmp_path), 0)
    recorder.set_model(model)
    with pytest.raises(InputError, match="weights of NaN or Inf after epoch 1"):
        recorder.on_epoch_end(0, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


def test_a_snapshot_is_the_net_of_its_epoch_also_after_a_kill(tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, epochs=3, learning_rate_schedule="constant")
    train(config, tmp_path / "whole", snapshots=(2, 3))
    kept = ModelDirectory(tmp_path / "whole").snapshot(2)
    assert kept.train_config() == config and kept.best_epoch()["epoch"] == 2
    train(dataclasses.replace(config, epochs=2), tmp_path / "short")
    for path in (kept.best, kept.last):
        short = load_model(tmp_path / "short" / "last.keras")
        for weight, its in zip(load_model(path).variables, short.variables, strict=True):
            np.testing.assert_array_equal(weight, its)

    class Killed(Exception):
        pass

    def killed(model, path):
        if path.name == "last.keras":
            raise Killed
        save_model(model, path)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(epoch_recorder, "save_model", killed)
        train(config, tmp_path / "killed", snapshots=(2, 3))
    assert not ModelDirectory(tmp_path / "killed").snapshot(2).last.exists()
    train(config, tmp_path / "killed", snapshots=(2, 3))
    again = ModelDirectory(tmp_path / "killed").snapshot(2)
    for weight, its in zip(load_model(kept.last).variables, load_model(again.last).variables, strict=True):
        np.testing.assert_array_equal(weight, its)


def test_an_unfinished_run_past_the_epoch_of_a_snapshot_says_so(tiny_config, tmp_path, monkeypatch):
    """It would train to its end, and the net of that epoch would be missed then."""
    begin = epoch_recorder.EpochRecorder.on_epoch_begin

    def stopped(recorder, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt
        begin(recorder, epoch, logs)

    monkeypatch.setattr(epoch_recorder.EpochRecorder, "on_epoch_begin", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_config, tmp_path)
    monkeypatch.undo()
    with pytest.raises(InputError, match="no net of epoch 1, and is past it"):
        train(tiny_config, tmp_path, snapshots=(1,))
    assert ModelDirectory(tmp_path).backup.exists()


def test_a_finished_run_without_the_snapshot_says_so(trained, tiny_config):
    with pytest.raises(InputError, match="no net of epoch 4"):
        train(tiny_config, trained, snapshots=(4,))


def test_files_of_others_in_the_directory_of_a_run_stay(tiny_config, tmp_path):
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "thesis.tex").write_text("mine")
    train(dataclasses.replace(tiny_config, epochs=1), tmp_path)
    assert (tmp_path / "backup" / "thesis.tex").read_text() == "mine"
    assert not ModelDirectory(tmp_path).backup.exists()


def test_a_finished_run_without_its_net_is_told(copy, tiny_config):
    ModelDirectory(copy).best.unlink()
    with pytest.raises(InputError, match="model.keras is gone"):
        train(tiny_config, copy)


@pytest.mark.parametrize("line", ['{"epoch": 1e400}', '{"epoch": NaN}'])
def test_metrics_that_are_not_finite_are_an_input_error(copy, line):
    ModelDirectory(copy).metrics.write_text(line)
    with pytest.raises(InputError, match="NaN or Inf"):
        ModelDirectory(copy).read_metrics()


def test_modules_that_are_no_list_are_an_input_error(copy):
    directory = ModelDirectory(copy)
    directory.config.write_text(json.dumps({**directory.read_config(), "modules": 5}))
    with pytest.raises(InputError, match="config.json of schema"):
        directory.train_config()


@keras.saving.register_keras_serializable("tests")
class NetWithATerm(BottleneckNet):
    """A net with a weight that is in a term of the loss alone."""

    extra_metrics = ("penalty", "term")

    def build(self, shape):
        super().build(shape)
        self.only_in_a_term = self.add_weight(name="only_in_a_term", initializer="ones")

    def extra_losses(self):
        return {**super().extra_losses(), "term": tf.square(self.only_in_a_term)}


def test_a_weight_in_a_term_of_the_loss_alone_is_trained():
    backbone = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten()])
    net = NetWithATerm(backbone, num_classes=3, feature_dim=4)
    compile_model(net, 0.1, steps=1)
    images = tf.random.stateless_uniform([6, 4, 4, 1], [0, 0])
    net.fit(images, tf.range(6) % 3, batch_size=6, epochs=1, verbose=0)
    assert float(net.only_in_a_term) < 1
