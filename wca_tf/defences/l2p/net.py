"""The layer and the net of Learn2Perturb (Jeddi et al., CVPR 2020).

The authors' step updates the noise twice: by the reward alone, then with the weights by the cross-entropy. Here one
step of the optimizer follows the gradient of both. The authors' noise begins in epoch 10 of 350, and the harmonic
number counts from there; here both begin with the first epoch.
"""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.nets.noise import NoiseLayer, current_draws
from wca_tf.nets.noisy_net import NoisyNet
from wca_tf.nets.noisy_weights import positive_sqrt


@keras.saving.register_keras_serializable("wca_tf")
class AtLeast(keras.constraints.Constraint):
    """A constraint that raises weights to `minimum` after each step."""

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def __call__(self, weights: Any) -> Any:
        return tf.maximum(weights, self.minimum)

    def get_config(self) -> dict[str, Any]:
        return {"minimum": self.minimum}


@keras.saving.register_keras_serializable("wca_tf")
class LearnedActivationNoise(NoiseLayer):
    """A layer that returns features + σ ∘ z, z ~ N(0, I), with a learned σ for each feature.

    Args:
        deviation: σ at the start.
        min_deviation: the smallest σ, after each step.
        scope: "image" for a separate z for each image, "batch" for one z for all images of a draw.

    Call arguments:
        features: [S B, ...].
    """

    def __init__(self, deviation: float, min_deviation: float, scope: str = "image", **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.deviation = deviation
        self.min_deviation = min_deviation
        self.scope = scope

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.sigma = self.add_weight(
            name="sigma",
            shape=input_shape[1:],
            initializer=keras.initializers.Constant(self.deviation),
            constraint=AtLeast(self.min_deviation),
        )

    def call(self, features: tf.Tensor) -> tf.Tensor:
        draws = current_draws()
        if draws is None:
            return features
        noise = self.sigma * draws.for_scope(self.number, tuple(features.shape[1:]), self.scope)
        return features + tf.cast(noise, features.dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["dtype"]  # always float32
        names = ("deviation", "min_deviation", "scope")
        return {**config, **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable("wca_tf")
class Learn2PerturbNet(NoisyNet):
    """A net with `LearnedActivationNoise` in its backbone, whose loss has − γ/H(e) Σ √σ in epoch e.

    H(e) is the harmonic number 1 + 1/2 + ... + 1/e.

    Args:
        args, kwargs: those of `NoisyNet`.
        reward: γ, 0 or more.
    """

    extra_metrics = ("noise_reward", "mean_deviation")

    def __init__(self, *args: Any, reward: float = 1e-4, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reward = reward

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        if not hasattr(self, "epoch"):
            self.epoch = self.add_weight(name="epoch", shape=(), dtype="int32", initializer="ones", trainable=False)

    def rewards(self) -> dict[str, tf.Tensor]:
        """Return γ/H(e) Σ √σ over all layers."""
        roots = [tf.reduce_sum(positive_sqrt(tf.convert_to_tensor(layer.sigma))) for layer in self.noise_layers]
        epoch = tf.cast(tf.convert_to_tensor(self.epoch), tf.float32)
        harmonic = tf.reduce_sum(1 / tf.range(1.0, epoch + 1))
        return {"noise_reward": self.reward / harmonic * tf.add_n(roots)}

    def constants(self) -> dict[str, tf.Tensor]:
        """Return the mean of σ over all features."""
        sigmas = [tf.reshape(tf.convert_to_tensor(layer.sigma), [-1]) for layer in self.noise_layers]
        return {"mean_deviation": tf.reduce_mean(tf.concat(sigmas, 0))}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "reward": self.reward}


class CountEpochs(keras.callbacks.Callback):
    """A callback that tells a `Learn2PerturbNet` the number of its epoch, from 1."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.epoch.assign(epoch + 1)
