"""Counts of the passes that graphs make through nets, read from outside while a graph runs.

A pass is one image through the net once: forward, or backward. The counters are variables of this process, on its CPU.
They have names in place of Python objects: a tf.Variable made under a tf.distribute strategy would be distributed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from wca_tf.core.lazily import tf

FORWARD, BACKWARD, RAISED = "forward", "backward", "raised"
TURN, IN_PLAY = "turn", "in_play"  # of a cascade: which of its attacks runs, and the images that are not lost


class _Tracing(threading.local):
    """The state of this thread, which traces a graph.

    Attributes:
        counts: whether the graph counts its passes.
        counted: whether the function that is called now has counted its passes.
    """

    counts = False
    counted = False


_tracing = _Tracing()
_made: set[str] = set()


class Passes(NamedTuple):
    """Numbers of passes, or numbers per image."""

    forward: float
    backward: float

    def since(self, earlier: Passes) -> Passes:
        return Passes(self.forward - earlier.forward, self.backward - earlier.backward)

    @property
    def total(self) -> float:
        return self.forward + self.backward

    def over(self, images: int) -> Passes:
        return Passes(self.forward / images, self.backward / images)


def passes_so_far() -> Passes:
    """Return the passes of this process since it began."""
    return Passes(read(FORWARD), read(BACKWARD))


def read(name: str) -> int:
    """Return the present value of a counter. Any thread may call it."""
    with tf.device("CPU:0"):
        return int(tf.raw_ops.ReadVariableOp(resource=_counter(name), dtype=tf.int64))


def add(name: str, amount: tf.Tensor) -> tf.Operation | None:
    """Add to a counter, from inside a graph, whose operation is the result, or outside."""
    with tf.device("CPU:0"):
        return tf.raw_ops.AssignAddVariableOp(resource=_counter(name), value=tf.cast(amount, tf.int64))


def assign(name: str, value: int | tf.Tensor) -> tf.Operation | None:
    """Set a counter, from inside a graph, whose operation is the result, or outside."""
    with tf.device("CPU:0"):
        return tf.raw_ops.AssignVariableOp(resource=_counter(name), value=tf.cast(value, tf.int64))


def _counter(name: str) -> tf.Tensor:
    """Return the handle of a counter, which begins at 0."""

    def handle() -> tf.Tensor:
        return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"wca_tf_passes_{name}")

    if name not in _made:
        with tf.init_scope(), tf.device("CPU:0"):
            tf.raw_ops.AssignVariableOp(resource=handle(), value=tf.constant(0, tf.int64))
        _made.add(name)
    return handle()


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for a graph, in which the nets made by `counted` count their passes.

    Other graphs, such as those of exports and of training, do not count: a counter belongs to this process.
    """

    def trace(*arguments: Any) -> Any:
        before, _tracing.counts = _tracing.counts, True
        try:
            return function(*arguments)
        finally:
            _tracing.counts = before

    return trace


def announce(turn: int | tf.Tensor, more: tf.Tensor) -> list[tf.Operation]:
    """Say, in a graph that counts, which attack of a cascade begins, and how many images more than before are in play.

    Replicas add their images: one's value would replace another's.

    Returns:
        The operations that the attack waits for: a graph would run them at any time, also when the attack is over.
    """
    if not _tracing.counts:
        return []
    with tf.control_dependencies([more]):  # a graph would run what waits for nothing at its start
        return [assign(TURN, turn), add(IN_PLAY, more)]


def counted(
    function: Callable[..., tf.Tensor], passes_of: Callable[..., tf.Tensor] | None = None
) -> Callable[..., tf.Tensor]:
    """Return a function of images whose calls count as passes, as do the gradients that go back through it.

    A net made of another net, such as its mean over draws, counts the passes of that net, and none of its own.

    Args:
        function: (images [B, ...], *others) -> tensor.
        passes_of: (images, *others) -> the number of passes of a call; `None` for one of each image.
    """

    def call(images: tf.Tensor, *others: Any) -> tf.Tensor:
        if not _tracing.counts:
            return function(images, *others)
        _tracing.counted = False
        outputs = function(images, *others)
        if not _tracing.counted:
            passes = passes_of(images, *others) if passes_of else tf.shape(images)[0]
            shape, outputs = outputs.shape, _count_graph()(outputs, passes)
            outputs.set_shape(shape)
        _tracing.counted = True
        return outputs

    return call


@functools.cache
def _count_graph() -> Any:
    # A graph of its own for each shape: TensorFlow keeps every graph with a custom gradient, and would keep the net's.
    return tf.function(_count, jit_compile=False, autograph=False)


def _count(outputs: tf.Tensor, passes: tf.Tensor) -> tf.Tensor:
    """Return `outputs`, and add to the counters, now and when a gradient comes back."""

    @tf.custom_gradient
    def identity(outputs: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def backward(gradient: tf.Tensor) -> tf.Tensor:
            return after(BACKWARD, gradient)

        return after(FORWARD, outputs), backward

    def after(name: str, values: tf.Tensor) -> tf.Tensor:
        """Count when the values are there. They wait for it, since a gradient's graph runs what it returns alone."""
        with tf.control_dependencies([values]):
            added = add(name, passes)
        with tf.control_dependencies([added]):
            return tf.identity(values)

    return identity(outputs)


def count_raised(raised: tf.Tensor) -> None:
    """Count, in a graph that counts its passes, the probabilities of 0 whose logarithm was taken of another number."""
    if _tracing.counts:
        add(RAISED, tf.math.count_nonzero(raised))
