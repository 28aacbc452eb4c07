"""Wide-ResNet-34-10 (Zagoruyko & Komodakis, BMVC 2016) for small images, the paper's larger net (appendix C)."""

import keras

from wca_tf.nets.backbones.layer_factory import LayerFactory
from wca_tf.nets.backbones.resnet import RESIDUAL

STEM_FILTERS = 16
GROUP_FILTERS = (160, 320, 640)  # ten times ResNet's 16, 32, 64
BLOCKS_PER_GROUP = 5  # (34 - 4) / 6


def wide_resnet34_10(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build a 3×3 stem, three groups of five blocks with strides 1, 2, 2, then global average pooling: 640 features."""
    images = keras.Input(image_shape, name="images")
    features = layers.convolution(layers.images(images), STEM_FILTERS, 3, **RESIDUAL)
    for group, filters in enumerate(GROUP_FILTERS):
        for block in range(BLOCKS_PER_GROUP):
            features = _block(features, filters, 2 if group > 0 and block == 0 else 1, layers)
    features = keras.layers.GlobalAveragePooling2D(dtype=layers.precision)(_activation(features, layers))
    return keras.Model(images, features, name="wide_resnet34_10")


def _block(features: keras.KerasTensor, filters: int, strides: int, layers: LayerFactory) -> keras.KerasTensor:
    """Return the output of a pre-activated block: activation and convolution, twice, plus a shortcut.

    The shortcut is the input. Where the block widens, it is a 1×1 convolution of the activated input.
    """
    activated = _activation(features, layers)
    widens = features.shape[-1] != filters
    shortcut = layers.convolution(activated, filters, 1, strides=strides, **RESIDUAL) if widens else features
    residual = layers.convolution(activated, filters, 3, strides=strides, **RESIDUAL)
    residual = layers.convolution(_activation(residual, layers), filters, 3, **RESIDUAL)
    return layers.block(keras.layers.Add(dtype=layers.precision)([residual, shortcut]))


def _activation(features: keras.KerasTensor, layers: LayerFactory) -> keras.KerasTensor:
    return keras.layers.ReLU(dtype=layers.precision)(layers.batch_normalisation(features))
