"""LeNet-5 (LeCun et al., Proceedings of the IEEE, 1998), as it is built today: for first steps and for tests."""

import keras

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones.layer_factory import LayerFactory

FILTERS, UNITS = (6, 16), (120, 84)
KERNEL_SIZE = 5
MIN_SIZE = 12


def lenet5(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build two 5×5 convolutions with 2×2 max pooling, then two dense layers, all with ReLU in place of tanh.

    The backbone gives 84 features. A 28×28 image takes 0.42 million multiplications, and 58 million on LeNet++.

    Raises:
        InputError: images smaller than 12×12: the second convolution would leave nothing to pool.
    """
    if min(image_shape[:2]) < MIN_SIZE:
        raise InputError(f"lenet5 expects images of {MIN_SIZE}×{MIN_SIZE} or more, received {image_shape}")
    images = keras.Input(image_shape, name="images")
    features = layers.images(images)
    for filters, padding in zip(FILTERS, ("same", "valid"), strict=True):
        features = layers.block(layers.convolution(features, filters, KERNEL_SIZE, padding=padding))
        features = keras.layers.ReLU(dtype=layers.precision)(features)
        features = keras.layers.MaxPooling2D(dtype=layers.precision)(features)
    features = keras.layers.Flatten(dtype=layers.precision)(features)
    for units in UNITS:
        features = keras.layers.Dense(units, activation="relu", dtype=layers.precision)(features)
    return keras.Model(images, features, name="lenet5")
