"""What the tests of evaluations share: digits of 8×8 pixels, nets that are quick to train on them, files as read."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from wca_tf.data.examples import Examples
from wca_tf.data.sources import load_examples
from wca_tf.defences.wca.net import WCANet
from wca_tf.nets.model_files import save_model
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory

SHAPE = (8, 8, 1)


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@functools.cache
def digits(classes=10):
    """(training, test): digits as scikit-learn has them, of the first `classes` classes."""
    loaded = load_digits()
    chosen = loaded.target < classes
    images = (loaded.images[chosen, ..., np.newaxis] / 16).astype(np.float32)
    whole = Examples(images, loaded.target[chosen].astype(np.int64), tuple(str(i) for i in range(classes)))
    half = len(whole) // 2
    return whole.take(slice(0, half)), whole.take(slice(half, None))


@functools.cache
def dense_net(classes=10):
    """A plain net with one hidden layer, trained. Tests must not change it."""
    keras.utils.set_random_seed(1)
    layers = [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(classes)]
    net = keras.Sequential(layers)
    net.compile(keras.optimizers.Adam(3e-3), cross_entropy())
    training, _ = digits(classes)
    net.fit(training.images, training.labels, epochs=10, batch_size=50, verbose=0)
    return net


def with_layers(net, before=(), after=(), dtype=None):
    """A net's layers between others; the weights are shared."""
    return keras.Sequential([keras.Input(SHAPE, dtype=dtype), *before, net, *after])


def in_and_out(inputs, outputs):
    """A linear net with several inputs or outputs."""
    images = [keras.Input(SHAPE) for _ in range(inputs)]
    flat = keras.layers.Flatten()(keras.layers.Add()(images) if inputs > 1 else images[0])
    return keras.Model(images, [keras.layers.Dense(10)(flat) for _ in range(outputs)])


@keras.saving.register_keras_serializable("tests")
class Quantise(keras.layers.Layer):
    """Pixels in steps of 1/16, as digits have them: no gradient passes, and clean images stay what they are."""

    def call(self, images):
        return tf.round(images * 16) / 16


@keras.saving.register_keras_serializable("tests")
class InputNoise(keras.layers.Layer):
    """Gaussian noise of Keras's own stream on the pixels, at test time too. It has no weights."""

    def __init__(self, deviation, **kwargs):
        super().__init__(**kwargs)
        self.deviation = deviation

    def call(self, images):
        return images + self.deviation * tf.random.normal(tf.shape(images))

    def get_config(self):
        return {**super().get_config(), "deviation": self.deviation}


def write_model_dir(directory, steps=False):
    """A directory as bin/train leaves it, of a WCANet with one hidden layer on digits of 8×8 pixels.

    `steps`: the hidden layer answers 0 or 1, by a sigmoid so steep that its gradient is zero in float32.
    """
    config = TrainConfig(image_size=8, defence="wca:feature_dim=16")
    training = load_examples(config, "train")
    keras.utils.set_random_seed(2)
    hidden = [keras.layers.Dense(32), keras.layers.Rescaling(1e6), keras.layers.Activation("sigmoid")]
    layers = hidden if steps else [keras.layers.Dense(32, "relu")]
    backbone = keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten(), *layers])
    mean, std = training.pixel_statistics()
    model = WCANet(backbone, 10, feature_dim=16, pixel_mean=mean, pixel_std=std)
    model.defence = config.defence
    model.build((None, *SHAPE))
    model.compile(keras.optimizers.Adam(3e-3), cross_entropy())
    model.fit(training.images / np.float32(255), training.labels, epochs=4, batch_size=50, verbose=0)
    found = ModelDirectory(directory)
    found.path.mkdir(parents=True)
    found.write_config(config, training, model)
    found.write_metrics([{"epoch": 3, "val_accuracy": 0.5}])
    save_model(model, found.best)
    save_model(model, found.last)
    return Path(directory)


def read_strictly(path):
    """JSON without NaN and Infinity, which Python's reader would let pass."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def arrays(directory):
    """examples.npz of a report directory."""
    with np.load(directory / "examples.npz", allow_pickle=False) as contents:
        return dict(contents)


def assert_same_arrays(one, other):
    """Equal to the bit; NaN equals NaN."""
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def without_seconds(results):
    """results.json without what the clock says."""
    if isinstance(results, Mapping):
        return {key: without_seconds(value) for key, value in results.items() if key != "seconds"}
    return [without_seconds(item) for item in results] if isinstance(results, list) else results


def assert_same_outcomes(one, other):
    """Two lists of outcomes equal to the bit, but for the seconds."""
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        for field in dataclasses.fields(left):
            mine, theirs = getattr(left, field.name), getattr(right, field.name)
            if dataclasses.is_dataclass(mine):
                assert_same_arrays(dataclasses.asdict(mine), dataclasses.asdict(theirs))
            elif isinstance(mine, np.ndarray):
                np.testing.assert_array_equal(mine, theirs, err_msg=f"{left.name} {field.name}")
            elif field.name != "seconds":
                assert mine == theirs
