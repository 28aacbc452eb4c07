"""Wide-ResNet-34-10 (Zagoruyko & Komodakis, BMVC 2016) for small images, the paper's larger net (appendix C)."""

import keras
from keras import layers

from wca_tf.backbones.resnet import batch_normalised, convolution

STEM_FILTERS = 16
GROUP_FILTERS = (160, 320, 640)  # ten times ResNet's 16, 32, 64
BLOCKS_PER_GROUP = 5  # (34 - 4) / 6


def wide_resnet34_10(image_shape: tuple[int, int, int], precision: str = "float32") -> keras.Model:
    """A 3×3 stem, three groups of five blocks with strides 1, 2, 2, then global average pooling: 640 features."""
    images = keras.Input(image_shape, name="images")
    features = convolution(images, STEM_FILTERS, 1, precision)
    for group, filters in enumerate(GROUP_FILTERS):
        for block in range(BLOCKS_PER_GROUP):
            features = _block(features, filters, 2 if group > 0 and block == 0 else 1, precision)
    features = layers.GlobalAveragePooling2D(dtype=precision)(_activation(features, precision))
    return keras.Model(images, features, name="wide_resnet34_10")


def _block(features: keras.KerasTensor, filters: int, strides: int, precision: str) -> keras.KerasTensor:
    """Pre-activated: activation and convolution, twice, beside the input; or, widening, beside its 1×1 convolution."""
    activated = _activation(features, precision)
    widens = features.shape[-1] != filters
    shortcut = convolution(activated, filters, strides, precision, kernel_size=1) if widens else features
    residual = convolution(activated, filters, strides, precision)
    residual = convolution(_activation(residual, precision), filters, 1, precision)
    return layers.Add(dtype=precision)([residual, shortcut])


def _activation(features: keras.KerasTensor, precision: str) -> keras.KerasTensor:
    return layers.ReLU(dtype=precision)(batch_normalised(features, precision))
