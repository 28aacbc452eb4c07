"""GaussianHead: a layer that ends a Keras model and makes its logits Gaussian. Its calls can be recorded.

A call inside `recorded_calls` leaves the noise out and is recorded. This shows whether a model's outputs are the logits
of its head, whatever kind of model it is, and gives the features that the head adds its noise to.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import all_layers, keeps_numbers
from wca_tf.core.options import MAX_WHOLE
from wca_tf.nets.lipschitz_layers import AOLDense
from wca_tf.nets.orthogonal_layers import OrthogonalDense

DRAWN_DIM = 2  # a plane, to draw it: the paper's figure of weights and covariance has fewer dimensions than classes


# The kinds of a bottleneck: without a constant, or 1-Lipschitz.
BOTTLENECKS = {None: keras.layers.Dense, "aol": AOLDense, "orthogonal": OrthogonalDense}


class FeatureNoise(NamedTuple):
    """Gaussian noise on the last features of a net.

    Attributes:
        scale_tril: L [D, D], of the covariance L Lᵀ.
        covariance: the form of the covariance, as text.
        rewarded: what training rewards noise along, as text.
    """

    scale_tril: np.ndarray
    covariance: str
    rewarded: str


class HeadCall(NamedTuple):
    """A recorded call of a head.

    Attributes:
        features: f(x) [B, D], before the noise.
        logits: [B, C], without noise: the tensor that the call returned.
    """

    features: tf.Tensor
    logits: tf.Tensor


_calls: contextvars.ContextVar[list[HeadCall] | None] = contextvars.ContextVar("head_calls", default=None)


@contextlib.contextmanager
def recorded_calls() -> Iterator[list[HeadCall]]:
    """Make every head leave its noise out inside this context, and yield the list of their calls."""
    calls: list[HeadCall] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


class GaussianHead(keras.layers.Layer):
    """A layer with logits h(x) = W (f(x) + z) + b, where z is Gaussian and does not depend on x.

    A class derived from it defines `features`, `with_noise`, `logits_of`, `logit_scale` and `class_weights`.

    Call arguments:
        inputs: [B, F].
        seed: optional int32[2], which alone decides the noise; `None` for the head's own stream.
    """

    num_classes: int

    def call(self, inputs: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        features, calls = self.features(inputs), _calls.get()
        if calls is None:
            return self.logits_of(self.with_noise(features, seed))
        calls.append(HeadCall(features, self.logits_of(features)))
        return calls[-1].logits

    def features(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return f(x) [B, D], before the noise."""
        raise NotImplementedError

    def with_noise(self, features: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """Return f(x) + z, [B, D]."""
        raise NotImplementedError

    def logits_of(self, features: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] of features [B, D], with their noise, if any."""
        raise NotImplementedError

    @property
    def logit_scale(self) -> tf.Tensor:
        """A [C, D]; the covariance of the logits is K = A Aᵀ."""
        raise NotImplementedError

    @property
    def class_weights(self) -> tf.Tensor:
        """W [C, D]."""
        raise NotImplementedError

    def lipschitz(self) -> float:
        """Return a Lipschitz constant of f from the inputs, in l2; raise InputError where none is known."""
        raise InputError(f"expected a head with a known Lipschitz constant, received {type(self).__name__}")

    def feature_noise(self) -> FeatureNoise | None:
        """Return the noise as reports show it; `None` for noise that no report shows."""
        return None

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (input_shape[0], self.num_classes)


def bottleneck_of(feature_dim: int, activation: str | None, lipschitz: str | None) -> keras.layers.Layer:
    """Return a bottleneck, [B, F] -> [B, D], in float32; raise InputError unless its kind is in `BOTTLENECKS`."""
    if lipschitz not in BOTTLENECKS:
        known = " or ".join(name for name in BOTTLENECKS if name)
        raise InputError(f"expected lipschitz_bottleneck {known}, or None; received {lipschitz!r}")
    return BOTTLENECKS[lipschitz](feature_dim, activation=activation, dtype="float32", name="bottleneck")


def heads_of(model: keras.Model) -> list[GaussianHead]:
    """Return the heads of a model, also those inside other layers and models."""
    return [layer for layer in all_layers(model) if isinstance(layer, GaussianHead)]


def keeps_gaussian(layer: Any) -> bool:
    """Return whether a layer behind a head makes Gaussian logits of Gaussian logits: a `Rescaling`, or no change."""
    return isinstance(layer, keras.layers.Rescaling) or keeps_numbers(layer)


def check_num_classes(num_classes: Any) -> int:
    """Return the number of classes; raise InputError unless it is a whole number of 2 or more."""
    if not isinstance(num_classes, (int, np.integer)) or num_classes < 2:
        raise InputError(f"expected 2 classes or more, received num_classes={num_classes!r}")
    return int(num_classes)


def check_feature_dim(feature_dim: Any, num_classes: int) -> int:
    """Return the width D of a bottleneck; raise InputError unless it is `DRAWN_DIM`, or `num_classes` at least."""
    if not isinstance(feature_dim, (int, np.integer)) or feature_dim > MAX_WHOLE:
        raise InputError(f"expected feature_dim as a whole number up to {MAX_WHOLE:,}, received {feature_dim!r}")
    if feature_dim < num_classes and feature_dim != DRAWN_DIM:
        raise InputError(
            f"expected feature_dim of at least the number of classes, {num_classes} (paper, section 4.1), or "
            f"{DRAWN_DIM}, to draw it; received feature_dim={feature_dim}"
        )
    return int(feature_dim)
