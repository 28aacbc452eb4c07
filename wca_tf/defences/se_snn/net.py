"""The net of SE-SNN (Yu et al., AAAI 2021). Its logits given an image are Gaussian: N(W μ(x) + b, W diag(σ(x)²) Wᵀ)."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.distribution.replicas import first_row, num_replicas
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.loss_terms import Ratio
from wca_tf.nets.random_stream import RandomStream
from wca_tf.nets.targets import GaussianLogitsTarget

MIN_DEVIATION = 1e-30  # keeps ln σ and its gradient finite where σ underflows to 0


@keras.saving.register_keras_serializable("wca_tf")
class SESNNNet(BottleneckNet):
    """The net h(x) = W z + b, z = μ(x) + σ(x) ∘ ξ, ξ ~ N(0, I), one ξ for each image (Eq. 1).

    μ is a dense layer on the backbone's features, and σ = softplus(dense − shift) another. `fit` minimises
    CE + ω mean_ij (b − ln σ_ij)₊ (Eq. 4, 7, 9). The paper may apply an activation to z; here there is none, as in the
    authors' code.

    Args:
        args, kwargs: those of `BottleneckNet`, without a bottleneck's activation.
        entropy_weight: ω, 0 or more.
        log_deviation: b.
        shift: see σ.
    """

    extra_metrics = ("penalty", "entropy_loss", "mean_deviation")

    def __init__(self, *args: Any, entropy_weight: float, log_deviation: float, shift: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entropy_weight = entropy_weight
        self.log_deviation = log_deviation
        self.shift = shift
        self.deviation = keras.layers.Dense(self.feature_dim, dtype="float32", name="deviation")

    def make_noise(self) -> RandomStream:
        return RandomStream(self.seed, name="stream")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        if not self.deviation.built:
            self.deviation.build((None, self.backbone.compute_output_shape(input_shape)[-1]))

    def forward(
        self, images: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return logits [B, C] under one draw, and σ [B, D]."""
        mean, deviation = tf.split(self.features(images, training=training), 2, axis=1)
        seed = self.noise.next_seed() if seed is None else seed
        rows = tf.shape(images)[0]
        first, shape = first_row(rows), [rows * num_replicas(), self.feature_dim]
        draw = tf.random.stateless_normal(shape, seed)[first : first + rows]  # the rows of the global batch's noise
        return self.logits_of(mean + deviation * draw), deviation

    def normalised_features(self, normalised: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return μ and σ side by side, [B, 2 D]."""
        pooled = self.pooled(normalised, training)
        deviation = tf.nn.softplus(self.deviation(pooled) - self.shift)
        return tf.concat([self.bottleneck(pooled), deviation], axis=1)

    def bottleneck_lipschitz(self) -> float:
        raise InputError("expected features with a known Lipschitz constant, received those of SE-SNN, which have σ(x)")

    def noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        return self._mean_logits(self.features(images))

    def gaussian_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = self.features(images)
        return self._mean_logits(features), self._scale(features)

    def target(self) -> GaussianLogitsTarget:
        return GaussianLogitsTarget(self.features, self._mean_logits, self._scale, has_noise=True, scale_per_image=True)

    def with_backbone(self, backbone: keras.Model) -> "SESNNNet":
        net = super().with_backbone(backbone)
        net.deviation = self.deviation
        return net

    def image_losses(self, state: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return ω mean_j (b − ln σ_ij)₊ of each image i."""
        missing = tf.nn.relu(self.log_deviation - tf.math.log(state + MIN_DEVIATION))
        return {"entropy_loss": self.entropy_weight * tf.reduce_mean(missing, axis=1)}

    def ratios(self, state: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor) -> dict[str, Ratio]:
        """Return the mean of σ."""
        return {"mean_deviation": (tf.reduce_sum(weight * tf.reduce_mean(state, axis=1)), tf.reduce_sum(weight))}

    def _mean_logits(self, features: tf.Tensor) -> tf.Tensor:
        return self.logits_of(features[:, : self.feature_dim])

    def _scale(self, features: tf.Tensor) -> tf.Tensor:
        """Return A = W diag(σ(x)) of each image, [B, C, D]."""
        return self.class_weights * features[:, tf.newaxis, self.feature_dim :]

    def get_config(self) -> dict[str, Any]:
        names = ("entropy_weight", "log_deviation", "shift")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
