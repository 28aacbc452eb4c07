"""WCANet: any Keras backbone, a bottleneck, learned noise, and a linear classifier trained to align with the noise."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from wca_tf import alignment
from wca_tf.backbones import batch_normalization, prelu  # noqa: F401 registers layers that files of nets have
from wca_tf.distribution.model import DistributedModel
from wca_tf.distribution.replicas import num_replicas, sum_over_replicas
from wca_tf.errors import InputError
from wca_tf.layers import AnisotropicNoise, GaussianFeatureNoise, IsotropicNoise
from wca_tf.official import OfficialAnisotropicNoise, OfficialIsotropicNoise

# (model, images, labels, sample_weight) -> those to train on in their place
Adversary = Callable[["WCANet", tf.Tensor, tf.Tensor, tf.Tensor | None], tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]]
# compat -> covariance -> layer
NOISE_LAYERS: dict[str, dict[str, type[GaussianFeatureNoise] | None]] = {
    "paper": {"none": None, "isotropic": IsotropicNoise, "anisotropic": AnisotropicNoise},
    "official": {"none": None, "isotropic": OfficialIsotropicNoise, "anisotropic": OfficialAnisotropicNoise},
}
NOISE_METRICS = ("alignment", "noise_to_margin", "common_noise_share")
DRAWN_DIM = 2  # a plane, to look at: the paper's figure of weights and covariance has fewer dimensions than classes


@keras.saving.register_keras_serializable("wca_tf")
class WCANet(DistributedModel):
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

    Attributes:
        adversary: perturbs the images of each training step; None trains on clean ones. It belongs to a training run
            and is not saved.

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
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.backbone = backbone
        self.num_classes = num_classes
        self.feature_dim = feature_dim
        self.covariance = covariance
        self.bottleneck_activation = bottleneck_activation
        self.pixel_mean = tuple(pixel_mean)
        self.pixel_std = tuple(pixel_std)
        self.weight_decay = weight_decay
        self.seed = seed
        self.compat = compat
        self.noise_alone = noise_alone
        self.adversary: Adversary | None = None
        _check(self)
        self.bottleneck = keras.layers.Dense(
            feature_dim, activation=bottleneck_activation, dtype="float32", name="bottleneck"
        )
        noise_layer = NOISE_LAYERS[compat][covariance]
        self.noise = noise_layer(seed=seed, name="noise") if noise_layer else None
        self.classifier = keras.layers.Dense(num_classes, dtype="float32", name="classifier")
        for part in (self.backbone, self.bottleneck, self.classifier):
            part.trainable = part.trainable and not noise_alone
        names = ("ce", "penalty", "accuracy", *(NOISE_METRICS if self.noise else ()))
        self.means = [keras.metrics.Mean(name=name) for name in names]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.backbone.built:
            self.backbone.build(input_shape)
        width = self.backbone.compute_output_shape(input_shape)[-1]
        widths = {self.bottleneck: width, self.noise: self.feature_dim, self.classifier: self.feature_dim}
        for layer, layer_width in widths.items():
            if layer and not layer.built:
                layer.build((None, layer_width))

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        features = self.features(images, training=training)
        return self.classifier(self.noise(features) if self.noise else features)

    def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """f(x) [B, D], float32: the bottleneck's output, before the noise."""
        return self.normalised_features((tf.cast(images, tf.float32) - self.pixel_mean) / self.pixel_std, training)

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

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One step on CE − L_WCA + penalty; raises InvalidArgumentError, before any update, when it is NaN or Inf.

        The batch is this replica's share. Loss scaling multiplies the cross-entropy alone.
        """
        images, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if not self.built:  # fit never calls the model, and an unbuilt one is saved without its weights
            self.build(images.shape)
        if self.adversary:
            images, labels, sample_weight = self.adversary(self, images, labels, sample_weight)
        with tf.GradientTape() as tape:
            cross_entropy, features, logits = self._cross_entropy(images, labels, sample_weight, training=True)
            scaled_loss = self.optimizer.scale_loss(cross_entropy)
        with tf.GradientTape() as regulariser_tape:
            terms = self._regularisers()
            regulariser = (terms["penalty"] - terms.get("alignment", 0.0)) / num_replicas()
        values = self._measure(cross_entropy, features, logits, terms, labels)
        variables = self.trainable_variables
        gradients = tape.gradient(scaled_loss, variables)
        for i, gradient in enumerate(regulariser_tape.gradient(regulariser, variables)):
            if gradient is not None:
                gradients[i] += self.optimizer.scale_loss(gradient)
        with tf.control_dependencies([values["loss"]]):  # nothing is updated when the check raises
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self._report(values, images, labels, logits, sample_weight)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """As `train_step` without an update. Every number is weighted by `sample_weight`; rows of weight 0 are none."""
        images, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        cross_entropy, features, logits = self._cross_entropy(images, labels, sample_weight, training=False)
        values = self._measure(cross_entropy, features, logits, self._regularisers(), labels, sample_weight)
        return self._report(values, images, labels, logits, sample_weight)

    def _cross_entropy(
        self, images: tf.Tensor, labels: tf.Tensor, sample_weight: tf.Tensor | None, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(this replica's part of the global batch's mean, features, logits under noise)."""
        if len(labels.shape) == 2 and labels.shape[1] != 1:
            raise InputError(f"expected labels as whole numbers [B], received {labels.shape}: one-hot labels?")
        features = self.features(images, training=training)
        logits = self.classifier(self.noise(features) if self.noise else features)
        part = self.compute_loss(
            x=images, y=_flat(labels), y_pred=logits, sample_weight=sample_weight, training=training
        )
        return part, features, logits

    def _regularisers(self) -> dict[str, tf.Tensor]:
        """The terms of the loss that no image enters."""
        if not self.noise:
            return {"penalty": self.penalty()}
        alignment_term = self.noise.alignment_term(tf.convert_to_tensor(self.classifier.kernel))
        return {"penalty": self.penalty(), "alignment": alignment_term}

    def _measure(
        self,
        cross_entropy: tf.Tensor,
        features: tf.Tensor,
        logits: tf.Tensor,
        terms: dict[str, tf.Tensor],
        labels: tf.Tensor,
        weight: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Every metric of the global batch, and its "weight"; raises InvalidArgumentError when the loss is NaN or Inf.

        noise_to_margin is the deviation of h_y − h_j averaged over the batch, j the label's nearest rival, over the
        mean size of the noise-free margin |mu_y − mu_j|. common_noise_share is the share of the logits' variance that
        cancels in all such differences (`alignment.common_noise_share`).
        """
        labels = _flat(labels)
        rows = tf.cast(tf.size(labels), tf.float32)
        weight = tf.ones_like(labels, tf.float32) if weight is None else _flat(weight, tf.float32)
        sums = [
            tf.reduce_sum(weight),
            cross_entropy * tf.cast(num_replicas(), tf.float32) * rows,
            tf.reduce_sum(weight * tf.cast(tf.argmax(logits, 1) == labels, tf.float32)),
        ]
        if self.noise:
            scale = self.logit_scale
            deviations, margins = alignment.nearest_difference(self.classifier(features), labels, scale)
            sums += [tf.reduce_sum(weight * deviations), tf.reduce_sum(weight * margins)]
        total = tf.unstack(sum_over_replicas(tf.stack(sums)))
        cross_entropy, accuracy = (tf.math.divide_no_nan(each, total[0]) for each in total[1:3])
        values = {"weight": total[0], "ce": cross_entropy, "accuracy": accuracy, **terms}
        if self.noise:
            values["noise_to_margin"] = tf.math.divide_no_nan(total[3], total[4])
            values["common_noise_share"] = alignment.common_noise_share(scale)
        loss = values["ce"] + terms["penalty"] - terms.get("alignment", 0.0)
        return {**values, "loss": tf.debugging.check_numerics(loss, "training diverged: the loss")}

    def _report(
        self,
        values: dict[str, tf.Tensor],
        images: tf.Tensor,
        labels: tf.Tensor,
        logits: tf.Tensor,
        sample_weight: tf.Tensor | None,
    ) -> dict[str, tf.Tensor]:
        """Update every metric and return their values by name."""
        self._loss_tracker.update_state(values["loss"], sample_weight=values["weight"])
        for mean in self.means:
            mean.update_state(values[mean.name], sample_weight=values["weight"])
        return self.compute_metrics(images, _flat(labels), logits, sample_weight=sample_weight)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("dtype", None)
        names = "num_classes feature_dim covariance bottleneck_activation weight_decay seed compat noise_alone"
        return {
            **config,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "pixel_mean": list(self.pixel_mean),
            "pixel_std": list(self.pixel_std),
            **{name: getattr(self, name) for name in names.split()},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> "WCANet":
        backbone = keras.saving.deserialize_keras_object(config["backbone"], custom_objects=custom_objects)
        return cls(**{**config, "backbone": backbone})


def _flat(values: tf.Tensor, dtype: Any = tf.int64) -> tf.Tensor:
    """[B] of labels or weights [B] or [B, 1]."""
    return tf.cast(tf.reshape(values, [-1]), dtype)


def _check(net: WCANet) -> None:
    """Raise InputError for an argument out of its range."""
    if net.num_classes < 2:
        raise InputError(f"expected 2 classes or more, received num_classes={net.num_classes}")
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
    if not all(std > 0 for std in net.pixel_std):
        raise InputError(f"expected every pixel_std above 0, received {net.pixel_std}")
