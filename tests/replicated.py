"""Runs jobs one after the other under a strategy: python replicated.py DEVICES '[["train", {...}, DIR], ...]'

With DEVICES logical CPUs; the strategy is the jobs'. Every process of a cluster is given the same jobs.
"""

import functools
import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from wca_tf.data.batches import training_batches
from wca_tf.data.sources import load_examples
from wca_tf.distribution.cluster import is_chief
from wca_tf.distribution.strategy import distribute_batches, make_strategy, synchronise_batch_normalisation
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import evaluate
from wca_tf.nets.model_files import save_model
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.new_model import new_model
from wca_tf.runs.training import train


def adversary_of(config):
    attack, epsilon = config.parsed_adversarial_attack, config.parsed_adversarial_epsilon
    return config.parsed_defence.adversary(attack, epsilon, mixed=config.adversarial == "ct_at")


def descend(config, directory):
    """As `train`, by plain gradient descent: Adam makes of a rounding error a step of the learning rate."""
    strategy = make_strategy(config.strategy)
    examples, _ = load_examples(config, "train").split_validation(0.1, config.seed, config.max_train_examples)
    steps = len(examples) // config.batch_size * config.epochs
    batches = functools.partial(training_batches, examples, config.batch_size, config.epochs, 0, config.seed, "none")
    with strategy.scope():
        model = new_model(config, examples)
        model.compile(keras.optimizers.SGD(config.learning_rate), model.loss, jit_compile=False)
        if config.adversarial != "none":
            model.adversary = adversary_of(config)
        synchronise_batch_normalisation(model, strategy)
        shared = distribute_batches(strategy, batches, config.batch_size)
        model.fit(shared, steps_per_epoch=steps, callbacks=config.parsed_defence.callbacks(), shuffle=False, verbose=0)
        path = ModelDirectory(directory).last if is_chief() else ModelDirectory(f"{directory}-of-another-worker").last
        path.parent.mkdir(exist_ok=True)
        save_model(model, Path(path))


def perturb(config, file):
    """The images that the first step of adversarial training trains on, [2B, H, W, channels], to a .npy file."""
    strategy = make_strategy(config.strategy)
    examples, _ = load_examples(config, "train").split_validation(0.1, config.seed, config.max_train_examples)
    batches = functools.partial(training_batches, examples, config.batch_size, 1, 0, config.seed, "none")
    with strategy.scope():
        model = new_model(config, examples)
        model.build((None, *examples.image_shape))
        attack = adversary_of(config)
        step = tf.function(lambda images, labels: attack(model, images, labels, None)[0], jit_compile=False)
        images = strategy.run(step, next(iter(distribute_batches(strategy, batches, config.batch_size))))
    images = strategy.gather(images, axis=0).numpy()
    if is_chief():
        np.save(file, images)


def main(devices, jobs):
    if devices > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    run = {"train": train, "descend": descend, "perturb": perturb}
    for kind, options, *directories in jobs:
        if kind == "evaluate":
            evaluate(EvaluateConfig(**options), *directories)
        else:
            run[kind](TrainConfig(**options), *directories)
    print("replicas", tf.distribute.get_strategy().num_replicas_in_sync)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
