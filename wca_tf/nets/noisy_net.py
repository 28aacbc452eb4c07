"""NoisyNet: a net with noise in the layers of its backbone."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import all_layers, is_called_once
from wca_tf.distribution.replicas import first_row
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.noise import Draws, NoiseLayer, drawing, noise_layers_of
from wca_tf.nets.noisy_weights import NoisyDense
from wca_tf.nets.random_stream import RandomStream
from wca_tf.nets.sampled_target import SampledTarget


@keras.saving.register_keras_serializable("wca_tf")
class NoisyNet(StochasticClassifier):
    """The net h(x) = W f(x, noise) + b, where layers of the backbone f, or the classifier, are `NoiseLayer`s.

    `fit` minimises CE + weight_decay/2 Σ ‖kernel‖², over the kernels of the backbone's layers and of the classifier.

    Args:
        backbone: a functional Keras model on normalised images [B, H, W, channels] -> [B, features].
        num_classes, pixel_mean, pixel_std, seed: as for `StochasticClassifier`.
        classifier: a dense layer of float32 with `num_classes` units; `None` for one without noise.
        weight_decay: 0 or more.

    Call arguments:
        images: [B, H, W, channels], float, in [0, 1].
    """

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        *args: Any,
        classifier: keras.layers.Dense | None = None,
        weight_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(backbone, num_classes, *args, **kwargs)
        self.classifier = classifier or keras.layers.Dense(num_classes, dtype="float32", name="classifier")
        self.weight_decay = weight_decay
        if weight_decay:
            self.extra_metrics = ("penalty", *type(self).extra_metrics)
        self.stream = RandomStream(self.seed, name="stream")
        self.noise_layers = noise_layers_of(backbone)
        if not all(map(is_called_once, self.noise_layers)):
            raise InputError("expected each layer of noise to be called once, received one called twice")
        if isinstance(self.classifier, NoiseLayer):
            self.noise_layers.append(self.classifier)
        for number, layer in enumerate(self.noise_layers):
            layer.number = number
        self.report_means()

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.classifier.built:
            self.classifier.build((None, self.backbone.compute_output_shape(input_shape)[-1]))
        if not self.stream.built:
            self.stream.build()

    def forward(
        self, images: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tuple[tf.Tensor, None]:
        """Return logits [B, C] under one draw; an image's number is its row in the global batch."""
        seed = self.stream.next_seed() if seed is None else seed
        rows = tf.shape(images)[0]
        draws = Draws(seed[tf.newaxis], tf.cast(first_row(rows) + tf.range(rows), tf.int64))
        return self._logits(images, draws, training), None

    def logits_of_draws(self, images: tf.Tensor, seeds: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Return logits [S, B, C] of several draws, in one pass.

        Args:
            images: [B, H, W, channels], float, in [0, 1].
            seeds: int32 [S, 2], the seed of each draw.
            indices: whole numbers [B], the number of each image. Noise that differs from image to image follows from
                the draw's seed and this number.
        """
        draws = tf.shape(seeds)[0]
        repeated = tf.tile(images, [draws, *[1] * (images.shape.rank - 1)])
        logits = self._logits(repeated, Draws(seeds, indices), training=False)
        logits = tf.reshape(logits, [draws, -1, self.num_classes])
        return tf.ensure_shape(logits, [seeds.shape[0], images.shape[0], self.num_classes])

    def moments_of_draws(self, images: tf.Tensor, seeds: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Return [S, 3, B, C]: the logits of `logits_of_draws`, then their mean and variance given the features.

        The classifier must be a `NoisyDense` with noise of each image.
        """
        draws = tf.shape(seeds)[0]
        repeated = tf.tile(images, [draws, *[1] * (images.shape.rank - 1)])
        with drawing(Draws(seeds, indices)):
            features = self.backbone(self.normalised(repeated), training=False)
            parts = tf.stack([self.classifier(features), *self.classifier.moments(features)])
        parts = tf.transpose(tf.reshape(parts, [3, draws, -1, self.num_classes]), [1, 0, 2, 3])
        return tf.ensure_shape(parts, [seeds.shape[0], 3, images.shape[0], self.num_classes])

    def noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        return self._logits(images, None, training=False)

    def target(self) -> SampledTarget:
        has_moments = isinstance(self.classifier, NoisyDense) and self.classifier.scope == "image"
        return SampledTarget(
            self.logits,
            noise_free_logits=self.noise_free_logits,
            logits_of_draws=self.logits_of_draws,
            per_image_noise=all(layer.scope == "image" for layer in self.noise_layers),
            moments_of_draws=self.moments_of_draws if has_moments else None,
        )

    def extra_losses(self) -> dict[str, tf.Tensor]:
        """Return the weight decay, if there is any."""
        if not self.weight_decay:
            return {}
        kernels = [layer.kernel for layer in (*all_layers(self.backbone), self.classifier) if hasattr(layer, "kernel")]
        squares = [tf.reduce_sum(tf.square(tf.convert_to_tensor(kernel))) for kernel in kernels]
        return {"penalty": self.weight_decay / 2 * tf.add_n(squares)}

    @property
    def deterministic_layers(self) -> dict[str, keras.layers.Layer]:
        return {"backbone": self.backbone, "classifier": self.classifier}

    def _logits(self, images: tf.Tensor, draws: Draws | None, training: bool) -> tf.Tensor:
        with drawing(draws):
            return self.classifier(self.backbone(self.normalised(images), training=training))

    def get_config(self) -> dict[str, Any]:
        classifier = keras.saving.serialize_keras_object(self.classifier)
        return {**super().get_config(), "classifier": classifier, "weight_decay": self.weight_decay}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> "NoisyNet":
        classifier = keras.saving.deserialize_keras_object(config["classifier"], custom_objects=custom_objects)
        return super().from_config({**config, "classifier": classifier}, custom_objects)
