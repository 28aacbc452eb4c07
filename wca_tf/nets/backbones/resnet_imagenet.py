"""KerasCV's ResNet-18 (He et al., CVPR 2016) for ImageNet's images: a 7×7 stem and a pooling, each of stride 2."""

import keras

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones.layer_factory import LayerFactory

MIN_SIZE = 32  # stem, pooling and three stages reduce 32 positions to one


def resnet18_imagenet(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build four stages of two basic blocks with 64, 128, 256, 512 filters, then global average pooling: 512 features.

    It is a plain Keras model: a file saved from it loads without KerasCV.

    Raises:
        InputError: images smaller than 32×32; another factory than `LayerFactory`, since KerasCV makes the
            layers itself; KerasCV is not installed.
    """
    try:
        import keras_cv  # type: ignore[import-untyped] # of an extra, which may be absent
    except ModuleNotFoundError:
        raise InputError('resnet18_imagenet needs KerasCV: pip install "wca_tf[imagenet]"') from None
    if type(layers) is not LayerFactory:
        raise InputError("expected a backbone whose layers a defence can replace, received resnet18_imagenet")
    if min(image_shape[:2]) < MIN_SIZE:
        smallest = f"{MIN_SIZE}×{MIN_SIZE}"
        raise InputError(f"resnet18_imagenet expects images of {smallest} or more, received {image_shape}")
    images = keras.Input(image_shape, name="images")
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(layers.precision)  # KerasCV's layers take their policy from here
    try:
        source = keras_cv.models.ResNetBackbone(
            stackwise_filters=[64, 128, 256, 512],
            stackwise_blocks=[2, 2, 2, 2],
            stackwise_strides=[1, 2, 2, 2],
            include_rescaling=False,
            input_tensor=images,
            block_type="basic_block",
        )
        features = keras.layers.GlobalAveragePooling2D()(source.output)
    finally:
        keras.config.set_dtype_policy(policy)
    return keras.Model(images, features, name="resnet18_imagenet")
