"""SampledTarget: the interface of a net with noise anywhere to attacks.

Shapes: B batch, H W channels of images in [0, 1], S draws, C classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import tf
from wca_tf.core.seeds import fold_in
from wca_tf.nets import passes

PARALLEL_PARTS = 10  # of a mean over draws that a graph may make side by side, as in TensorFlow's loops
REPEATS_PER_PASS = 1_000  # draws of a net under one draw: one pass, whose logits are repeated


def in_float32(logits: Callable[..., Any]) -> Callable[..., tf.Tensor]:
    """Return a function whose logits are float32.

    The function raises InputError where it does not get one tensor of a float type.
    """

    def cast(*arguments: Any) -> tf.Tensor:
        outputs = logits(*arguments)
        if not hasattr(outputs, "dtype"):
            received = type(outputs).__name__
            raise InputError(f"expected a net that returns logits [B, C] in one tensor, received {received}")
        if not tf.as_dtype(outputs.dtype).is_floating:
            raise InputError(f"expected logits of a float type, received {tf.as_dtype(outputs.dtype).name}")
        return tf.cast(outputs, tf.float32)

    return cast


class SampledTarget:
    """A net with noise anywhere. Each draw costs a pass, and a gradient holds `draws_per_pass` draws in memory.

    Args:
        logits: (images [B, H, W, channels], int32[2] seed) -> logits [B, C] of any float type. A function that ignores
            the seed works, but its attacks and its evaluation cannot be repeated. It must draw from TensorFlow or
            Keras: a graph keeps the numbers that Python or NumPy draws for its first call.
        draws_per_pass: the number of draws made, and held for the gradient, at a time. It does not change which draws
            are made.
        noise_free_logits: images -> logits [B, C] of the net without its noise, where there is such a net.
        logits_of_draws: (images, int32 [S, 2] seeds, whole numbers [B]) -> logits [S, B, C]: several draws in one pass,
            for a net that can make them. The third argument is the number of each image, from which per-image noise
            follows.
        per_image_noise: whether an image's draws follow from the seed and its number alone, not the rest of the batch.
        moments_of_draws: (images, seeds, numbers) -> [S, 3, B, C]: the logits of `logits_of_draws`, and their mean and
            variance given all noise but that of the last layer; for a net whose logits are then independent Gaussians.
    """

    cheap_draws = 0
    parallel_parts = PARALLEL_PARTS
    net: Any = None  # what adapter.py found out about a Keras model

    def __init__(
        self,
        logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        draws_per_pass: int = 8,
        noise_free_logits: Callable[[tf.Tensor], tf.Tensor] | None = None,
        logits_of_draws: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
        per_image_noise: bool = False,
        moments_of_draws: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        self._logits = passes.counted(in_float32(logits))
        self.num_classes: int | None = None
        self.draws_per_pass = draws_per_pass
        self._first_draw: int | tf.Tensor = 0
        self.noise_free_logits = noise_free_logits and passes.counted(in_float32(noise_free_logits))
        self._logits_of_draws = logits_of_draws and passes.counted(in_float32(logits_of_draws), _draws_of_images)
        self.per_image_noise = per_image_noise
        self._moments_of_draws = moments_of_draws and passes.counted(in_float32(moments_of_draws), _draws_of_images)

    @property
    def has_moments(self) -> bool:
        """Whether `logits_with_moments` can be called."""
        return self._moments_of_draws is not None

    def with_draw_offset(self, first: int | tf.Tensor) -> SampledTarget:
        part = copy.copy(self)
        part._first_draw = first
        return part

    def features(self, images: tf.Tensor) -> tf.Tensor:
        return images

    def logits(
        self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor | None = None
    ) -> tf.Tensor:
        return self._of_seeds(features, _numbered_seeds(seed, self._first_draw, draws), indices)

    def logits_with_moments(
        self, images: tf.Tensor, seed: tf.Tensor, draws: int, indices: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the logits of `logits`, and their mean and variance given the last layer's input: [S, B, C] each."""
        seeds = _numbered_seeds(seed, self._first_draw, draws)
        logits, mean, variance = tf.unstack(self._of_seeds(images, seeds, indices, self._moments_of_draws), axis=1)
        return logits, mean, variance

    def _of_seeds(
        self,
        images: tf.Tensor,
        seeds: tf.Tensor,
        indices: tf.Tensor | None,
        of_draws: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
    ) -> tf.Tensor:
        """Return logits [S, B, C] of the draws of these seeds [S, 2], or the results [S, ...] of another `of_draws`.

        A net that makes several draws in a pass makes `draws_per_pass` at a time, or all where the graph does not know
        S. Other nets make one at a time.
        """
        of_draws = of_draws or self._logits_of_draws
        if of_draws is None:  # the net itself decides how a draw differs between images
            return _for_each(lambda seed: self._logits(images, seed), seeds, parallel_iterations=1)
        numbers = tf.zeros(tf.shape(images)[:1], tf.int64) if indices is None else indices

        def several(seeds: tf.Tensor) -> tf.Tensor:
            return of_draws(images, seeds, numbers)

        draws, at_once = seeds.shape[0], self.draws_per_pass
        if draws is None or draws <= at_once:  # a mean over draws was cut into parts by the caller
            return several(seeds)
        whole = draws // at_once * at_once
        parts = tf.reshape(seeds[:whole], [-1, at_once, 2])
        logits = _for_each(several, parts, parallel_iterations=1)
        logits = tf.reshape(logits, [whole, *tf.unstack(tf.shape(logits)[2:])])
        return tf.concat([logits, several(seeds[whole:])], axis=0) if whole < draws else logits

    def with_fixed_draw(self, seed: tf.Tensor, indices: tf.Tensor | None = None) -> SampledTarget:
        """Return the net under one draw. `indices` is ignored: each call gives the numbers of its images."""
        first, same = self._first_draw, copy.copy(self)

        def fixed(images: tf.Tensor) -> tf.Tensor:
            return same._logits(images, fold_in(seed, first))

        def repeated(images: tf.Tensor, seeds: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
            logits = same._of_seeds(images, fold_in(seed, first)[tf.newaxis], indices)
            return tf.repeat(logits, tf.shape(seeds)[0], axis=0)

        # Where the draw depends on the images' numbers, which noise_free_logits does not get, it is absent.
        noise_free = fixed if self._logits_of_draws is None else None
        at_once = max(self.draws_per_pass, REPEATS_PER_PASS)
        return SampledTarget(lambda images, _: fixed(images), at_once, noise_free, repeated, self.per_image_noise)

    def averaged(self, draws: int) -> SampledTarget:
        """Return the net that answers with the mean logits of `draws` draws, each of which costs a pass."""

        def mean_logits(images: tf.Tensor, seed: tf.Tensor, indices: tf.Tensor | None = None) -> tf.Tensor:
            return tf.reduce_mean(self.logits(images, seed, draws, indices), axis=0)

        def means(images: tf.Tensor, seeds: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
            return _for_each(lambda seed: mean_logits(images, seed, indices), seeds)

        at_once = None if self._logits_of_draws is None else means
        per_pass = max(1, self.draws_per_pass // draws)
        return SampledTarget(mean_logits, per_pass, self.noise_free_logits, at_once, self.per_image_noise)


def _for_each(function: Callable[[tf.Tensor], tf.Tensor], rows: tf.Tensor, **options: Any) -> tf.Tensor:
    """Return float32 results of a user's function, one for each row.

    Where the function raises an error, `tf.map_fn` leaves a caching device in the scope of variables that all graphs of
    the process share, and no MirroredStrategy could be entered any more.
    """
    scope = tf.compat.v1.get_variable_scope()
    caching_device = scope.caching_device
    try:
        return tf.map_fn(function, rows, fn_output_signature=tf.float32, **options)
    finally:
        if not tf.executing_eagerly():
            scope.set_caching_device(caching_device)


def _numbered_seeds(seed: tf.Tensor, first: int | tf.Tensor, draws: int | tf.Tensor) -> tf.Tensor:
    """Return seeds [S, 2] of the draws from number `first` on."""
    seeds = tf.map_fn(lambda number: fold_in(seed, number), first + tf.range(draws), fn_output_signature=tf.int32)
    return tf.ensure_shape(seeds, [draws if isinstance(draws, int) else None, 2])


def _draws_of_images(images: tf.Tensor, seeds: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Return the passes of several draws: one of each image for each draw."""
    return tf.shape(images)[0] * tf.shape(seeds)[0]
