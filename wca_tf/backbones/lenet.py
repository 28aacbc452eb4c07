"""LeNet++ (Wen et al., ECCV 2016) in the variant that the paper trains on Fashion-MNIST."""

import keras

from wca_tf.backbones.prelu import PReLU
from wca_tf.errors import InputError

FILTERS = (32, 32, 64, 64, 128, 128)
KERNEL_SIZE = 5


def lenet_plus_plus(image_shape: tuple[int, int, int], precision: str = "float32") -> keras.Model:
    """Six 5×5 convolutions without padding or pooling, each with a PReLU per channel; 28×28 images give 2048 features.

    Raises:
        InputError: images smaller than 25×25, of which the six convolutions leave nothing.
    """
    smallest = len(FILTERS) * (KERNEL_SIZE - 1) + 1
    if min(image_shape[:2]) < smallest:
        raise InputError(f"lenet_plus_plus expects images of {smallest}×{smallest} or more, received {image_shape}")
    images = keras.Input(image_shape, name="images")
    features = images
    for filters in FILTERS:
        features = keras.layers.Conv2D(filters, KERNEL_SIZE, dtype=precision)(features)
        # 0.25: the start value of PReLU's authors (He et al., ICCV 2015).
        features = PReLU(alpha_initializer=keras.initializers.Constant(0.25), shared_axes=[1, 2], dtype=precision)(
            features
        )
    return keras.Model(images, keras.layers.Flatten(dtype=precision)(features), name="lenet_plus_plus")
