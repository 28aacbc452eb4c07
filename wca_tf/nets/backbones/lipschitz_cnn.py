"""A 1-Lipschitz convolutional net for small images, whose answers can be certified: AOL layers and MaxMin."""

import keras

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones.layer_factory import LayerFactory
from wca_tf.nets.lipschitz_layers import AOLConvolution, AOLDense, MaxMin, SpaceToDepth

STAGES = (64, 128)  # channels of the maps at a half and a quarter of the image's side
CONVOLUTIONS = 2  # 3×3, in each stage
FEATURES = 256


def lipschitz_cnn(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build two stages of space-to-depth and two 3×3 AOL convolutions with MaxMin, then a dense AOL layer.

    The backbone gives 256 features, and changes them by no more, in l2, than the normalised images change.

    Raises:
        InputError: images whose sides are not multiples of 4; a factory that changes layers.
    """
    if any(side % 2 ** len(STAGES) for side in image_shape[:2]):
        raise InputError(f"lipschitz_cnn expects images whose sides are multiples of 4, received {image_shape}")
    if type(layers) is not LayerFactory:
        raise InputError("expected a defence without layers of its own in the backbone for lipschitz_cnn")
    images = keras.Input(image_shape, name="images")
    features = images
    for channels in STAGES:
        features = SpaceToDepth(dtype=layers.precision)(features)
        for kernel_size in (1, *[3] * CONVOLUTIONS) if features.shape[-1] > channels else [3] * CONVOLUTIONS:
            features = AOLConvolution(channels, kernel_size, dtype=layers.precision)(features)
            features = MaxMin(dtype=layers.precision)(features)
    features = keras.layers.Flatten(dtype=layers.precision)(features)
    features = MaxMin(dtype=layers.precision)(AOLDense(FEATURES, dtype=layers.precision)(features))
    return keras.Model(images, features, name="lipschitz_cnn")
