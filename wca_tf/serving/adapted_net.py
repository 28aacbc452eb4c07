"""AdaptedNet: any Keras model as exports see it, by what `wca_tf.adapt` found out about it."""

import keras
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.seeds import make_seed
from wca_tf.nets.keras_net import KerasNet
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import AnyTarget, is_gaussian


class AdaptedNet:
    """A Keras model that answers images in [0, 1] by logits, and whose noise, if any, follows from a seed.

    Args:
        net: the model, probed.

    Raises:
        InputError: the net without its noise is not known.
    """

    defence = ""
    deterministic_layers: dict[str, keras.layers.Layer] = {}  # Keras exports the weights that an endpoint uses

    def __init__(self, net: KerasNet) -> None:
        self._target: AnyTarget = net.target
        noise_free_logits = net.target.noise_free_logits
        if noise_free_logits is None:
            received = net.describe()["class"]
            raise InputError(f"expected a net that training=False leaves without noise, received {received} with noise")
        self._noise_free_logits = noise_free_logits
        if not is_gaussian(net.target):
            # Requests at the same time would set the same states of generators: the states are arguments here.
            self._target = SampledTarget(net.stateless_logits, noise_free_logits=noise_free_logits)
        self.num_classes = int(self.logits(net.images[:1], make_seed(0)).shape[1])

    def target(self) -> AnyTarget:
        """Return the net as attacks see it."""
        return self._target

    def noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] of the net without its noise."""
        return self._noise_free_logits(self._target.features(images))

    def logits(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] under one draw, which the seed decides."""
        return self._target.logits(self._target.features(images), seed, 1)[0]

    def gaussian_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Return the mean [B, C] of the logits, and A [C, R] of their covariance A Aᵀ; `None` for other noise."""
        if not is_gaussian(self._target):
            return None
        return self.noise_free_logits(images), self._target.logit_scale
