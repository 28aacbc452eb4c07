"""Keras models of any kind, served: what a client gets is what the owner knows."""

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf
from kinds_of_nets import KINDS, SHAPE, always_noise, monte_carlo, some_images

import wca_tf
from wca_tf.core.errors import InputError


def served(model, tmp_path, **options):
    path = wca_tf.export(model, tmp_path / "served", image_shape=SHAPE, **options)
    return tf.saved_model.load(str(path)).signatures


def as_bytes(images):
    return tf.constant(np.round(255 * images).astype(np.uint8))


@pytest.mark.parametrize(
    "kind",
    [
        "subclassed, / 255.0, softmax",
        pytest.param("augmentation after Rescaling", marks=pytest.mark.slow),
        pytest.param("an ensemble of softmaxes", marks=pytest.mark.slow),
        pytest.param("float64", marks=pytest.mark.slow),
    ],
)
def test_a_deterministic_net_answers_as_its_owner_knows(kind, tmp_path):
    make, options, scale = KINDS[kind]
    model, (images, _) = make(), some_images()
    options |= {"pixel_range": (0, scale)} if scale != 1 else {}
    signatures = served(model, tmp_path, **options)
    pixels = as_bytes(images)
    expected = tf.nn.softmax(signatures["noise_free"](images=pixels)["logits"])
    owners = model(tf.cast(pixels, tf.float32) / 255 * scale, training=False)
    for name in ("serving_default", "noise_free", "exact"):
        answer = signatures[name](images=pixels)
        np.testing.assert_array_equal(answer["class_id"], np.argmax(owners, axis=1))
    np.testing.assert_allclose(signatures["serving_default"](images=pixels)["probabilities"], expected, atol=1e-6)
    if "softmax" in kind:
        np.testing.assert_allclose(expected, owners, atol=1e-5)


def test_monte_carlo_dropout_is_served_with_fresh_draws(tmp_path):
    """The draws of requests at the same time are independent: no state of a generator is set."""
    model, (images, _) = monte_carlo(), some_images()
    signatures, few = served(model, tmp_path), as_bytes(images[:20])
    assert "exact" not in signatures
    owners = np.mean([tf.one_hot(np.argmax(model(tf.cast(few, tf.float32) / 255), 1), 10) for _ in range(400)], axis=0)
    shares = signatures["averaged"](images=few, n_samples=tf.constant(400))["probabilities"]
    assert np.max(np.abs(shares - owners)) < 5 * np.sqrt(2 * 0.25 / 400)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: signatures["serving_default"](images=few)["logits"].numpy(), range(40)))
    assert len({answer.tobytes() for answer in answers}) == 40
    _, flatten, hidden, _, last = model.layers
    without = last(hidden(flatten(tf.cast(few, tf.float32) / 255)))
    np.testing.assert_allclose(signatures["noise_free"](images=few)["logits"], without, atol=1e-5)
    reloaded = [tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"] for _ in range(2)]
    first, second = (each(images=few)["logits"].numpy() for each in reloaded)
    assert not np.array_equal(first, second), "each process draws anew"


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (always_noise, {}, "expected a net that training=False leaves without noise"),
        (lambda: lambda images: images, {}, "expected a Keras model, received function"),
    ],
)
def test_what_cannot_be_served_is_one_line(make, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        served(make(), tmp_path, **options)
    assert not (tmp_path / "served").exists()
