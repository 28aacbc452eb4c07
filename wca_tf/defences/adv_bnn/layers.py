"""The layers of Adv-BNN (Liu et al., ICLR 2019): each weight is N(μ, e^{2s}), with μ and s learned."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.nets.noise import NoiseLayer, current_draws
from wca_tf.nets.noisy_weights import NoisyConvolution, NoisyDense, NoisyWeights


def kernel_initializer() -> keras.initializers.Initializer:
    """Return the initializer of the authors' μ: uniform in ±1/√fan_in, PyTorch's default."""
    return keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")


class BayesianLayer(NoiseLayer):
    """A layer whose weights are Gaussian.

    Args:
        args, kwargs: those of the layer, and `scope`.
        log_deviation: s at the start.
    """

    def __init__(self, *args: Any, log_deviation: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log_deviation = log_deviation

    def weights_with_noise(self) -> list[tuple[Any, Any]]:
        """Return (μ, s) of each kind of weight that the layer has."""
        raise NotImplementedError

    def kl_divergence(self, prior_deviation: float) -> tf.Tensor:
        """Return the KL divergence of all weights from N(0, prior_deviation²), a scalar."""
        return tf.add_n([gaussian_kl(mean, log, prior_deviation) for mean, log in self.weights_with_noise()])

    def add_log_deviation(self, name: str, like: Any) -> Any:
        """Return a new trainable s of the shape of μ."""
        start = keras.initializers.Constant(self.log_deviation)
        return self.add_weight(name=name, shape=like.shape, initializer=start)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "log_deviation": self.log_deviation}


class BayesianWeights(BayesianLayer, NoisyWeights):
    """The kernel and the bias of the layers below."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.kernel_log_deviation = self.add_log_deviation("kernel_log_deviation", self.kernel)
        if self.use_bias:
            self.bias_log_deviation = self.add_log_deviation("bias_log_deviation", self.bias)

    def noise_scale(self) -> tf.Tensor:
        return tf.exp(tf.cast(self.kernel_log_deviation, tf.float32))

    def bias_scale(self) -> tf.Tensor | None:
        return tf.exp(tf.cast(self.bias_log_deviation, tf.float32)) if self.use_bias else None

    def weights_with_noise(self) -> list[tuple[Any, Any]]:
        pairs = [(self.kernel, self.kernel_log_deviation)]
        return [*pairs, (self.bias, self.bias_log_deviation)] if self.use_bias else pairs


@keras.saving.register_keras_serializable("wca_tf")
class BayesianConvolution(BayesianWeights, NoisyConvolution):
    """A convolution with Gaussian weights."""


def bayesian_convolution(*args: Any, **options: Any) -> BayesianConvolution:
    """Return a `BayesianConvolution` with the authors' initial μ of the kernel, whatever the backbone gives."""
    return BayesianConvolution(*args, **{**options, "kernel_initializer": kernel_initializer()})


@keras.saving.register_keras_serializable("wca_tf")
class BayesianDense(BayesianWeights, NoisyDense):
    """A dense layer with Gaussian weights."""


@keras.saving.register_keras_serializable("wca_tf")
class BayesianAffine(BayesianLayer):
    """A layer that returns γ ∘ x + β with Gaussian γ and β for each channel: the weights of a batch normalisation.

    Args:
        log_deviation: s at the start.
        scope: "image" or "batch".

    Call arguments:
        inputs: [S B, H, W, channels].
    """

    def __init__(self, *, log_deviation: float, scope: str = "batch", **kwargs: Any) -> None:
        super().__init__(log_deviation=log_deviation, **{**kwargs, "dtype": "float32", "autocast": False})
        self.scope = scope

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        uniform = keras.initializers.RandomUniform(0.0, 1.0)  # as in the authors' code
        self.gamma = self.add_weight(name="gamma", shape=input_shape[-1:], initializer=uniform)
        self.beta = self.add_weight(name="beta", shape=input_shape[-1:], initializer="zeros")
        self.gamma_log_deviation = self.add_log_deviation("gamma_log_deviation", self.gamma)
        self.beta_log_deviation = self.add_log_deviation("beta_log_deviation", self.beta)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        draws, features = current_draws(), tf.cast(inputs, tf.float32)
        gamma, beta = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
        if draws is not None:
            channels = inputs.shape[-1]
            numbers = draws.for_scope(self.number, (2 * channels,), self.scope)[:, tf.newaxis, tf.newaxis]
            gamma = gamma + tf.exp(tf.convert_to_tensor(self.gamma_log_deviation)) * numbers[..., :channels]
            beta = beta + tf.exp(tf.convert_to_tensor(self.beta_log_deviation)) * numbers[..., channels:]
        return tf.cast(gamma * features + beta, inputs.dtype)

    def weights_with_noise(self) -> list[tuple[Any, Any]]:
        return [(self.gamma, self.gamma_log_deviation), (self.beta, self.beta_log_deviation)]

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["dtype"]  # always float32
        return {**config, "scope": self.scope}


def gaussian_kl(mean: Any, log_deviation: Any, prior_deviation: float) -> tf.Tensor:
    """Return Σ ln σ0 − s + (e^{2s} + μ²) / (2 σ0²) − ½: the KL divergence of N(μ, e^{2s}) from N(0, σ0²).

    Examples:
        >>> float(gaussian_kl(tf.constant([1.0]), tf.constant([0.0]), 1.0))
        0.5
    """
    mean, log = (tf.cast(tf.convert_to_tensor(each), tf.float32) for each in (mean, log_deviation))
    quadratic = (tf.exp(2 * log) + tf.square(mean)) / (2 * prior_deviation**2)
    return tf.reduce_sum(tf.math.log(prior_deviation) - log + quadratic - 0.5)
