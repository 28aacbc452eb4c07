"""The layers of parametric noise injection (He et al., CVPR 2019): noise α η on kernels W, η ~ N(0, std(W)²)."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.nets.noisy_net import NoisyNet
from wca_tf.nets.noisy_weights import NoisyConvolution, NoisyDense, NoisyWeights

__all__ = ["NoisyNet", "ProportionalConvolution", "ProportionalDense"]


class ProportionalNoise(NoisyWeights):
    """The noise of the layers below: α std(W) is its standard deviation. std(W) has no gradient, α is learned.

    Args:
        args, kwargs: those of the layer, and `scope`.
        amplitude: α at the start. Nothing bounds α in training.
        shared_by: "layer" for one α, "channel" for one for each output, "element" for one for each weight.
    """

    def __init__(self, *args: Any, amplitude: float, shared_by: str = "layer", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.amplitude = amplitude
        self.shared_by = shared_by

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        shape = tuple(self.kernel.shape)
        shapes = {"layer": (1,), "channel": (*[1] * (len(shape) - 1), shape[-1]), "element": shape}
        self.alpha = self.add_weight(
            name="alpha", shape=shapes[self.shared_by], initializer=keras.initializers.Constant(self.amplitude)
        )

    def noise_scale(self) -> tf.Tensor:
        """Return α std(W), with the standard deviation of a sample, N − 1, as in the authors' code."""
        kernel = tf.stop_gradient(tf.cast(self.kernel, tf.float32))
        count = tf.cast(tf.size(kernel), tf.float32)
        deviation = tf.math.reduce_std(kernel) * tf.sqrt(count / (count - 1))
        return tf.cast(self.alpha, tf.float32) * deviation

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "amplitude": self.amplitude, "shared_by": self.shared_by}


@keras.saving.register_keras_serializable("wca_tf")
class ProportionalConvolution(ProportionalNoise, NoisyConvolution):
    """A convolution with noise on its kernel, in proportion to the kernel's standard deviation."""


@keras.saving.register_keras_serializable("wca_tf")
class ProportionalDense(ProportionalNoise, NoisyDense):
    """A dense layer with noise on its kernel, in proportion to the kernel's standard deviation."""
