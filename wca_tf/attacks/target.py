"""What an attack sees of a net: features, noisy logits, and, for noise in the head, the exact quantities.

Shapes: B batch, H W channels of images in [0, 1], F features, S draws, C classes, D width of the noise.
"""

from collections.abc import Callable
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from wca_tf import alignment
from wca_tf.errors import InputError
from wca_tf.model import WCANet
from wca_tf.seeds import fold_in


class Target(Protocol):
    """A net under attack.

    Attributes:
        draws_per_pass: how many draws `logits` makes at a time within the memory budget; None for any number.
        num_classes: C, or None when it is not known beforehand.
    """

    @property
    def num_classes(self) -> int | None:
        """See above."""

    @property
    def draws_per_pass(self) -> int | None:
        """See above."""

    def features(self, images: tf.Tensor) -> tf.Tensor:
        """What is computed once per image, whatever the number of draws: [B, ...] from images [B, H, W, channels]."""

    def logits(self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
        """[S, B, C]: logits under `draws` draws of the noise, decided by the int32[2] `seed`."""

    def starting_at(self, first: int | tf.Tensor) -> "Target":
        """The same net, whose draws are numbered from `first`: parts of a mean over draws do not share any."""


class HeadNoiseTarget:
    """A net whose noise enters behind its features: logits are N(mu, K), K = A Aᵀ the same for every image.

    The draws of one call are shared by all its images, so that they do not depend on the batch, and cost no pass
    through the backbone: noise is added to the logits as A ε. The noise is that of the moment the target is made: make
    a new one after training.

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
        self.num_classes = int(self.logit_scale.shape[0])

    def starting_at(self, first: int | tf.Tensor) -> "HeadNoiseTarget":
        raise InputError("the draws of noise in the head are never made in parts")

    def logits(self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
        draw = tf.random.stateless_normal([draws, self.logit_scale.shape[1]], seed)
        noise = tf.matmul(draw, self.logit_scale, transpose_b=True)
        return self.noise_free_logits(features)[tf.newaxis] + noise[:, tf.newaxis]


class RandomNetTarget:
    """A net with noise anywhere: every draw is a pass, and a gradient holds `draws_per_pass` of them in memory.

    Args:
        logits: (images [B, H, W, channels], int32[2] seed) -> logits [B, C]. A function that ignores the seed works,
            but its attacks cannot be repeated.
        draws_per_pass: draws made, and held for the gradient, at a time; does not change which draws are made.
        first_draw: number of the first draw.
    """

    num_classes = None

    def __init__(
        self,
        logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        draws_per_pass: int = 8,
        first_draw: int | tf.Tensor = 0,
    ) -> None:
        self._logits = logits
        self.draws_per_pass = draws_per_pass
        self._first_draw = first_draw

    def starting_at(self, first: int | tf.Tensor) -> "RandomNetTarget":
        return RandomNetTarget(self._logits, self.draws_per_pass, first)

    def features(self, images: tf.Tensor) -> tf.Tensor:
        return images

    def logits(self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
        return tf.map_fn(
            lambda draw: self._logits(features, fold_in(seed, draw)),
            self._first_draw + tf.range(draws),
            fn_output_signature=tf.float32,
            parallel_iterations=1,
        )


def target_of(model: keras.Model) -> HeadNoiseTarget:
    """The target of a WCANet, or of any deterministic Keras classifier that returns logits [B, C].

    Raises:
        InputError: the features are random, so that P(correct) has no exact form; `RandomNetTarget` serves such nets.
    """
    if isinstance(model, WCANet):
        target = HeadNoiseTarget(model.features, model.classifier, model.logit_scale)
        image_shape = model.backbone.input_shape[1:]
    else:
        image_shape = model.input_shape[1:]
        target = HeadNoiseTarget(
            lambda images: tf.cast(model(images, training=False), tf.float32),
            tf.identity,
            tf.zeros([model.output_shape[-1], 1]),
        )
    probe = tf.random.stateless_uniform([2, *image_shape], [0, 0])
    if not np.allclose(target.features(probe), target.features(probe), rtol=1e-4, atol=1e-5):
        raise InputError("expected a net without noise before its last layer: wrap this one in RandomNetTarget")
    return target
