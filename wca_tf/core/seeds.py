"""Stateless random numbers from one int32[2] seed, with a separate key for each purpose.

Numbers keyed by an example's index do not depend on the batch that the example is in.
"""

from __future__ import annotations

import contextlib
import enum
import random
from collections.abc import Callable, Iterator

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import np, tf


class Purpose(enum.IntEnum):
    """Names for the number that is folded into a seed first, so that no two purposes share random numbers.

    The same number may stand for purposes of different seeds. An attack folds 0 to 3 into the seed that it gets.
    """

    # Of the seed of an evaluation
    CLEAN_GRADIENT = 0
    ATTACK = 1
    JUDGEMENT = 2
    WANTED_CLASS = 3
    KNOWN_DRAW = 4
    BLOCK = 5
    CERTIFICATE = 6
    BASELINE_VOTE = 7
    # Of the seed of an attack's call
    JUDGEMENT_OF_CALL = 6
    # Of the seed of a net in training
    ADVERSARY = 2
    ADVERSARY_DRAW = 3
    # Of the seed of an epoch
    ORDER = 0
    CROP = 1
    MIRROR = 2


@contextlib.contextmanager
def keras_seed(seed: int) -> Iterator[None]:
    """Make the weights that Keras creates inside this context follow from `seed`.

    Keras's initialisers take their seeds from Python's `random`. Its state is restored at the end.
    """
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)  # the caller's state


def make_seed(seed: int | tf.Tensor) -> tf.Tensor:
    """Return an int32[2] seed made from a whole number, or the argument itself when it is such a seed.

    Raises:
        InputError: a number that int32 does not hold, which would give the numbers of another seed.

    Examples:
        >>> make_seed(7).numpy().tolist()
        [7, 0]
    """
    if isinstance(seed, int | np.integer) and not tf.int32.min <= seed <= tf.int32.max:
        raise InputError(f"expected a seed from {tf.int32.min} to {tf.int32.max}, received {seed}")
    seed = tf.cast(seed, tf.int32)
    return seed if seed.shape.rank == 1 else tf.stack([seed, 0])


def fold_in(seed: tf.Tensor, *data: int | tf.Tensor) -> tf.Tensor:
    """Return a new int32[2] seed from `seed`, a different one for each sequence of whole numbers `data`.

    Examples:
        >>> bool(tf.reduce_all(fold_in(make_seed(0), 1, 2) == fold_in(fold_in(make_seed(0), 1), 2)))
        True
    """
    for number in data:
        seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int32))
    return seed


def normal_by_index(seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Return standard normal numbers [B, *shape]; row b depends on `seed` and `indices[b]` alone."""
    return _by_index(tf.random.stateless_normal, seed, indices, shape)


def uniform_by_index(seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Return numbers [B, *shape] uniform on [0, 1); row b depends on `seed` and `indices[b]` alone."""
    return _by_index(tf.random.stateless_uniform, seed, indices, shape)


def _by_index(draw: Callable[..., tf.Tensor], seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    rows = tf.map_fn(lambda index: draw(shape, fold_in(seed, index)), indices, fn_output_signature=tf.float32)
    return tf.reshape(rows, [tf.shape(indices)[0], *shape])  # without indices, map_fn returns shape [0]
