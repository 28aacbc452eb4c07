"""ResNet-18 (He et al., CVPR 2016) for small images: a 3×3 stem with stride 1 and no pooling."""

import keras
from keras import layers

from wca_tf.backbones.batch_normalization import BatchNormalization


def resnet18(image_shape: tuple[int, int, int], precision: str = "float32") -> keras.Model:
    """Four stages of two basic blocks with 64, 128, 256, 512 filters, then global average pooling: 512 features."""
    images = keras.Input(image_shape, name="images")
    features = _convolution(images, 64, 1, precision)
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            features = _basic_block(features, filters, 2 if stage > 0 and block == 0 else 1, precision)
    features = layers.GlobalAveragePooling2D(dtype=precision)(features)
    return keras.Model(images, features, name="resnet18")


def _basic_block(features: keras.KerasTensor, filters: int, strides: int, precision: str) -> keras.KerasTensor:
    shortcut = features
    if strides != 1 or features.shape[-1] != filters:
        shortcut = _convolution(features, filters, strides, precision, kernel_size=1, relu=False)
    features = _convolution(features, filters, strides, precision)
    features = _convolution(features, filters, 1, precision, relu=False)
    return layers.ReLU(dtype=precision)(layers.Add(dtype=precision)([features, shortcut]))


def _convolution(
    features: keras.KerasTensor, filters: int, strides: int, precision: str, kernel_size: int = 3, relu: bool = True
) -> keras.KerasTensor:
    features = batch_normalised(convolution(features, filters, strides, precision, kernel_size), precision)
    return layers.ReLU(dtype=precision)(features) if relu else features


def convolution(
    features: keras.KerasTensor, filters: int, strides: int, precision: str, kernel_size: int = 3
) -> keras.KerasTensor:
    """A convolution as in all residual nets here: without bias, from He's start."""
    return layers.Conv2D(
        filters,
        kernel_size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        dtype=precision,
    )(features)


def batch_normalised(features: keras.KerasTensor, precision: str) -> keras.KerasTensor:
    """Batch normalisation with the constants of PyTorch's."""
    return BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=precision)(features)
