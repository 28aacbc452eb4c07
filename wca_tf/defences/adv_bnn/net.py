"""The net of Adv-BNN (Liu et al., ICLR 2019)."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.nets.noisy_net import NoisyNet


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
