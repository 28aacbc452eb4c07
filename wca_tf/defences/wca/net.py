"""WCANet: any Keras backbone with a `WCAHead`, and the metrics and options of bin/train."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.defences.wca.head import WCAHead
from wca_tf.gaussian import covariance, margins
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.gaussian_head import FeatureNoise
from wca_tf.nets.loss_terms import Ratio

NOISE_METRICS = ("alignment", "noise_to_margin", "common_noise_share")


@keras.saving.register_keras_serializable("wca_tf")
class WCANet(BottleneckNet):
    """A stochastic classifier with logits h(x) = W (f(x) + z) + b, z ~ N(0, L Lᵀ) (paper, section 3).

    `fit` minimises CE − Σ_i ln(w_iᵀ Sigma w_i) + weight_decay/2 (‖W‖² + ‖L‖²) (paper, Eq. 1, 3). CE is the loss given
    to `compile`; labels are whole numbers [B] of any type. Noise is drawn at test time too. The layers after the
    backbone, `wca_head`, are float32 under every policy.

    Args:
        backbone: a Keras model on normalised images [B, H, W, channels]; feature maps are averaged over positions.
        num_classes: C, at least 2.
        feature_dim: D, the width of the bottleneck; at least C, or 2 for figures of the features in a plane.
        covariance: "anisotropic" or "isotropic".
        bottleneck_activation, lipschitz_bottleneck: as for `BottleneckNet`.
        pixel_mean, pixel_std: per channel, in the images' [0, 1] units; the net normalises its own input.
        weight_decay: weight of the coupled l2 penalty on W and L alone, 0 or more.
        seed: the seed of the stream of training noise.
        noise_alone: whether to train the noise alone, on frozen features and weights (paper, E3).
        alignment: the form of the alignment term, one of `alignment.ALIGNMENTS`; "per_class" is the paper's.
        alignment_weight: the weight of the term in the loss, 0 or more.
        features: "free", or "normalised": f(x) is scaled to the length 10.

    Call arguments:
        images: [B, H, W, channels], float, in [0, 1].

    Raises:
        InputError: an argument is out of its range.
    """

    extra_metrics = ("penalty", *NOISE_METRICS)
    head_class = WCAHead

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        feature_dim: int = 32,
        covariance: str = "anisotropic",
        bottleneck_activation: str | None = None,
        pixel_mean: tuple[float, ...] = (0.0,),
        pixel_std: tuple[float, ...] = (1.0,),
        weight_decay: float = 1e-4,
        seed: int = 0,
        noise_alone: bool = False,
        lipschitz_bottleneck: str | None = None,
        alignment: str = "per_class",
        alignment_weight: float = 1.0,
        features: str = "free",
        **kwargs: Any,
    ) -> None:
        self.covariance = covariance
        self.alignment = alignment
        self.alignment_weight = alignment_weight
        self.feature_option = features
        super().__init__(
            backbone,
            num_classes,
            feature_dim,
            bottleneck_activation,
            pixel_mean,
            pixel_std,
            weight_decay,
            seed,
            lipschitz_bottleneck,
            **kwargs,
        )
        self.noise_alone = noise_alone
        for part in self.deterministic_layers.values():
            part.trainable = part.trainable and not noise_alone

    def make_layers(self) -> None:
        head = self.head_class(
            self.num_classes,
            self.feature_dim,
            self.covariance,
            alignment=self.alignment,
            alignment_weight=self.alignment_weight,
            weight_decay=self.weight_decay,
            bottleneck_activation=self.bottleneck_activation,
            features=self.feature_option,
            seed=self.seed,
            lipschitz_bottleneck=self.lipschitz_bottleneck,
        )
        self._take(head)

    def share_layers(self, net: Any) -> None:
        self._take(net.wca_head)

    def _take(self, head: WCAHead) -> None:
        """Take a head, after its layers: a .keras file has each of them where the net has it first."""
        self.bottleneck, self.noise, self.classifier = head.bottleneck, head.noise, head.classifier
        self.wca_head = head

    @property
    def logit_scale(self) -> tf.Tensor:
        """A [C, D]; the covariance of the logits is K = A Aᵀ."""
        return self.wca_head.logit_scale / self.temperature

    def squared_norm(self) -> tf.Tensor:
        """Return ‖W‖² + ‖L‖², which weight decay penalises."""
        return self.wca_head.squared_norm()

    def rewards(self) -> dict[str, tf.Tensor]:
        return {"alignment": self.wca_head.reward()}

    def normalised_features(self, normalised: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.wca_head.features(self.pooled(normalised, training))

    def bottleneck_lipschitz(self) -> float:
        return self.wca_head.lipschitz()

    def ratios(self, state: Any, labels: tf.Tensor, weight: tf.Tensor) -> dict[str, Ratio]:
        """Return noise_to_margin: the deviation of h_y − h_j over the noise-free margin |mu_y − mu_j|.

        Class j is the nearest other class of the label y.
        """
        deviations, distances = margins.nearest_difference(self.logits_of(state), labels, self.logit_scale)
        return {"noise_to_margin": (tf.reduce_sum(weight * deviations), tf.reduce_sum(weight * distances))}

    def constants(self) -> dict[str, tf.Tensor]:
        """Return the share of the logits' variance that cancels in all differences of logits."""
        return {"common_noise_share": covariance.common_noise_share(self.logit_scale)}

    def feature_noise(self) -> FeatureNoise | None:
        return self.wca_head.feature_noise()

    def get_config(self) -> dict[str, Any]:
        names = ("covariance", "noise_alone", "alignment", "alignment_weight")
        config = {**super().get_config(), **{name: getattr(self, name) for name in names}}
        return {**config, "features": self.feature_option}
