"""Exports that draw normal numbers from uniform ones, for engines without a kernel of normal numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from framework_nets import imported
from scipy import stats
from toy_models import make_model

import wca_tf
from wca_tf.core.errors import InputError
from wca_tf.serving.samplers import BITS, box_muller, noise_factor

NUMBERS = (2**20, 3)


@pytest.fixture(scope="module")
def numbers():
    return box_muller(*NUMBERS).numpy().astype(np.float64)


def test_moments_and_law_are_those_of_normal_numbers(numbers):
    count = numbers.size
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10395 - 225)):
        assert abs((numbers**power).mean() - moment) < 5 * np.sqrt(variance / count), power
    assert stats.kstest(numbers[:200_000].ravel(), "norm").pvalue > 1e-5


def test_tails_have_the_probability_of_normal_ones(numbers):
    for beyond in (3.0, 4.0, 4.5):
        expected = numbers.size * stats.norm.sf(beyond)
        for side in (numbers, -numbers):
            assert abs((side > beyond).sum() - expected) < 5 * np.sqrt(expected), beyond


def test_numbers_of_a_row_and_of_rows_are_independent(numbers):
    """The first and the third come from one pair of uniform numbers."""
    for values in (numbers, numbers**2, np.abs(numbers)):
        pairs = np.corrcoef(np.hstack([values[:-1], values[1:]]).T)
        assert np.abs(pairs - np.eye(6)).max() < 6 / np.sqrt(len(values))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-BITS, 1 - 2.0**-24])
def test_the_extremes_of_uniform_numbers_are_finite(uniform, monkeypatch):
    """An engine may give 24 bits, where TensorFlow gives 23."""
    monkeypatch.setattr(tf.raw_ops, "RandomUniform", lambda shape, **_: tf.fill(shape, np.float32(uniform)))
    found = np.abs(box_muller(2, 5).numpy())
    assert np.isfinite(found).all() and found.shape == (2, 5) and found.max() < 7.99


def test_an_export_has_no_kernel_of_normal_numbers_and_the_same_law(tmp_path):
    model = make_model()
    path = wca_tf.export(model, tmp_path / "served", image_shape=(8, 8, 1), export_random="uniform")
    assert b"RandomStandardNormal" not in (path / "saved_model.pb").read_bytes()
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    served = tf.saved_model.load(str(path)).signatures
    shares = served["averaged"](images=tf.constant(images), n_samples=tf.constant(10_000))["probabilities"]
    exact = served["exact"](images=tf.constant(images))["probabilities"].numpy()
    assert np.abs(shares - exact).max() < 5 * 0.5 / np.sqrt(10_000) + 1e-3


def test_noise_within_layers_is_refused_and_so_is_another_word(tmp_path):
    asked = {"export_dir": tmp_path / "served", "image_shape": (8, 8, 1)}
    layers = keras.layers
    dropout = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dropout(0.3), layers.Dense(3)])
    with pytest.raises(InputError, match="logits are Gaussian.* with export_random=uniform"):
        wca_tf.export(dropout, **asked, training=True, export_random="uniform")
    with pytest.raises(InputError, match="normal, uniform; received 'other'"):
        wca_tf.export(make_model(), **asked, export_random="other")
    assert not (tmp_path / "served" / "1").exists()


@pytest.mark.slow
def test_openvino_serves_draws_of_the_nets_own_law(tmp_path):
    """Whitened, the noise of a request's images is N(0, 1), and another in each request."""
    openvino, model = imported("openvino"), make_model()
    path = wca_tf.export(model, tmp_path / "served", image_shape=(8, 8, 1), export_random="uniform")
    engine = openvino.Core()
    net = engine.compile_model(openvino.convert_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    images = np.random.default_rng(0).integers(0, 256, (4000, 8, 8, 1)).astype(np.uint8)
    served = tf.saved_model.load(str(path)).signatures
    mean = served["noise_free"](images=tf.constant(images))["logits"].numpy()
    factor = noise_factor(model.logit_scale.numpy())
    first, second = (np.linalg.solve(factor, (net(images)["logits"] - mean).T.astype(np.float64)) for _ in range(2))
    both = np.concatenate([first, second])
    assert np.abs(np.corrcoef(both) - np.eye(len(both))).max() < 5.5 / np.sqrt(len(images))
    assert stats.kstest(both.ravel(), "norm").pvalue > 1e-5 and np.abs(both).max() > 3.5
