"""FunctionNet: a classifier of any framework as two functions of NumPy arrays, called inside TensorFlow's graphs."""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.lazily import np, tf

NO_GRADIENT = (
    "expected an attack without gradients (square, n_pixel, random_sampling, transfer), as this net has no pullback; "
    "received one that needs its gradient"
)
_nets: weakref.WeakValueDictionary[int, FunctionNet] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class FunctionNet:
    """A classifier of any framework, as functions of NumPy arrays. `adapt` makes it the target of attacks.

    Args:
        logits: (images, seed) -> logits [B, C]. Images are float32 [B, H, W, channels] with pixels from 0 to 1, or as
            `pixel_range` of `adapt` says. All noise follows from the seed, a whole number from 0 to 2⁶³ − 1, as by
            `np.random.default_rng(seed)`. The outputs may be probabilities, or one number for two classes.
        pullback: (images, seed, upstream [B, C]) -> [B, H, W, channels], the gradient in the images of the sum of
            upstream · logits(images, seed), under the same draw. `None`: attacks without gradients alone are possible.
        num_classes: C.
        independent_noise: whether each image of a batch has noise of its own, independent of that of all others.
            Several draws of one image are then one batch. `adapt` tests it.
        reproducible: False for noise that ignores the seed. Results cannot be repeated then.
        surrogate: whether the pullback is not the gradient on purpose, as for steps that have none. It is not compared
            with finite differences then.
    """

    framework = "functions of NumPy arrays"
    by_framework = False  # whether a framework computes the gradient, which is then its owner's
    random_on: tuple[str, ...] = ()
    random_off: tuple[str, ...] = ()

    def __init__(
        self,
        logits: Callable[[np.ndarray, int], Any],
        pullback: Callable[[np.ndarray, int, np.ndarray], Any] | None,
        num_classes: int,
        *,
        independent_noise: bool = False,
        reproducible: bool = True,
        surrogate: bool = False,
    ) -> None:
        self.logits, self.pullback, self.num_classes = logits, pullback, num_classes
        self.independent_noise, self.reproducible, self.surrogate = independent_noise, reproducible, surrogate
        self.lock: Any = threading.RLock()  # TensorFlow's threads would call it side by side
        self._number = next(_numbers)
        _nets[self._number] = self

    @property
    def name(self) -> str:
        """The name of the net's class, for reports."""
        return type(self).__name__

    def digest(self) -> str | None:
        """Return the SHA-256 of the net's weights; `None` where they are not known."""
        return None

    def without_noise(self) -> FunctionNet | None:
        """Return the net without its noise; `None` where it is not known."""
        return None

    def forward(self, images: np.ndarray, seed: int) -> tuple[Any, int]:
        """Return the outputs [B, C], and a number of this call for `backward`."""
        return self.logits(images.copy(), seed), 0  # a function may change its argument, whose memory is TensorFlow's

    def backward(self, images: np.ndarray, seed: int, upstream: np.ndarray, call: int) -> Any:
        """Return the gradient in the images, from the gradient in the outputs of a call of `forward`."""
        assert self.pullback  # noqa: S101 the graph has no backward pass without it
        return self.pullback(images.copy(), seed, upstream.copy())

    def outputs(self, images: np.ndarray, seed: int = 0) -> np.ndarray:
        """Return the outputs [B, C], float32.

        Raises:
            InputError: they are not [B, C] floats, or the function raises an error.
        """
        try:
            values = self.logits(images.copy(), seed)
        except Exception as error:  # a user's function may raise anything
            raise InputError(
                f"expected logits of images {images.shape}, received {type(error).__name__}: {one_line(error)}"
            ) from error
        return _floats(values, (len(images), self.num_classes), "logits [B, C]")

    def gradient(self, images: np.ndarray, seed: int, upstream: np.ndarray) -> np.ndarray:
        """Return the gradient in the images, float32 [B, H, W, channels]; raise InputError for another shape."""
        _, call = self.forward(images, seed)
        try:
            values = self.backward(images, seed, upstream, call)
        except Exception as error:  # a user's function may raise anything
            raise InputError(
                f"expected a gradient of the pullback, received {type(error).__name__}: {one_line(error)}"
            ) from error
        return _floats(values, images.shape, "a gradient [B, H, W, channels] of the pullback")

    def answer(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the outputs float32 [B, C] under the draw of an int32[2] seed, for graphs too; gradients go back.

        Raises:
            InputError: there are several devices, or a gradient is taken of a net without a pullback.
        """
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise InputError("expected one device for a net of functions, received a strategy of several")
        graph = _graph() if self.pullback else _graph_without_gradient()
        images = tf.reshape(images, tf.shape(images))  # the gradient then has their static shape too
        return tf.ensure_shape(graph(tf.constant(self._number), images, seed), [images.shape[0], self.num_classes])


def _floats(values: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Return values as float32; raise InputError unless they are floats of this shape."""
    try:
        array = np.asarray(values)
    except Exception:  # of rows of different lengths, or of another framework's own types
        raise InputError(f"expected {what}, received {type(values).__name__}") from None
    if array.shape != shape or not (np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"):
        raise InputError(f"expected {what}, floats of shape {shape}, received {array.dtype} {array.shape}")
    return array.astype(np.float32)  # a copy: a function may use its arrays again


def seed_number(seed: np.ndarray) -> int:
    """Return a whole number from 0 to 2⁶³ − 1 for an int32[2] seed.

    All bits depend on the whole seed: PyTorch's generator takes 32 of them, and the seeds of an image's draws have one
    half in common.
    """
    mixed = hashlib.blake2b(np.asarray(seed, np.int32).tobytes(), digest_size=8).digest()
    return int.from_bytes(mixed, "little") >> 1


# The graphs below belong to no net, which they find by its number: TensorFlow keeps every graph with a custom gradient.


def _forward(number: np.ndarray, images: np.ndarray, seed: np.ndarray) -> tuple[np.ndarray, np.int64]:
    net = _nets[int(number)]
    with net.lock:
        outputs, call = net.forward(images, seed_number(seed))
    return _floats(outputs, (len(images), net.num_classes), "logits [B, C]"), np.int64(call)


def _backward(
    number: np.ndarray, images: np.ndarray, seed: np.ndarray, upstream: np.ndarray, call: np.ndarray
) -> np.ndarray:
    net = _nets[int(number)]
    with net.lock:
        gradient = net.backward(images, seed_number(seed), upstream, int(call))
    return _floats(gradient, images.shape, "a gradient [B, H, W, channels] of the pullback")


@functools.cache
def _graph() -> Any:
    """Return a graph (number of a net, images, seed) -> outputs, whose gradient is the net's pullback."""

    @tf.custom_gradient
    def differentiable(number: tf.Tensor, images: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        outputs, call = tf.numpy_function(_forward, [number, images, seed], [tf.float32, tf.int64])

        def backward(upstream: tf.Tensor) -> tuple[None, tf.Tensor, None]:
            gradient = tf.numpy_function(_backward, [number, images, seed, upstream, call], tf.float32)
            gradient.set_shape(images.shape)
            return None, gradient, None

        return outputs, backward

    return _once_per_shape(differentiable)


@functools.cache
def _graph_without_gradient() -> Any:
    @tf.custom_gradient
    def alone(number: tf.Tensor, images: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def backward(upstream: tf.Tensor) -> None:
            raise InputError(NO_GRADIENT)

        return tf.numpy_function(_forward, [number, images, seed], [tf.float32, tf.int64])[0], backward

    return _once_per_shape(alone)


def _once_per_shape(function: Callable[..., Any]) -> Any:
    graph = tf.function(function, jit_compile=False, autograph=False)
    graph._omit_frequent_tracing_warning = True
    return graph
