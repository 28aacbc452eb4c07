"""The layers of a Keras model, and how they are connected.

Keras has no public names for this. All its private names that this package reads are here (docs/decisions.md).
"""

from typing import Any, NamedTuple

import keras


class Call(NamedTuple):
    """A call of a layer in a functional model.

    Attributes:
        layer: the layer.
        inputs: its input tensors.
    """

    layer: Any
    inputs: list[Any]


def all_layers(model: keras.Model) -> list[Any]:
    """Return every layer of a model, also the layers inside other layers and models.

    `Model.layers`, the public name, does not enter layers that hold layers.
    """
    return list(model._flatten_layers(include_self=False, recursive=True))


def call_behind(tensor: Any) -> Call:
    """Return the call whose output a symbolic tensor is.

    `layer.input`, the public name, fails for layers that are called twice.
    """
    layer, index, _ = tensor._keras_history
    return Call(layer, list(layer._inbound_nodes[index].input_tensors))


def called_with_training(model: keras.Model) -> list[Any]:
    """Return the layers that a functional model, or one inside it, calls with `training=True`, such as dropout.

    `model(images)` follows these words. `model(images, training=False)` and `model.predict` do not (Keras 3.15).
    """
    graphs = [layer for layer in (model, *all_layers(model)) if hasattr(layer, "_nodes_by_depth")]
    calls = [call for graph in graphs for calls in graph._nodes_by_depth.values() for call in calls]
    called = [call.operation for call in calls if not call.is_input and call.arguments.kwargs.get("training") is True]
    return [part for layer in called for part in (all_layers(layer) if isinstance(layer, keras.Model) else [layer])]


def is_plain_model(model: keras.Model) -> bool:
    """Return whether a model is functional or sequential, and not of a class of its own, whose `call` may differ."""
    images = keras.Input((1,))
    return type(model) in (keras.Sequential, type(keras.Model(images, keras.layers.Identity()(images))))


def is_called_once(layer: Any) -> bool:
    """Return whether a layer is called once."""
    return len(layer._inbound_nodes) == 1


def is_used_once(layer: Any) -> bool:
    """Return whether a layer is called once, and its output goes to one other layer alone."""
    return is_called_once(layer) and len(layer._outbound_nodes) == 1
