"""The nets that are attacked: LeNet++ for 28×28 and ResNet-18 for 32×32, with fixed random weights, and their images.

The classifier is scaled so that its logits deviate by 1 over images, one class is favoured by a margin that no attack
here overcomes, and the noise, of a random full covariance, is scaled to that margin: no image ever falls, under any
draw, so that no attack ends early and all contenders do the same work.
"""

import dataclasses
import functools
import math

import keras
import numpy as np
import tensorflow as tf

from benchmarks.suite.plan import COMPARED, FEATURE_DIM, KNOWN, NUM_CLASSES, weights_file
from wca_tf import GaussianLogitsTarget, WCANet, adapt, build_backbone
from wca_tf.nets.backbones import BACKBONES

LARGER = ("resnet18", "resnet18_narrow", "airbench93", "airbench93_relu", "airbench94_relu")
IMAGE_SHAPES = {"lenet_plus_plus": (28, 28, 1), **dict.fromkeys(LARGER, (32, 32, 3))}
FAVOURED = 3  # the class of every image
MARGIN = 8.0  # in deviations of the logits over images, and of the noise
NORM_RANGES = ((0.8, 1.2), (-0.1, 0.1), (-0.1, 0.1), (1.0, 2.0))  # scale, offset, mean and variance


@dataclasses.dataclass(frozen=True)
class Net:
    """A net, with and without its noise, and its images [N, H, W, channels] and labels [N]."""

    model: WCANet
    target: GaussianLogitsTarget
    noise_free: GaussianLogitsTarget
    images: np.ndarray
    labels: np.ndarray


@functools.cache
def net_of(name: str) -> Net:
    """Make the net `name` and its images, the same in every process."""
    images = np.random.default_rng(0).random((KNOWN, *IMAGE_SHAPES[name]), np.float32)
    model = random_model(name, NUM_CLASSES, FEATURE_DIM)
    _favour(model, images)
    target = adapt(model)
    return Net(model, target, target.without_noise(), images, np.full(KNOWN, FAVOURED))


def random_model(name: str, num_classes: int, feature_dim: int) -> WCANet:
    """Make an untrained WCANet with a random full covariance and statistics of batches that are not 0 and 1."""
    shape, random = IMAGE_SHAPES[name], np.random.default_rng(1)
    keras.utils.set_random_seed(0)
    model = WCANet(
        build_backbone(name, shape),
        num_classes,
        feature_dim,
        bottleneck_activation=BACKBONES[name][1],
        pixel_mean=(0.45, 0.5, 0.55)[: shape[2]],
        pixel_std=(0.25, 0.3, 0.35)[: shape[2]],
    )
    model.build((None, *shape))
    for layer in model.backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([random.uniform(*low_high, layer.gamma.shape) for low_high in NORM_RANGES])
    noise = random.normal(size=(feature_dim, feature_dim))
    model.noise.assign_scale_tril(np.tril(noise, -1) + np.diag(np.abs(np.diag(noise)) + 0.1))
    return model


def _favour(model: WCANet, images: np.ndarray) -> None:
    """Scale the classifier and the noise as the module says."""
    features = np.concatenate([model.features(part) for part in np.array_split(images, len(images) // 32)])
    kernel, bias = model.classifier.get_weights()
    kernel = kernel / (features @ kernel).std(axis=0).mean()
    logits = features @ kernel + bias
    bias[FAVOURED] += MARGIN + (np.delete(logits, FAVOURED, axis=1).max(axis=1) - logits[:, FAVOURED]).max()
    model.classifier.set_weights([kernel, bias])
    scale = model.logit_scale.numpy()
    deviation = np.linalg.norm(scale[FAVOURED] - np.delete(scale, FAVOURED, axis=0), axis=1).max()
    model.noise.assign_scale_tril(model.noise.scale_tril.numpy() / deviation)


def multiply_adds(model: WCANet) -> int:
    """Count the multiplications of a forward pass of one image: of convolutions and dense layers, nearly all.

    The gradient by the image costs as many again, that by the weights too.
    """
    convolutions = [layer for layer in model.backbone.layers if isinstance(layer, keras.layers.Conv2D)]
    dense = sum(math.prod(layer.kernel.shape) for layer in (model.bottleneck, model.classifier))
    return dense + sum(math.prod((*layer.output.shape[1:3], *layer.kernel.shape)) for layer in convolutions)


def export_net(name: str) -> None:
    """Write weights, images and what another library's net must reproduce to an .npz file."""
    net, draw = net_of(name), np.random.default_rng(2).normal(size=FEATURE_DIM).astype(np.float32)
    model, images = net.model, tf.constant(net.images[:COMPARED])
    with tf.GradientTape() as tape:
        tape.watch(images)
        features = model.features(images)
        logits = model.classifier(features)
        margins = logits[:, FAVOURED] - logits[:, 0]  # cross-entropy's gradient would be small, and mostly rounding
    arrays = {
        **_weights(model),
        "scale_tril": model.noise.scale_tril,
        "pixel_mean": model.pixel_mean,
        "pixel_std": model.pixel_std,
        "rectified": model.bottleneck_activation == "relu",
        "images": net.images,
        "labels": net.labels,
        "draw": draw,
        "logits": logits,
        "noisy_logits": model.classifier(features + tf.linalg.matvec(model.noise.scale_tril, draw)),
        "gradient": tape.gradient(margins, images),
    }
    np.savez(weights_file(name), **{key: np.asarray(value) for key, value in arrays.items()})


def _weights(model: WCANet) -> dict[str, np.ndarray]:
    """Return weights by kind and number, in the order in which the backbone's builder made its layers."""
    kinds = {keras.layers.Conv2D: "convolution", keras.layers.PReLU: "prelu", keras.layers.BatchNormalization: "norm"}
    layers = {
        name: sorted((layer for layer in model.backbone.layers if isinstance(layer, kind)), key=_made)
        for kind, name in kinds.items()
    }
    layers["dense"] = [model.bottleneck, model.classifier]
    arrays = {
        f"{name}/{number}": values
        for name, each in layers.items()
        for number, values in enumerate(values for layer in each for values in layer.get_weights())
    }
    maps, kernel = model.backbone.layers[-1].input.shape[1:], arrays["dense/0"]
    if math.prod(maps) == len(kernel):  # Keras flattens height, width, channels; torch channels, height, width
        arrays["dense/0"] = kernel.reshape(*maps, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
    return arrays


def _made(layer: keras.layers.Layer) -> int:
    """Return when a layer was made, from the number in its name: Keras lists layers by depth."""
    number = layer.name.rpartition("_")[2]
    return int(number) if number.isdigit() else 0
