import keras
import numpy as np
import pytest
import tensorflow as tf

from wca_tf.backbones import BACKBONES, build_backbone
from wca_tf.errors import InputError

STANDARD_RESNET18 = 11_178_432  # without the classifier, with a 3x3 stem for RGB and the batch statistics


@pytest.fixture(scope="module")
def resnet18():
    keras.utils.set_random_seed(0)
    return build_backbone("resnet18", (32, 32, 3))


def layers_of(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


def random_images(*shape):
    return np.random.default_rng(0).uniform(size=shape).astype(np.float32)


def keras_cv_resnet18():
    """KerasCV's ResNet-18 with a CIFAR stem: a 3x3 convolution of stride 1 and no pooling."""
    import keras_cv

    source = keras_cv.models.ResNetBackbone(
        stackwise_filters=[64, 128, 256, 512],
        stackwise_blocks=[2, 2, 2, 2],
        stackwise_strides=[1, 2, 2, 2],
        include_rescaling=False,
        input_shape=(32, 32, 3),
        block_type="basic_block",
    )

    def clone(layer):
        config = layer.get_config()
        if layer.name == "conv1_conv":
            config.update(kernel_size=(3, 3), strides=(1, 1))
        return keras.layers.Identity() if layer.name == "pool1_pool" else layer.__class__.from_config(config)

    return keras.models.clone_model(keras.Model(source.inputs, source.outputs), clone_function=clone)


def test_lenet_has_six_valid_5x5_convolutions_with_a_prelu_parameter_per_channel():
    model = build_backbone("lenet_plus_plus", (28, 28, 1))
    convolutions = layers_of(model, keras.layers.Conv2D)
    assert model.output_shape == (None, 2048)
    assert [layer.filters for layer in convolutions] == [32, 32, 64, 64, 128, 128]
    assert {layer.kernel_size for layer in convolutions} == {(5, 5)}
    assert {layer.strides for layer in convolutions} == {(1, 1)}
    assert {layer.padding for layer in convolutions} == {"valid"}
    slopes = [layer.alpha for layer in layers_of(model, keras.layers.PReLU)]
    assert [np.size(slope) for slope in slopes] == [32, 32, 64, 64, 128, 128]
    assert len(model.weights) == 3 * 6


def test_lenet_computes_convolutions_biases_and_leaky_slopes():
    keras.utils.set_random_seed(0)
    model = build_backbone("lenet_plus_plus", (25, 26, 2))
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if len(weight.shape) != 4:
            weight.assign(rng.uniform(-0.5, 0.5, weight.shape))
    expected = tf.constant(random_images(3, 25, 26, 2))
    for block in range(6):
        kernel, bias, slope = model.weights[3 * block : 3 * block + 3]
        expected = tf.nn.conv2d(expected, kernel.value, 1, "VALID") + bias.value
        expected = tf.where(expected > 0, expected, slope.value * expected)
    assert expected.shape == (3, 1, 2, 128)
    assert np.allclose(model(random_images(3, 25, 26, 2)), tf.reshape(expected, [3, -1]), atol=1e-5)


@pytest.mark.parametrize("image_shape", [(24, 28, 1), (28, 24, 1), (8, 8, 3)])
def test_lenet_refuses_images_that_its_convolutions_use_up(image_shape):
    with pytest.raises(InputError, match="25"):
        build_backbone("lenet_plus_plus", image_shape)


def test_resnet18_has_the_parameters_of_the_standard_one(resnet18):
    reference = keras_cv_resnet18()
    assert resnet18.count_params() == reference.count_params() == STANDARD_RESNET18

    def kernels(model):
        return sorted(tuple(weight.shape) for weight in model.weights if len(weight.shape) == 4)

    assert kernels(resnet18) == kernels(reference)
    assert len(resnet18.weights) == len(reference.weights)


def test_resnet18_gives_512_finite_features_per_image(resnet18):
    features = resnet18(random_images(2, 32, 32, 3), training=False).numpy()
    assert resnet18.output_shape == (None, 512)
    assert features.shape == (2, 512)
    assert np.all(np.isfinite(features))
    assert np.all(features >= 0)
    assert not np.allclose(features[0], features[1])


def test_resnet18_keeps_the_image_size_in_its_stem_and_ends_at_an_eighth(resnet18):
    pooled = layers_of(resnet18, keras.layers.GlobalAveragePooling2D)[0].input
    assert layers_of(resnet18, keras.layers.Conv2D)[0].output.shape == (None, 32, 32, 64)
    assert pooled.shape == (None, 4, 4, 512)


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="lenet_plus_plus.*vgg11"):
        build_backbone("vgg11", (32, 32, 3))


@pytest.mark.parametrize("name", BACKBONES)
def test_mixed_bfloat16_computes_in_bfloat16_with_float32_variables(name):
    model = build_backbone(name, (28, 28, 1), "mixed_bfloat16")
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    assert {layer.compute_dtype for layer in layers} == {"bfloat16"}
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert model(random_images(1, 28, 28, 1)).dtype == tf.bfloat16
