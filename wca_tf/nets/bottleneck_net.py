"""BottleneckNet: a backbone, a bottleneck of few features, and a linear classifier. Without noise."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import all_layers
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.gaussian_head import bottleneck_of, check_feature_dim
from wca_tf.nets.lipschitz import Rounded, constant_of_layer, lipschitz_constant
from wca_tf.nets.noise import noise_layers_of
from wca_tf.nets.orthogonal_layers import HALF_STEP, l2_norms, relative_rounding
from wca_tf.nets.targets import GaussianLogitsTarget


@keras.saving.register_keras_serializable("wca_tf")
class BottleneckNet(StochasticClassifier):
    """The net h(x) = (W f(x) + b) / T, with f(x) [D] the output of a bottleneck. WCANet adds noise to f(x).

    `fit` minimises CE + weight_decay/2 ‖W‖². The layers after the backbone are float32 under every policy.

    Args:
        backbone: a Keras model on normalised images [B, H, W, channels]; maps of features are averaged over positions.
        num_classes: C, at least 2.
        feature_dim: D, the width of the bottleneck; at least C, or 2 to draw it.
        bottleneck_activation: Keras name of the bottleneck's activation, or `None`.
        pixel_mean, pixel_std: per channel, in the images' [0, 1] units; the net normalises its own input.
        weight_decay: coupled l2 penalty on W alone, 0 or more.
        seed: starts the stream of training noise, in nets with noise.
        backbone_decay: coupled l2 penalty on the kernels of backbone and bottleneck, 0 or more.
        lipschitz_bottleneck: "aol" or "orthogonal" for a bottleneck of these layers, which have norm 1 and no
            activation; `None` for another.
        temperature: T, above 0.

    Call arguments:
        images: [B, H, W, channels], float, in [0, 1].

    Raises:
        InputError: an argument out of its range.
    """

    extra_metrics: tuple[str, ...] = ("penalty",)

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        feature_dim: int = 32,
        bottleneck_activation: str | None = None,
        pixel_mean: tuple[float, ...] = (0.0,),
        pixel_std: tuple[float, ...] = (1.0,),
        weight_decay: float = 0.0,
        seed: int = 0,
        lipschitz_bottleneck: str | None = None,
        backbone_decay: float = 0.0,
        temperature: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone, num_classes, pixel_mean, pixel_std, seed, **kwargs)
        check_feature_dim(feature_dim, num_classes)
        for name, decay in (("weight_decay", weight_decay), ("backbone_decay", backbone_decay)):
            if not 0 <= decay < math.inf:
                raise InputError(f"expected {name} of 0 or more, received {decay}")
        if not 0 < temperature < math.inf:
            raise InputError(f"expected a temperature above 0, received {temperature}")
        if noise_layers_of(backbone):
            raise InputError("expected a backbone without layers of noise, which a NoisyNet draws for; received one")
        self.feature_dim = feature_dim
        self.bottleneck_activation = bottleneck_activation
        self.weight_decay = weight_decay
        self.backbone_decay = backbone_decay
        self.lipschitz_bottleneck = lipschitz_bottleneck
        self.temperature = temperature
        self.make_layers()
        self.report_means()

    def make_layers(self) -> None:
        """Make the layers after the backbone: `bottleneck`, `noise` and `classifier`."""
        self.bottleneck = bottleneck_of(self.feature_dim, self.bottleneck_activation, self.lipschitz_bottleneck)
        self.noise = self.make_noise()
        self.classifier = keras.layers.Dense(self.num_classes, dtype="float32", name="classifier")

    def make_noise(self) -> Any:
        """Return the layer that adds noise to the features; `None` for a net without noise."""
        return None

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
        return self.logits_of(self.noise(features, seed=seed) if self.noise else features), features

    def logits_of(self, features: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] of features [B, D], with their noise, if any."""
        return self.classifier(features) / self.temperature

    def noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        return self.logits_of(self.features(images))

    def gaussian_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.noise_free_logits(images), self.logit_scale

    def target(self) -> GaussianLogitsTarget:
        return GaussianLogitsTarget(self.features, self.logits_of, lambda: self.logit_scale, bool(self.noise))

    def with_backbone(self, backbone: keras.Model) -> "BottleneckNet":
        net = type(self)(backbone, **{key: value for key, value in self.get_config().items() if key != "backbone"})
        net.share_layers(self)
        net.build(self.backbone.input_shape)
        return net

    def share_layers(self, net: "BottleneckNet") -> None:
        """Take the layers after the backbone of another net of this class."""
        self.bottleneck, self.noise, self.classifier = net.bottleneck, net.noise, net.classifier

    @property
    def deterministic_layers(self) -> dict[str, keras.layers.Layer]:
        return {"backbone": self.backbone, "bottleneck": self.bottleneck, "classifier": self.classifier}

    def features(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return f(x) [B, D], float32: the bottleneck's output, before the noise."""
        return self.normalised_features(self.normalised(images), training)

    def normalised_features(self, normalised: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return the features [B, D] of images whose channels have mean 0 and deviation 1."""
        return self.bottleneck(self.pooled(normalised, training))

    def pooled(self, normalised: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return the backbone's features [B, F] of such images, averaged over positions."""
        features = self.backbone(normalised, training=training)
        if features.shape.rank > 2:
            features = tf.reduce_mean(features, axis=range(1, features.shape.rank - 1))
        return features

    @property
    def class_weights(self) -> tf.Tensor:
        """W / T [C, D]: the logits are W f(x) / T + b / T, but for the noise."""
        return tf.transpose(tf.convert_to_tensor(self.classifier.kernel)) / self.temperature

    def lipschitz(self) -> float:
        """Return a Lipschitz constant of the features f from images in [0, 1], in l2.

        Raises:
            InputError: a layer whose constant is not known, or that computes in less than float32; images of any size.
        """
        constant = self.bottleneck_lipschitz() * lipschitz_constant(self.backbone) / min(self.pixel_std)
        positions = self.backbone.output_shape[1:-1]  # maps of features are averaged over positions
        if None in positions:
            raise InputError(f"expected a backbone with images of one size, received features {positions}")
        return constant / math.sqrt(math.prod(positions))

    @tensor_float_32(on=False)
    def rounding(self, images: np.ndarray, distance: float = 0.0) -> np.ndarray:
        """Return a bound [N], in l2, of what float32 adds to the features of a net of orthogonal layers.

        Args:
            images: float32 [N, H, W, channels], from 0 to 1.
            distance: the bound holds for all images in float32 within this l2 distance of them, 0 or more.

        Raises:
            InputError: another net; a `pixel_std` other than 1; features that are averaged over positions; other images
                or distances.
        """
        _ = self.bottleneck_lipschitz()  # a net whose features are not the bottleneck's has none
        if set(self.pixel_std) != {1.0} or len(self.backbone.output_shape) != 2:
            raise InputError(
                "expected pixel_std 1 and a backbone that ends in Flatten, to bound the rounding; received pixel_std "
                f"{tuple(self.pixel_std)} and features {self.backbone.output_shape[1:]}"
            )
        given = Rounded.given(images, distance)
        normalised = np.asarray(self.normalised(images))
        error = HALF_STEP * (l2_norms(normalised) / (1 - HALF_STEP) + distance)  # of the subtraction of the mean
        return given.moved(normalised, 1.0, error).after_model(self.backbone).after(self.bottleneck).error

    def logit_rounding(self, features: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Return a bound [N] of what float32 adds to each logit, given its features.

        A logit is a sum of D products and a bias, over T, and `class_weights` is rounded too.

        Args:
            features: [N, D].
            distance: [N]; the bound holds for all features within this l2 distance of them.
        """
        weight, bias = l2_norms(self.class_weights).max(), np.abs(np.asarray(self.classifier.bias, np.float64)).max()
        sums = weight * (l2_norms(features) + distance) + bias / self.temperature
        return relative_rounding(self.feature_dim + 3) * sums

    def bottleneck_lipschitz(self) -> float:
        """Return a Lipschitz constant of f from the backbone's features; raise InputError where none is known."""
        return constant_of_layer(self.bottleneck)

    @property
    def logit_scale(self) -> tf.Tensor:
        """A [C, D] with K = A Aᵀ the covariance of the logits; zero without noise."""
        return tf.zeros([self.num_classes, self.feature_dim])

    def penalty(self) -> tf.Tensor:
        """Return weight_decay/2 ‖W‖² plus backbone_decay/2 times the squared norm of the backbone's kernels."""
        penalty = self.weight_decay / 2 * self.squared_norm()
        if not self.backbone_decay:
            return penalty
        layers = [*all_layers(self.backbone), self.bottleneck]
        kernels = [layer.kernel for layer in layers if hasattr(layer, "kernel") and layer.kernel.trainable]
        squares = [tf.reduce_sum(tf.square(tf.convert_to_tensor(kernel))) for kernel in kernels]
        return penalty + self.backbone_decay / 2 * sum(squares, tf.zeros([]))

    def squared_norm(self) -> tf.Tensor:
        """Return ‖W‖², which weight decay penalises."""
        return tf.reduce_sum(tf.square(self.classifier.kernel))

    def extra_losses(self) -> dict[str, tf.Tensor]:
        return {"penalty": self.penalty()}

    def get_config(self) -> dict[str, Any]:
        names = ("feature_dim", "bottleneck_activation", "weight_decay", "lipschitz_bottleneck", "backbone_decay")
        return {**super().get_config(), **{name: getattr(self, name) for name in (*names, "temperature")}}
