"""How TensorFlow computes on GPUs: settings of the whole process, of which all are changed here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wca_tf.core.lazily import tf

TENSOR_FLOAT_32 = "tensor_float_32"
DETERMINISTIC_HELP = "equal runs end with equal bits on a GPU too, more slowly; on a CPU they always do"


@contextlib.contextmanager
def tensor_float_32(on: bool) -> Iterator[None]:
    """Let GPUs multiply float32 in TensorFloat-32, with 10 bits of 23, or forbid it; restore the setting at the end.

    TensorFlow allows it by default. Logits are then wrong by about a thousandth. CPUs multiply with all bits.
    """
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(on)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


def use_deterministic_operations(seed: int) -> None:
    """Make equal operations give equal bits on GPUs too, for the rest of the process.

    Random operations without a seed, which are an error then, follow `seed`.
    """
    tf.random.set_seed(seed)
    tf.config.experimental.enable_op_determinism()
