"""The interpretation of a model's outputs: logits, probabilities, or one number for two classes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError, NonFiniteError
from wca_tf.core.keras_graph import has_activation, is_called_once, last_operation, operations_of, without_activation
from wca_tf.nets.answers import SUM_OF_PROBABILITIES
from wca_tf.nets.passes import count_raised

KINDS = ("logits", "probabilities")
SMALLEST = float(np.finfo(np.float32).tiny)  # of a probability whose logarithm is taken
SATURATING = ("hardsigmoid", "tanh", "hardtanh", "softsign")
# Relative and absolute differences of probabilities computed in two ways, in float32 and in fewer bits.
SAME, SAME_IN_HALF = (1e-4, 1e-6), (5e-2, 5e-3)

ACTIVATIONS: dict[str, Callable[[Any], np.ndarray]] = {
    "softmax": lambda logits: np.asarray(tf.nn.softmax(tf.cast(logits, tf.float32))),
    "sigmoid": lambda logits: np.asarray(tf.nn.sigmoid(tf.cast(logits, tf.float32))),
}


class Outputs:
    """The interpretation of a model's outputs.

    Attributes:
        logits: (call of the model) -> logits [B, C], from the outputs of that call.
        num_classes: C, 2 for a model with one output.
        known: whether the net is known to end without an activation; its logits may then all be from 0 to 1.
        text: the interpretation, for people.

    Args:
        model: a Keras model, or a function.
        outputs: those of the probe.
        call: returns them again, under the same draws.
        kind: "logits" or "probabilities", or `None` to find out.
    """

    def __init__(self, model: Any, outputs: Any, call: Callable[[], Any], kind: str | None) -> None:
        if kind not in (None, *KINDS):
            raise InputError(f"expected outputs among {', '.join(KINDS)}, received {kind!r}")
        self._call = call
        self._operations = operations_of(model) if isinstance(model, keras.Model) else []
        self._last = last_operation(model) if isinstance(model, keras.Model) else None
        linear = getattr(self._last, "activation", None) is keras.activations.linear
        self.known = kind == "logits" or linear or (self._last is not None and has_activation(self._last, "relu"))
        values = self._values(outputs)
        self.num_classes = max(values.shape[1], 2)
        single = values.shape[1] == 1
        name = "sigmoid" if single else "softmax"
        if kind is None and self._last is not None and (saturating := _saturating(self._last)):
            raise InputError(
                f"expected a net that returns logits, received one that ends in {saturating}, whose gradient vanishes: "
                "remove it, or give outputs='logits'"
            )
        ended = None if kind == "logits" else self._activation(values, name, kind)
        if ended is None:
            self.text, self.logits = ("one logit for two classes", _two_logits) if single else ("logits", _as_they_are)
            return
        self.known = True
        activation, operation = ended
        if operation is not None:
            self.text = f"the logits before the {activation} of {operation.name!r}"
            after = _two_logits if single else _as_they_are

            def before_activation(call: Callable[[], Any]) -> tf.Tensor:
                with without_activation(operation):
                    return after(call)

            self.logits = before_activation
            return
        if (values == 0).any() or (single and (values == 1).any()):
            raise InputError(
                f"expected probabilities above 0, received 0 on a random, black or white image, and no {activation} "
                "that could be left out: give a model that returns logits"
            )
        self.text = "the logarithm of the probabilities: no activation was found that could be left out"
        self.logits = _two_from_probability if single else _log_probabilities

    def _values(self, outputs: Any) -> np.ndarray:
        """Return the outputs of the probe as float32 [B, C]; raise InputError for anything else."""
        if not hasattr(outputs, "dtype") or not hasattr(outputs, "shape"):
            received = type(outputs).__name__
            raise InputError(f"expected a net that returns logits [B, C] in one tensor, received {received}")
        if not tf.as_dtype(outputs.dtype).is_floating:
            raise InputError(f"expected logits of a float type, received {tf.as_dtype(outputs.dtype).name}")
        if len(outputs.shape) != 2:
            received = f"shape {tuple(outputs.shape)}"
            raise InputError(f"expected a net that returns logits [B, C] in one tensor, received {received}")
        values: np.ndarray = tf.cast(outputs, tf.float32).numpy()
        if np.isneginf(values).any():
            raise NonFiniteError("expected finite logits, received −inf: mask classes by a number such as -1e9")
        if not np.isfinite(values).all():
            raise NonFiniteError("expected finite logits, received NaN or Inf on a random, black or white image")
        return values

    def _activation(self, values: np.ndarray, name: str, kind: str | None) -> tuple[str, Any] | None:
        """Return the activation that the net ends with, and the operation that has it, if it is found."""
        between = bool(((values >= 0) & (values <= 1)).all())
        sums = between and np.allclose(values.sum(axis=1), 1, atol=SUM_OF_PROBABILITIES)
        probabilities = between if name == "sigmoid" else sums
        if kind == "probabilities" and not probabilities:
            raise InputError("expected probabilities, received numbers below 0 or above 1, or that do not sum to 1")
        if name == "softmax" and between and not sums:
            found = self._last_with("sigmoid", values)  # of labels that do not exclude each other: its order is theirs
            return ("sigmoid", found) if found is not None else None
        if not probabilities or (self.known and kind is None):
            return None
        return name, self._last_with(name, values)

    def _last_with(self, name: str, values: np.ndarray) -> Any:
        """Return the last operation with an activation, without which the outputs are what the activation gets."""
        for operation in reversed(self._operations):
            if not has_activation(operation, name):
                continue
            close = SAME_IN_HALF if getattr(operation, "compute_dtype", "") in ("float16", "bfloat16") else SAME
            try:
                with without_activation(operation):
                    before = self._call()
                same = np.allclose(ACTIVATIONS[name](before), values, *close)
            except Exception:  # inside a layer that needs it, such as attention
                continue
            if same and not np.allclose(tf.cast(before, tf.float32), values, *close):
                return operation
        if np.allclose(tf.cast(self._call(), tf.float32), values, *SAME) or self._last is None:
            return None
        # Where no draw repeats, no two calls can be compared: the graph tells, if the operation is used once.
        return self._last if has_activation(self._last, name) and is_called_once(self._last) else None


def _saturating(operation: Any) -> str:
    """Return the name of an activation that hides which class leads, in float32, and whose order is not kept then."""
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", "") if activation else type(operation).__name__.lower()
    return name if name.replace("_", "") in SATURATING else ""


def _as_they_are(call: Callable[[], Any]) -> tf.Tensor:
    return call()


def _two_logits(call: Callable[[], Any]) -> tf.Tensor:
    """Return −z/2 and z/2 of one logit z, whose difference is z."""
    half = call() / 2
    return tf.concat([-half, half], axis=1)


def _log_probabilities(call: Callable[[], Any]) -> tf.Tensor:
    """Return ln p; a probability of 0 is raised to the smallest normal number, and counted."""
    probabilities = tf.cast(call(), tf.float32)
    count_raised(probabilities < SMALLEST)
    return tf.math.log(tf.maximum(probabilities, SMALLEST))


def _two_from_probability(call: Callable[[], Any]) -> tf.Tensor:
    """Return ln (1 − p) and ln p of the probability p of the second class."""
    probability = tf.cast(call(), tf.float32)
    return _log_probabilities(lambda: tf.concat([1 - probability, probability], axis=1))
