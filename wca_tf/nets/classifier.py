"""StochasticClassifier: the base class of every net that is trained here, whatever its defence."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from wca_tf.core.errors import DIVERGED, InputError
from wca_tf.core.keras_graph import check_called_without_training
from wca_tf.distribution.model import DistributedModel
from wca_tf.distribution.replicas import num_replicas, sum_over_replicas
from wca_tf.nets.gaussian_head import FeatureNoise, check_num_classes
from wca_tf.nets.loss_terms import LipschitzMargin, Ratio, Terms, flat, mean_over_rows
from wca_tf.nets.losses import check_takes_logits
from wca_tf.nets.pixels import channels_of, per_channel
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import AnyTarget

CERTIFIED = "certified"  # the metric of nets that are trained for a radius
# (net, images, labels, sample_weight) -> (images, labels, sample_weight) to train on in their place
Adversary = Callable[
    ["StochasticClassifier", tf.Tensor, tf.Tensor, tf.Tensor | None],
    tuple[tf.Tensor, tf.Tensor, tf.Tensor | None],
]


class StochasticClassifier(DistributedModel):
    """A classifier of images whose answers may be random: the interface for training, evaluation and export.

    A defence derives a class from it and defines `forward`. Where there is a net without the noise, it also defines
    `noise_free_logits`. `fit` minimises the loss given to `compile`, plus the means of `image_losses`, plus
    `extra_losses`, less `rewards`. `val_loss` has neither of the last two, which depend on the weights alone: it is
    the loss on data. Labels are whole numbers [B] of any type.

    Args:
        backbone: a Keras model on normalised images [B, H, W, channels].
        num_classes: C, at least 2.
        pixel_mean, pixel_std: per channel, in the images' [0, 1] units; the net normalises its own input.
        seed: starts the stream of training noise.

    Attributes:
        defence: the defence that made the net, as text for `--defence`; empty for a net made in Python.
        adversary: perturbs the images of each training step; `None` trains on clean images. It belongs to a training
            run and is not saved.
        margin: what the loss does with the logits to certify them; `None` for nothing. With a radius, training reports
            the share of images that it certifies, as `certified`. Set it before `compile`; it is not saved.
        extra_metrics: names of the metrics that training reports beside the loss, the cross-entropy `ce` and the
            accuracy: the metrics that `image_losses`, `extra_losses`, `rewards`, `ratios` and `constants` return.

    Raises:
        InputError: an argument out of its range.
    """

    extra_metrics: tuple[str, ...] = ()

    def __init__(
        self,
        backbone: keras.Model,
        num_classes: int,
        pixel_mean: Sequence[float] = (0.0,),
        pixel_std: Sequence[float] = (1.0,),
        seed: int = 0,
        defence: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, "dtype": "float32"})
        check_num_classes(num_classes)
        check_called_without_training(backbone)
        self.backbone = backbone
        self.num_classes = num_classes
        channels = channels_of(backbone)
        self.pixel_mean = per_channel("pixel_mean", pixel_mean, channels)
        self.pixel_std = per_channel("pixel_std", pixel_std, channels)
        if not all(std > 0 for std in self.pixel_std):
            raise InputError(f"expected every pixel_std above 0, received {self.pixel_std}")
        self.seed = seed
        self.defence = defence
        self.adversary: Adversary | None = None
        self.margin: LipschitzMargin | None = None
        self.means: list[keras.metrics.Mean] = []

    # A defence defines these methods.

    def forward(
        self, images: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tuple[tf.Tensor, Any]:
        """Return logits [B, C] under one draw of the noise, and the state of this pass, for `ratios`.

        Args:
            images: [B, H, W, channels], float, in [0, 1].
            seed: int32[2], which alone decides the draw; `None` for the net's own stream.
            training: whether batch normalisation uses the statistics of the batch.
        """
        raise NotImplementedError

    def noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] of the net without its noise."""
        raise NotImplementedError

    @property
    def has_noise_free_logits(self) -> bool:
        """Whether the class defines `noise_free_logits`."""
        return type(self).noise_free_logits is not StochasticClassifier.noise_free_logits

    def gaussian_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
        """Return the mean [B, C] of the logits, and A, [C, R] or [B, C, R], of their covariance A Aᵀ.

        Return `None` for a net whose logits given an image are not Gaussian.
        """
        return None

    def target(self) -> AnyTarget:
        """Return the target for attacks on the net; it stays valid while the net goes on training."""
        return SampledTarget(
            self.logits, noise_free_logits=self.noise_free_logits if self.has_noise_free_logits else None
        )

    def with_backbone(self, backbone: keras.Model) -> "StochasticClassifier":
        """Return the net on another backbone, built; the layers after the backbone are shared with this net."""
        raise InputError(f"expected a net whose backbone can be replaced, received {type(self).__name__}")

    @property
    def deterministic_layers(self) -> dict[str, keras.layers.Layer]:
        """The parts of the net without its noise, by name: another net may start from them, and they are served."""
        return {"backbone": self.backbone}

    def feature_noise(self) -> FeatureNoise | None:
        """Return the Gaussian noise on the net's last features, as reports show it; `None` for a net without it."""
        return None

    def lipschitz(self) -> float:
        """Return a Lipschitz constant of the features from images in [0, 1], in l2.

        Raises:
            InputError: no constant is known.
        """
        raise InputError(f"expected a net with a known Lipschitz constant, received {type(self).__name__}")

    @property
    def class_weights(self) -> tf.Tensor:
        """The weights W [C, D] of a net whose noise-free logits are W f(x) + b.

        Raises:
            InputError: the net has no such head.
        """
        raise InputError(f"expected a net with a linear classifier of its features, received {type(self).__name__}")

    def image_losses(self, state: Any) -> dict[str, tf.Tensor]:
        """Return losses [B] of the images of a batch; their means are added to the cross-entropy.

        Args:
            state: the second result of `forward`.
        """
        return {}

    def extra_losses(self) -> dict[str, tf.Tensor]:
        """Return scalars that are added to the cross-entropy and do not depend on the images."""
        return {}

    def rewards(self) -> dict[str, tf.Tensor]:
        """Return scalars that are subtracted from the cross-entropy and do not depend on the images."""
        return {}

    def ratios(self, state: Any, labels: tf.Tensor, weight: tf.Tensor) -> dict[str, Ratio]:
        """Return metrics of a batch, each as two sums. The ratio of the sums over all replicas is reported.

        Args:
            state: the second result of `forward`.
            labels: int64 [B].
            weight: float32 [B].
        """
        return {}

    def constants(self) -> dict[str, tf.Tensor]:
        """Return metrics that depend on the weights alone."""
        return {}

    @property
    def input_deviation(self) -> float | None:
        """σ of the Gaussian noise on images in [0, 1], where this is the net's only noise; `None` for other nets."""
        return None

    # All defences have these methods in common.

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        return self.forward(images, training=training)[0]

    def logits(self, images: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False) -> tf.Tensor:
        """Return logits [B, C] under one draw; the arguments are those of `forward`."""
        return self.forward(images, seed, training)[0]

    def normalised(self, images: tf.Tensor) -> tf.Tensor:
        """Return images in [0, 1] normalised for the backbone.

        Raises:
            InputError: the images do not have the backbone's number of channels.
        """
        expected = channels_of(self.backbone)
        if expected not in (None, images.shape[-1]):  # pixel_mean would make several channels out of one
            raise InputError(f"expected images with {expected} channels, received {images.shape[-1]}")
        return (tf.cast(images, tf.float32) - self.pixel_mean) / self.pixel_std

    def report_means(self) -> None:
        """Make the metrics that training reports; a defence calls this at the end of its `__init__`."""
        self.means = [keras.metrics.Mean(name=name) for name in ("ce", "accuracy", CERTIFIED, *self.extra_metrics)]

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the values of all metrics by name, without that of certificates where no radius is trained for."""
        found = super().get_metrics_result()
        return found if self.has_radius else {name: value for name, value in found.items() if name != CERTIFIED}

    @property
    def has_radius(self) -> bool:
        """Whether the loss has a margin for attacks of some radius."""
        return self.margin is not None and self.margin.change > 0

    def compile(self, optimizer: Any = "rmsprop", loss: Any = None, *arguments: Any, **options: Any) -> None:
        """Configure training, as Keras's `compile`; raise InputError for a loss that expects probabilities."""
        check_takes_logits(loss)
        super().compile(optimizer, loss, *arguments, **options)

    def compile_from_config(self, config: dict[str, Any]) -> None:  # Keras's own refuses a class with its own `compile`
        super().compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Make one training step; raise InvalidArgumentError, before any update, when the loss is NaN or Inf.

        The batch is this replica's share. Loss scaling multiplies each part of the gradient.
        """
        images, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if not self.built:  # fit never calls the model, and an unbuilt one is saved without its weights
            self.build(images.shape)
        if self.adversary:
            images, labels, sample_weight = self.adversary(self, images, labels, sample_weight)
        with tf.GradientTape() as tape:
            cross_entropy, state, logits = self._cross_entropy(images, labels, sample_weight, training=True)
            of_images = self.image_losses(state)
            more = sum((mean_over_rows(each, sample_weight) for each in of_images.values()), 0.0)
            scaled_loss = self.optimizer.scale_loss(cross_entropy + more / num_replicas())
        with tf.GradientTape() as regulariser_tape:
            terms = Terms(of_images, self.extra_losses(), self.rewards())
            regulariser = terms.regulariser() / num_replicas()
        values = self._measure(cross_entropy, state, logits, terms, labels, training=True)
        variables = self.trainable_variables
        gradients = tape.gradient(scaled_loss, variables)
        for i, gradient in enumerate(regulariser_tape.gradient(regulariser, variables)):
            if gradient is not None:
                scaled = self.optimizer.scale_loss(gradient)
                gradients[i] = scaled if gradients[i] is None else gradients[i] + scaled
        with tf.control_dependencies([values["loss"]]):  # nothing is updated when the check raises
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self._report(values, images, labels, logits, sample_weight)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Measure a batch as `train_step` does, without an update, the adversary, and the terms of weights alone.

        Metrics are weighted by `sample_weight`; rows of weight zero are ignored.
        """
        images, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        cross_entropy, state, logits = self._cross_entropy(images, labels, sample_weight, training=False)
        terms = Terms(self.image_losses(state), self.extra_losses(), self.rewards())
        values = self._measure(cross_entropy, state, logits, terms, labels, sample_weight, training=False)
        return self._report(values, images, labels, logits, sample_weight)

    def _cross_entropy(
        self, images: tf.Tensor, labels: tf.Tensor, sample_weight: tf.Tensor | None, training: bool
    ) -> tuple[tf.Tensor, Any, tf.Tensor]:
        """Return (this replica's part of the global batch's mean, the state of the pass, logits under noise)."""
        if len(labels.shape) == 2 and labels.shape[1] != 1:
            raise InputError(f"expected labels as whole numbers [B], received {labels.shape}: one-hot labels?")
        logits, state = self.forward(images, training=training)
        y, compared = flat(labels), logits
        if self.margin:
            compared = self.margin.logits(logits, y, self.class_weights if self.margin.change else None)
        part = self.compute_loss(x=images, y=y, y_pred=compared, sample_weight=sample_weight, training=training)
        return part, state, logits

    def _measure(
        self,
        cross_entropy: tf.Tensor,
        state: Any,
        logits: tf.Tensor,
        terms: Terms,
        labels: tf.Tensor,
        weight: tf.Tensor | None = None,
        *,
        training: bool,
    ) -> dict[str, tf.Tensor]:
        """Return every metric of the global batch, and its "weight". Without `training`, the loss is that on data.

        Raises:
            InvalidArgumentError: the loss is NaN or Inf.
        """
        labels = flat(labels)
        rows = tf.cast(tf.size(labels), tf.float32)
        weight = tf.ones_like(labels, tf.float32) if weight is None else flat(weight, tf.float32)
        ratios = {**terms.ratios(weight), **self.ratios(state, labels, weight)}
        if self.has_radius:
            ratios[CERTIFIED] = self._certified(logits, labels, weight)
        sums = [
            tf.reduce_sum(weight),
            cross_entropy * tf.cast(num_replicas(), tf.float32) * rows,
            tf.reduce_sum(weight * tf.cast(tf.argmax(logits, 1) == labels, tf.float32)),
            *(part for ratio in ratios.values() for part in ratio),
        ]
        total = tf.unstack(sum_over_replicas(tf.stack(sums)))
        ce, accuracy = (tf.math.divide_no_nan(each, total[0]) for each in total[1:3])
        pairs = zip(total[3::2], total[4::2], strict=True)
        values = {"weight": total[0], "ce": ce, "accuracy": accuracy, **terms.losses, **terms.rewards}
        values |= self.constants()
        values |= {name: tf.math.divide_no_nan(*pair) for name, pair in zip(ratios, pairs, strict=True)}
        of_weights = terms.losses.values() if training else ()
        loss = sum([*of_weights, *(values[name] for name in terms.of_images)], ce)
        loss = loss - sum(terms.rewards.values()) if terms.rewards and training else loss
        return {**values, "loss": tf.debugging.check_numerics(loss, f"{DIVERGED}: the loss")}

    def _certified(self, logits: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor) -> Ratio:
        """Return the number of images whose label no attack of the margin's radius can change, and that of images.

        It is that of these draws of the noise, and leaves rounding out.
        """
        raised = cast(LipschitzMargin, self.margin).logits(logits, labels, self.class_weights)
        return tf.reduce_sum(weight * tf.cast(tf.argmax(raised, 1) == labels, tf.float32)), tf.reduce_sum(weight)

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
            if mean.name in values:
                mean.update_state(values[mean.name], sample_weight=values["weight"])
        return self.compute_metrics(images, flat(labels), logits, sample_weight=sample_weight)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("dtype", None)
        return {
            **config,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "num_classes": self.num_classes,
            "pixel_mean": list(self.pixel_mean),
            "pixel_std": list(self.pixel_std),
            "seed": self.seed,
            "defence": self.defence,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "StochasticClassifier":
        backbone = keras.saving.deserialize_keras_object(config["backbone"], custom_objects=custom_objects)
        return cls(**{**config, "backbone": backbone})
