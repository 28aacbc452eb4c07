"""The layers of a Keras model, and how they are connected.

Keras has no public names for this. All its private names that this package reads are here (docs/decisions.md).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import keras


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


def last_operation(model: keras.Model) -> Any:
    """Return the layer or operation that makes a model's output; `None` for a model without a graph of layers.

    It may be inside an inner model. Layers after it that keep its numbers, such as Flatten and casts, do not count.
    """
    last: Any = model
    while getattr(last, "outputs", None):
        last, inputs = call_behind(last.outputs[0])
        while keeps_numbers(last):
            last, inputs = call_behind(inputs[0])
    return None if last is model else last


def layers_behind(model: keras.Model, layer: Any, output: int = 0) -> tuple[Any, list[Any]] | None:
    """Return the input tensor of a layer, and the layers and operations between it and a model's output, in order.

    The layer may be inside an inner model. The result is `None` where no chain of operations leads from the layer to
    the output, or where the model has no graph of layers.
    """
    chain: list[Any] = []
    outputs = getattr(model, "outputs", None)
    if not outputs:
        return None
    tensor = outputs[output]
    while True:
        operation, inputs = call_behind(tensor)
        if operation is layer:
            return inputs[0], chain[::-1]
        inner = getattr(operation, "outputs", None)
        if not inner and len(inputs) != 1:
            return None
        if not inner:
            chain.append(operation)
        tensor = inner[0] if inner else inputs[0]


def keeps_numbers(layer: Any) -> bool:
    """Return whether a layer or operation returns the numbers it is given."""
    names = ("Cast", "Flatten", "Identity", "Reshape")
    linear = isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.linear
    return linear or type(layer).__name__ in names


def calls_in(model: keras.Model) -> list[Call]:
    """Return the calls of layers in a functional or sequential model, not those inside its layers."""
    nodes = _nodes_in(getattr(model, "_functional", None) or model)
    return [Call(node.operation, list(node.input_tensors)) for node in nodes]


def called_with_training(model: keras.Model) -> list[Any]:
    """Return the layers that the owner of a functional model, or of one inside it, calls with `training=True`.

    Monte Carlo dropout does so. A layer whose own default is `training=True`, such as Keras's random augmentations,
    does not count: Keras stores the default like an argument.
    """
    nodes = [node for graph in (model, *all_layers(model)) for node in _nodes_in(graph)]
    called = [node.operation for node in nodes if _trains_explicitly(node.operation, node.arguments.kwargs)]
    return [part for layer in called for part in (all_layers(layer) if isinstance(layer, keras.Model) else [layer])]


def _trains_explicitly(operation: Any, arguments: dict[str, Any]) -> bool:
    """Return whether a call has the argument `training=True`, which is not the operation's default."""
    if arguments.get("training") is not True:
        return False
    parameter = inspect.signature(operation.call).parameters.get("training")
    return parameter is None or parameter.default is not True


def answer(model: keras.Model, images: Any, training: bool | None = None) -> Any:
    """Return a model's outputs as its owner gets them.

    They are those of `model.predict`, with the layers on that the owner calls with `training=True`. With `training`,
    they are those of `model(images, training=training)`.
    """
    if training is None and called_with_training(model):
        return _as_called(model)(images)
    return model(images, training=bool(training))


def _as_called(operation: Any) -> Callable[..., Any]:
    """Return the operation as `predict` calls it, but with `training=True` where its owner says so."""
    graph = getattr(operation, "_functional", None) or operation
    if isinstance(operation, keras.Model) and _has_the_call_of_keras(operation) and getattr(graph, "outputs", None):

        def run(inputs: Any, *_: Any, **arguments: Any) -> Any:
            if _trains_explicitly(operation, arguments):
                return operation(inputs, training=True)
            outputs = graph._run_through_graph(graph._standardize_inputs(inputs), operation_fn=_as_called)
            return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs

        return run

    def call(*inputs: Any, **arguments: Any) -> Any:
        if "training" in getattr(operation, "_call_context_args", ()):
            arguments["training"] = _trains_explicitly(operation, arguments)
        return operation(*inputs, **arguments)

    return call


def outermost_call() -> Callable[[], Any]:
    """Return, inside the call of a layer, a weak reference to the layer or model whose call is the outermost.

    In a training step it is the model that trains.
    """
    context = keras.src.backend.common.global_state.get_global_attribute("current_call_ctx")
    return weakref.ref(context.entry_layer) if context else lambda: None


def takes_training(layer: Any) -> bool:
    """Return whether the `call` of a layer has the argument `training`; Keras tells no other layer that it trains."""
    return "training" in inspect.signature(layer.call).parameters


def has_activation(operation: Any, name: str) -> bool:
    """Return whether a layer or operation is an activation of Keras, or has it."""
    return operation.__class__.__name__.lower() == name or getattr(operation, "activation", None) is getattr(
        keras.activations, name
    )


def operations_of(model: keras.Model) -> list[Any]:
    """Return the layers and operations of a model, also those inside inner models."""
    nodes = [node.operation for graph in (model, *all_layers(model)) for node in _nodes_in(graph)]
    return list({id(each): each for each in (*all_layers(model), *nodes)}.values())


@contextlib.contextmanager
def without_activation(operation: Any) -> Iterator[None]:
    """Let a layer or an operation return what its activation gets, for as long as the context lasts."""
    with _SWITCHED:
        name = "activation" if hasattr(operation, "activation") else "call"
        before = vars(operation).get(name)
        object.__setattr__(operation, name, keras.activations.linear if name == "activation" else _identity)
        try:
            yield
        finally:
            if before is None:
                object.__delattr__(operation, name)
            else:
                object.__setattr__(operation, name, before)


def _identity(inputs: Any, *_: Any, **__: Any) -> Any:
    return inputs


_SWITCHED = threading.RLock()  # replicas are traced in threads of their own, and share the layers


def check_called_without_training(model: keras.Model) -> None:
    """Raise InputError for a model that calls layers with `training=True`: in a net of this package Keras drops it."""
    if called := called_with_training(model):
        raise InputError(
            f"expected layers that the model calls without training=True, received {called[0].name!r}: Keras would "
            "switch off its noise in training=False; use a layer whose own call passes training=True"
        )


def _nodes_in(graph: Any) -> list[Any]:
    """Return the calls of layers, which Keras names nodes, in a functional model; none for anything else."""
    return [node for nodes in getattr(graph, "_nodes_by_depth", {}).values() for node in nodes if not node.is_input]


def is_plain_model(model: keras.Model) -> bool:
    """Return whether a model is functional or sequential, and not of a class of its own, whose `call` may differ."""
    return type(model) in (keras.Sequential, _functional_class())


def _has_the_call_of_keras(model: keras.Model) -> bool:
    """Return whether a model is functional or sequential, or of a class derived from these with their `call`."""
    return type(model).call in (_functional_class().call, keras.Sequential.call)


@functools.cache
def _functional_class() -> Any:
    """Return the class of functional models, which has no public name."""
    images = keras.Input((1,))
    return type(keras.Model(images, keras.layers.Identity()(images)))


def is_called_once(layer: Any) -> bool:
    """Return whether a layer is called once."""
    return len(layer._inbound_nodes) == 1


def is_used_once(layer: Any) -> bool:
    """Return whether a layer is called once, and its output goes to one other layer alone."""
    return is_called_once(layer) and len(layer._outbound_nodes) == 1
