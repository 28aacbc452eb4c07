"""1-Lipschitz layers and constants of nets, against singular values of the layers as matrices."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones import build_backbone
from wca_tf.nets.lipschitz import constant_of_layer, lipschitz_constant
from wca_tf.nets.lipschitz_layers import AOLConvolution, AOLDense, CentreOrthogonal, MaxMin, SpaceToDepth
from wca_tf.nets.orthogonal_layers import OrthogonalDense


def matrix_of(layer, shape):
    """The linear part of a layer as a matrix [outputs, inputs]."""
    size = int(np.prod(shape))
    units = tf.reshape(tf.eye(size), [size, *shape])
    zero = layer(tf.zeros([1, *shape]))
    return (tf.reshape(layer(units) - zero, [size, -1])).numpy().astype(np.float64).T


def random_weights(layer, seed, scale):
    generator = np.random.default_rng(seed)
    layer.set_weights([scale * generator.normal(size=weight.shape) for weight in layer.get_weights()])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 4),
    size=st.sampled_from([1, 2, 3, 5]),
    padding=st.sampled_from(["same", "valid"]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_a_convolution_has_norm_one_at_most(seed, inputs, outputs, size, padding, scale):
    layer = AOLConvolution(outputs, size, padding=padding)
    layer.build((None, 6, 5, inputs))
    random_weights(layer, seed, scale)
    assert np.linalg.norm(matrix_of(layer, (6, 5, inputs)), 2) <= 1 + 1e-5


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), inputs=st.integers(1, 12), outputs=st.integers(1, 12))
def test_a_dense_layer_has_norm_one_at_most(seed, inputs, outputs):
    layer = AOLDense(outputs)
    layer.build((None, inputs))
    random_weights(layer, seed, 2.0)
    assert np.linalg.norm(matrix_of(layer, (inputs,)), 2) <= 1 + 1e-5


def test_without_rescaling_the_norms_are_far_above_one():
    """The tests above can fail: the same kernels in plain layers."""
    layer = AOLConvolution(3, 3)
    layer.build((None, 6, 5, 3))
    random_weights(layer, 0, 1.0)
    plain = keras.layers.Conv2D(3, 3, padding="same")
    plain.build((None, 6, 5, 3))
    plain.set_weights(layer.get_weights())
    assert np.linalg.norm(matrix_of(plain, (6, 5, 3)), 2) > 5


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 3), (3, 6), (6, 3)])
def test_new_layers_keep_norms_as_far_as_their_shapes_allow(inputs, outputs):
    """All singular values are 1 at the start, so that deep nets train."""
    layer = AOLConvolution(outputs, 3)
    layer.build((None, 5, 5, inputs))
    values = np.linalg.svd(matrix_of(layer, (5, 5, inputs)), compute_uv=False)
    np.testing.assert_allclose(values[: 25 * min(inputs, outputs)], 1.0, atol=1e-5)


def test_the_centre_of_an_even_kernel_is_one_tap():
    kernel = CentreOrthogonal(seed=0)((2, 2, 3, 3))
    assert np.count_nonzero(np.abs(kernel).sum(axis=(2, 3))) == 1


def test_weights_of_zero_give_no_nan():
    layer = AOLDense(2)
    layer.build((None, 3))
    layer.set_weights([np.zeros((3, 2)), np.zeros(2)])
    assert np.isfinite(layer(tf.ones([1, 3]))).all()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), channels=st.sampled_from([2, 4, 10]))
def test_max_min_is_one_lipschitz_and_sorts_pairs(seed, channels):
    one, other = np.random.default_rng(seed).normal(size=(2, 7, channels)).astype(np.float32)
    sorted_one, sorted_other = MaxMin()(one).numpy(), MaxMin()(other).numpy()
    assert np.linalg.norm(sorted_one - sorted_other) <= np.linalg.norm(one - other) * (1 + 1e-6)
    half = channels // 2
    assert (sorted_one[:, :half] >= sorted_one[:, half:]).all()
    np.testing.assert_allclose(np.sort(sorted_one), np.sort(one))


def test_gradients_of_max_min_go_where_its_outputs_come_from():
    inputs = tf.constant([[3.0, 1.0, 2.0, 1.0, 2.0, 2.0]])  # pairs (3, 1), (1, 2) and (2, 2)
    upstream = tf.constant([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = MaxMin()(inputs)
    np.testing.assert_array_equal(outputs, [[3, 2, 2, 1, 1, 2]])
    np.testing.assert_array_equal(tape.gradient(outputs, inputs, upstream), [[10, 50, 30, 40, 20, 60]])


def test_space_to_depth_is_an_isometry():
    matrix = matrix_of(SpaceToDepth(), (4, 6, 2))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(48), atol=1e-6)
    assert SpaceToDepth().compute_output_shape((None, 4, 6, 2)) == (None, 2, 3, 8)


def test_odd_channels_and_unknown_options_are_refused():
    with pytest.raises(InputError, match="even number"):
        MaxMin()(tf.zeros([1, 3]))
    for options in ({"strides": 2}, {"groups": 3}, {"dilation_rate": 2}, {"activation": "relu"}, {"padding": "causal"}):
        with pytest.raises((InputError, ValueError)):
            AOLConvolution(3, 3, **options)


# Constants of nets


def chain(*layers, shape=(8, 8, 2)):
    return keras.Sequential([keras.Input(shape), *layers])


@pytest.mark.parametrize(
    ("layer", "constant"),
    [
        (keras.layers.AveragePooling2D(2), 0.5),
        (keras.layers.AveragePooling2D((2, 4)), 1 / np.sqrt(8)),
        (keras.layers.GlobalAveragePooling2D(), 1 / 8),
        (SpaceToDepth(), 1.0),
        (keras.layers.Flatten(), 1.0),
    ],
)
def test_the_constant_of_a_linear_layer_is_its_norm(layer, constant):
    assert lipschitz_constant(chain(layer)) == pytest.approx(constant)
    assert np.linalg.norm(matrix_of(layer, (8, 8, 2)), 2) == pytest.approx(constant, rel=1e-5)


def test_the_constant_of_a_chain_is_the_product():
    inner = chain(keras.layers.AveragePooling2D(2), MaxMin())
    dense = keras.layers.Dense(5, "relu")
    net = chain(inner, keras.layers.MaxPooling2D(2), keras.layers.Flatten(), dense)
    norm = np.linalg.norm(dense.kernel.numpy(), 2)
    assert lipschitz_constant(net) == pytest.approx(0.5 * norm, rel=1e-5)
    assert lipschitz_constant(net) >= 0.5 * norm


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.Conv2D(2, 3),
        keras.layers.BatchNormalization(),
        keras.layers.AveragePooling2D(2, strides=1),
        keras.layers.MaxPooling2D(3, strides=2),
        keras.layers.Dense(3, "softplus"),
        keras.layers.Lambda(lambda x: 2 * x),
        keras.layers.ReLU(threshold=0.5),
        keras.layers.GlobalAveragePooling2D(data_format="channels_first"),
        keras.layers.Dropout(0.5),
        type("Doubled", (AOLDense,), {"call": lambda self, inputs: 2 * super(type(self), self).call(inputs)})(3),
    ],
)
def test_a_layer_without_a_known_constant_is_refused(layer):
    with pytest.raises(InputError, match="known Lipschitz constant"):
        lipschitz_constant(chain(layer))


def test_an_operation_is_refused_as_a_layer_without_a_known_constant():
    images = keras.Input((4, 4, 2))
    net = keras.Model(images, keras.layers.Flatten()(images - 0.5))
    with pytest.raises(InputError, match="known Lipschitz constant, received .*, a Subtract"):
        lipschitz_constant(net)


@pytest.mark.parametrize("layer", [keras.layers.Dense, OrthogonalDense])
def test_weights_that_are_missing_or_not_finite_are_refused_in_one_line(layer):
    with pytest.raises(InputError, match="expected a layer that is built"):
        constant_of_layer(layer(3))
    net = keras.Sequential([keras.Input((2,)), layer(3)])
    net.layers[0].kernel.assign(np.full((2, 3), np.nan))
    with pytest.raises(InputError, match="expected finite weights"):
        lipschitz_constant(net)


def test_a_model_of_a_class_of_its_own_is_refused():
    class Doubled(keras.Sequential):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    doubled = [Doubled([keras.Input((4, 4, 2)), MaxMin()]) for _ in range(2)]
    for net in (doubled[0], chain(doubled[1], shape=(4, 4, 2))):
        with pytest.raises(InputError, match="functional or sequential"):
            lipschitz_constant(net)


def test_whole_numbers_unknown_sizes_and_unbuilt_nets_are_refused():
    whole = keras.Sequential([keras.Input((4, 4, 2), dtype="int32"), keras.layers.Flatten()])
    unknown = chain(keras.layers.GlobalAveragePooling2D(), shape=(None, None, 2))
    for net in (whole, unknown, keras.Sequential([keras.layers.Flatten()])):
        with pytest.raises(InputError):
            lipschitz_constant(net)


@pytest.mark.parametrize("constant", [0.0, -1.0, np.nan, None])
def test_a_constant_that_is_no_number_above_zero_is_refused(constant):
    layer = type("Own", (keras.layers.Layer,), {"call": lambda self, x: x, "lipschitz_constant": constant})()
    with pytest.raises(InputError, match="lipschitz_constant above 0"):
        lipschitz_constant(chain(layer))


def test_a_net_with_a_branch_is_refused():
    images = keras.Input((4, 4, 2))
    net = keras.Model(images, keras.layers.Add()([MaxMin()(images), images]))
    with pytest.raises(InputError, match="one after the other"):
        lipschitz_constant(net)


CHANGED = [((28, 28, 1), 0, 0.3), ((32, 32, 3), 0, 0.3), ((8, 8, 1), 0.01, 0)]


@pytest.mark.parametrize(("shape", "change", "least"), CHANGED)
def test_the_backbone_is_one_lipschitz_also_with_other_weights(shape, change, least, tmp_path):
    keras.utils.set_random_seed(0)
    net = build_backbone("lipschitz_cnn", shape)
    for seed, weight in enumerate(net.trainable_variables):
        weight.assign_add(change * np.random.default_rng(seed).normal(size=weight.shape))
    assert net.output_shape == (None, 256) and lipschitz_constant(net) == 1.0
    images = tf.constant(np.random.default_rng(0).uniform(size=(2, *shape)).astype(np.float32))
    direction = tf.random.stateless_normal(images.shape, [0, 1])
    for _ in range(15):  # power iteration on the Jacobian: the largest change of the features by a small step
        direction /= tf.norm(tf.reshape(direction, [2, -1]), axis=1)[:, None, None, None]
        with tf.autodiff.ForwardAccumulator(images, direction) as forward, tf.GradientTape() as tape:
            tape.watch(images)
            features = net(images)
        moved = forward.jvp(features)
        direction = tape.gradient(features, images, moved)
    largest = tf.norm(moved, axis=1).numpy()
    assert (largest <= 1 + 1e-5).all() and (largest > least).all()
    net.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    np.testing.assert_array_equal(again(images), net(images))


def test_images_of_odd_sides_are_refused():
    with pytest.raises(InputError, match="multiples of 4"):
        build_backbone("lipschitz_cnn", (25, 25, 1))
