"""What the tests of training share: a WCA-Net on images of 64 pixels, and images that it learns."""

import keras
import numpy as np

from wca_tf.defences.wca.net import WCANet
from wca_tf.nets.bottleneck_net import BottleneckNet

CLASSES, DIMENSIONS = 3, 4
# Backbone -> the side of the smallest images that it takes; 8 is enough for the others.
AIRBENCH = ("airbench93", "airbench94", "airbench93_relu", "airbench94_relu")
MIN_SIDES = {"lenet_plus_plus": 25, "lenet5": 12, "resnet18_imagenet": 32, **dict.fromkeys(AIRBENCH, 25)}


def flatten():
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])


def convolution(precision="float32"):
    keras.utils.set_random_seed(0)  # two of them have the same weights, whichever tests ran before
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(5, 3, activation="relu", dtype=precision),
            keras.layers.BatchNormalization(dtype=precision),
        ]
    )


def make_model(covariance="anisotropic", backbone=None, learning_rate=0.01, net_class=WCANet, **options):
    keras.utils.set_random_seed(0)
    options = {"num_classes": CLASSES, "feature_dim": DIMENSIONS, "weight_decay": 0.1, **options}
    if covariance == "none":
        model = BottleneckNet(backbone or flatten(), **options)
    else:
        model = net_class(backbone or flatten(), covariance=covariance, **options)
    model.build((None, 8, 8, 1))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def toy_data(examples=96):
    """Images whose class is the bright third of their rows."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=examples)
    images = rng.uniform(0, 0.3, (examples, 8, 8, 1)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] += 0.6
    return images, labels


def finite_differences(function, point, step=1e-6):
    gradient = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        change = np.zeros_like(point)
        change[index] = step
        gradient[index] = (function(point + change) - function(point - change)) / (2 * step)
    return gradient
