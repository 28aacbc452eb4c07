"""What an attack sees of a net: features, noisy logits, and, for noise in the head, the exact quantities.

Shapes: B batch, H W channels of images in [0, 1], F features, S draws, C classes, D width of the noise.
"""

import copy
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import tensorflow as tf

from wca_tf import alignment
from wca_tf.seeds import fold_in, make_seed, normal_by_index

CHEAP_DRAWS = 1000


class Target(Protocol):
    """A net under attack.

    Attributes:
        num_classes: C, or None as long as no image was seen.
        draws_per_pass: how many draws `logits` makes at a time within the memory budget.
        cheap_draws: how many draws cost next to nothing; 0 when each costs a pass.
    """

    num_classes: int | None

    @property
    def draws_per_pass(self) -> int:
        """See above."""

    @property
    def cheap_draws(self) -> int:
        """See above."""

    def features(self, images: tf.Tensor) -> tf.Tensor:
        """What is computed once per image, whatever the number of draws: [B, ...] from images [B, H, W, channels]."""

    def logits(
        self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return logits [S, B, C] under `draws` draws of the noise, decided by the int32[2] `seed`.

        Args:
            features: [B, ...], from `features`.
            seed: decides the draws.
            draws: S.
            indices: whole numbers [B], each image's number: draws that differ from image to image, where the net allows
                it. Errors of few draws that all images share do not average out over images. None: one set of draws
                for all images.
        """

    def starting_at(self, first: int | tf.Tensor) -> "Target":
        """The same net, whose draws are numbered from `first`: parts of a mean over draws do not share any."""

    def with_fixed_draw(self, seed: tf.Tensor) -> "Target":
        """Return the deterministic net that this one is under the draw that `seed` decides.

        A tf.Variable is read each time the net is called, so that one net, and its graphs, stand for many draws.
        """


class HeadNoiseTarget:
    """A net whose noise enters behind its features: logits are N(mu, K), K = A Aᵀ the same for every image.

    Draws do not depend on the batch, and cost no pass through the backbone: noise is added to the logits as A ε.

    Args:
        features: images [B, H, W, channels] -> features [B, F].
        head: features [B, F] -> noise-free logits mu [B, C].
        logit_scale: A [C, D], or a function that returns it, for noise that is still trained; zero for a deterministic
            net.
        has_noise: whether A is more than zero; by its values when absent.
    """

    # Whatever the batch, so that the draws do not depend on it: 250 draws of 100 images and 10 classes are 1 MB.
    draws_per_pass = 250

    def __init__(
        self,
        features: Callable[[tf.Tensor], tf.Tensor],
        head: Callable[[tf.Tensor], tf.Tensor],
        logit_scale: tf.Tensor | Callable[[], tf.Tensor],
        has_noise: bool | None = None,
    ) -> None:
        self.features = features
        self.noise_free_logits = head
        given = logit_scale if callable(logit_scale) else tf.convert_to_tensor(logit_scale)
        self._logit_scale = given if callable(given) else lambda: given
        scale = self.logit_scale
        self.num_classes: int | None = int(scale.shape[0])
        if has_noise is None:  # of a net that is made inside a graph, only its maker knows that it has no noise
            has_noise = not hasattr(scale, "numpy") or bool(tf.reduce_any(scale != 0))
        self.has_noise = has_noise
        self.cheap_draws = CHEAP_DRAWS if self.has_noise else 1
        self._first_draw: int | tf.Tensor | None = None  # of draws made in parts

    @property
    def logit_scale(self) -> tf.Tensor:
        """A [C, D], as it is now."""
        return tf.convert_to_tensor(self._logit_scale())

    @property
    def difference_scale(self) -> tf.Tensor:
        """‖A_y − A_j‖ [C, C]: the standard deviation of each difference of logits."""
        return alignment.logit_difference_scale(self.logit_scale)

    @property
    def _draw_scale(self) -> tf.Tensor:
        """A factor of A Aᵀ that is at most square, [C, min(C, D)]: Rᵀ of Aᵀ = Q R. A draw needs no more numbers."""
        scale = self.logit_scale
        return scale if scale.shape[1] <= scale.shape[0] else tf.transpose(tf.linalg.qr(tf.transpose(scale)).r)

    def starting_at(self, first: int | tf.Tensor) -> "HeadNoiseTarget":
        part = copy.copy(self)
        part._first_draw = first
        return part

    def logits(
        self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor | None = None
    ) -> tf.Tensor:
        mean = self.noise_free_logits(features)[tf.newaxis]
        if not self.has_noise:
            return tf.repeat(mean, draws, axis=0)
        if self._first_draw is not None:
            seed = fold_in(seed, self._first_draw)
        if indices is None:
            scale = self._draw_scale
            draw = tf.random.stateless_normal([draws, scale.shape[1]], seed)
            return mean + tf.matmul(draw, scale, transpose_b=True)[:, tf.newaxis]
        return mean + self._noise_by_index(seed, draws, indices)

    def _noise_by_index(self, seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        """Return noise of the logits [S, B, C]; the same index has the same draws."""
        different, places = tf.unique(indices)
        scale = self._draw_scale
        draw = normal_by_index(seed, different, (draws, scale.shape[1]))
        noise = tf.matmul(draw, scale, transpose_b=True)
        return tf.transpose(tf.gather(noise, places), [1, 0, 2])

    def with_fixed_draw(self, seed: tf.Tensor) -> "HeadNoiseTarget":
        def fixed(features: tf.Tensor) -> tf.Tensor:
            # At each call: a graph reads a seed that is a tf.Variable, which may be another draw's by then.
            scale = self._draw_scale
            draw = tf.random.stateless_normal([1, scale.shape[1]], seed)
            return self.noise_free_logits(features) + tf.matmul(draw, scale, transpose_b=True)

        return HeadNoiseTarget(self.features, fixed, lambda: 0 * self.logit_scale, has_noise=False)

    def averaged(self, draws: int) -> "HeadNoiseTarget":
        """The net that answers with the mean logits of `draws` draws: N(mu, K / draws), exactly."""
        return self._with_scale(lambda: self.logit_scale / math.sqrt(draws), self.has_noise)

    def without_noise(self) -> "HeadNoiseTarget":
        """The deterministic net with logits mu."""
        return self._with_scale(lambda: 0 * self.logit_scale, has_noise=False)

    def _with_scale(self, logit_scale: Callable[[], tf.Tensor], has_noise: bool) -> "HeadNoiseTarget":
        return HeadNoiseTarget(self.features, self.noise_free_logits, logit_scale, has_noise)


class RandomNetTarget:
    """A net with noise anywhere: every draw is a pass, and a gradient holds `draws_per_pass` of them in memory.

    Args:
        logits: (images [B, H, W, channels], int32[2] seed) -> logits [B, C]. A function that ignores the seed works,
            but its attacks and its evaluation cannot be repeated.
        draws_per_pass: draws made, and held for the gradient, at a time; does not change which draws are made.
        first_draw: number of the first draw.
        noise_free_logits: images -> logits [B, C] of the net without its noise, where there is such a net.
    """

    cheap_draws = 0

    def __init__(
        self,
        logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        draws_per_pass: int = 8,
        first_draw: int | tf.Tensor = 0,
        noise_free_logits: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        self._logits = logits
        self.num_classes: int | None = None
        self.draws_per_pass = draws_per_pass
        self._first_draw = first_draw
        self.noise_free_logits = noise_free_logits

    def starting_at(self, first: int | tf.Tensor) -> "RandomNetTarget":
        return RandomNetTarget(self._logits, self.draws_per_pass, first, self.noise_free_logits)

    def features(self, images: tf.Tensor) -> tf.Tensor:
        return images

    def logits(
        self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor | None = None
    ) -> tf.Tensor:
        return tf.map_fn(  # what a draw is to each image is the net's own matter: `indices` are of no use
            lambda draw: self._logits(features, fold_in(seed, draw)),
            self._first_draw + tf.range(draws),
            fn_output_signature=tf.float32,
            parallel_iterations=1,
        )

    def with_fixed_draw(self, seed: tf.Tensor) -> "RandomNetTarget":
        def fixed(images: tf.Tensor) -> tf.Tensor:
            return self._logits(images, fold_in(seed, self._first_draw))

        return RandomNetTarget(lambda images, _: fixed(images), self.draws_per_pass, 0, fixed)

    def averaged(self, draws: int) -> "RandomNetTarget":
        """The net that answers with the mean logits of `draws` draws, each of which is a pass."""

        def mean_logits(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            return tf.reduce_mean(self.logits(images, seed, draws), axis=0)

        return RandomNetTarget(mean_logits, max(1, self.draws_per_pass // draws), 0, self.noise_free_logits)


AnyTarget = HeadNoiseTarget | RandomNetTarget


def is_gaussian(target: Target) -> bool:
    """Whether the logits given an image are Gaussian, with known mean and covariance."""
    return isinstance(target, HeadNoiseTarget)


def has_noise(target: Target) -> bool:
    """False for a net that is known to be deterministic."""
    return getattr(target, "has_noise", True)


def open_rows(target: Target, still_open: tf.Tensor) -> tf.Tensor:
    """Return the rows of a batch that a search goes on with, from bool [B]: those that are still open.

    A net whose draws may depend on an image's place in the batch keeps all rows as long as one is open, so that no
    image meets other draws in the midst of its search; what it finds for the others does not count.
    """
    if is_gaussian(target):
        return tf.where(still_open)[:, 0]
    return tf.range(tf.size(still_open, out_type=tf.int64) * tf.cast(tf.reduce_any(still_open), tf.int64))


def answers_alike(target: Target, images: tf.Tensor) -> bool:
    """Whether the same seed gives the same logits twice: not for noise that ignores the seed."""
    first, again = (target.logits(target.features(images), make_seed(0), 1).numpy() for _ in range(2))
    return np.allclose(first, again, rtol=1e-4, atol=1e-5)
