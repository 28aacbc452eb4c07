"""One replica's part of what all replicas do together, inside a graph; on one device it is the whole.

Under tf.distribute a global batch of n·b rows is n shares of b rows, replica r's from row r·b. Random numbers are those
of the global batch, so that they do not depend on how many devices share it.
"""

import tensorflow as tf


def num_replicas() -> int:
    """How many replicas run this code together; 1 outside `strategy.run`."""
    context = tf.distribute.get_replica_context()
    return context.num_replicas_in_sync if context else 1


def first_row(rows: int | tf.Tensor) -> tf.Tensor:
    """Where this replica's share of `rows` rows begins in the global batch."""
    return rows * (tf.distribute.get_replica_context().replica_id_in_sync_group if num_replicas() > 1 else 0)


def sum_over_replicas(values: tf.Tensor) -> tf.Tensor:
    """The sum over replicas, the same on each."""
    if num_replicas() == 1:
        return values
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def in_multi_worker() -> bool:
    """Whether the replicas are on several workers: the condition of Keras's own reductions."""
    strategy = tf.distribute.get_strategy()
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return several and strategy.extended._in_multi_worker_mode()
