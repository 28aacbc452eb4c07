"""The layer, the net and the adversarial training of CTRW (Ma et al., NeurIPS 2023)."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.noise import NoiseLayer, current_draws
from wca_tf.nets.noisy_net import NoisyNet
from wca_tf.nets.targets import AnyTarget


@keras.saving.register_keras_serializable("wca_tf")
class RaisedToMinimum(keras.constraints.Constraint):
    """A constraint that adds `minimum` − min S to all elements of S below `minimum`, as the authors' code does."""

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def __call__(self, weights: Any) -> Any:
        weights = tf.convert_to_tensor(weights)
        return tf.where(weights < self.minimum, weights + self.minimum - tf.reduce_min(weights), weights)

    def get_config(self) -> dict[str, Any]:
        return {"minimum": self.minimum}


@keras.saving.register_keras_serializable("wca_tf")
class RandomPixelWeights(NoiseLayer):
    """A layer that returns x ∘ (M + S ∘ ξ), ξ ~ N(0, I). M and S start at 1.

    Args:
        min_deviation: the least S, after each step.
        scope: "image" for a separate ξ for each image, "batch" for one ξ for all images of a draw.

    Call arguments:
        images: [S B, H, W, channels], normalised.
    """

    def __init__(self, min_deviation: float, scope: str = "image", **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.min_deviation = min_deviation
        self.scope = scope

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.mean = self.add_weight(name="mean", shape=input_shape[1:], initializer="ones")
        constraint = RaisedToMinimum(self.min_deviation)
        self.deviation = self.add_weight(
            name="deviation", shape=input_shape[1:], initializer="ones", constraint=constraint
        )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        draws, weights = current_draws(), tf.convert_to_tensor(self.mean)
        if draws is not None:
            noise = draws.for_scope(self.number, tuple(images.shape[1:]), self.scope)
            weights = weights + tf.convert_to_tensor(self.deviation) * noise
        return images * tf.cast(weights, images.dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["dtype"]  # always float32
        return {**config, "min_deviation": self.min_deviation, "scope": self.scope}


@keras.saving.register_keras_serializable("wca_tf")
class RandomWeightsNet(NoisyNet):
    """A net with `RandomPixelWeights` before its backbone's first layer; weight decay counts M and S too.

    Args:
        args, kwargs: those of `NoisyNet`.
    """

    extra_metrics = ("mean_deviation",)

    def extra_losses(self) -> dict[str, tf.Tensor]:
        losses = super().extra_losses()
        if self.weight_decay:
            weights = [tf.square(tf.convert_to_tensor(each)) for each in self._pixel_weights()]
            losses["penalty"] += self.weight_decay / 2 * tf.reduce_sum(tf.add_n(weights))
        return losses

    def constants(self) -> dict[str, tf.Tensor]:
        """Return the mean of S."""
        return {"mean_deviation": tf.reduce_mean(tf.convert_to_tensor(self.noise_layers[0].deviation))}

    def _pixel_weights(self) -> list[Any]:
        return [weight for layer in self.noise_layers for weight in (layer.mean, layer.deviation)]


class FixedDrawAdversarialTraining(AdversarialTraining):
    """Adversarial training as the authors code it: one draw is attacked, another draw makes the step."""

    def target(self, model: StochasticClassifier) -> AnyTarget:
        seed = fold_in(make_seed(model.seed), Purpose.ADVERSARY_DRAW, model.optimizer.iterations)
        return model.target().with_fixed_draw(seed)
