"""Layers whose weights have Gaussian noise: a convolution and a dense layer.

A defence says how large the noise is. With `scope` "batch", a draw is one set of weights for all images. With "image",
each image meets weights of its own, without a copy of the weights for each image:

- A dense layer draws its outputs, which are Gaussian (local reparameterisation: Kingma et al., NeurIPS 2015).
- A convolution flips signs of one draw ΔW for each image, y = x * M + ((x ∘ s) * ΔW) ∘ r (Flipout: Wen et al., ICLR
  2018). The weights of an image then have the law of a fresh draw, because ΔW is symmetric. Those of two images are
  uncorrelated, but not independent.
"""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.nets.noise import Draws, NoiseLayer, current_draws


class NoisyWeights(NoiseLayer):
    """The base of layers with noise on weights. A defence derives a class and defines `noise_scale`.

    Args:
        scope: "image" or "batch".
    """

    def __init__(self, *args: Any, scope: str = "batch", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scope = scope

    def noise_scale(self) -> tf.Tensor:
        """Return the standard deviation of the kernel, a scalar or of any shape that broadcasts to the kernel's."""
        raise NotImplementedError

    def bias_scale(self) -> tf.Tensor | None:
        """Return the standard deviation of the bias, a scalar or [outputs]; `None` for a bias without noise."""
        return None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        draws = current_draws()
        if draws is None:
            return super().call(inputs)
        outputs = self._by_image(inputs, draws) if self.scope == "image" else self._by_batch(inputs, draws)
        return outputs if self.activation is None else self.activation(outputs)

    def save_own_variables(self, store: Any) -> None:
        """Store every weight; those of Keras's dense and convolutional layers store kernel and bias alone."""
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        keras.layers.Layer.load_own_variables(self, store)

    def _by_image(self, inputs: tf.Tensor, draws: Draws) -> tf.Tensor:
        """Return outputs [S B, ...] before the activation, with weights for each image."""
        raise NotImplementedError

    def _by_batch(self, inputs: tf.Tensor, draws: Draws) -> tf.Tensor:
        """Return outputs [S B, ...] before the activation, with weights for each draw."""
        kernel_noise, bias_noise = self._drawn(draws)
        outputs = self._by_kernels(inputs, tf.cast(self.kernel + kernel_noise, self.compute_dtype))
        if not self.use_bias:
            return outputs
        if bias_noise is None:
            return tf.nn.bias_add(outputs, tf.cast(self.bias, outputs.dtype))
        biases = tf.repeat(self.bias + bias_noise, tf.size(draws.indices), axis=0)
        return outputs + tf.cast(_spread(biases, outputs), outputs.dtype)

    def _by_kernels(self, inputs: tf.Tensor, kernels: tf.Tensor) -> tf.Tensor:
        """Return the outputs [S B, ...] of inputs [S B, ...] by kernels [S, ...], without bias."""
        raise NotImplementedError

    def _drawn(self, draws: Draws) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Return the noise of the kernel [S, ...] and of the bias [S, outputs], if the bias has noise."""
        shape = tuple(self.kernel.shape)
        size, bias_scale = int(tf.TensorShape(shape).num_elements()), self.bias_scale() if self.use_bias else None
        more = 0 if bias_scale is None else shape[-1]
        numbers = draws.for_each_draw(self.number, (size + more,))
        kernel_noise = self.noise_scale() * tf.reshape(numbers[:, :size], [-1, *shape])
        return kernel_noise, None if bias_scale is None else bias_scale * numbers[:, size:]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scope": self.scope}


class NoisyConvolution(NoisyWeights, keras.layers.Conv2D):
    """A convolution with Gaussian noise on its kernel, and on its bias if `bias_scale` is defined.

    Args:
        args, kwargs: those of `keras.layers.Conv2D`, and `scope`.
    """

    def _by_image(self, inputs: tf.Tensor, draws: Draws) -> tf.Tensor:
        channels, filters = self.kernel.shape[-2:]
        kernel_noise, _ = self._drawn(draws)
        bias_scale = self.bias_scale() if self.use_bias else None
        more = 0 if bias_scale is None else filters
        numbers = draws.for_each_image(self.number, (channels + filters + more,))[:, tf.newaxis, tf.newaxis]
        signs = tf.cast(tf.sign(numbers[..., : channels + filters]), inputs.dtype)
        flipped = self._by_kernels(inputs * signs[..., :channels], tf.cast(kernel_noise, self.compute_dtype))
        outputs = self.convolution_op(inputs, tf.cast(self.kernel, inputs.dtype)) + flipped * signs[..., channels:]
        if self.use_bias:
            outputs = tf.nn.bias_add(outputs, tf.cast(self.bias, outputs.dtype))
        if bias_scale is not None:
            outputs += tf.cast(bias_scale * numbers[..., channels + filters :], outputs.dtype)
        return outputs

    def _by_kernels(self, inputs: tf.Tensor, kernels: tf.Tensor) -> tf.Tensor:
        groups = tf.reshape(inputs, [tf.shape(kernels)[0], -1, *inputs.shape[1:]])
        outputs = tf.map_fn(
            lambda group: self.convolution_op(*group), (groups, kernels), fn_output_signature=inputs.dtype
        )
        return tf.reshape(outputs, [tf.shape(inputs)[0], *outputs.shape[2:]])


class NoisyDense(NoisyWeights, keras.layers.Dense):
    """A dense layer with Gaussian noise on its kernel, and on its bias if `bias_scale` is defined.

    Args:
        args, kwargs: those of `keras.layers.Dense`, and `scope`.

    Call arguments:
        inputs: [S B, features].
    """

    def _by_image(self, inputs: tf.Tensor, draws: Draws) -> tf.Tensor:
        mean, variance = self.moments(inputs)
        noise = draws.for_each_image(self.number, (self.units,))
        return tf.cast(mean + positive_sqrt(variance) * noise, inputs.dtype)

    def moments(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance of the outputs [B, units] before the activation, which are independent Gaussians."""
        inputs, kernel = tf.cast(inputs, tf.float32), tf.cast(self.kernel, tf.float32)
        scale = tf.broadcast_to(self.noise_scale(), tf.shape(kernel))
        mean, variance = tf.matmul(inputs, kernel), tf.matmul(tf.square(inputs), tf.square(scale))
        if self.use_bias:
            mean += tf.cast(self.bias, tf.float32)
            bias_scale = self.bias_scale()
            variance += 0.0 if bias_scale is None else tf.square(bias_scale)
        return mean, variance

    def _by_kernels(self, inputs: tf.Tensor, kernels: tf.Tensor) -> tf.Tensor:
        groups = tf.reshape(inputs, [tf.shape(kernels)[0], -1, inputs.shape[-1]])
        return tf.reshape(tf.matmul(groups, kernels), [-1, self.units])


def positive_sqrt(values: tf.Tensor) -> tf.Tensor:
    """Return the square root of numbers of at least 0; its gradient at 0 is 0, where the square root has none."""
    positive = values > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, values, 1.0)), 0.0)


def _spread(rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return rows [N, outputs] in a shape that broadcasts to [N, ..., outputs]."""
    return tf.reshape(rows, [-1, *[1] * (like.shape.rank - 2), rows.shape[-1]])
