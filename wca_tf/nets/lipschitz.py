"""An l2 Lipschitz constant of a Keras model, and a bound on its rounding, composed from those of its layers."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import call_behind, is_called_once, is_plain_model
from wca_tf.nets.lipschitz_layers import MaxMin, SpaceToDepth
from wca_tf.nets.orthogonal_layers import CircularShift, OrthogonalDense, largest_singular_value

_ONE_TO_ONE = (keras.layers.InputLayer, keras.layers.Flatten, keras.layers.Reshape, keras.layers.Permute)
# Layers that only move or compare numbers.
_EXACT = (*_ONE_TO_ONE, MaxMin, SpaceToDepth, CircularShift)
_ACTIVATIONS = (keras.activations.linear, keras.activations.relu, keras.activations.tanh, keras.activations.sigmoid)
_PRECISIONS = ("float32", "float64")


def lipschitz_constant(model: keras.Model) -> float:
    """Return a Lipschitz constant from l2 to l2 of a chain of layers: the product of the constants of its layers.

    A layer says its constant in an attribute `lipschitz_constant` of its own class, as those of `lipschitz_layers` do.
    Dense layers, average pooling, maxima over blocks that do not overlap, and activations of slope 1 at most are known
    too.

    Args:
        model: a functional or sequential model, built, whose layers stand one after the other.

    Raises:
        InputError: layers that are no chain, a layer whose constant is not known, or a precision below float32.

    Examples:
        >>> net = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.AveragePooling2D(2), keras.layers.Flatten()])
        >>> lipschitz_constant(net)
        0.5
    """
    return math.prod(constant_of_layer(layer) for layer in _chain(model))


@tensor_float_32(on=False)
def rounding_error(model: keras.Model, inputs: np.ndarray, distance: float = 0.0) -> np.ndarray:
    """Return a bound [N], in l2, of what float32 adds to the exact outputs of orthogonal layers, near each input.

    It holds for all inputs in float32 that are not further than `distance` from these, in l2, and for every order of
    the sums, unless a number underflows. TensorFloat-32 is not float32. The bound is far above what rounding adds in
    practice, which grows like √n where the bound grows like n.

    Args:
        model: as for `lipschitz_constant`, of `OrthogonalDense` and layers that only move or compare numbers.
        inputs: float32 [N, ...], finite.
        distance: 0 or more, finite.

    Raises:
        InputError: as for `lipschitz_constant`; another layer; other inputs or distances.
    """
    return Rounded.given(inputs, distance).after_model(model).error


@dataclasses.dataclass(frozen=True)
class Rounded:
    """Numbers in float32, and how far rounding can have moved them.

    Attributes:
        numbers: [N, ...], for N inputs.
        distance: [N], a bound, in l2, of how far these are from the numbers of any input that is near.
        error: [N], a bound, in l2, of how far these, and those of any input that is near, are from the exact ones.
    """

    numbers: np.ndarray
    distance: np.ndarray
    error: np.ndarray

    @classmethod
    def given(cls, inputs: np.ndarray, distance: float) -> "Rounded":
        """Return inputs, which are exact; raise InputError as `rounding_error` does."""
        inputs = np.asarray(inputs)
        if inputs.dtype != np.float32 or not inputs.size or not np.isfinite(inputs).all():
            raise InputError(f"expected inputs in float32, finite; received {inputs.dtype} of shape {inputs.shape}")
        if not 0 <= distance < math.inf:
            raise InputError(f"expected a distance of 0 or more, received {distance}")
        return cls(inputs, np.full(len(inputs), float(distance)), np.zeros(len(inputs)))

    def after_model(self, model: keras.Model) -> "Rounded":
        """Return the outputs of a chain of layers; raise InputError as `rounding_error` does."""
        rounded = self
        for layer in _chain(model):
            rounded = rounded.after(layer)
        return rounded

    def after(self, layer: Any) -> "Rounded":
        """Return the outputs of a layer; raise InputError as `rounding_error` does."""
        if isinstance(layer, keras.Model):
            return self.after_model(layer)
        constant = constant_of_layer(layer)
        if type(layer) in _EXACT:
            return dataclasses.replace(self, numbers=np.asarray(layer(self.numbers)))
        if type(layer) is not OrthogonalDense or layer.compute_dtype != "float32":
            raise InputError(
                f"expected orthogonal layers in float32, to bound their rounding; received {layer.name} in "
                f"{layer.compute_dtype}"
            )
        return self.moved(np.asarray(layer(self.numbers)), constant, layer.rounding(self.numbers, self.distance))

    def moved(self, numbers: np.ndarray, constant: float, error: np.ndarray) -> "Rounded":
        """Return the outputs of a function with a Lipschitz constant, whose own rounding is `error` [N] at most."""
        return Rounded(numbers, constant * self.distance + 2 * error, constant * self.error + error)


def _chain(model: keras.Model) -> list[Any]:
    """Return the layers of a chain, from the input on; raise InputError for another model."""
    if not is_plain_model(model) or not model.built:
        raise InputError(f"expected a functional or sequential model, built; received {model.name}")
    if len(model.inputs) != 1 or len(model.outputs) != 1 or model.inputs[0].dtype not in _PRECISIONS:
        raise InputError(f"expected a model with one input of floats and one output, received {model.name}")
    layers, tensor = [], model.outputs[0]
    while tensor is not model.inputs[0]:
        layer, inputs = call_behind(tensor)
        if len(inputs) != 1 or not is_called_once(layer):
            raise InputError(
                f"expected layers one after the other, to bound their Lipschitz constant; received {layer.name}, which "
                "is part of a branch, or is used twice"
            )
        layers.append(layer)
        tensor = inputs[0]
    return layers[::-1]


def constant_of_layer(layer: Any) -> float:
    """Return a Lipschitz constant of a built layer; raise InputError where none is known."""
    if isinstance(layer, keras.Model):
        return lipschitz_constant(layer)
    if not isinstance(layer, keras.layers.Layer):  # an operation, such as x - 0.5
        raise _unknown(layer)
    if layer.compute_dtype not in _PRECISIONS or isinstance(
        layer.dtype_policy, keras.dtype_policies.QuantizedDTypePolicy
    ):
        raise InputError(f"expected layers in float32, received {layer.name} in {layer.dtype_policy.name}: it rounds")
    if "lipschitz_constant" in {**vars(type(layer)), **vars(layer)}:  # not of a base class: `call` may differ
        constant = layer.lipschitz_constant
        if not isinstance(constant, (int, float)) or not 0 < constant < math.inf:
            raise InputError(f"expected a lipschitz_constant above 0 of {layer.name}, received {constant!r}")
        return float(constant)
    bound = _BOUNDS.get(type(layer))
    found = bound(layer) if bound and getattr(layer, "data_format", "channels_last") == "channels_last" else None
    if found is None:
        raise _unknown(layer)
    return found


def _unknown(layer: Any) -> InputError:
    return InputError(
        f"expected layers with a known Lipschitz constant, received {layer.name}, a {type(layer).__name__}: "
        "use those of wca_tf.nets.orthogonal_layers and lipschitz_layers, average pooling or Flatten"
    )


def _of_relu(layer: keras.layers.ReLU) -> float | None:
    """Return the largest slope; `None` with a threshold, at which the function jumps."""
    return None if layer.threshold else max(1.0, abs(float(layer.negative_slope)))


def _of_dense(layer: keras.layers.Dense) -> float | None:
    """Return the largest singular value of the kernel; `None` for an activation that is not known."""
    return largest_singular_value(layer) if layer.activation in _ACTIVATIONS else None


def _of_average_pooling(layer: keras.layers.AveragePooling2D) -> float | None:
    """Return 1/√n for means over blocks of n positions that do not overlap; `None` for other blocks."""
    if layer.strides != layer.pool_size or layer.padding != "valid":
        return None
    return 1 / math.sqrt(math.prod(layer.pool_size))


def _of_global_average_pooling(layer: keras.layers.GlobalAveragePooling2D) -> float | None:
    sides = layer.input.shape[1:3]
    return 1 / math.sqrt(math.prod(sides)) if all(sides) else None


def _of_max_pooling(layer: keras.layers.MaxPooling2D) -> float | None:
    return 1.0 if layer.strides == layer.pool_size and layer.padding == "valid" else None


def _of_activation(layer: keras.layers.Activation) -> float | None:
    return 1.0 if layer.activation in _ACTIVATIONS else None


_BOUNDS: dict[type, Callable[[Any], float | None]] = {
    **dict.fromkeys(_ONE_TO_ONE, lambda layer: 1.0),
    keras.layers.ReLU: _of_relu,
    keras.layers.Dense: _of_dense,
    keras.layers.AveragePooling2D: _of_average_pooling,
    keras.layers.GlobalAveragePooling2D: _of_global_average_pooling,
    keras.layers.MaxPooling2D: _of_max_pooling,
    keras.layers.Activation: _of_activation,
}
