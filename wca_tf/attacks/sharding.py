"""Graphs over a batch of images that divide its rows among all replicas; the numbers are those of one device."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from wca_tf.attacks.batch import Batch
from wca_tf.nets.targets import Target


def sharded_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a graph of `function`, traced once per target, shape of images and other arguments that are not tensors.

    Under a strategy of several replicas, each replica computes its share of the rows; the last share is filled up. All
    results are gathered in the order of the batch, and every worker gets all of them. A net whose draws depend on an
    image's place in the batch stays on one device.

    Args:
        function: (target, batch, *others) -> tensors [B, ...]. Each row depends on the same row of the batch and on
            `others` alone.
    """
    graph = tf.function(function, jit_compile=False)

    @tf.function(jit_compile=False)
    def on_every_replica(target: Target, shares: Any, *others: Any) -> Any:
        return tf.distribute.get_strategy().run(lambda share: function(target, share, *others), args=(shares,))

    def call(target: Target, batch: Batch, *others: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        replicas = strategy.num_replicas_in_sync
        if replicas == 1 or not target.own_draws:
            return graph(target, batch, *others)
        rows = len(batch.images)
        size = -(-rows // replicas)

        def share(context: tf.distribute.ReplicaContext) -> Batch:
            first = context.replica_id_in_sync_group * size
            return batch.take(tf.minimum(tf.range(first, first + size), rows - 1))

        shares = strategy.experimental_distribute_values_from_function(share)
        results = on_every_replica(target, shares, *others)
        return tf.nest.map_structure(lambda result: strategy.gather(result, axis=0)[:rows], results)

    for each in (graph, on_every_replica):
        each._omit_frequent_tracing_warning = True  # one trace per net and attack is intended
    return call
