"""Layers that are 1-Lipschitz from l2 to l2 for any weights, so that a net of them can be certified.

Dense layers and convolutions are rescaled by AOL (Prach & Lampert, ECCV 2022): P D has norm 1 at most for every matrix
P, where D is diagonal with D_ii = (Σ_k |Pᵀ P|_ik)^(−1/2). The same holds for Pᵀ, which scales the outputs in place of
the inputs. A layer scales whichever of the two has fewer channels, because its Pᵀ P is smaller.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError

# Added to each Σ_k |Pᵀ P|_ik, so that weights of zero do not divide by zero. It makes the norm smaller.
_EPSILON = 1e-12


@keras.saving.register_keras_serializable("wca_tf")
class CentreOrthogonal(keras.initializers.Initializer):
    """Kernels [k, k, inputs, outputs] that are an orthogonal matrix at their centre, and zero elsewhere."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> tf.Tensor:
        matrix = keras.initializers.Orthogonal(seed=self.seed)(shape[-2:], dtype)
        around = [[(size - 1) // 2, size // 2] for size in shape[:-2]]
        return tf.pad(matrix[tf.newaxis, tf.newaxis], [*around, [0, 0], [0, 0]])

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed}


@keras.saving.register_keras_serializable("wca_tf")
class AOLDense(keras.layers.Dense):
    """A dense layer of norm 1 at most.

    Args:
        units: the number of outputs.
        **options: those of `keras.layers.Dense`, without an activation.
    """

    lipschitz_constant = 1.0

    def __init__(self, units: int, kernel_initializer: Any = "orthogonal", **options: Any) -> None:
        super().__init__(units, kernel_initializer=kernel_initializer, **options)
        _check_no_activation(self)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        outputs = tf.matmul(inputs, tf.cast(self.rescaled_kernel(), self.compute_dtype))
        return outputs + tf.cast(self.bias, outputs.dtype) if self.use_bias else outputs

    def rescaled_kernel(self) -> tf.Tensor:
        """Return the kernel [inputs, outputs] that the layer multiplies by, float32; its norm is 1 at most."""
        kernel = tf.convert_to_tensor(self.kernel)
        if kernel.shape[0] <= kernel.shape[1]:
            sums = tf.reduce_sum(tf.abs(tf.matmul(kernel, kernel, transpose_b=True)), axis=1)
            return kernel * tf.math.rsqrt(sums + _EPSILON)[:, tf.newaxis]
        sums = tf.reduce_sum(tf.abs(tf.matmul(kernel, kernel, transpose_a=True)), axis=1)
        return kernel * tf.math.rsqrt(sums + _EPSILON)


@keras.saving.register_keras_serializable("wca_tf")
class AOLConvolution(keras.layers.Conv2D):
    """A convolution [B, H, W, inputs] -> [B, H', W', outputs] of norm 1 at most, with stride 1.

    Args:
        filters: the number of output channels.
        kernel_size: the size of the kernel.
        padding: "same" (zeros) or "valid".
        **options: those of `keras.layers.Conv2D`, without strides, dilation, groups or an activation.

    Raises:
        InputError: an option whose norm is not known.
    """

    lipschitz_constant = 1.0

    def __init__(
        self, filters: int, kernel_size: Any, padding: str = "same", kernel_initializer: Any = None, **options: Any
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            padding=padding,
            kernel_initializer=kernel_initializer or CentreOrthogonal(),
            **options,
        )
        _check_no_activation(self)
        if self.strides != (1, 1) or self.dilation_rate != (1, 1) or self.groups != 1 or padding not in PADDINGS:
            raise InputError(
                "expected an AOLConvolution with stride 1, no dilation, one group, and padding same or valid"
            )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        kernel = tf.cast(self.rescaled_kernel(), self.compute_dtype)
        outputs = tf.nn.conv2d(inputs, kernel, 1, self.padding.upper())
        return tf.nn.bias_add(outputs, tf.cast(self.bias, outputs.dtype)) if self.use_bias else outputs

    def rescaled_kernel(self) -> tf.Tensor:
        """Return the kernel [k, k, inputs, outputs] that the layer convolves with, float32."""
        kernel = tf.convert_to_tensor(self.kernel)
        if kernel.shape[2] <= kernel.shape[3]:
            return kernel * tf.math.rsqrt(_correlation_sums(kernel) + _EPSILON)[:, tf.newaxis]
        sums = _correlation_sums(tf.transpose(kernel, [0, 1, 3, 2]))
        return kernel * tf.math.rsqrt(sums + _EPSILON)


PADDINGS = ("same", "valid")


def _check_no_activation(layer: Any) -> None:
    if layer.activation is not keras.activations.linear:
        raise InputError(f"expected {type(layer).__name__} without an activation: put MaxMin after it")


def _correlation_sums(kernel: tf.Tensor) -> tf.Tensor:
    """Return Σ over channels j and shifts s of |Σ K[u, i, o] K[u + s, j, o]|, [I], of a kernel [k, k, I, O].

    The inner sum is over positions u and channels o: it is (Pᵀ P)_ij of the convolution P, at the shift s. All products
    K[u, i, o] K[v, j, o] come from one product of matrices, which is faster than a convolution of the kernel.
    """
    height, width, channels, outputs = kernel.shape
    positions = height * width
    rows = tf.reshape(tf.transpose(kernel, [2, 0, 1, 3]), [channels * positions, outputs])
    products = tf.reshape(tf.matmul(rows, rows, transpose_b=True), [channels, positions, channels, positions])
    of_pairs = tf.reshape(tf.transpose(products, [0, 2, 1, 3]), [channels**2, positions**2])
    shifts = tf.constant(_shifts(height, width), kernel.dtype)
    correlation = tf.reshape(tf.matmul(of_pairs, shifts), [channels, -1])
    return tf.reduce_sum(tf.abs(correlation), axis=1)


def _shifts(height: int, width: int) -> np.ndarray:
    """Return for each pair of positions (u, v) of a kernel the shift v − u as a unit vector, [(H W)², shifts]."""
    position = np.stack(np.meshgrid(range(height), range(width), indexing="ij"), axis=-1).reshape(-1, 2)
    shift = (position[np.newaxis] - position[:, np.newaxis]).reshape(-1, 2) + (height - 1, width - 1)
    return np.eye((2 * height - 1) * (2 * width - 1), dtype=np.float32)[shift @ (2 * width - 1, 1)]


@keras.saving.register_keras_serializable("wca_tf")
class MaxMin(keras.layers.Layer):
    """The larger and the smaller of each pair of channels: [..., 2 C] -> [..., 2 C], of norm 1 (GroupSort of 2).

    Channel i and channel i + C are a pair (Anil et al., ICML 2019).

    Raises:
        InputError: an odd number of channels.
    """

    lipschitz_constant = 1.0

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not input_shape[-1] or input_shape[-1] % 2:
            raise InputError(f"expected an even number of channels for MaxMin, received {input_shape[-1]}")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return _max_min(inputs)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape


@tf.custom_gradient
def _max_min(inputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Return the larger and the smaller of each pair; their gradients take two thirds of the time of TensorFlow's."""
    first, second = tf.split(inputs, 2, axis=-1)

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        in_order = first >= second
        larger, smaller = tf.split(upstream, 2, axis=-1)
        return tf.concat([tf.where(in_order, larger, smaller), tf.where(in_order, smaller, larger)], axis=-1)

    return tf.concat([tf.maximum(first, second), tf.minimum(first, second)], axis=-1), gradient


@keras.saving.register_keras_serializable("wca_tf")
class SpaceToDepth(keras.layers.Layer):
    """The pixels of each block of `size`×`size` as channels: it halves maps (size 2) without a loss, of norm 1.

    Args:
        size: the side of a block; it divides height and width.
    """

    lipschitz_constant = 1.0

    def __init__(self, size: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.size = size

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.space_to_depth(inputs, self.size)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        batch, height, width, channels = input_shape
        smaller = [side and side // self.size for side in (height, width)]
        return batch, *smaller, (channels or 0) * self.size**2

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "size": self.size}
