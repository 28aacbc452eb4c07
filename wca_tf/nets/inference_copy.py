"""A copy of a net for attacks: its backbone computes in another precision, with batch normalisation folded in."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.keras_graph import call_behind, is_called_once, is_used_once
from wca_tf.nets.classifier import StochasticClassifier

# Of the largest noise-free logit: a copy that differs more does not stand for the net.
MAX_DIFFERENCE = 0.1


def inference_copy(net: StochasticClassifier, precision: str) -> StochasticClassifier:
    """Return the net with a copy of its backbone. Bottleneck, noise and classifier are shared with `net`.

    The copy must not be trained. Where a batch normalisation alone follows a convolution or a Dense layer, it becomes
    part of that layer's weights.

    Args:
        net: a built net with a functional or sequential backbone.
        precision: the copy's Keras dtype policy, such as "mixed_bfloat16".

    Raises:
        InputError: a backbone that cannot be copied or replaced; or a copy whose noise-free logits on random images
            differ by more than a tenth of the largest.
    """
    copy = net.with_backbone(_copied(net.backbone, precision))
    images = tf.random.stateless_uniform([8, *net.backbone.input_shape[1:]], [0, 0])
    expected, received = (each.noise_free_logits(images) for each in (net, copy))
    difference = float(tf.reduce_max(tf.abs(received - expected)) / tf.reduce_max(tf.abs(expected)))
    if not difference <= MAX_DIFFERENCE:
        raise InputError(
            f"expected a backbone that computes the same in {precision}, up to rounding; received one whose logits "
            f"change by {100 * difference:.3g} % of the largest"
        )
    return copy


def _copied(model: Any, precision: str) -> keras.Model:
    """Return a copy of the model's layers with their weights, in `precision`; models inside it are copied too."""
    foldable = _foldable(model)
    norms = {norm.name for _, norm in foldable}

    def copied(layer: Any) -> Any:
        if isinstance(layer, keras.Model):
            return _copied(layer, precision)
        if layer.name in norms:
            return Shift(name=layer.name, dtype=precision)
        return type(layer).from_config({**layer.get_config(), "dtype": precision})

    try:
        copy = keras.models.clone_model(model, clone_function=copied)
    except Exception as error:  # a layer may raise any error
        raise InputError(
            f"expected a functional or sequential backbone, to copy it in {precision}: {one_line(error)}"
        ) from None
    for layer in model.layers:
        if layer.weights and not isinstance(layer, keras.Model) and layer.name not in norms:
            copy.get_layer(layer.name).set_weights(layer.get_weights())
    for layer, norm in foldable:
        _fold(layer, norm, copy)
    return copy


def _foldable(model: Any) -> list[tuple[Any, Any]]:
    """Return the pairs (layer, batch normalisation) to fold.

    Nothing stands between the two, and no other layer takes the output of the first.
    """
    return [
        (layer, norm)
        for norm in getattr(model, "layers", [])
        if isinstance(norm, keras.layers.BatchNormalization) and is_called_once(norm)
        for layer in [call_behind(norm.input).layer]
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.Dense))
        and layer.activation is keras.activations.linear
        and is_used_once(layer)
        and norm.axis in (-1, len(layer.output.shape) - 1)
    ]


def _fold(layer: Any, norm: Any, copy: keras.Model) -> None:
    """Multiply the weights of the copy of `layer` by the scale of `norm`, and put its shift in the place of `norm`."""
    mean, variance = (np.asarray(value, np.float64) for value in (norm.moving_mean, norm.moving_variance))
    scale = (np.asarray(norm.gamma) if norm.scale else 1.0) / np.sqrt(variance + norm.epsilon)
    shift = (np.asarray(norm.beta) if norm.center else 0.0) - mean * scale
    copy.get_layer(layer.name).set_weights([weight * scale for weight in layer.get_weights()])
    copy.get_layer(norm.name).set_weights([shift])


class Shift(keras.layers.Layer):
    """The shift that remains of a folded batch normalisation: inputs [B, ..., C] + bias [C]."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.bias = self.add_weight(name="bias", shape=(input_shape[-1],))

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        return tf.nn.bias_add(inputs, tf.convert_to_tensor(self.bias))
