"""The net of a random ensemble: members that train side by side, one of which answers each image."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.distribution.replicas import first_row
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.mixture_target import MixtureTarget
from wca_tf.nets.random_stream import RandomStream
from wca_tf.nets.targets import GaussianLogitsTarget

Rows = tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]  # images, labels, and weights, if any


@keras.saving.register_keras_serializable("wca_tf")
class RandomEnsembleNet(StochasticClassifier):
    """A net that answers each image by one of K nets without noise, each with probability 1/K.

    In training every net gets every image. The loss that is reported is the mean of the nets' losses, and the gradient
    of each net is that of its own loss: it trains as it would alone, on the same batches.

    Args:
        members: 2 to 32 nets of the same images and classes.
        seed: starts the stream of the nets that answer where no seed is given.

    Call arguments:
        images: [B, H, W, channels], float, in [0, 1].
    """

    extra_metrics = ("penalty",)

    def __init__(self, members: Sequence[BottleneckNet], seed: int = 0, **kwargs: Any) -> None:
        first = members[0]
        super().__init__(first.backbone, first.num_classes, first.pixel_mean, first.pixel_std, seed, **kwargs)
        self.members = list(members)
        self.stream = RandomStream(seed, name="stream")
        self.adversary = for_each_net
        self.report_means()

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        for member in self.members:
            if not member.built:
                member.build(input_shape)
        if not self.stream.built:
            self.stream.build()

    def forward(
        self, images: tf.Tensor, seed: tf.Tensor | None = None, training: bool = False
    ) -> tuple[tf.Tensor, None]:
        """Return logits [B, C] of the net that each image meets.

        In training, row r is of net r mod K, as `for_each_net` makes the rows. The gradient is K times that of the
        logits: the mean of the loss over all rows divides it by K again.
        """
        count = len(self.members)
        if training:
            logits = [net.forward(images[number::count], training=True)[0] for number, net in enumerate(self.members)]
            return _with_gradient_times(count, tf.reshape(tf.stack(logits, axis=1), [-1, self.num_classes])), None
        seed = self.stream.next_seed() if seed is None else seed
        rows = tf.shape(images)[0]
        places = tf.cast(first_row(rows) + tf.range(rows), tf.int64)
        picked = self.target().pick(seed, places)
        every = tf.stack([net.noise_free_logits(images) for net in self.members], axis=1)
        return tf.gather(every, picked, batch_dims=1), None

    def target(self) -> MixtureTarget:
        return MixtureTarget([net.target() for net in self.members], [1 / len(self.members)] * len(self.members))

    @property
    def deterministic_layers(self) -> dict[str, keras.layers.Layer]:
        return {f"net {number}": net for number, net in enumerate(self.members)}

    def extra_losses(self) -> dict[str, tf.Tensor]:
        """Return the mean penalty of the nets, whose gradient is that of each net's own."""
        count = len(self.members)
        return {"penalty": _with_gradient_times(count, tf.add_n([net.penalty() for net in self.members]) / count)}

    def get_config(self) -> dict[str, Any]:
        kept = {name: value for name, value in super().get_config().items() if name in ("name", "seed", "defence")}
        return {**kept, "members": [keras.saving.serialize_keras_object(net) for net in self.members]}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> "RandomEnsembleNet":
        members = [keras.saving.deserialize_keras_object(net, custom_objects) for net in config["members"]]
        return cls(**{**config, "members": members})


def for_each_net(model: RandomEnsembleNet, images: tf.Tensor, labels: tf.Tensor, weight: tf.Tensor | None) -> Rows:
    """Return each row once for each net, [K B, ...]: row r is of net r mod K."""
    return _interleaved([(images, labels, weight)] * len(model.members))


@dataclasses.dataclass(frozen=True)
class TrainingOfEachNet(AdversarialTraining):
    """Adversarial training of each net alone: it meets the images that the attack made on it."""

    def __call__(
        self, model: RandomEnsembleNet, images: tf.Tensor, labels: tf.Tensor, sample_weight: tf.Tensor | None
    ) -> Rows:
        alone = [_OnOneNet(self.attack, self.epsilon, self.mixed, number) for number in range(len(model.members))]
        return _interleaved([each(model, images, labels, sample_weight) for each in alone])


@dataclasses.dataclass(frozen=True)
class _OnOneNet(AdversarialTraining):
    """Adversarial training of the net with this number."""

    number: int

    def target(self, model: RandomEnsembleNet) -> GaussianLogitsTarget:
        return model.members[self.number].target()


def _interleaved(parts: Sequence[Rows]) -> Rows:
    """Return the first row of each part, then the second of each, and so on."""

    def together(values: Sequence[Any]) -> Any:
        if values[0] is None:
            return None
        stacked = tf.stack(values, axis=1)
        return tf.reshape(stacked, [-1, *values[0].shape[1:]])

    images, labels, weights = (together(each) for each in zip(*parts, strict=True))
    return images, labels, weights


def _with_gradient_times(factor: int, values: tf.Tensor) -> tf.Tensor:
    """Return the values, exactly, with a gradient that is multiplied by a factor."""
    return values + (factor - 1) * (values - tf.stop_gradient(values))
