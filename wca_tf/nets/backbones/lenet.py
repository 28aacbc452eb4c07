"""LeNet++ (Wen et al., ECCV 2016) in the variant that the paper trains on Fashion-MNIST."""

import keras

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones.layer_factory import LayerFactory
from wca_tf.nets.backbones.prelu import PReLU

FILTERS = (32, 32, 64, 64, 128, 128)
KERNEL_SIZE = 5


def lenet_plus_plus(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build six 5×5 convolutions without padding or pooling, each with a PReLU per channel.

    28×28 images give 2048 features. The authors' code has one slope for each layer.

    Raises:
        InputError: images smaller than 25×25: the six convolutions would leave nothing.
    """
    smallest = len(FILTERS) * (KERNEL_SIZE - 1) + 1
    if min(image_shape[:2]) < smallest:
        raise InputError(f"lenet_plus_plus expects images of {smallest}×{smallest} or more, received {image_shape}")
    images = keras.Input(image_shape, name="images")
    features = layers.images(images)
    for filters in FILTERS:
        features = layers.block(layers.convolution(features, filters, KERNEL_SIZE))
        # 0.25: the start value of PReLU's authors (He et al., ICCV 2015).
        start = keras.initializers.Constant(0.25)
        features = PReLU(alpha_initializer=start, shared_axes=[1, 2], dtype=layers.precision)(features)
    return keras.Model(images, keras.layers.Flatten(dtype=layers.precision)(features), name="lenet_plus_plus")
