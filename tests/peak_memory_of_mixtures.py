"""Print the peak memory in MB of PGD on a mixture of so many convolutional nets: peak_memory_of_mixtures.py COUNT."""

import resource
import sys

import keras
import numpy as np

import wca_tf
from wca_tf.nets.adapter import adapt

SHAPE, IMAGES = (32, 32, 3), 32


def net(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]  # 4 MB each
    return keras.Sequential(
        [keras.Input(SHAPE), *layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    )


if __name__ == "__main__":
    images = np.random.default_rng(0).random((IMAGES, *SHAPE), np.float32)
    mixture = wca_tf.MixtureNet([net(seed) for seed in range(int(sys.argv[1]))])
    wca_tf.parse_attack("pgd:steps=3").run(adapt(mixture), images, np.zeros(IMAGES, int), 0.05, np.arange(IMAGES), 0)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
