"""One replica's part of the common work of all replicas, inside a graph; on one device it is the whole work.

Under tf.distribute a global batch of n·b rows is n shares of b rows. The share of replica r begins at row r·b. Random
numbers belong to the rows of the global batch, so they do not depend on the number of devices.
"""

from __future__ import annotations

from wca_tf.core.lazily import tf


def num_replicas() -> int:
    """Return the number of replicas that run this code together; 1 outside `strategy.run`."""
    context = tf.distribute.get_replica_context()
    return context.num_replicas_in_sync if context else 1


def first_row(rows: int | tf.Tensor) -> tf.Tensor:
    """Return the row of the global batch at which this replica's share of `rows` rows begins."""
    return rows * (tf.distribute.get_replica_context().replica_id_in_sync_group if num_replicas() > 1 else 0)


def sum_over_replicas(values: tf.Tensor) -> tf.Tensor:
    """Return the sum over all replicas, the same on each."""
    if num_replicas() == 1:
        return values
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


def in_multi_worker() -> bool:
    """Return whether the replicas are on several workers, by the condition that Keras's own reductions use."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return False
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return sum(len(hosts) for hosts in jobs.values()) > 1
