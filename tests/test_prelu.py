"""PReLU against Keras's own: the same values to the bit, the same gradients, in a net, in bfloat16 and in a file."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from wca_tf.nets.backbones.prelu import PReLU


def both(shared_axes, precision="float32"):
    layers = [
        kind(alpha_initializer="glorot_uniform", shared_axes=shared_axes, dtype=precision)
        for kind in (PReLU, keras.layers.PReLU)
    ]
    for layer in layers:
        layer.build((None, 5, 4, 3))
    layers[1].set_weights(layers[0].get_weights())
    return layers


def inputs():
    return tf.constant(np.random.default_rng(0).normal(size=(6, 5, 4, 3)), tf.float32)


def values_and_gradients(layer, images):
    with tf.GradientTape() as tape:
        tape.watch(images)
        outputs = layer(images)
        total = tf.reduce_sum(tf.cast(outputs, tf.float32) * tf.cos(images))
    return outputs, *tape.gradient(total, [images, layer.alpha.value])


@pytest.mark.parametrize("shared_axes", [None, [1], [1, 2], [1, 2, 3]])
def test_values_are_kerass_to_the_bit_and_gradients_up_to_rounding(shared_axes):
    ours, keras_own = both(shared_axes)
    received, expected = values_and_gradients(ours, inputs()), values_and_gradients(keras_own, inputs())
    np.testing.assert_array_equal(received[0], expected[0])
    np.testing.assert_allclose(received[1], expected[1], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(received[2], expected[2], rtol=1e-5, atol=1e-6)


def test_bfloat16_has_float32s_gradients_up_to_its_rounding():
    ours, exact = both([1, 2], "mixed_bfloat16")[0], both([1, 2])[0]
    exact.set_weights(ours.get_weights())
    received, expected = values_and_gradients(ours, inputs()), values_and_gradients(exact, inputs())
    assert received[0].dtype == tf.bfloat16
    for ours_is, theirs_is in zip(received, expected, strict=True):
        np.testing.assert_allclose(tf.cast(ours_is, tf.float32), theirs_is, rtol=0.02, atol=0.1)


def test_at_zero_the_derivative_is_alpha_as_in_torch():
    layer = both([1, 2])[0]
    images = tf.zeros([1, 5, 4, 3])
    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf.reduce_sum(layer(images))
    np.testing.assert_array_equal(tape.gradient(total, images)[0, 0, 0], np.ravel(layer.alpha))


def test_a_file_keeps_it(tmp_path):
    model = keras.Sequential([keras.Input((5, 4, 3)), both([1, 2])[0]])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is PReLU
    np.testing.assert_array_equal(loaded(inputs()), model(inputs()))
