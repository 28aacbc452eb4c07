"""What TensorFlow does on GPUs alone. There is none here: the settings are read while a net is called."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from framework_nets import numpy_cnn
from kinds_of_nets import SHAPE, some_images

import wca_tf
from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.nets.adapter import adapt
from wca_tf.nets.judge import judge
from wca_tf.runs.epoch_recorder import EpochRecorder
from wca_tf.runs.model_dir import ModelDirectory

enabled = tf.config.experimental.tensor_float_32_execution_enabled


@pytest.fixture
def net():
    """A net that writes down, in each call, whether TensorFloat-32 is on: (a gradient follows, it is on)."""
    plain, calls = numpy_cnn(), []

    def logits(images, seed):
        calls.append(("forward", enabled()))
        return plain.logits(images, seed)

    def pullback(images, seed, upstream):
        calls.append(("backward", enabled()))
        return plain.pullback(images, seed, upstream)

    made = wca_tf.FunctionNet(logits, pullback, 10)
    made.calls = calls
    return made


def few():
    images, labels = some_images()
    return images[:10], labels[:10]


def test_the_setting_is_afterwards_as_before_an_error_too():
    for before in (True, False):
        with tensor_float_32(before):
            with pytest.raises(KeyError), tensor_float_32(not before):
                assert enabled() is not before
                raise KeyError
            assert enabled() is before
    assert enabled()


def test_attacks_and_judgement_have_all_bits_of_float32(net):
    target = adapt(net, SHAPE)
    net.calls.clear()
    with pytest.warns(UserWarning, match="too few to measure"):
        wca_tf.parse_attack("fgsm")(target, *few())
    judge(target, *map(tf.constant, few()), np.arange(10), 0)
    wca_tf.evaluate(target, *few(), attacks="fgsm")
    assert {kind for kind, _ in net.calls} == {"forward", "backward"}
    assert not any(on for _, on in net.calls) and enabled()


def test_attacks_alone_may_have_tensor_float_32(net):
    target = adapt(net, SHAPE)
    net.calls.clear()
    wca_tf.evaluate(target, *few(), attacks="pgd:steps=3", attack_precision="tensor_float_32")
    assert [on for kind, on in net.calls if kind == "backward"] == 4 * [True], "the check of the gradient, and 3 steps"
    assert net.calls[-1] == ("forward", False), "the judgement"


@pytest.mark.slow
def test_training_has_the_arithmetic_of_its_flags(tiny_config, tmp_path, monkeypatch):
    seen, on_epoch_end = [], EpochRecorder.on_epoch_end

    def recorded(self, epoch, logs=None):
        seen.append(enabled())
        on_epoch_end(self, epoch, logs)

    monkeypatch.setattr(EpochRecorder, "on_epoch_end", recorded)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: seen.append("deterministic"))
    config = dataclasses.replace(tiny_config, epochs=1, tensor_float_32=False, deterministic=True)
    wca_tf.train(config, tmp_path / "all_bits")
    assert seen == ["deterministic", False] and enabled()


@pytest.mark.slow
def test_deterministic_training_ends_with_equal_bits_and_plain_training_near_them(
    trained, tiny_config, tmp_path, command
):
    config = {**dataclasses.asdict(tiny_config), "deterministic": True}
    flags = [f"--{name}={value}" for name, value in config.items() if value != ""]
    for name in ("one", "two"):
        done = command("train", *flags, f"--model_dir={tmp_path / name}")
        assert done.code == 0, done.err
    runs = (tmp_path / "one", tmp_path / "two", trained)
    for one, two, plain in zip(*(ModelDirectory(run).load_best().get_weights() for run in runs), strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, plain, atol=1e-4)


@pytest.mark.slow
def test_a_deterministic_evaluation_repeats_noise_that_follows_no_seed(root):
    code = (
        "import numpy as np, tensorflow as tf, wca_tf\n"
        "kernel = np.random.default_rng(0).standard_normal((64, 10)).astype(np.float32)\n"
        "def net(images): return tf.reshape(images + tf.random.normal(tf.shape(images)), [-1, 64]) @ kernel\n"
        "images = np.random.default_rng(1).random((20, 8, 8, 1), np.float32)\n"
        "found = wca_tf.evaluate(net, images, np.arange(20) % 10, attacks='fgsm', eot_samples=2, deterministic=True)\n"
        "print([row['expected_accuracy']['value'] for row in [found['clean'], *found['attacks']]])"
    )
    run = [sys.executable, "-c", code]
    one, two = (subprocess.run(run, check=True, capture_output=True, timeout=300, cwd=root).stdout for _ in range(2))
    assert one == two and one.count(b"0.") == 2
