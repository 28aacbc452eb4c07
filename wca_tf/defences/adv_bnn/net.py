"""The net of Adv-BNN (Liu et al., ICLR 2019)."""

import functools
from typing import Any

import keras
import tensorflow as tf

from wca_tf.defences.adv_bnn.layers import (
    BayesianAffine,
    BayesianDense,
    bayesian_convolution,
    kernel_initializer,
)
from wca_tf.nets.backbones.batch_normalization import BatchNormalization
from wca_tf.nets.backbones.layer_factory import LayersWith
from wca_tf.nets.noisy_net import NoisyNet

__all__ = ["BayesianDense", "BayesianLayers", "BayesianNet", "kernel_initializer"]


@keras.saving.register_keras_serializable("wca_tf")
class BayesianNet(NoisyNet):
    """A net with Gaussian weights, trained on CE + kl_weight × KL, the KL divergence of all weights from their prior.

    The authors' code for CIFAR-10 counts the KL divergence of the classifier alone, by a fault. Here all weights count,
    as in the paper.

    Args:
        args, kwargs: those of `NoisyNet`.
        prior_deviation: σ0, the standard deviation of the prior, above 0.
        kl_weight: α/N, 0 or more.
    """

    extra_metrics = ("kl", "mean_log_deviation")

    def __init__(self, *args: Any, prior_deviation: float, kl_weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prior_deviation = prior_deviation
        self.kl_weight = kl_weight

    def extra_losses(self) -> dict[str, tf.Tensor]:
        divergences = [layer.kl_divergence(self.prior_deviation) for layer in self.noise_layers]
        return {**super().extra_losses(), "kl": self.kl_weight * tf.add_n(divergences)}

    def constants(self) -> dict[str, tf.Tensor]:
        """Return the mean of s over all weights."""
        logs = [log for layer in self.noise_layers for _, log in layer.weights_with_noise()]
        flat = [tf.reshape(tf.convert_to_tensor(log), [-1]) for log in logs]
        return {"mean_log_deviation": tf.reduce_mean(tf.concat(flat, 0))}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "prior_deviation": self.prior_deviation, "kl_weight": self.kl_weight}


class BayesianLayers(LayersWith):
    """The layers of a backbone, with Gaussian weights in all convolutions and batch normalisations.

    Args:
        precision: as for `LayerFactory`.
        noise: the arguments of the layers' noise.
    """

    def __init__(self, precision: str, noise: dict[str, Any]) -> None:
        super().__init__(precision, convolution=functools.partial(bayesian_convolution, **noise))
        self.noise = noise

    def batch_normalisation(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        normalised = BatchNormalization(momentum=0.9, epsilon=1e-5, scale=False, center=False, dtype=self.precision)(
            inputs
        )
        return BayesianAffine(**self.noise)(normalised)
