"""What an attack sees of a net: features, noisy logits, and, for noise in the head, the exact quantities.

Shapes: B batch, H W channels of images in [0, 1], F features, S draws, C classes, D width of the noise.
"""

from collections.abc import Callable
from typing import Protocol

import keras
import tensorflow as tf

from wca_tf import alignment
from wca_tf.model import WCANet
from wca_tf.seeds import fold_in


class Target(Protocol):
    """A net under attack.

    Attributes:
        draws_per_pass: how many draws `logits` makes at a time within the memory budget; None for any number.
    """

    @property
    def draws_per_pass(self) -> int | None:
        """See above."""

    def features(self, images: tf.Tensor) -> tf.Tensor:
        """What is computed once per image, whatever the number of draws: [B, ...] from images [B, H, W, channels]."""

    def logits(self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
        """[S, B, C]: logits under `draws` draws of the noise, decided by the int32[2] `seed`."""


class HeadNoiseTarget:
    """A net whose noise enters behind its features: logits are N(mu, K), K = A Aᵀ the same for every image.

    The draws of one call are shared by all its images, so that they do not depend on the batch, and cost no pass
    through the backbone: noise is added to the logits as A ε.

    Args:
        features: images [B, H, W, channels] -> features [B, F].
        head: features [B, F] -> noise-free logits mu [B, C].
        logit_scale: A [C, D]; all zero for a deterministic net.
    """

    draws_per_pass = None

    def __init__(
        self,
        features: Callable[[tf.Tensor], tf.Tensor],
        head: Callable[[tf.Tensor], tf.Tensor],
        logit_scale: tf.Tensor,
    ) -> None:
        self.features = features
        self.noise_free_logits = head
        self.logit_scale = tf.convert_to_tensor(logit_scale)
        self.difference_scale = alignment.logit_difference_scale(self.logit_scale)

    def logits(self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
        draw = tf.random.stateless_normal([draws, self.logit_scale.shape[1]], seed)
        noise = tf.matmul(draw, self.logit_scale, transpose_b=True)
        return self.noise_free_logits(features)[tf.newaxis] + noise[:, tf.newaxis]


class RandomNetTarget:
    """A net with noise anywhere: every draw is a pass, and a gradient holds `draws_per_pass` of them in memory.

    Args:
        logits: (images [B, H, W, channels], int32[2] seed) -> logits [B, C]. A function that ignores the seed works,
            but its attacks cannot be repeated.
        draws_per_pass: draws made, and held for the gradient, at a time.
    """

    def __init__(self, logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], draws_per_pass: int = 8) -> None:
        self._logits = logits
        self.draws_per_pass = draws_per_pass

    def features(self, images: tf.Tensor) -> tf.Tensor:
        return images

    def logits(self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
        return tf.map_fn(
            lambda draw: self._logits(features, fold_in(seed, draw)),
            tf.range(draws),
            fn_output_signature=tf.float32,
            parallel_iterations=1,
        )


def target_of(model: keras.Model) -> HeadNoiseTarget:
    """The target of a WCANet, or of any deterministic Keras classifier that returns logits [B, C]."""
    if isinstance(model, WCANet):
        return HeadNoiseTarget(model.features, model.classifier, model.logit_scale)
    num_classes = model.output_shape[-1]
    return HeadNoiseTarget(
        lambda images: tf.cast(model(images, training=False), tf.float32), tf.identity, tf.zeros([num_classes, 1])
    )
