"""ResNet-18 (He et al., CVPR 2016) for small images: a 3×3 stem with stride 1 and no pooling."""

import keras

from wca_tf.nets.backbones.layer_factory import LayerFactory

# Options of the convolutions in all residual nets here: no bias, He's initial weights.
RESIDUAL = {"padding": "same", "use_bias": False, "kernel_initializer": "he_normal"}
FILTERS, QUARTER = (64, 128, 256, 512), (16, 32, 64, 128)  # of the four stages


def resnet18(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build four stages of two basic blocks with 64, 128, 256, 512 filters, then global average pooling.

    The backbone gives 512 features.
    """
    return _build("resnet18", FILTERS, image_shape, layers)


def resnet18_narrow(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build `resnet18` with a quarter of the filters, 16, 32, 64 and 128, and so with 128 features.

    A 32×32 image takes 35 million multiplications, those of ResNet-18 555 million.
    """
    return _build("resnet18_narrow", QUARTER, image_shape, layers)


def _build(name: str, widths: tuple[int, ...], image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    images = keras.Input(image_shape, name="images")
    features = _relu(layers.block(_convolution(layers.images(images), widths[0], 1, layers)), layers)
    for stage, filters in enumerate(widths):
        for block in range(2):
            features = _basic_block(features, filters, 2 if stage > 0 and block == 0 else 1, layers)
    features = keras.layers.GlobalAveragePooling2D(dtype=layers.precision)(features)
    return keras.Model(images, features, name=name)


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
