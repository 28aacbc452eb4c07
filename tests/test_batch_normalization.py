"""The fused layer beside Keras's own: outputs, gradients and moving statistics, wherever it is fused and where not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from wca_tf.nets.backbones.batch_normalization import BatchNormalization

SHAPE = (6, 5, 4, 3)


def pair(precision="float32", trainable=True, **changes):
    """Keras's layer and ours with equal weights, none of which is what it starts as."""
    layers = [cls(dtype=precision, **changes) for cls in (keras.layers.BatchNormalization, BatchNormalization)]
    random = np.random.default_rng(0)
    for layer in layers:
        layer.build(SHAPE)
        layer.trainable = trainable
    values = [random.uniform(0.5, 2.0, weight.shape) for weight in layers[0].weights]
    for layer in layers:
        layer.set_weights(values)
    return layers


def run(layer, images, training):
    """(output, gradients of its weighted sum to the input and to what is trained, all weights afterwards)."""
    weight = tf.constant(np.random.default_rng(1).standard_normal(images.shape), tf.float32)

    @tf.function(jit_compile=False)
    def step():
        with tf.GradientTape() as tape:
            tape.watch(images)
            output = layer(images, training=training)
            loss = tf.reduce_sum(weight * tf.cast(output, tf.float32))
        return output, tape.gradient(loss, [images, *(v.value for v in layer.trainable_variables)])

    output, gradients = step()
    return output, gradients, layer.get_weights()


def compare(images, training, tolerance, **changes):
    theirs, ours = (run(layer, images, training) for layer in pair(**changes))
    assert ours[0].dtype == theirs[0].dtype
    flat = [tf.nest.flatten(each) for each in (theirs, ours)]
    assert len(flat[0]) == len(flat[1]) >= 5
    for expected, received in zip(*flat, strict=True):
        expected, received = (np.asarray(tf.cast(each, tf.float32)) for each in (expected, received))
        np.testing.assert_allclose(received, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def images(dtype=tf.float32, shape=SHAPE):
    return tf.cast(tf.constant(3 + 2 * np.random.default_rng(2).standard_normal(shape)), dtype)


@pytest.mark.parametrize("training", [True, False])
def test_in_float32_it_is_kerass(training):
    compare(images(), training, 1e-5)


@pytest.mark.parametrize(("precision", "dtype"), [("mixed_bfloat16", tf.bfloat16), ("mixed_float16", tf.float16)])
def test_in_half_precision_it_is_kerass_to_its_rounding(precision, dtype):
    compare(images(dtype), True, 0.02, precision=precision)


@pytest.mark.parametrize("changes", [{"axis": 1}, {"trainable": False}, {"synchronized": True}, {"scale": False}])
def test_elsewhere_it_is_kerass_to_the_bit(changes):
    compare(images(), True, 0.0, **changes)


@pytest.mark.parametrize(("changes", "fused"), [({}, True), ({"synchronized": True}, False), ({"axis": 1}, False)])
def test_the_fused_kernel_is_what_trains(changes, fused):
    layer = pair(**changes)[1]
    graph = tf.function(lambda x: layer(x, training=True), jit_compile=False).get_concrete_function(images()).graph
    assert ("FusedBatchNormV3" in {operation.type for operation in graph.get_operations()}) is fused


def test_an_image_of_one_pixel_has_no_variance():
    layer = pair()[1]
    output, _, (*_, variance) = run(layer, images(shape=(1, 1, 1, 3)), True)
    np.testing.assert_allclose(output, np.reshape(layer.beta, (1, 1, 1, 3)), rtol=1e-5)
    assert np.all(np.isfinite(variance))


def test_a_file_keeps_it(tmp_path):
    model = keras.Sequential([keras.Input(SHAPE[1:]), pair()[1]])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is BatchNormalization
    np.testing.assert_array_equal(loaded(images()), model(images()))
