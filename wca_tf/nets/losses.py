"""The loss of a net that returns logits: one that expects probabilities is an error, not a bad training."""

import inspect
from typing import Any

import keras

from wca_tf.core.errors import InputError


def check_takes_logits(loss: Any) -> None:
    """Raise InputError for a loss of `compile`, or one in a list or dict of them, with from_logits=False.

    Every loss of Keras that is given by its name has from_logits=False.
    """
    for each in keras.tree.flatten(loss):
        if expects_probabilities(each):
            name = repr(each) if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
            raise InputError(
                f"expected a loss of logits, such as keras.losses.SparseCategoricalCrossentropy(from_logits=True); "
                f"received {name}, which expects probabilities"
            )


def expects_probabilities(loss: Any) -> bool:
    """Return whether a loss has from_logits=False; a loss without this argument may take anything."""
    if isinstance(loss, str):
        if loss in ("crossentropy", "ce"):  # short for one of three, which `get` does not know
            return True
        loss = keras.losses.get(loss)
    if hasattr(loss, "from_logits"):
        return not loss.from_logits
    if not inspect.isfunction(loss) and not isinstance(loss, type):
        return False
    given = inspect.signature(loss).parameters.get("from_logits")
    return given is not None and not given.default
