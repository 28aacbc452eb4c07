"""Orthogonal layers: all singular values are 1, so that a net loses no more of a margin than its shapes demand.

The weights are orthogonal themselves. No gradient passes through an orthogonalisation: after each step of an optimizer
`OrthogonalConstraint` takes the weights back, and `runs.orthogonal_muon.OrthogonalMuon` steps along the manifold.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError

GROUPS = 4  # of channels, one for each direction
_NEAR = 1e-3  # of WᵀW from the identity: one more step squares it
_MOST_STEPS = 30
_SVD_ERROR = 1e-10  # relative, of a largest singular value in float64, with room to spare
HALF_STEP = 2.0**-24  # the largest relative error of one operation in float32


@keras.saving.register_keras_serializable("wca_tf")
class OrthogonalConstraint(keras.constraints.Constraint):
    """Makes a matrix [I, O] orthogonal: orthonormal columns where I ≥ O, orthonormal rows where I < O."""

    def __call__(self, w: Any) -> tf.Tensor:
        return polar_factor(tf.convert_to_tensor(w))


def polar_factor(matrix: tf.Tensor) -> tf.Tensor:
    """Return the nearest orthogonal matrix, by the iteration of Newton and Schulz: W ← 1.5 W − 0.5 W Wᵀ W.

    It converges from singular values below √3. A matrix that is not near is first scaled to singular values of 1 at
    most. Singular values near 0 may stay below 1 after the last step, which no bound relies on: `OrthogonalDense`
    measures its norm.
    """
    wide = matrix.shape[0] < matrix.shape[1]
    tall = tf.transpose(matrix) if wide else matrix
    identity = tf.eye(tall.shape[1], dtype=tall.dtype)

    def largest_sum(gram: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(tf.reduce_sum(tf.abs(gram), axis=1))

    def stepped(tall: tf.Tensor, gram: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return 1.5 * tall - 0.5 * tf.matmul(tall, gram), largest_sum(gram - identity)

    def step(tall: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return stepped(tall, tf.matmul(tall, tall, transpose_a=True))

    def scaled() -> tuple[tf.Tensor, tf.Tensor]:
        small = tf.math.divide_no_nan(tall, tf.reduce_max(tf.abs(tall)))  # whose squares do not overflow
        norm = tf.sqrt(largest_sum(tf.matmul(small, small, transpose_a=True)))
        return tf.math.divide_no_nan(small, norm), tf.constant(np.inf, tall.dtype)

    gram = tf.matmul(tall, tall, transpose_a=True)
    start = tf.cond(largest_sum(gram - identity) < 0.5, lambda: stepped(tall, gram), scaled)
    tall, _ = tf.while_loop(lambda _, distance: distance > _NEAR, step, start, maximum_iterations=_MOST_STEPS)
    return tf.transpose(tall) if wide else tall


def is_orthogonal(variable: Any) -> bool:
    """Return whether a Keras variable is one that `OrthogonalConstraint` keeps orthogonal."""
    return isinstance(getattr(variable, "constraint", None), OrthogonalConstraint)


@keras.saving.register_keras_serializable("wca_tf")
class OrthogonalDense(keras.layers.Dense):
    """A dense layer with an orthogonal kernel; on maps [B, H, W, channels] it is an orthogonal 1×1 convolution.

    It keeps distances where it widens, and is a projection where it narrows.

    Args:
        units: the number of outputs.
        **options: those of `keras.layers.Dense`, without an activation and without a constraint on the kernel.

    Raises:
        InputError: an activation.
    """

    def __init__(self, units: int, kernel_initializer: Any = "orthogonal", **options: Any) -> None:
        options["kernel_constraint"] = OrthogonalConstraint()
        super().__init__(units, kernel_initializer=kernel_initializer, **options)
        if self.activation is not keras.activations.linear:
            raise InputError("expected OrthogonalDense without an activation: put MaxMin after it")

    @property
    def lipschitz_constant(self) -> float:
        """The largest singular value of the kernel that the layer multiplies by, measured in float64.

        Raises:
            InputError: a layer that is not built, or whose weights are NaN or Inf.
        """
        return largest_singular_value(self)

    def rounding(self, inputs: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Return a bound [N], in l2, of what float32 adds to the exact outputs, near inputs [N, ..., I].

        It holds for all inputs in float32 that are not further than `distance` [N], 0 or more, from these, in l2. A sum
        of n products and a bias has an error of γ (Σ |w x| + |b|) at most, whatever its order and unless a number
        underflows, with γ that of n + 1 operations.
        """
        kernel = np.abs(np.asarray(self.kernel))
        norm = np.sqrt(np.prod([np.sum(kernel, axis, np.float64).max() for axis in (0, 1)]))  # of |W|, at most
        gamma = relative_rounding(len(kernel) + self.use_bias)
        # The sum of |w x| is of float32 too: its own error is relative, for all its parts are positive.
        sums = (1 + 2 * gamma) * np.asarray(tf.tensordot(tf.abs(inputs), kernel, 1), np.float64)
        if self.use_bias:
            sums = sums + np.abs(np.asarray(self.bias, np.float64))
        return gamma * (l2_norms(sums) + norm * distance)


def largest_singular_value(layer: keras.layers.Dense) -> float:
    """Return a bound on the largest singular value of a layer's kernel, as near as float64 can tell.

    Raises:
        InputError: a layer that is not built, or whose weights are NaN or Inf.
    """
    if not layer.built:
        raise InputError(f"expected a layer that is built, received {layer.name}: call its net on an image first")
    kernel = np.asarray(layer.kernel, np.float64)
    if not np.isfinite(kernel).all():
        raise InputError(f"expected finite weights of {layer.name}, received NaN or Inf")
    return (1 + _SVD_ERROR) * float(np.linalg.norm(kernel, 2))


def relative_rounding(operations: int) -> float:
    """Return γ = n u / (1 − n u), the relative error of n operations in float32 at most, where u = 2⁻²⁴.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
    """
    return operations * HALF_STEP / (1 - operations * HALF_STEP)


def l2_norms(rows: np.ndarray) -> np.ndarray:
    """Return the l2 norms [N] of inputs [N, ...]."""
    return np.linalg.norm(np.asarray(rows, np.float64).reshape(len(rows), -1), axis=1)


@keras.saving.register_keras_serializable("wca_tf")
class CircularShift(keras.layers.Layer):
    """Maps [B, H, W, channels] whose quarters of channels move by one pixel, each in a direction of its own.

    What leaves at a border comes in at the other, so that the layer is a permutation, of norm 1. With 1×1 convolutions
    between, it carries what a pixel knows to others (after LipNeXt, ICLR 2026).

    Raises:
        InputError: a number of channels that is no multiple of 4.
    """

    lipschitz_constant = 1.0

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not input_shape[-1] or input_shape[-1] % GROUPS:
            raise InputError(f"expected a multiple of {GROUPS} channels for CircularShift, received {input_shape[-1]}")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        down, up, right, left = tf.split(inputs, GROUPS, axis=-1)
        moved = [tf.roll(down, 1, 1), tf.roll(up, -1, 1), tf.roll(right, 1, 2), tf.roll(left, -1, 2)]
        return tf.concat(moved, axis=-1)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape
