"""The numbers of a net with a linear head that certificates need, and its certificates of each image."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.core.errors import InputError
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.gaussian.certificates import (
    deterministic_certificate,
    gaussian_shift_certificate,
    known_draw_certificate,
    quantile_from_below,
    union_certificate,
)
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.headed_net import KnownNet
from wca_tf.nets.targets import GaussianLogitsTarget

IMAGES_TO_BOUND = 200  # at a time: each time, the singular values of all layers are computed


@dataclasses.dataclass(frozen=True)
class Head:
    """The numbers of a net that a certificate needs.

    Attributes:
        logits: mu [N, C], without noise, of the clean images.
        labels: [N].
        weights: W [C, D].
        scale: A [C, R], zero without noise.
        lipschitz: a Lipschitz constant of the features.
        errors: bounds [N] of what float32 adds to the features of each image, and of all that an attack may make of
            it, in l2; `None` where no bound is known, and for a net with noise.
        logit_errors: bounds [N] of what float32 adds to each logit, given the features.
    """

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    scale: np.ndarray
    lipschitz: float
    errors: np.ndarray | None = None
    logit_errors: np.ndarray | float = 0.0

    @classmethod
    @tensor_float_32(on=False)
    def of(
        cls, target: GaussianLogitsTarget, model: KnownNet, examples: Examples, step: int, distance: float
    ) -> "Head":
        """Return the head of a net that a target judges, and the logits of all images, `step` images at a time.

        `distance`, in l2, is how far an attack may move an image at most.
        """
        scale, weights = (np.asarray(value, np.float64) for value in (target.logit_scale, model.class_weights))
        features = [target.features(images) for images in _parts(examples, step)]
        logits = np.concatenate([target.noise_free_logits(part).numpy() for part in features]).astype(np.float64)
        head = cls(logits, np.asarray(examples.labels), weights, scale, model.lipschitz())
        if scale.any() or not isinstance(model, BottleneckNet):
            return head
        try:
            parts = _parts(examples, IMAGES_TO_BOUND)
            errors = np.concatenate([model.rounding(images.numpy(), distance) for images in parts])
        except InputError:  # a layer whose rounding has no bound
            return head
        moved = head.lipschitz * distance + 2 * errors
        of_logits = model.logit_rounding(np.concatenate([part.numpy() for part in features]), moved)
        return dataclasses.replace(head, errors=errors, logit_errors=of_logits)

    @functools.cached_property
    def quantiles(self) -> np.ndarray:
        """Φ⁻¹(P(correct)) from below, [N]."""
        return quantile_from_below(self.logits, self.labels, self.scale)

    def bounds(self, change: float) -> dict[str, np.ndarray]:
        """Return each of `certificates.BOUNDS`, [N], for attacks that change the features by `change` at most."""
        common, noisy = (self.logits, self.labels, self.weights), (self.scale, change)
        quantiles = self.quantiles if self.scale.any() else None
        found = {
            "known_draw": known_draw_certificate(*common, *noisy),
            "gaussian_shift": gaussian_shift_certificate(*common, *noisy, quantiles),
            "deterministic": deterministic_certificate(*common, change).astype(np.float64),
            "union": union_certificate(*common, *noisy),
        }
        return {**found, "certificate": np.maximum(found["known_draw"], found["gaussian_shift"])}

    def certified_in_float32(self, change: float) -> np.ndarray | None:
        """Return [N], whether no attack changes the answer in float32; `None` where rounding has no bound."""
        if self.errors is None:
            return None
        changes = change + 2 * self.errors  # at the image and at the attacked one
        return deterministic_certificate(self.logits, self.labels, self.weights, changes, self.logit_errors)


def _parts(examples: Examples, size: int) -> Iterator[tf.Tensor]:
    """Yield the images as floats, `size` at a time."""
    for start in range(0, len(examples), size):
        yield to_float(tf.constant(examples.images[start : start + size]))
