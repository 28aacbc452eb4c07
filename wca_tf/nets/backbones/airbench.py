"""The nets of airbench (Jordan, arXiv 2404.00498, 2024) for CIFAR-10, named after what the author's recipe reaches."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.nets.backbones.layer_factory import LayerFactory

PATCH = 2  # side of the patches that are whitened
# Added to the variances of patches: directions of almost no variance are not blown up.
WHITENING_EPSILON = 5e-4
MIN_SIZE = 25
SMALLER, LARGER = (64, 128, 128), (64, 256, 256)  # filters of the three groups
CONVOLUTION = {"padding": "same", "use_bias": False}


def airbench93(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build the smaller net, of groups with 64, 128 and 128 filters: 54 million multiplications for a 32×32 image."""
    return _build("airbench93", SMALLER, "gelu", image_shape, layers)


def airbench94(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build the larger net, of groups with 64, 256 and 256 filters: 118 million multiplications for a 32×32 image."""
    return _build("airbench94", LARGER, "gelu", image_shape, layers)


def airbench93_relu(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build `airbench93` with ReLU in place of GELU: on 2 CPU cores an epoch in bfloat16 took about half the time."""
    return _build("airbench93_relu", SMALLER, "relu", image_shape, layers)


def airbench94_relu(image_shape: tuple[int, int, int], layers: LayerFactory) -> keras.Model:
    """Build `airbench94` with ReLU in place of GELU."""
    return _build("airbench94_relu", LARGER, "relu", image_shape, layers)


def _build(
    name: str, widths: tuple[int, ...], activation: str, image_shape: tuple[int, int, int], layers: LayerFactory
) -> keras.Model:
    """Build whitened patches, three groups of two convolutions, and max pooling: `widths[-1]` features.

    Raises:
        InputError: images smaller than 25×25: the pooling would leave nothing.
    """
    if min(image_shape[:2]) < MIN_SIZE:
        raise InputError(f"{name} expects images of {MIN_SIZE}×{MIN_SIZE} or more, received {image_shape}")

    def activated(features: keras.KerasTensor) -> keras.KerasTensor:
        return keras.layers.Activation(activation, dtype=layers.precision)(features)

    images = keras.Input(image_shape, name="images")
    features = activated(PatchWhitening(dtype=layers.precision)(layers.images(images)))
    for width in widths:
        features = _convolution(features, width, layers)
        features = keras.layers.MaxPooling2D(dtype=layers.precision)(features)
        features = activated(layers.block(layers.batch_normalisation(features)))
        features = _convolution(features, width, layers)
        features = activated(layers.block(layers.batch_normalisation(features)))
    features = keras.layers.GlobalMaxPooling2D(dtype=layers.precision)(features)
    return keras.Model(images, features, name=name)


def _convolution(features: keras.KerasTensor, width: int, layers: LayerFactory) -> keras.KerasTensor:
    return layers.convolution(features, width, 3, kernel_initializer=PartlyIdentity(), **CONVOLUTION)


@keras.saving.register_keras_serializable("wca_tf")
class PartlyIdentity(keras.initializers.Initializer):
    """Kernels [k, k, inputs, outputs] whose first outputs are the inputs; the other outputs start as in PyTorch."""

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> tf.Tensor:
        inputs, outputs = shape[-2:]
        limit = 1 / np.sqrt(inputs * np.prod(shape[:-2]))
        others = keras.initializers.RandomUniform(-limit, limit)(shape, dtype)
        around = [[size // 2, (size - 1) // 2] for size in shape[:-2]]
        copies = tf.pad(tf.eye(inputs, outputs, dtype=others.dtype)[tf.newaxis, tf.newaxis], [*around, [0, 0], [0, 0]])
        return tf.where(tf.range(outputs) < inputs, copies, others)

    def get_config(self) -> dict[str, Any]:
        return {}


@keras.saving.register_keras_serializable("wca_tf")
class PatchWhitening(keras.layers.Layer):
    """A convolution [B, H, W, C] -> [B, H − 1, W − 1, 2·4·C] whose outputs on 2×2 patches are uncorrelated, and a bias.

    The filters are ± the principal components of patches, over their deviation. `adapt` computes them, and training
    changes the bias alone. Until then the filters are the patches' own pixels.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        size = PATCH**2 * int(input_shape[-1] or 0)
        pixels = np.eye(size, dtype=np.float32).reshape(PATCH, PATCH, -1, size)
        start = np.concatenate([pixels, -pixels], axis=3)
        self.kernel = self.add_weight(
            name="filters", shape=start.shape, initializer=lambda shape, dtype: tf.cast(start, dtype), trainable=False
        )
        self.bias = self.add_weight(name="bias", shape=(2 * size,), initializer="zeros")

    def adapt(self, blocks: Iterable[np.ndarray], count: int) -> None:
        """Compute the filters from `count` normalised images, in blocks [N, H, W, C]."""
        size = self.kernel.shape[-1] // 2
        moments = np.zeros((size, size))
        for block in blocks:
            windows = np.lib.stride_tricks.sliding_window_view(np.asarray(block), (PATCH, PATCH), axis=(1, 2))
            for of_image in windows:  # one at a time, to save memory
                patches = np.moveaxis(of_image, 2, -1).reshape(-1, size).astype(np.float64)  # rows, columns, channels
                moments += patches.T @ patches / len(patches) / count
        variances, components = np.linalg.eigh(moments)
        filters = (components / np.sqrt(variances + WHITENING_EPSILON))[:, ::-1]  # largest variance first
        self.kernel.assign(np.concatenate([filters, -filters], axis=1).reshape(self.kernel.shape))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        outputs = tf.nn.conv2d(inputs, tf.cast(self.kernel, self.compute_dtype), 1, "VALID")
        return tf.nn.bias_add(outputs, tf.cast(self.bias, outputs.dtype))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        batch, height, width, channels = input_shape
        return batch, *(side and side - 1 for side in (height, width)), 2 * PATCH**2 * (channels or 0)
