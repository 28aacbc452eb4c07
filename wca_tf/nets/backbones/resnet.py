"""ResNet-18 (He et al., CVPR 2016) for small images: a 3×3 stem with stride 1 and no pooling."""

import keras

from wca_tf.nets.backbones.layer_factory import LayerFactory

# Options of the convolutions in all residual nets here: no bias, He's initial weights.
RESIDUAL = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal"}


def resnet18(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build four stages of two basic blocks with 64, 128, 256, 512 filters, then global average pooling.

    The backbone gives 512 features.
    """
    images = keras.Input(image_shape, name="images")
    features = _relu(layers.block(_convolution(layers.images(images), 64, 1, layers)), layers)
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            features = _basic_block(features, filters, 2 if stage > 0 and block == 0 else 1, layers)
    features = keras.layers.GlobalAveragePooling2D(dtype=layers.precision)(features)
    return keras.Model(images, features, name="resnet18")


def _basic_block(features: keras.KerasTensor, filters: int, strides: int, layers: LayerFactory) -> keras.KerasTensor:
    shortcut = features
    if strides != 1 or features.shape[-1] != filters:
        shortcut = _convolution(features, filters, strides, layers, kernel_size=1)
    features = _relu(_convolution(features, filters, strides, layers), layers)
    features = _convolution(features, filters, 1, layers)
    total = keras.layers.Add(dtype=layers.precision)([features, shortcut])
    return _relu(layers.block(total), layers)


def _convolution(
    features: keras.KerasTensor, filters: int, strides: int, layers: LayerFactory, kernel_size: int = 3
) -> keras.KerasTensor:
    return layers.batch_normalisation(layers.convolution(features, filters, kernel_size, strides=strides, **RESIDUAL))


def _relu(features: keras.KerasTensor, layers: LayerFactory) -> keras.KerasTensor:
    return keras.layers.ReLU(dtype=layers.precision)(features)
