"""Models with a WCAHead in files, copies and on several devices; and layers of noise without a head."""

import copy
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from head_nets import (
    SHAPE,
    Subclassed,
    cases,
    compiled,
    fitted,
    functional,
    head,
    largest_difference,
    nested,
    sequential,
    state,
    trained,
    twin,
)
from keras import layers
from test_distribution import cluster, finish, start
from toy_models import CLASSES, toy_data

import wca_tf
from wca_tf.defences.wca.noise import AnisotropicNoise, IsotropicNoise
from wca_tf.nets.gaussian_head import heads_of

IMAGES, LABELS = toy_data()


MODELS = {"sequential": sequential, "functional": functional, "nested": nested}


def copies(path):
    """Every way to copy a model."""
    weights = path / "model.weights.h5"

    def loaded(model):
        model.save(path / "model.keras")
        return keras.saving.load_model(path / "model.keras")

    def with_weights(model):
        model.save_weights(weights)
        other = keras.models.clone_model(model)
        other.load_weights(weights)
        return other

    def with_checkpoint(model):
        saved = tf.train.Checkpoint(model=model).save(path / "checkpoint")
        other = keras.models.clone_model(model)
        tf.train.Checkpoint(model=other).restore(saved).expect_partial()
        return other

    return {"loaded": loaded, "weights": with_weights, "checkpoint": with_checkpoint, "deepcopy": copy.deepcopy}


# Files and copies


@pytest.mark.parametrize("way", cases(["loaded", "weights", "checkpoint", "deepcopy"], "loaded", "deepcopy"))
@pytest.mark.parametrize("name", cases(MODELS, "sequential"))
def test_a_copy_goes_on_as_the_model_and_has_a_term_of_its_own(tmp_path, name, way):
    model = trained(MODELS[name]())
    other = copies(tmp_path)[way](model)
    assert heads_of(other)[0] is not heads_of(model)[0]
    np.testing.assert_array_equal(other(IMAGES), model(IMAGES))  # the stream of noise too
    if way == "loaded":  # with the optimizer: both go on alike
        for each in (model, other):
            each.fit(IMAGES, LABELS, 32, 2, shuffle=False, verbose=0)
        assert largest_difference(model, other) == 0
    heads_of(model)[0].classifier.kernel.assign(100 * heads_of(model)[0].classifier.kernel.numpy())
    other(IMAGES[:2], training=True)
    own = heads_of(other)[0]
    assert float(sum(other.losses)) == pytest.approx(float(own.penalty() - own.reward()), rel=1e-6)


def test_a_subclassed_model_is_saved_and_loaded(tmp_path):
    model = trained(Subclassed())
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(IMAGES), model(IMAGES))


def test_every_option_is_kept():
    options = {"covariance": "isotropic", "alignment": "centred", "alignment_weight": 0.5, "features": "normalised"}
    options |= {"bottleneck_activation": "relu", "lipschitz_bottleneck": None, "seed": 7, "weight_decay": 0.2}
    config = head(**options, name="end").get_config()
    assert {**config, **options} == config
    assert wca_tf.WCAHead.from_config(config).get_config() == config


LOAD = """
import sys
import keras
import numpy as np
import wca_tf.keras_classes
model = keras.saving.load_model(sys.argv[1])
np.save(sys.argv[2], model(np.load(sys.argv[3])))
"""


@pytest.mark.slow
def test_another_process_loads_the_file(tmp_path):
    model = trained(sequential())
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "images.npy", IMAGES)
    files = [str(tmp_path / name) for name in ("model.keras", "logits.npy", "images.npy")]
    subprocess.run([sys.executable, "-c", LOAD, *files], check=True, timeout=120)
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), model(IMAGES), rtol=1e-5, atol=1e-6)


def test_a_hardened_net_ends_in_a_head():
    net = wca_tf.harden(keras.Sequential([keras.Input(SHAPE), layers.Flatten(), layers.Dense(CLASSES)]))
    [layer] = heads_of(net)
    assert layer is net.wca_head and (layer.classifier, layer.noise) == (net.classifier, net.noise)


def test_a_file_of_a_wca_net_has_its_layers_where_they_were_before_there_was_a_head(tmp_path):
    twin().save_weights(tmp_path / "net.weights.h5")
    with h5py.File(tmp_path / "net.weights.h5") as file:
        assert {"bottleneck", "classifier", "layers"} <= file.keys()
        assert {"0", "1"} == file["layers/anisotropic_noise/vars"].keys()


# Several devices


@pytest.fixture(scope="module")
def one_device():
    model = functional()
    losses = fitted(model, 16, optimizer=keras.optimizers.Adam(1e-3))["loss"]
    return losses, state(model)


@pytest.mark.parametrize(
    ("strategy", "tolerance"), [("mirrored", 1e-6), pytest.param("multi_worker", 1e-5, marks=pytest.mark.slow)]
)
def test_two_devices_train_as_one(root, tmp_path, one_device, strategy, tolerance):
    workers = cluster(2) if strategy == "multi_worker" else [None]
    arguments = [root / "tests" / "replicated_head.py", strategy, 1 if workers[0] else 2, tmp_path / "state.npz"]
    ended = finish([start(root, arguments, tf_config) for tf_config in workers], 300)
    assert all(code == 0 and "replicas 2" in out for code, out, _ in ended), ended
    losses, *weights = np.load(tmp_path / "state.npz").values()
    np.testing.assert_allclose(losses, one_device[0], atol=1e-5)
    for mine, other in zip(weights, one_device[1], strict=True):
        np.testing.assert_allclose(mine, other, atol=tolerance, rtol=0)


# Noise layers alone


@pytest.mark.parametrize("noise", [AnisotropicNoise, IsotropicNoise])
def test_a_layer_of_noise_works_in_a_subclassed_model(noise):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.flatten, self.dense = layers.Flatten(), layers.Dense(4)
            self.noise, self.end = noise(), layers.Dense(CLASSES)

        def call(self, images, training=None):
            return self.end(self.noise(self.dense(self.flatten(images))))

    model = Model()
    model.predict(IMAGES[:2], verbose=0)  # builds the layer in a graph of Keras's
    np.testing.assert_allclose(model.noise.scale_tril, np.eye(4), atol=1e-6)
    with pytest.warns(UserWarning, match="no term of the loss aligns the noise"):
        history = fitted(model, 3)
    assert history["loss"][-1] < history["loss"][0]


def test_noise_that_nothing_aligns_warns_once_in_a_fit(recwarn):
    images = keras.Input(SHAPE)
    flat = layers.Dense(4)(layers.Flatten()(images))
    model = keras.Model(images, layers.Dense(CLASSES)(AnisotropicNoise(name="z")(flat)))
    model(IMAGES)
    compiled(model).evaluate(IMAGES, LABELS, verbose=0)
    assert not [each for each in recwarn if "aligns" in str(each.message)]
    for _ in range(2):
        fitted(model, 2)
    [warning] = [each for each in recwarn if "aligns" in str(each.message)]
    assert "aligns the noise of 'z'" in str(warning.message) and "WCAHead" in str(warning.message)


def test_noise_that_a_loss_aligns_does_not_warn(recwarn):
    class Aligned(keras.Model):
        def __init__(self):
            super().__init__()
            self.flatten, self.noise, self.end = layers.Flatten(), AnisotropicNoise(), layers.Dense(CLASSES)

        def call(self, images, training=None):
            logits = self.end(self.noise(self.flatten(images)))
            self.add_loss(-self.noise.alignment_term(self.end.kernel))
            return logits

    fitted(Aligned())
    for model in (sequential(), Subclassed()):
        fitted(model)
    assert not [each for each in recwarn if "aligns" in str(each.message)]
