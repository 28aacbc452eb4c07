"""What an attack sees of a net: features, noisy logits, and, for noise in the head, the exact quantities.

Shapes: B batch, H W channels of images in [0, 1], F features, S draws, C classes, D width of the noise.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from typing_extensions import TypeIs

from wca_tf import alignment
from wca_tf.seeds import fold_in, make_seed, normal_by_index

CHEAP_DRAWS = 1000


class Target(Protocol):
    """A net under attack.

    Attributes:
        num_classes: C, or None as long as no image was seen.
        draws_per_pass: how many draws `logits` makes at a time within the memory budget.
        cheap_draws: how many draws cost next to nothing; 0 when each costs a pass.
        own_draws: whether an image's draws follow from the seed and its number alone, whatever else is in the batch.
    """

    num_classes: int | None
    own_draws: bool

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
    """A net whose noise enters behind its features: logits given an image are N(mu, K), K = A Aᵀ.

    Draws do not depend on the batch, and cost no pass through the backbone: noise is added to the logits as A ε.

    Args:
        features: images [B, H, W, channels] -> features [B, F].
        head: features [B, F] -> noise-free logits mu [B, C].
        logit_scale: A [C, R], the same for every image; or a function that returns it, for noise that is still trained;
            or, with `scale_per_image`, a function: features [B, F] -> A [B, C, R]. Zero for a deterministic net.
        has_noise: whether A is more than zero; by its values when absent.
        scale_per_image: whether each image has an A of its own.
    """

    # Whatever the batch, so that the draws do not depend on it: 250 draws of 100 images and 10 classes are 1 MB.
    draws_per_pass = 250
    own_draws = True

    def __init__(
        self,
        features: Callable[[tf.Tensor], tf.Tensor],
        head: Callable[[tf.Tensor], tf.Tensor],
        logit_scale: tf.Tensor | Callable[..., tf.Tensor],
        has_noise: bool | None = None,
        scale_per_image: bool = False,
    ) -> None:
        self.features = features
        self.noise_free_logits = head
        given = logit_scale if callable(logit_scale) else tf.convert_to_tensor(logit_scale)
        self._logit_scale: Callable[..., tf.Tensor] = given if callable(given) else lambda: given
        self.scale_per_image = scale_per_image
        self.num_classes: int | None = None if scale_per_image else int(self.logit_scale.shape[0])
        if has_noise is None:  # of a net that is made inside a graph, only its maker knows that it has no noise
            scale = None if scale_per_image else self.logit_scale
            has_noise = not hasattr(scale, "numpy") or bool(tf.reduce_any(scale != 0))
        self.has_noise = has_noise
        self.cheap_draws = CHEAP_DRAWS if self.has_noise else 1
        self._first_draw: int | tf.Tensor | None = None  # of draws made in parts

    @property
    def logit_scale(self) -> tf.Tensor:
        """A [C, R] of a net with the same for every image, as it is now."""
        return tf.convert_to_tensor(self._logit_scale())

    def scale_of(self, features: tf.Tensor) -> tf.Tensor:
        """A, [C, R] or [B, C, R], of images with these features [B, F]."""
        return tf.convert_to_tensor(self._logit_scale(features)) if self.scale_per_image else self.logit_scale

    def difference_scale(self, features: tf.Tensor) -> tf.Tensor:
        """‖A_y − A_j‖, [C, C] or [B, C, C]: the standard deviation of each difference of logits."""
        return alignment.logit_difference_scale(self.scale_of(features))

    def _draw_scale(self, features: tf.Tensor) -> tf.Tensor:
        """A factor of A Aᵀ of few columns: Rᵀ of Aᵀ = Q R, [C, min(C, R)], where all images share it."""
        scale = self.scale_of(features)
        if self.scale_per_image or scale.shape[1] <= scale.shape[0]:
            return scale
        return tf.transpose(tf.linalg.qr(tf.transpose(scale)).r)

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
        scale = self._draw_scale(features)
        if indices is None:
            return mean + _common_noise(scale, tf.random.stateless_normal([draws, scale.shape[-1]], seed))
        different, places = tf.unique(indices)  # the same index has the same draws
        draw = normal_by_index(seed, different, (draws, scale.shape[-1]))
        if self.scale_per_image:
            return mean + tf.einsum("bsr,bcr->sbc", tf.gather(draw, places), scale)
        noise = tf.matmul(draw, scale, transpose_b=True)
        return mean + tf.transpose(tf.gather(noise, places), [1, 0, 2])

    def with_fixed_draw(self, seed: tf.Tensor) -> "HeadNoiseTarget":
        def fixed(features: tf.Tensor) -> tf.Tensor:
            # At each call: a graph reads a seed that is a tf.Variable, which may be another draw's by then.
            scale = self._draw_scale(features)
            draw = tf.random.stateless_normal([1, scale.shape[-1]], seed)
            return self.noise_free_logits(features) + _common_noise(scale, draw)[0]

        return self._with(fixed, lambda scale: 0 * scale, has_noise=False)

    def averaged(self, draws: int) -> "HeadNoiseTarget":
        """The net that answers with the mean logits of `draws` draws: N(mu, K / draws), exactly."""
        return self._with(self.noise_free_logits, lambda scale: scale / math.sqrt(draws), self.has_noise)

    def without_noise(self) -> "HeadNoiseTarget":
        """The deterministic net with logits mu."""
        return self._with(self.noise_free_logits, lambda scale: 0 * scale, has_noise=False)

    def _with(
        self, head: Callable[[tf.Tensor], tf.Tensor], change: Callable[[tf.Tensor], tf.Tensor], has_noise: bool
    ) -> "HeadNoiseTarget":
        """The net with another head and a changed A."""

        def logit_scale(*features: tf.Tensor) -> tf.Tensor:
            return change(tf.convert_to_tensor(self._logit_scale(*features)))

        return HeadNoiseTarget(self.features, head, logit_scale, has_noise, self.scale_per_image)


def _common_noise(scale: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """A ε, [S, 1, C] or [S, B, C], of draws ε [S, R] that all images share."""
    if scale.shape.rank == 3:
        return tf.einsum("sr,bcr->sbc", draw, scale)
    return tf.matmul(draw, scale, transpose_b=True)[:, tf.newaxis]


class RandomNetTarget:
    """A net with noise anywhere: every draw is a pass, and a gradient holds `draws_per_pass` of them in memory.

    Args:
        logits: (images [B, H, W, channels], int32[2] seed) -> logits [B, C]. A function that ignores the seed works,
            but its attacks and its evaluation cannot be repeated.
        draws_per_pass: draws made, and held for the gradient, at a time; does not change which draws are made.
        noise_free_logits: images -> logits [B, C] of the net without its noise, where there is such a net.
        logits_of_draws: (images, int32 [S, 2] seeds, whole numbers [B]) -> logits [S, B, C], several draws in a pass,
            where the net can; the third has each image's number, which per-image noise follows from.
        own_draws: whether an image's draws follow from the seed and its number alone, whatever else is in the batch.
    """

    cheap_draws = 0

    def __init__(
        self,
        logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        draws_per_pass: int = 8,
        noise_free_logits: Callable[[tf.Tensor], tf.Tensor] | None = None,
        logits_of_draws: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
        own_draws: bool = False,
    ) -> None:
        self._logits = logits
        self.num_classes: int | None = None
        self.draws_per_pass = draws_per_pass
        self._first_draw: int | tf.Tensor = 0
        self.noise_free_logits = noise_free_logits
        self._logits_of_draws = logits_of_draws
        self.own_draws = own_draws

    def starting_at(self, first: int | tf.Tensor) -> "RandomNetTarget":
        part = copy.copy(self)
        part._first_draw = first
        return part

    def features(self, images: tf.Tensor) -> tf.Tensor:
        return images

    def logits(
        self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor | None = None
    ) -> tf.Tensor:
        return self._of_seeds(features, _numbered_seeds(seed, self._first_draw, draws), indices)

    def _of_seeds(self, images: tf.Tensor, seeds: tf.Tensor, indices: tf.Tensor | None) -> tf.Tensor:
        """Logits [S, B, C] of the draws of these seeds [S, 2], `draws_per_pass` of them at a time."""
        of_draws = self._logits_of_draws
        if of_draws is None:  # what a draw is to each image is the net's own matter
            return tf.map_fn(
                lambda seed: self._logits(images, seed), seeds, fn_output_signature=tf.float32, parallel_iterations=1
            )
        numbers = tf.zeros(tf.shape(images)[:1], tf.int64) if indices is None else indices

        def several(seeds: tf.Tensor) -> tf.Tensor:
            return of_draws(images, seeds, numbers)

        draws, at_once = seeds.shape[0], self.draws_per_pass
        if draws is None or draws <= at_once:  # parts of a mean over draws are made by their caller
            return several(seeds)
        whole = draws // at_once * at_once
        parts = tf.reshape(seeds[:whole], [-1, at_once, 2])
        logits = tf.map_fn(several, parts, fn_output_signature=tf.float32, parallel_iterations=1)
        logits = tf.reshape(logits, [whole, *tf.unstack(tf.shape(logits)[2:])])
        return tf.concat([logits, several(seeds[whole:])], axis=0) if whole < draws else logits

    def with_fixed_draw(self, seed: tf.Tensor) -> "RandomNetTarget":
        first, same = self._first_draw, copy.copy(self)

        def fixed(images: tf.Tensor) -> tf.Tensor:
            return same._logits(images, fold_in(seed, first))

        def fixed_draws(images: tf.Tensor, seeds: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
            logits = same._of_seeds(images, fold_in(seed, first)[tf.newaxis], indices)
            return tf.repeat(logits, tf.shape(seeds)[0], axis=0)

        if self._logits_of_draws is None:
            return RandomNetTarget(lambda images, _: fixed(images), self.draws_per_pass, fixed)
        # Without images' numbers there is no telling their logits under the draw: hence no noise_free_logits.
        return RandomNetTarget(
            lambda images, _: fixed(images),
            self.draws_per_pass,
            logits_of_draws=fixed_draws,
            own_draws=self.own_draws,
        )

    def averaged(self, draws: int) -> "RandomNetTarget":
        """The net that answers with the mean logits of `draws` draws, each of which is a pass."""

        def mean_logits(images: tf.Tensor, seed: tf.Tensor, indices: tf.Tensor | None = None) -> tf.Tensor:
            return tf.reduce_mean(self.logits(images, seed, draws, indices), axis=0)

        def means(images: tf.Tensor, seeds: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
            return tf.map_fn(lambda seed: mean_logits(images, seed, indices), seeds, fn_output_signature=tf.float32)

        at_once = None if self._logits_of_draws is None else means
        per_pass = max(1, self.draws_per_pass // draws)
        return RandomNetTarget(mean_logits, per_pass, self.noise_free_logits, at_once, self.own_draws)


def _numbered_seeds(seed: tf.Tensor, first: int | tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
    """Seeds [S, 2] of the draws from number `first` on."""
    seeds = tf.map_fn(lambda number: fold_in(seed, number), first + tf.range(draws), fn_output_signature=tf.int32)
    return tf.ensure_shape(seeds, [draws if isinstance(draws, int) else None, 2])


AnyTarget = HeadNoiseTarget | RandomNetTarget


def is_gaussian(target: Any) -> TypeIs[HeadNoiseTarget]:
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
    if target.own_draws:
        return tf.where(still_open)[:, 0]
    return tf.range(tf.size(still_open, out_type=tf.int64) * tf.cast(tf.reduce_any(still_open), tf.int64))


def answers_alike(target: Target, images: tf.Tensor) -> bool:
    """Whether the same seed gives the same logits twice: not for noise that ignores the seed."""
    first, again = (target.logits(target.features(images), make_seed(0), 1).numpy() for _ in range(2))
    return np.allclose(first, again, rtol=1e-4, atol=1e-5)
