"""The net of RFD (Nguyen et al., ICLR 2024), with noise on the last features. Its logits are exactly Gaussian."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.distribution.replicas import first_row, num_replicas
from wca_tf.gaussian import covariance
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.lipschitz_layers import AOLDense
from wca_tf.nets.random_stream import RandomStream
from wca_tf.nets.targets import GaussianLogitsTarget


@keras.saving.register_keras_serializable("wca_tf")
class RandomFeatureNet(BottleneckNet):
    """A net with noise ν z, z ~ N(0, I), on its last features, at test time alone.

    The last features are the last tensor before a linear part: the backbone's features where the bottleneck is linear,
    else the bottleneck's output.

    Args:
        args, kwargs: those of `BottleneckNet`.
        deviation: ν, 0 or more.
    """

    def __init__(self, *args: Any, deviation: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deviation = deviation

    def make_noise(self) -> RandomStream:
        return RandomStream(self.seed, name="stream")

    def forward(
        self, images: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return logits [B, C] under one draw, without noise in training; and the features before the classifier."""
        features = self.features(images, training=training)
        logits = self.logits_of(features)
        if training:
            return logits, features
        seed = self.noise.next_seed() if seed is None else seed
        scale, rows = self.logit_scale, tf.shape(images)[0]
        first = first_row(rows)
        draw = tf.random.stateless_normal([rows * num_replicas(), scale.shape[1]], seed)[first : first + rows]
        return logits + tf.matmul(draw, scale, transpose_b=True), features

    def target(self) -> GaussianLogitsTarget:
        return GaussianLogitsTarget(self.features, self.logits_of, lambda: self.logit_scale, self.deviation > 0)

    @property
    def logit_scale(self) -> tf.Tensor:
        """A = ν Vᵀ, [C, F], with V the weights from the last features to the logits."""
        weights = tf.transpose(self.class_weights)
        if self.bottleneck_activation in (None, "linear"):
            layer = self.bottleneck
            kernel = layer.rescaled_kernel() if isinstance(layer, AOLDense) else tf.convert_to_tensor(layer.kernel)
            weights = tf.matmul(kernel, weights)
        return self.deviation * tf.transpose(weights)

    def constants(self) -> dict[str, tf.Tensor]:
        """Return the share of the logits' variance that cancels in all differences of logits."""
        return {"common_noise_share": covariance.common_noise_share(self.logit_scale)}

    extra_metrics = ("penalty", "common_noise_share")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "deviation": self.deviation}


class NoiseFreeAdversarialTraining(AdversarialTraining):
    """Adversarial training on the net without its noise, which training does not have."""

    def target(self, model: StochasticClassifier) -> GaussianLogitsTarget:
        found: GaussianLogitsTarget = model.target().without_noise()  # type: ignore[union-attr]
        return found
