"""JaxNet: a JAX function as functions of NumPy arrays. The function's owner has imported JAX."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np
from wca_tf.nets.function_net import FunctionNet


def is_jax(model: Any, image_shape: tuple[int, ...]) -> bool:
    """Return whether a function is one that JAX can trace for images of this shape, and TensorFlow is not in it."""
    jax = sys.modules.get("jax")
    if jax is None or not callable(model):
        return False
    try:
        _shape_of_outputs(model, image_shape)
    except Exception:  # TensorFlow and NumPy take no tracer of JAX, whatever they raise
        return type(model).__module__.split(".")[0] in ("jax", "jaxlib", "flax")
    return True


class JaxNet(FunctionNet):
    """A JAX function of images [B, H, W, channels], or of images and a key for `jax.random`.

    It is compiled, with what it refers to as it is now: adapt it anew when weights have changed.

    Args:
        function: (images) -> logits [B, C], or (images, key) -> logits.
        image_shape: (H, W, channels).

    Raises:
        InputError: the function takes no such images, or returns something else than [B, C].
    """

    framework = "JAX"
    by_framework = True

    def __init__(self, function: Any, image_shape: tuple[int, ...]) -> None:
        self.function, jax = function, sys.modules["jax"]
        try:
            shape = _shape_of_outputs(function, image_shape)
        except Exception as error:  # a user's function may raise anything
            text = str(error).splitlines()
            raise InputError(
                f"expected a JAX function of images [B, H, W, channels], {image_shape}, and perhaps a key; it raised "
                f"{type(error).__name__}: {text[0] if text else ''}"
            ) from error
        if len(shape) != 2:
            raise InputError(f"expected a function that returns logits [B, C] in one array, received shape {shape}")

        def answer(images: Any, key: Any) -> Any:  # a new function for JAX, whose compiled ones keep old weights
            return _call(function, images, key).astype(images.dtype)

        def pullback(images: Any, key: Any, upstream: Any) -> Any:
            return jax.vjp(lambda each: answer(each, key), images)[1](upstream)[0]

        def key_of(seed: int) -> Any:
            return jax.random.fold_in(jax.random.key(np.uint32(seed >> 32)), np.uint32(seed & 0xFFFFFFFF))

        forward, backward = jax.jit(answer), jax.jit(pullback)
        super().__init__(
            lambda images, seed: forward(images, key_of(seed)),
            lambda images, seed, upstream: backward(images, key_of(seed), upstream),
            shape[1],
        )

    @property
    def name(self) -> str:
        """The name of the function, or of its class."""
        return getattr(self.function, "__name__", type(self.function).__name__)


def _call(function: Any, images: Any, key: Any) -> Any:
    """Call a function of images, or of images and a key."""
    needed = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]
    return function(images, key) if len(needed) > 1 else function(images)


def _shape_of_outputs(function: Any, image_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the outputs for two images; raise what JAX or the function raises."""
    jax = sys.modules["jax"]
    images = jax.ShapeDtypeStruct((2, *image_shape), np.float32)
    outputs = jax.eval_shape(lambda images, key: _call(function, images, key), images, jax.random.key(0))
    return tuple(outputs.shape)
