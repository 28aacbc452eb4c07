"""ForeignNet: a net of another framework probed once, for what it returns and whether it is random, as a target."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError, NonFiniteError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.nets.answers import PROBE_TOLERANCE, check_answers, mark_checked, probe_images
from wca_tf.nets.function_net import FunctionNet, seed_number
from wca_tf.nets.outputs import Outputs
from wca_tf.nets.pixel_range import MOST_IMAGES, RANGES, UNIT, PixelRange, better_range, check_range
from wca_tf.nets.pullback_check import check_independent, check_pullback
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import CALLS, AnyTarget, GaussianLogitsTarget

DRAWS_AT_ONCE = 8  # of a net whose draws are one batch


class ForeignNet:
    """A net of another framework, probed once.

    Attributes:
        target: the net for attacks.
        headed: `None`: no such net ends in a head of this package.
        pixel_range: the pixels that the net gets.
        has_gradient: whether the net has a pullback.
        options: those of `adapt` that decide its answers, for the identity of a report.
    """

    headed = None

    def __init__(
        self, net: FunctionNet, image_shape: tuple[int, ...], pixel_range: PixelRange | None, outputs: str | None
    ) -> None:
        self.net, self.image_shape, self.has_gradient = net, tuple(image_shape), net.pullback is not None
        self.pixel_range = UNIT if pixel_range is None else check_range(pixel_range)
        self._without: FunctionNet | None = None
        self._range_note, self._range_is_known = "", pixel_range is not None
        self.options = (self.pixel_range, outputs, net.independent_noise)
        self.images = probe_images(self.image_shape)
        values = self._call(0)
        if not np.isfinite(values).all():
            raise NonFiniteError("expected finite logits, received NaN or Inf on a random, black or white image")
        self.outputs = Outputs(net, tf.constant(values), lambda: tf.constant(self._call(0)), outputs)
        self.num_classes = self.outputs.num_classes
        self.target: AnyTarget = self._probed()
        mark_checked(self.target, self.image_shape)
        self.target.net = self

    def _probed(self) -> AnyTarget:
        """Return the target, after calls with other seeds and with equal ones on the probe."""
        target = self._random() if self._is_random(self.net) else self._deterministic()
        if not check_answers(target, self.images, self.outputs.known) and self.net.reproducible:
            raise InputError(
                "expected equal logits for equal seeds, received noise that ignores the seed: draw from it, as by "
                "np.random.default_rng(seed) or the framework's own generator, or say reproducible=False"
            )
        if self.net.pullback and self.net.reproducible and not (self.net.surrogate or self.net.by_framework):
            check_pullback(self.net, self._pixels(self.images.numpy()))
        return target

    def _is_random(self, net: FunctionNet) -> bool:
        """Return whether the outputs for the probe differ between the seeds of an image's draws."""
        seeds = (seed_number(fold_in(make_seed(0), number).numpy()) for number in range(CALLS))
        first, *others = (net.outputs(self._pixels(self.images.numpy()), seed) for seed in seeds)
        return not all(np.allclose(first, other, *PROBE_TOLERANCE) for other in others)

    def _random(self) -> SampledTarget:
        """Return the target of a net whose logits depend on the seed."""
        if (without := self.net.without_noise()) and not self._is_random(without):
            self._without = without
        noise_free = functools.partial(self._logits, self._without, seed=make_seed(0)) if self._without else None
        of_draws = None
        if self.net.independent_noise:
            check_independent(self.net, self._pixels(self.images.numpy()))
            of_draws = self._logits_of_draws
        target = SampledTarget(
            lambda images, seed: self._logits(self.net, images, seed),
            draws_per_pass=DRAWS_AT_ONCE if of_draws else 1,  # a gradient goes back before the next draw is made
            noise_free_logits=noise_free,
            logits_of_draws=of_draws,
        )
        target.num_classes, target.parallel_parts = self.num_classes, 1
        return target

    def _deterministic(self) -> GaussianLogitsTarget:
        logits = functools.partial(self._logits, self.net, seed=make_seed(0))
        return GaussianLogitsTarget(logits, tf.identity, tf.zeros([self.num_classes, 1]))

    def _logits_of_draws(self, images: tf.Tensor, seeds: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        """Return logits [S, B, C] of S draws, made as one batch under the first of their seeds."""
        draws = tf.shape(seeds)[0]
        many = tf.repeat(images[tf.newaxis], draws, axis=0)
        logits = self._logits(self.net, tf.reshape(many, tf.concat([[-1], tf.shape(images)[1:]], 0)), seeds[0])
        return tf.reshape(logits, [draws, tf.shape(images)[0], self.num_classes])

    def _logits(self, net: FunctionNet, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] of images in [0, 1]."""
        images = tf.ensure_shape(images, [None, *self.image_shape])
        return self.outputs.logits(lambda: net.answer(self._pixels(images), seed))

    def _pixels(self, images: Any, pixel_range: PixelRange | None = None) -> Any:
        """Return images in [0, 1] with the pixels that the net gets."""
        low, high = pixel_range or self.pixel_range
        return images if (low, high) == UNIT else images * (high - low) + low

    def _call(self, seed: int) -> np.ndarray:
        """Return the outputs [B, C] for the probe."""
        return self.net.outputs(self._pixels(self.images.numpy()), seed)

    def check_pixels(self, images: np.ndarray, labels: np.ndarray) -> str:
        """Do what `check_pixels` of adapter.py says; the answer is kept once it is sure.

        Pixels less their mean, over their deviation, are one more range: PyTorch's users do so outside the net.
        """
        if not self._range_is_known:
            noisy = isinstance(self.target, SampledTarget) and self._without is None
            some = to_float(tf.constant(images[:MOST_IMAGES])).numpy()
            mean, std = some.mean(), some.std() or 1.0
            standard = float(-mean / std), float((1 - mean) / std)

            def advice(low: float, high: float) -> str:
                own = "put your own (images - mean) / std, if any, into the net"
                return f"{own}, or give pixel_range=({low:g}, {high:g}); pixel_range=(0, 1) keeps the range"

            self._range_note, self._range_is_known = better_range(
                self._predict, advice, images, labels, noisy, (UNIT, standard, *RANGES[1:])
            )
        return self._range_note

    def _predict(self, images: np.ndarray, pixel_range: PixelRange) -> np.ndarray:
        """Return the classes [N] of images by the net without its noise, else under the same draws for every range."""
        net = self._without or self.net
        pixels = self._pixels(to_float(tf.constant(images)).numpy(), pixel_range)
        seed = seed_number(make_seed(0).numpy())
        return np.argmax(self.outputs.logits(lambda: tf.constant(net.outputs(pixels, seed))), axis=1)

    def describe(self) -> dict[str, Any]:
        """Return what was decided, for results.json."""
        net, on = self.net, list(self.net.random_on)
        if isinstance(self.target, SampledTarget) and not on:
            on = ["some, in its own call"]
        notes = [
            "" if net.pullback else "the net has no pullback: it meets attacks without gradients alone",
            "the pullback is not compared with the gradient" if net.pullback and net.surrogate else "",
            "" if net.reproducible else "the noise ignores the seed: no number can be repeated, no gradient checked",
            self._range_note,
        ]
        return {
            "class": net.name,
            "framework": net.framework,
            "pixel_range": list(self.pixel_range),
            "outputs": self.outputs.text,
            "random_layers": {"on": on, "off": list(net.random_off)},
            "note": "; ".join(filter(None, notes)),
        }
