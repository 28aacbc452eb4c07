"""What a Keras classifier must be for this package: its framework, its one input, and the images that it takes."""

from typing import Any

import keras

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import all_layers


def check_model(model: Any) -> None:
    """Raise InputError unless this is a Keras model with one input, or a function, in the framework of this package."""
    if keras.config.backend() != "tensorflow":
        received = keras.config.backend()
        raise InputError(f"set KERAS_BACKEND=tensorflow before importing keras: received {received}")
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if not isinstance(model, keras.Model):
        if kind.split(".")[0] in ("torch", "tf_keras", "jax", "flax") or not callable(model):
            raise InputError(f"expected a Keras 3 model, a function of images or a target, received {kind}")
        return
    if (count := len(getattr(model, "inputs", None) or [None])) != 1:
        raise InputError(f"expected a net with one input, received one with {count}")
    inputs = getattr(model, "inputs", None)
    if inputs and not keras.backend.is_float_dtype(inputs[0].dtype):  # Keras would round images in [0, 1]
        raise InputError(
            f"expected a net of float images, received one that takes {inputs[0].dtype}, through which no gradient "
            "passes: build it with a float input"
        )


def image_shape_of(model: Any, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return (H, W, channels) of the images that a net takes; `given` where it takes any size."""
    known = tuple(getattr(model, "input_shape", None) or (None,) * 4)[1:]
    shape = known if given is None else tuple(given)
    if len(known) == 2:  # a net of grey images [B, H, W]
        known, shape = (*known, 1), shape if len(shape) == 3 else (*shape, 1)
    if given is None and None in shape:
        raise InputError("expected image_shape=(H, W, channels) for a net that takes images of any size")
    turned = len(known) == 3 and None not in known and known[0] < min(known[1:]) and _is_channels_first(model)
    fits = len(known) == len(shape) == 3 and all(k in (None, s) for k, s in zip(known, shape, strict=True))
    if turned or not fits:
        advice = ""
        if len(known) == 1 and known[0]:
            advice = ": put keras.layers.Flatten() before it"
        elif turned or (len(known) == 3 and sorted(map(str, known)) == sorted(map(str, shape))):
            advice = (
                ": channels_first? Put keras.layers.Permute((3, 1, 2)) before it, and give images with channels last"
            )
        wanted = "" if turned else f", {shape}"
        raise InputError(
            f"expected a net that takes images [B, H, W, channels]{wanted}; received one that takes {known}{advice}"
        )
    return shape


def _is_channels_first(model: Any) -> bool:
    layers = all_layers(model) if isinstance(model, keras.Model) else []
    return any(getattr(layer, "data_format", None) == "channels_first" for layer in layers)
