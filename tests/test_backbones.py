import random
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_models import MIN_SIDES

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones import BACKBONES, build_backbone
from wca_tf.nets.backbones.airbench import PartlyIdentity, PatchWhitening

STANDARD_RESNET18 = 11_178_432  # without the classifier, with a 3x3 stem for RGB and the batch statistics
IMAGENET_RESNET18 = 11_689_512 - 513_000  # torchvision's, without its classifier: what is trained
WIDE_RESNET34_10 = 46_160_474  # with a classifier of 10 classes: what is trained
LOAD_WITHOUT_KERAS_CV = """
import sys
sys.modules["keras_cv"] = None  # importing it fails
import keras, numpy as np
import wca_tf.nets.backbones
from wca_tf.core.errors import InputError

model = keras.models.load_model(sys.argv[1])
saved = np.load(sys.argv[2])
np.testing.assert_allclose(model(saved["images"], training=False), saved["features"], rtol=1e-5, atol=1e-6)
try:
    wca_tf.nets.backbones.build_backbone("resnet18_imagenet", (32, 32, 3))
except InputError as error:
    assert "wca_tf[imagenet]" in str(error)
    print("only building it needs keras_cv")
"""


@pytest.fixture(scope="module")
def resnet18():
    keras.utils.set_random_seed(0)
    return build_backbone("resnet18", (32, 32, 3))


@pytest.fixture(scope="module")
def resnet18_imagenet():
    keras.utils.set_random_seed(0)
    return build_backbone("resnet18_imagenet", (84, 84, 3))


@pytest.fixture(scope="module")
def wide_resnet():
    keras.utils.set_random_seed(0)
    return build_backbone("wide_resnet34_10", (32, 32, 3))


def layers_of(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


def trained_parameters(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


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


def test_lenet5_has_the_parameters_of_the_standard_one():
    """61,706 with its classifier of 850, on 28×28 grey images."""
    model = build_backbone("lenet5", (28, 28, 1))
    assert model.output_shape == (None, 84) and model.count_params() == 61_706 - 850


@pytest.mark.parametrize("image_shape", [(11, 28, 1), (28, 11, 1)])
def test_lenet5_refuses_images_that_its_layers_use_up(image_shape):
    with pytest.raises(InputError, match="12×12"):
        build_backbone("lenet5", image_shape)


AIRBENCH = {  # widths, weights of the convolutions
    "airbench93": ((64, 128, 128), 566_784),
    "airbench93_relu": ((64, 128, 128), 566_784),
    "airbench94": ((64, 256, 256), 1_967_616),
    "airbench94_relu": ((64, 256, 256), 1_967_616),
}


@pytest.mark.parametrize("name", AIRBENCH)
def test_airbench_has_the_parameters_of_its_authors(name):
    """Their convolutions and whitening; they have biases of 2 · (widths), and no scales in batch normalisation."""
    model, (widths, convolutions) = build_backbone(name, (32, 32, 3)), AIRBENCH[name]
    activation = "relu" if name.endswith("_relu") else "gelu"
    assert {layer.activation.__name__ for layer in layers_of(model, keras.layers.Activation)} == {activation}
    inputs = (24, *widths[:-1])
    assert sum(9 * (first * width + width * width) for first, width in zip(inputs, widths, strict=True)) == convolutions
    found = sum(int(np.prod(layer.kernel.shape)) for layer in layers_of(model, keras.layers.Conv2D))
    assert found == convolutions and model.output_shape == (None, widths[-1])
    assert trained_parameters(model) == convolutions + 24 + 2 * 2 * sum(widths)


def test_whitened_patches_are_uncorrelated_with_variance_one():
    images = random_images(200, 12, 12, 3)
    images[..., 1] = 0.8 * images[..., 0] + 0.2 * images[..., 1]  # correlated channels
    images = 3 * (images - images.mean())
    layer = PatchWhitening()
    layer.build((None, 12, 12, 3))
    np.testing.assert_allclose(layer(images)[..., :12], -layer(images)[..., 12:], atol=1e-6)
    assert np.abs(np.cov(layer(images).numpy()[..., :12].reshape(-1, 12).T) - np.eye(12)).max() > 0.5
    layer.adapt([images[:70], images[70:]], len(images))
    outputs = layer(images).numpy()[..., :12].reshape(-1, 12).astype(np.float64)
    np.testing.assert_allclose(outputs.T @ outputs / len(outputs), np.eye(12), atol=0.05)  # less the added variance
    assert [weight.path.split("/")[-1] for weight in layer.trainable_weights] == ["bias"]


def test_the_first_outputs_of_a_new_convolution_are_its_inputs():
    kernel = PartlyIdentity()((3, 3, 4, 6))
    images = random_images(2, 5, 5, 4)
    outputs = tf.nn.conv2d(images, kernel, 1, "SAME")
    np.testing.assert_array_equal(outputs[..., :4], images)
    assert np.abs(outputs[..., 4:]).min() > 0


@pytest.mark.parametrize("image_shape", [(24, 32, 3), (32, 24, 3)])
def test_airbench_refuses_images_that_its_pooling_uses_up(image_shape):
    with pytest.raises(InputError, match="25×25"):
        build_backbone("airbench93", image_shape)


def test_resnet18_has_the_parameters_of_the_standard_one(resnet18):
    reference = keras_cv_resnet18()
    assert resnet18.count_params() == reference.count_params() == STANDARD_RESNET18

    def kernels(model):
        return sorted(tuple(weight.shape) for weight in model.weights if len(weight.shape) == 4)

    assert kernels(resnet18) == kernels(reference)
    assert len(resnet18.weights) == len(reference.weights)


def test_the_narrow_resnet18_is_resnet18_with_a_quarter_of_the_filters(resnet18):
    narrow = build_backbone("resnet18_narrow", (32, 32, 3))
    assert narrow.output_shape == (None, 128)

    def kernels(model):
        return [weight.shape for weight in model.weights if len(weight.shape) == 4]

    for wide, small in zip(kernels(resnet18), kernels(narrow), strict=True):
        assert small == (*wide[:2], wide[2] if wide[2] == 3 else wide[2] // 4, wide[3] // 4)


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


def test_resnet18_imagenet_has_the_parameters_of_the_standard_one(resnet18_imagenet):
    assert trained_parameters(resnet18_imagenet) == IMAGENET_RESNET18


@pytest.mark.parametrize(("size", "last"), [(32, 1), (84, 3), (160, 5), (320, 10)])
def test_resnet18_imagenet_ends_at_a_32nd_of_the_image(size, last):
    model = build_backbone("resnet18_imagenet", (size, size, 3))
    stem = layers_of(model, keras.layers.Conv2D)[0]
    assert (stem.kernel_size, stem.strides) == ((7, 7), (2, 2))
    assert layers_of(model, keras.layers.MaxPooling2D)[0].output.shape[1:3] == (-(-size // 4),) * 2
    assert layers_of(model, keras.layers.GlobalAveragePooling2D)[0].input.shape == (None, last, last, 512)
    assert not layers_of(model, keras.layers.Rescaling)
    assert model.output_shape == (None, 512)


@pytest.mark.parametrize("image_shape", [(31, 32, 3), (32, 31, 3), (8, 8, 1)])
def test_resnet18_imagenet_refuses_images_that_end_before_its_last_stage(image_shape):
    with pytest.raises(InputError, match="32"):
        build_backbone("resnet18_imagenet", image_shape)


def test_resnet18_imagenet_leaves_the_global_precision_as_it_was():
    before = keras.config.dtype_policy().name
    build_backbone("resnet18_imagenet", (32, 32, 3), "mixed_bfloat16")
    with pytest.raises(ValueError):
        build_backbone("resnet18_imagenet", (32, 32, 3, 1), "mixed_bfloat16")
    assert keras.config.dtype_policy().name == before


def test_resnet18_imagenet_starts_as_pythons_seed_says():
    """`new_model` seeds no other generator."""

    def kernel(seed):
        random.seed(seed)
        return build_backbone("resnet18_imagenet", (32, 32, 3)).get_layer("v2_stack_3_block1_2_conv").kernel.numpy()

    assert np.array_equal(kernel(1), kernel(1))
    assert not np.array_equal(kernel(1), kernel(2))


@pytest.mark.slow
def test_resnet18_imagenet_saved_loads_without_keras_cv(resnet18_imagenet, root, tmp_path):
    images = random_images(2, 84, 84, 3)
    features = resnet18_imagenet(images, training=False).numpy()
    assert np.all(np.isfinite(features)) and not np.allclose(features[0], features[1])
    resnet18_imagenet.save(tmp_path / "model.keras")
    np.savez(tmp_path / "saved.npz", images=images, features=features)
    command = [sys.executable, "-c", LOAD_WITHOUT_KERAS_CV, tmp_path / "model.keras", tmp_path / "saved.npz"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "only building it needs keras_cv" in done.stdout


def test_wide_resnet_has_the_parameters_counted_by_hand(wide_resnet):
    def block(width_in, width):
        """Two batch normalisations, two 3x3 convolutions, and a 1x1 one where the width changes."""
        shortcut = width_in * width if width_in != width else 0
        return 2 * width_in + 9 * width_in * width + 2 * width + 9 * width * width + shortcut

    groups = sum(
        block(before, width) + 4 * block(width, width) for before, width in [(16, 160), (160, 320), (320, 640)]
    )
    stem, last_normalisation, classifier = 9 * 3 * 16, 2 * 640, 640 * 10 + 10
    assert trained_parameters(wide_resnet) == stem + groups + last_normalisation
    assert trained_parameters(wide_resnet) + classifier == WIDE_RESNET34_10


def test_wide_resnet_has_three_groups_of_five_blocks_around_an_identity(wide_resnet):
    """A block's shortcut is what came in, untouched, but for the first of a group, which widens it by a 1x1 one."""
    stem = layers_of(wide_resnet, keras.layers.Conv2D)[0]
    blocks = layers_of(wide_resnet, keras.layers.Add)
    shapes = [(32, 32, 160)] * 5 + [(16, 16, 320)] * 5 + [(8, 8, 640)] * 5
    assert stem.output.shape == (None, 32, 32, 16)
    assert [block.output.shape[1:] for block in blocks] == shapes
    for number, (previous, block) in enumerate(zip([stem, *blocks], blocks, strict=False)):
        assert (block.input[1] is previous.output) == (number % 5 > 0)
    widening = [layer for layer in layers_of(wide_resnet, keras.layers.Conv2D) if layer.kernel_size == (1, 1)]
    activated = [layer.output for layer in layers_of(wide_resnet, keras.layers.ReLU)]
    assert len(widening) == 3
    assert all(any(layer.input is output for output in activated) for layer in widening)
    assert wide_resnet.output_shape == (None, 640)


def test_wide_resnet_gives_finite_features_that_are_averages_of_a_relu(wide_resnet):
    features = wide_resnet(random_images(2, 32, 32, 3), training=False).numpy()
    assert np.all(np.isfinite(features)) and np.all(features >= 0)
    assert not np.allclose(features[0], features[1])


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="lenet_plus_plus.*vgg11"):
        build_backbone("vgg11", (32, 32, 3))


@pytest.mark.parametrize("name", BACKBONES)
def test_mixed_bfloat16_computes_in_bfloat16_with_float32_variables(name):
    side = MIN_SIDES.get(name, 8)
    image_shape = (side, side, 1)
    model = build_backbone(name, image_shape, "mixed_bfloat16")
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    assert {layer.compute_dtype for layer in layers} == {"bfloat16"}
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert model(random_images(1, *image_shape)).dtype == tf.bfloat16
