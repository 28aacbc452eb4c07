"""Runs jobs one after the other under a strategy: python replicated.py DEVICES '[["train", {...}, DIR], ...]'

With DEVICES logical CPUs; the strategy is the jobs'. Every process of a cluster is given the same jobs.
"""

import json
import sys

import tensorflow as tf

from wca_tf.config import EvaluateConfig, TrainConfig
from wca_tf.evaluation.runner import evaluate
from wca_tf.training import train


def main(devices: int, jobs: list) -> None:
    if devices > 1:
        logical = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    for kind, options, *directories in jobs:
        if kind == "train":
            train(TrainConfig(**options), *directories)
        else:
            evaluate(EvaluateConfig(**options), *directories)
    print("replicas", tf.distribute.get_strategy().num_replicas_in_sync)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
