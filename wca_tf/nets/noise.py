"""Noise inside a net: the draws of a pass, and the layers that make the noise.

A pass may make several draws at once. It then has S × B rows, draw after draw, and every layer with noise draws for
each of the S seeds. Outside the context `drawing` these layers add no noise.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import all_layers
from wca_tf.core.seeds import fold_in


@dataclasses.dataclass(frozen=True)
class Draws:
    """The draws of a pass.

    Attributes:
        seeds: int32 [S, 2], one for each draw.
        indices: whole numbers [B], the number of each image. The noise of an image follows from the draw's seed and
            this number.
    """

    seeds: tf.Tensor
    indices: tf.Tensor

    def for_each_image(self, layer: int | None, shape: tuple[int, ...]) -> tf.Tensor:
        """Return standard normal numbers [S B, *shape], a row for each draw of each image."""
        images = tf.size(self.indices)
        seeds = self._of_layer(layer)

        def row(number: tf.Tensor) -> tf.Tensor:
            return tf.random.stateless_normal(shape, fold_in(seeds[number // images], self.indices[number % images]))

        rows = tf.range(tf.shape(self.seeds)[0] * images)
        noise = tf.map_fn(row, rows, fn_output_signature=tf.float32)
        return tf.reshape(noise, [-1, *shape])

    def for_scope(self, layer: int | None, shape: tuple[int, ...], scope: str) -> tf.Tensor:
        """Return standard normal numbers [S B, *shape]: with `scope` "batch" all images of a draw share a row."""
        if scope == "image":
            return self.for_each_image(layer, shape)
        return tf.repeat(self.for_each_draw(layer, shape), tf.size(self.indices), axis=0)

    def for_each_draw(self, layer: int | None, shape: tuple[int, ...]) -> tf.Tensor:
        """Return standard normal numbers [S, *shape], which all images share."""
        return tf.map_fn(
            lambda seed: tf.random.stateless_normal(shape, seed),
            self._of_layer(layer),
            fn_output_signature=tf.float32,
        )

    def _of_layer(self, layer: int | None) -> tf.Tensor:
        """Return the layer's own seeds [S, 2]."""
        if layer is None:  # else all such layers would draw the same numbers
            raise InputError("expected every layer with noise among the layers of a NoisyNet's backbone")
        return tf.map_fn(lambda seed: fold_in(seed, layer), self.seeds)


_scope: contextvars.ContextVar[Draws | None] = contextvars.ContextVar("draws", default=None)


@contextlib.contextmanager
def drawing(draws: Draws | None) -> Iterator[None]:
    """Make layers with noise use these draws inside this context; `None` leaves the noise out."""
    token = _scope.set(draws)
    try:
        yield
    finally:
        _scope.reset(token)


def current_draws() -> Draws | None:
    """Return the draws of the pass that is being made, or traced; `None` for a pass without noise."""
    return _scope.get()


class NoiseLayer(keras.layers.Layer):
    """A layer with noise. Its net numbers such layers, so that each layer draws different random numbers.

    Attributes:
        number: the number of this layer, from 0; `None` for a layer that belongs to no net.
        scope: "image" where each image has noise of its own, which follows from the draw and the image's number;
            "batch" where all images of a draw share the noise.
    """

    number: int | None = None
    scope: str = "image"


def noise_layers_of(model: keras.Model) -> list[NoiseLayer]:
    """Return the layers with noise of a model in order, also the layers inside other layers and models."""
    return [layer for layer in all_layers(model) if isinstance(layer, NoiseLayer)]


@keras.saving.register_keras_serializable("wca_tf")
class ActivationNoise(NoiseLayer):
    """A layer that returns features + scale × z, with a separate z ~ N(0, I) for each image.

    Args:
        scale: the standard deviation, 0 or more; one number, or one for each channel.

    Call arguments:
        features: [S B, ...].
    """

    def __init__(self, scale: float | Sequence[float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale if isinstance(scale, int | float) else list(scale)

    def call(self, features: tf.Tensor) -> tf.Tensor:
        draws = current_draws()
        if draws is None:
            return features
        noise = draws.for_each_image(self.number, tuple(features.shape[1:]))
        return features + tf.cast(tf.constant(self.scale, tf.float32) * noise, features.dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}
