"""WCANet: any Keras backbone, a bottleneck, learned noise, and a linear classifier trained to align with the noise."""

import math
from typing import Any

import keras
import tensorflow as tf

from wca_tf import alignment
from wca_tf.backbones import batch_normalization, prelu  # noqa: F401 registers layers that files of nets have
from wca_tf.classifier import Ratio, StochasticClassifier
from wca_tf.errors import InputError
from wca_tf.layers import AnisotropicNoise, GaussianFeatureNoise, IsotropicNoise
from wca_tf.official import OfficialAnisotropicNoise, OfficialIsotropicNoise
from wca_tf.targets import HeadNoiseTarget

# compat -> covariance -> layer
NOISE_LAYERS: dict[str, dict[str, type[GaussianFeatureNoise] | None]] = {
    "paper": {"none": None, "isotropic": IsotropicNoise, "anisotropic": AnisotropicNoise},
    "official": {"none": None, "isotropic": OfficialIsotropicNoise, "anisotropic": OfficialAnisotropicNoise},
}
NOISE_METRICS = ("alignment", "noise_to_margin", "common_noise_share")
DRAWN_DIM = 2  # a plane, to look at: the paper's figure of weights and covariance has fewer dimensions than classes


@keras.saving.register_keras_serializable("wca_tf")
class WCANet(StochasticClassifier):
    """h(x) = W (f(x) + z) + b, z ~ N(0, L Lᵀ): logits of a stochastic classifier (paper, section 3).

    `fit` minimises CE − Σ_i ln(w_iᵀ Sigma w_i) + weight_decay/2 (‖W‖² + ‖L‖²) (paper, Eq. 1, 3), where CE is the loss
    given to `compile`, of labels that are whole numbers [B] of any type. Noise is drawn at test time too. What follows
    the backbone is float32 under every policy.

    Args:
        backbone: a Keras model on normalised images [B, H, W, channels]; maps of features are averaged over positions.
        num_classes: C, at least 2.
        feature_dim: D, the width of the bottleneck; at least C, or 2 to draw it.
        covariance: "anisotropic", "isotropic", or "none" (the undefended net: no noise, no alignment term).
        bottleneck_activation: Keras name of the activation before the noise, or None.
        pixel_mean, pixel_std: per channel, in the images' [0, 1] units; the net normalises its own input.
        weight_decay: coupled l2 penalty on W and L alone, 0 or more.
        seed: starts the stream of training noise.
        compat: "paper", or "official" for the noise and the alignment term of the authors' code (official.py).
        noise_alone: train the noise on frozen features and weights (paper, E3).

    Call arguments:
        images: [B, H, W, channels], float, in [0, 1].

    Raises:
        InputError: an argument out of its range.
    """

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
        compat: str = "paper",
        noise_alone: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone, num_classes, pixel_mean, pixel_std, seed, **kwargs)
        self.feature_dim = feature_dim
        self.covariance = covariance
        self.bottleneck_activation = bottleneck_activation
        self.weight_decay = weight_decay
        self.compat = compat
        self.noise_alone = noise_alone
        _check(self)
        self.bottleneck = keras.layers.Dense(
            feature_dim, activation=bottleneck_activation, dtype="float32", name="bottleneck"
        )
        noise_layer = NOISE_LAYERS[compat][covariance]
        self.noise = noise_layer(seed=seed, name="noise") if noise_layer else None
        self.classifier = keras.layers.Dense(num_classes, dtype="float32", name="classifier")
        for part in (self.backbone, self.bottleneck, self.classifier):
            part.trainable = part.trainable and not noise_alone
        self.extra_metrics = ("penalty", *(NOISE_METRICS if self.noise else ()))
        self.report_means()

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.backbone.built:
            self.backbone.build(input_shape)
        width = self.backbone.compute_output_shape(input_shape)[-1]
        widths = {self.bottleneck: width, self.noise: self.feature_dim, self.classifier: self.feature_dim}
        for layer, layer_width in widths.items():
            if layer and not layer.built:
                layer.build((None, layer_width))

    def forward(
        self, images: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return logits [B, C] under one draw, and the features before the noise."""
        features = self.features(images, training=training)
        return self.classifier(self.noise(features, seed=seed) if self.noise else features), features

    def noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        return self.classifier(self.features(images))

    def gaussian_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.noise_free_logits(images), self.logit_scale

    def target(self) -> HeadNoiseTarget:
        return HeadNoiseTarget(self.features, self.classifier, lambda: self.logit_scale, bool(self.noise))

    def with_backbone(self, backbone: keras.Model) -> "WCANet":
        net = WCANet(backbone, **{key: value for key, value in self.get_config().items() if key != "backbone"})
        net.bottleneck, net.noise, net.classifier = self.bottleneck, self.noise, self.classifier
        net.build(self.backbone.input_shape)
        return net

    def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """f(x) [B, D], float32: the bottleneck's output, before the noise."""
        return self.normalised_features(self.normalised(images), training)

    def normalised_features(self, normalised: tf.Tensor, training: bool = False) -> tf.Tensor:
        """`features` of images whose channels have mean 0 and deviation 1."""
        features = self.backbone(normalised, training=training)
        if features.shape.rank > 2:
            features = tf.reduce_mean(features, axis=range(1, features.shape.rank - 1))
        return self.bottleneck(features)

    @property
    def logit_scale(self) -> tf.Tensor:
        """A [C, D] with K = A Aᵀ the covariance of the logits; zero for the undefended net."""
        if not self.noise:
            return tf.zeros([self.num_classes, self.feature_dim])
        return alignment.logit_scale(tf.convert_to_tensor(self.classifier.kernel), self.noise.scale_tril)

    def penalty(self) -> tf.Tensor:
        """weight_decay/2 (‖W‖² + ‖L‖²), a scalar; the authors' code has the bias in it too."""
        squares = tf.reduce_sum(tf.square(self.classifier.kernel))
        if self.compat == "official":
            squares += tf.reduce_sum(tf.square(self.classifier.bias))
        if self.noise:
            squares += self.noise.squared_norm()
        return self.weight_decay / 2 * squares

    def extra_losses(self) -> dict[str, tf.Tensor]:
        return {"penalty": self.penalty()}

    def rewards(self) -> dict[str, tf.Tensor]:
        """The alignment term (paper, Eq. 3)."""
        if not self.noise:
            return {}
        return {"alignment": self.noise.alignment_term(tf.convert_to_tensor(self.classifier.kernel))}

    def ratios(self, state: Any, labels: tf.Tensor, weight: tf.Tensor) -> dict[str, Ratio]:
        """noise_to_margin: the deviation of h_y − h_j over the noise-free margin |mu_y − mu_j|, j the nearest rival."""
        if not self.noise:
            return {}
        deviations, margins = alignment.nearest_difference(self.classifier(state), labels, self.logit_scale)
        return {"noise_to_margin": (tf.reduce_sum(weight * deviations), tf.reduce_sum(weight * margins))}

    def constants(self) -> dict[str, tf.Tensor]:
        """The share of the logits' variance that cancels in all differences of logits."""
        return {"common_noise_share": alignment.common_noise_share(self.logit_scale)} if self.noise else {}

    def get_config(self) -> dict[str, Any]:
        names = ("feature_dim", "covariance", "bottleneck_activation", "weight_decay", "compat", "noise_alone")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _check(net: WCANet) -> None:
    """Raise InputError for an argument out of its range."""
    if net.feature_dim < net.num_classes and net.feature_dim != DRAWN_DIM:
        raise InputError(
            f"expected feature_dim of at least the number of classes, {net.num_classes}, so that the covariance can "
            f"align with every class's weight vector (paper, section 4.1), or {DRAWN_DIM}, to draw it; received "
            f"feature_dim={net.feature_dim}"
        )
    if net.compat not in NOISE_LAYERS:
        raise InputError(f"expected compat among {', '.join(NOISE_LAYERS)}; received {net.compat!r}")
    known = NOISE_LAYERS[net.compat]
    if net.covariance not in known:
        raise InputError(f"expected covariance among {', '.join(known)}; received {net.covariance!r}")
    if net.noise_alone and net.covariance == "none":
        raise InputError("expected noise to train alone, received covariance='none'")
    if not 0 <= net.weight_decay < math.inf:
        raise InputError(f"expected weight_decay of 0 or more, received {net.weight_decay}")
