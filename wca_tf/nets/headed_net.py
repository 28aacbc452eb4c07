"""HeadedNet: a Keras model of any kind that ends in a `GaussianHead`, as attacks, reports and exports see it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import calls_in, is_plain_model, layers_behind
from wca_tf.core.seeds import make_seed
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.gaussian_head import FeatureNoise, GaussianHead, heads_of, keeps_gaussian, recorded_calls
from wca_tf.nets.lipschitz import lipschitz_constant
from wca_tf.nets.pixel_range import PixelRange
from wca_tf.nets.targets import GaussianLogitsTarget

Answer = Callable[[tf.Tensor], tf.Tensor]
SAME = 1e-5  # relative and absolute: what float32 makes of a Rescaling


class HeadedNet:
    """The interface for reports, certificates and exports, of a Keras model that ends in a head.

    Args:
        model: the model.
        answer: images [B, H, W, channels] in [0, 1] -> logits [B, C], by one call of the model.
        head: its head.
        behind: the layers behind the head, each of which `keeps_gaussian`.
        pixel_range: the pixels that the model gets.
    """

    defence = ""
    input_deviation = None
    has_noise_free_logits = True
    built = True
    deterministic_layers: dict[str, keras.layers.Layer] = {}  # Keras exports the weights that an endpoint uses

    def __init__(
        self, model: keras.Model, answer: Answer, head: GaussianHead, behind: list[Any], pixel_range: PixelRange
    ) -> None:
        self.model, self.head, self.pixel_range = model, head, pixel_range
        self.num_classes = head.num_classes
        self._answer, self._behind = answer, behind
        scales = [np.asarray(layer.scale, np.float32) for layer in behind if isinstance(layer, keras.layers.Rescaling)]
        scale = functools.reduce(np.multiply, scales, np.ones(self.num_classes, np.float32))
        self._scale = tf.constant(scale[:, np.newaxis])  # of the logits of each class
        self._target = GaussianLogitsTarget(
            self.features, self._logits_of, lambda: self._scale * head.logit_scale, has_noise=True
        )

    def target(self) -> GaussianLogitsTarget:
        """Return the target for attacks, the same at every call."""
        return self._target

    def features(self, images: tf.Tensor) -> tf.Tensor:
        """Return the features [B, D] that the head adds its noise to."""
        with recorded_calls() as calls:
            self._answer(images)
        return calls[0].features

    def _logits_of(self, features: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] of features [B, D], without noise."""
        return functools.reduce(lambda logits, layer: layer(logits), self._behind, self.head.logits_of(features))

    def noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] of the net without its noise."""
        return self._target.noise_free_logits(self._target.features(images))

    def logits(self, images: tf.Tensor, seed: tf.Tensor | int) -> tf.Tensor:
        """Return logits [B, C] under one draw, which the seed decides."""
        return self._target.logits(self._target.features(images), make_seed(seed), 1)[0]

    def gaussian_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean [B, C] of the logits, and A [C, D] of their covariance A Aᵀ."""
        return self.noise_free_logits(images), self._target.logit_scale

    @property
    def class_weights(self) -> tf.Tensor:
        """W [C, D]: the noise-free logits are W f(x) + b."""
        return self._scale * self.head.class_weights

    def lipschitz(self) -> float:
        """Return a Lipschitz constant of the features from images in [0, 1], in l2.

        Raises:
            InputError: no constant is known.
        """
        found = layers_behind(self.model, self.head) if is_plain_model(self.model) else None
        if found is None or all(call.layer is not self.head for call in calls_in(self.model)):
            raise InputError(
                "expected a functional or sequential model with its head among its own layers, to bound how fast the "
                "features change; received another"
            )
        low, high = self.pixel_range
        return (high - low) * self.head.lipschitz() * lipschitz_constant(keras.Model(self.model.inputs, found[0]))

    def feature_noise(self) -> FeatureNoise | None:
        """Return the noise of the head, as `StochasticClassifier.feature_noise`."""
        return self.head.feature_noise()


KnownNet = StochasticClassifier | HeadedNet


def headed_net(model: Any, answer: Answer, images: tf.Tensor, pixel_range: PixelRange) -> HeadedNet | None:
    """Return a model that ends in a head as such a net; `None` for any other model.

    The outputs must be the tensor that the one call of the one head returned, or this tensor after a `Rescaling`.
    Whether the features are random is for the caller to find out.

    Args:
        model: a Keras model, or anything else.
        answer: as for `HeadedNet`; it was called before.
        images: a probe, [B, H, W, channels], in [0, 1].
        pixel_range: the pixels that the model gets.
    """
    heads = heads_of(model) if isinstance(model, keras.Model) else []
    if len(heads) != 1:
        return None
    with recorded_calls() as calls:
        outputs = answer(images)
    if len(calls) != 1:
        return None
    behind: list[Any] = []
    if outputs is not calls[0].logits:
        found = layers_behind(model, heads[0])
        if found is None or not all(map(keeps_gaussian, found[1])):
            return None
        behind = found[1]
    net = HeadedNet(model, answer, heads[0], behind, pixel_range)
    same = np.allclose(net.target().noise_free_logits(calls[0].features), tf.cast(outputs, tf.float32), SAME, SAME)
    return net if same else None
