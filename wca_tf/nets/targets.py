"""Targets, the interface of a net to attacks: features, noisy logits, and, for noise in the head, exact quantities.

Shapes: B batch, H W channels of images in [0, 1], F features, S draws, C classes, D width of the noise.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Protocol

from typing_extensions import TypeIs

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np, tf
from wca_tf.core.seeds import fold_in, make_seed, normal_by_index
from wca_tf.gaussian import covariance
from wca_tf.nets import passes
from wca_tf.nets.mixture_target import MixtureTarget, members_of
from wca_tf.nets.sampled_target import SampledTarget, in_float32

CHEAP_DRAWS = 1000
CALLS = 16  # of a net, to find noise: two nets chosen at random pass with a probability of 2^-15


class Target(Protocol):
    """A net under attack.

    Attributes:
        num_classes: C, or `None` as long as no image was seen.
        draws_per_pass: the number of draws that `logits` makes at a time within the memory budget.
        cheap_draws: the number of draws that cost almost nothing; 0 when each draw costs a pass.
        per_image_noise: whether an image's draws follow from the seed and its number alone, not the rest of the batch.
    """

    num_classes: int | None
    per_image_noise: bool

    @property
    def draws_per_pass(self) -> int:
        """The attribute described in the class."""

    @property
    def cheap_draws(self) -> int:
        """The attribute described in the class."""

    def features(self, images: tf.Tensor) -> tf.Tensor:
        """Return the part that is computed once per image, for any number of draws.

        It is [B, ...], from images [B, H, W, channels].
        """

    def logits(
        self, features: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor, indices: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return logits [S, B, C] under `draws` draws of the noise, decided by the int32[2] `seed`.

        Args:
            features: [B, ...], from `features`.
            seed: decides the draws.
            draws: S.
            indices: whole numbers [B], the number of each image. The draws then differ from image to image, where the
                net allows it. Errors of few draws that all images share do not average out over images. `None`: one
                set of draws for all images.
        """

    def with_draw_offset(self, first: int | tf.Tensor) -> Target:
        """Return the same net with draws of its own for each `first`: parts of a mean over draws then share no draw."""

    def with_fixed_draw(self, seed: tf.Tensor, indices: tf.Tensor | None = None) -> Target:
        """Return the deterministic net that this net is under one draw, which `seed` decides.

        A `seed` that is a tf.Variable is read each time the net is called. One net and its graphs can then stand for
        many draws.

        Args:
            seed: decides the draw.
            indices: whole numbers [B], the number of each image of a batch: each image then has a draw of its own,
                where the net allows it, and the result is a net for this batch alone. `None`: one draw for all images.
        """


class GaussianLogitsTarget:
    """A net whose noise enters after its features: logits given an image are N(mu, K), K = A Aᵀ.

    Draws do not depend on the batch, and cost no pass of the backbone: the noise of the logits is A ξ, ξ ~ N(0, I).

    Args:
        features: images [B, H, W, channels] -> features [B, F].
        head: features [B, F] -> noise-free logits mu [B, C] of any float type.
        logit_scale: A [C, R], the same for every image; or a function that returns it, for noise that is still trained;
            or, with `scale_per_image`, a function: features [B, F] -> A [B, C, R]. A is zero for a deterministic net.
        has_noise: whether A is more than zero. When absent, the values of A decide; where they are not known, the net
            counts as noisy.
        scale_per_image: whether each image has a separate A.
    """

    # For every batch, so that draws do not depend on the batch: 250 draws of 100 images and 10 classes are 1 MB.
    draws_per_pass = 250
    per_image_noise = True
    net: Any = None  # what adapter.py found out about a Keras model

    def __init__(
        self,
        features: Callable[[tf.Tensor], tf.Tensor],
        head: Callable[[tf.Tensor], tf.Tensor],
        logit_scale: tf.Tensor | Callable[..., tf.Tensor],
        has_noise: bool | None = None,
        scale_per_image: bool = False,
    ) -> None:
        self.features = passes.counted(features)
        self.noise_free_logits = in_float32(head)
        given = logit_scale if callable(logit_scale) else _float32(logit_scale)
        self._logit_scale: Callable[..., tf.Tensor] = given if callable(given) else lambda: given
        self.scale_per_image = scale_per_image
        self.num_classes: int | None = None if scale_per_image else int(self.logit_scale.shape[0])
        if has_noise is None:  # inside a graph only the caller can know that there is no noise
            scale = None if scale_per_image else self.logit_scale
            has_noise = not hasattr(scale, "numpy") or bool(tf.reduce_any(scale != 0))
        self.has_noise = has_noise
        self.cheap_draws = CHEAP_DRAWS if self.has_noise else 1
        self._first_draw: int | tf.Tensor | None = None  # for draws made in parts

    @property
    def logit_scale(self) -> tf.Tensor:
        """The present A [C, R] of a net with the same A for every image."""
        return _float32(self._logit_scale())

    def scale_of(self, features: tf.Tensor) -> tf.Tensor:
        """Return A, [C, R] or [B, C, R], of images with these features [B, F]."""
        return _float32(self._logit_scale(features)) if self.scale_per_image else self.logit_scale

    def difference_scale(self, features: tf.Tensor) -> tf.Tensor:
        """Return ‖A_i − A_j‖, [C, C] or [B, C, C]: the standard deviation of each difference of logits."""
        return covariance.logit_difference_scale(self.scale_of(features))

    def _draw_scale(self, features: tf.Tensor) -> tf.Tensor:
        """Return a factor of A Aᵀ: [C, min(C, R)] where all images share A, else A itself.

        Where A has more columns than rows, the factor is the transposed triangle of the QR decomposition of Aᵀ.
        """
        scale = self.scale_of(features)
        if self.scale_per_image or scale.shape[1] <= scale.shape[0]:
            return scale
        return tf.transpose(tf.linalg.qr(tf.transpose(scale)).r)

    def with_draw_offset(self, first: int | tf.Tensor) -> GaussianLogitsTarget:
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

    def with_fixed_draw(self, seed: tf.Tensor, indices: tf.Tensor | None = None) -> GaussianLogitsTarget:
        def fixed(features: tf.Tensor) -> tf.Tensor:
            # Drawn at each call: a seed that is a tf.Variable may hold another draw's seed by then.
            if indices is not None:
                return self.logits(features, seed, 1, indices)[0]
            scale = self._draw_scale(features)
            draw = tf.random.stateless_normal([1, scale.shape[-1]], seed)
            return self.noise_free_logits(features) + _common_noise(scale, draw)[0]

        return self._with(fixed, lambda scale: 0 * scale, has_noise=False)

    def averaged(self, draws: int) -> GaussianLogitsTarget:
        """Return the net that answers with the mean logits of `draws` draws: N(mu, K / draws), exactly."""
        return self._with(self.noise_free_logits, lambda scale: scale / math.sqrt(draws), self.has_noise)

    def without_noise(self) -> GaussianLogitsTarget:
        """Return the deterministic net with logits mu."""
        return self._with(self.noise_free_logits, lambda scale: 0 * scale, has_noise=False)

    def _with(
        self, head: Callable[[tf.Tensor], tf.Tensor], change: Callable[[tf.Tensor], tf.Tensor], has_noise: bool
    ) -> GaussianLogitsTarget:
        """Return the net with another head and a changed A."""

        def logit_scale(*features: tf.Tensor) -> tf.Tensor:
            return change(_float32(self._logit_scale(*features)))

        return GaussianLogitsTarget(self.features, head, logit_scale, has_noise, self.scale_per_image)


def _float32(scale: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(scale), tf.float32)


def _common_noise(scale: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Return A ξ, [S, 1, C] or [S, B, C], of draws ξ [S, R] that all images share."""
    if scale.shape.rank == 3:
        return tf.einsum("sr,bcr->sbc", draw, scale)
    return tf.matmul(draw, scale, transpose_b=True)[:, tf.newaxis]


AnyTarget = GaussianLogitsTarget | SampledTarget | MixtureTarget


def is_gaussian(target: Any) -> TypeIs[GaussianLogitsTarget]:
    """Return whether the logits given an image are Gaussian, with known mean and covariance."""
    return isinstance(target, GaussianLogitsTarget)


def is_exact(target: Any) -> TypeIs[GaussianLogitsTarget | MixtureTarget]:
    """Return whether P(correct) of the net is exact, without draws."""
    return is_gaussian(target) or isinstance(target, MixtureTarget)


def has_noise(target: Target) -> bool:
    """Return False for a net that is known to be deterministic, else True."""
    return getattr(target, "has_noise", True)


def has_gradient(target: Target) -> bool:
    """Return False for a net that is known to have no gradient, a `FunctionNet` without a pullback; else True."""
    return all(getattr(getattr(net, "net", None), "has_gradient", True) for _, net in members_of(target))


def active_rows(target: Target, active: tf.Tensor) -> tf.Tensor:
    """Return the rows of a batch with which a search goes on, from `active`, bool [B].

    These are the rows that are still open. A net whose draws may depend on an image's place in the batch keeps all rows
    as long as one is open, so that no image gets other draws during its search. Results for the closed rows do not
    count.
    """
    if target.per_image_noise:
        return tf.where(active)[:, 0]
    return tf.range(tf.size(active, out_type=tf.int64) * tf.cast(tf.reduce_any(active), tf.int64))


def is_reproducible(target: Target, images: tf.Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> bool:
    """Return whether the same seed gives the same logits in every call; noise that ignores the seed does not.

    Raises:
        InputError: the logits differ, but not in a graph, and attacks and judgement run in graphs. A graph keeps the
            numbers that Python drew for its first call: every draw would be the same.
    """

    def answers() -> tf.Tensor:
        return target.logits(target.features(images), make_seed(0), 1)

    if calls_agree(answers, rtol, atol):
        return True
    if calls_agree(tf.function(answers), rtol, atol):
        raise InputError(
            "expected noise that the net draws from TensorFlow or Keras, received noise that Python or NumPy draws: "
            "use tf.random or keras.random"
        )
    return False


def calls_agree(answers: Callable[[], tf.Tensor], rtol: float, atol: float) -> bool:
    """Return whether `CALLS` calls give the same numbers. Noise that chooses one of two nets may repeat by chance."""
    first = answers()
    return all(np.allclose(first, answers(), rtol=rtol, atol=atol, equal_nan=True) for _ in range(CALLS - 1))
