"""Graphs over a batch of images that divide its rows among all replicas; the numbers are those of one device.

A net's graphs are kept with its target, so that they can be freed with it. TensorFlow itself keeps every graph that has
a custom gradient, such as that of PReLU.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from wca_tf.core.lazily import tf
from wca_tf.distribution.replicas import in_multi_worker
from wca_tf.nets.batch import Batch
from wca_tf.nets.passes import Passes, counting
from wca_tf.nets.targets import Target


def graph_of_target(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a graph of `function`(target, *tensors), traced once per target and shape, and freed with the target."""
    shared = functools.cache(lambda: _untraced(function))  # of targets without attributes of their own

    def call(target: Target, *arguments: Any) -> Any:
        if not hasattr(target, "__dict__"):
            return shared()(target, *arguments)
        owner, graphs = vars(target).get("_wca_tf_graphs", (None, {}))
        if owner is None or owner() is not target:  # no graphs yet, or graphs of the target that this one is a copy of
            graphs = {}
            vars(target)["_wca_tf_graphs"] = (weakref.ref(target), graphs)
        if function not in graphs:
            graphs[function] = _untraced(function)
        return graphs[function](target, *arguments)

    return call


def _untraced(function: Callable[..., Any]) -> Any:
    graph = tf.function(counting(function), jit_compile=False)
    graph._omit_frequent_tracing_warning = True  # one trace per net and attack is intended
    return graph


def sharded_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a graph of `function`, traced once per target, shape of images and other arguments that are not tensors.

    Under a strategy of several replicas, each replica computes its share of the rows; the last share is filled up. All
    results are gathered in the order of the batch, and every worker gets all of them. A net whose draws depend on an
    image's place in the batch stays on one device.

    Args:
        function: (target, batch, *others) -> tensors [B, ...]. Each row depends on the same row of the batch and on
            `others` alone.
    """
    graph = graph_of_target(function)

    @graph_of_target
    def on_every_replica(target: Target, shares: Any, *others: Any) -> Any:
        own = counting(lambda share: function(target, share, *others))  # each replica is traced in its own thread
        return tf.distribute.get_strategy().run(own, args=(shares,))

    def call(target: Target, batch: Batch, *others: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        if not _is_shared(target):
            return graph(target, batch, *others)
        rows = len(batch.images)
        size = -(-rows // strategy.num_replicas_in_sync)

        def share(context: tf.distribute.ReplicaContext) -> Batch:
            first = context.replica_id_in_sync_group * size
            return batch.take(tf.minimum(tf.range(first, first + size), rows - 1))

        shares = strategy.experimental_distribute_values_from_function(share)
        results = on_every_replica(target, shares, *others)
        return tf.nest.map_structure(lambda result: strategy.gather(result, axis=0)[:rows], results)

    return call


def _is_shared(target: Target) -> bool:
    """Return whether the replicas share the rows of a batch; else each worker computes all of them on one device."""
    return tf.distribute.get_strategy().num_replicas_in_sync > 1 and target.per_image_noise


def passes_per_image(target: Target, rows: int, passes: Passes) -> Passes:
    """Return the mean passes of an image, from those that this worker made for a batch of `rows` images.

    The rows that fill up the last share cost as much as others.
    """
    if not _is_shared(target):
        return passes.over(rows)
    strategy = tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    if in_multi_worker():
        own = [passes]  # once, whatever the number of this worker's replicas
        shares = strategy.experimental_distribute_values_from_function(
            lambda _: tf.constant([own.pop() if own else (0, 0)], tf.int64)
        )
        passes = Passes(*strategy.gather(shares, axis=0).numpy().sum(axis=0).tolist())
    return passes.over(-(-rows // replicas) * replicas)
