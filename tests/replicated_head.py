"""Trains a model with a WCAHead under a strategy: python replicated_head.py STRATEGY DEVICES FILE

FILE gets the loss of each step and the trained weights. "mirrored" has DEVICES logical CPUs, and Keras's own `fit`.
Keras's `fit` fails with several workers (keras issue 20585): "multi_worker" has Keras's training step in a loop.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from head_nets import compiled, fitted, functional, state
from toy_models import toy_data

from wca_tf.distribution.cluster import is_chief
from wca_tf.distribution.strategy import make_strategy

BATCH, EPOCHS, RATE = 32, 16, 1e-3


def main(name, devices, file):
    if int(devices) > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * int(devices)
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    strategy = make_strategy(name)
    with strategy.scope():
        model = compiled(functional(), keras.optimizers.Adam(RATE))
        model.optimizer.build(model.trainable_variables)
        if name == "multi_worker":
            losses = in_a_loop(strategy, model)
        else:
            losses = fitted(model, EPOCHS, BATCH, keras.optimizers.Adam(RATE))["loss"]
    if is_chief():
        np.savez(file, losses, *state(model))
    print("replicas", strategy.num_replicas_in_sync)


def in_a_loop(strategy, model):
    """The loss of each epoch: Keras's training step, on this worker's share of each batch."""
    images, labels = toy_data()
    step = tf.function(lambda batch: strategy.run(model.train_step, args=(batch,)))

    def share(context, first):
        rows = BATCH // strategy.num_replicas_in_sync
        begin = first + context.replica_id_in_sync_group * rows
        return tf.constant(images[begin : begin + rows]), tf.constant(labels[begin : begin + rows])

    losses = []
    for _ in range(EPOCHS):
        model.reset_metrics()
        for first in range(0, len(images), BATCH):
            batch = strategy.experimental_distribute_values_from_function(lambda context, at=first: share(context, at))
            report = step(batch)
        losses.append(float(strategy.reduce("MEAN", report["loss"], axis=None)))
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:])
