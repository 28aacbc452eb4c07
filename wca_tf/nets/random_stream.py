"""RandomStream: a saved stream of seeds, from which a net's training noise is drawn."""

from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.seeds import fold_in

# The ends of the paths of weights that move with every draw: of this package, and of Keras's random generators.
STREAMS = ("random_state", "seed_generator_state")


class RandomStream(keras.layers.Layer):
    """A layer that gives a stream of int32[2] seeds. Its weight `random_state` is (seed, number of calls).

    A layer that was saved and loaded continues the stream.

    Args:
        seed: whole number that starts the stream.
    """

    def __init__(self, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        self.random_state = self.add_weight(
            name="random_state",
            shape=(2,),
            dtype="int32",
            trainable=False,
            initializer=lambda shape, dtype: tf.constant([self.seed, 0], dtype),
            aggregation="only_first_replica",
        )

    def next_seed(self) -> tf.Tensor:
        """Return the stream's next int32[2] seed, and advance `random_state`."""
        state = tf.identity(self.random_state.value)
        self.random_state.assign_add([0, 1])
        return fold_in(tf.stack([state[0], 0]), state[1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "seed": self.seed}
