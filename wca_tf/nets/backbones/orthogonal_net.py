"""A net of orthogonal 1×1 convolutions and shifts by one pixel, whose answers can be certified far out."""

import keras

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones.layer_factory import LayerFactory
from wca_tf.nets.lipschitz_layers import MaxMin, SpaceToDepth
from wca_tf.nets.orthogonal_layers import CircularShift, OrthogonalDense

MOST_STAGES = 3


def orthogonal_net(
    image_shape: tuple[int, int, int], layers: LayerFactory, width: int = 64, blocks: int = 2
) -> keras.Model:
    """Build stages of space-to-depth, an orthogonal 1×1 convolution with MaxMin, and blocks; then flatten.

    A block is a shift of four groups of channels by one pixel, an orthogonal 1×1 convolution, and MaxMin. There are
    three stages, or fewer where an image's sides cannot be halved so often.

    Args:
        image_shape: (H, W, channels), with even H and W.
        layers: a factory that changes no layers.
        width: channels of the first stage, a multiple of 4; each next stage has twice as many.
        blocks: in each stage.

    Raises:
        InputError: images of odd sides; another width; a factory that changes layers.
    """
    if any(side % 2 for side in image_shape[:2]):
        raise InputError(f"orthogonal_net expects images whose sides are even, received {image_shape}")
    if type(layers) is not LayerFactory:
        raise InputError("expected a defence without layers of its own in the backbone for orthogonal_net")
    images = keras.Input(image_shape, name="images")
    features, options = images, {"dtype": layers.precision}
    for stage in range(MOST_STAGES):
        if any(side % 2 for side in features.shape[1:3]):
            break
        features = SpaceToDepth(dtype=layers.precision)(features)
        for block in range(1 + blocks):
            features = CircularShift(**options)(features) if block else features
            features = MaxMin(**options)(OrthogonalDense(width * 2**stage, **options)(features))
    return keras.Model(images, keras.layers.Flatten(**options)(features), name="orthogonal_net")
