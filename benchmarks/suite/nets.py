"""The nets that are attacked: LeNet++ for 28×28 and ResNet-18 for 32×32, with fixed random weights, and their images.

The classifier is scaled so that its logits deviate by 1 over images, one class is favoured by a margin that no attack
here overcomes, and the noise, of a random full covariance, is scaled to that margin: no image ever falls, under any
draw, so that no attack ends early and all contenders do the same work.
"""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.suite.plan import COMPARED, HIDDEN_NOISE, IMAGE_NOISE
from wca_tf.defences.rse.net import NoiseBeforeConvolutions
from wca_tf.defences.wca.net import WCANet
from wca_tf.nets.adapter import adapt
from wca_tf.nets.backbones import BACKBONES, build_backbone
from wca_tf.nets.noisy_net import NoisyNet
from wca_tf.nets.targets import GaussianLogitsTarget

LARGER = ("resnet18", "resnet18_narrow", "airbench93", "airbench93_relu", "airbench94_relu")
IMAGE_SHAPES = {"lenet_plus_plus": (28, 28, 1), **dict.fromkeys(LARGER, (32, 32, 3))}
NUM_CLASSES, FEATURE_DIM = 10, 32
FAVOURED = 3  # the class of every image
MARGIN = 8.0  # in deviations of the logits over images, and of the noise


@dataclasses.dataclass(frozen=True)
class Net:
    """A net, with and without its noise, and its images [N, H, W, channels] and labels [N]."""

    model: WCANet
    target: GaussianLogitsTarget
    noise_free: GaussianLogitsTarget
    images: np.ndarray
    labels: np.ndarray


def make_net(name: str, count: int) -> Net:
    """The net `name` and `count` images, the same in every process."""
    shape = IMAGE_SHAPES[name]
    images = np.random.default_rng(0).random((count, *shape), np.float32)
    model = random_model(name, NUM_CLASSES, FEATURE_DIM)
    _favour(model, images)
    target = adapt(model)
    return Net(model, target, target.without_noise(), images, np.full(count, FAVOURED))


def random_model(name: str, num_classes: int, feature_dim: int) -> WCANet:
    """An untrained WCANet with a random full covariance and statistics of batches that are not 0 and 1."""
    shape = IMAGE_SHAPES[name]
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
    random = np.random.default_rng(1)
    for layer in model.backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            size = layer.gamma.shape
            layer.set_weights(
                [random.uniform(*low_high, size) for low_high in ((0.8, 1.2), (-0.1, 0.1), (-0.1, 0.1), (1.0, 2.0))]
            )
    noise = random.normal(size=(feature_dim, feature_dim))
    model.noise.assign_scale_tril(np.tril(noise, -1) + np.diag(np.abs(np.diag(noise)) + 0.1))
    return model


def _favour(model: WCANet, images: np.ndarray) -> None:
    """Scale the classifier and the noise as the module says."""
    logits = _logits(model, images)
    kernel, bias = model.classifier.get_weights()
    kernel = kernel / logits.std(axis=0).mean()
    model.classifier.set_weights([kernel, bias])
    logits = _logits(model, images)
    others = np.delete(logits, FAVOURED, axis=1).max(axis=1)
    bias[FAVOURED] += MARGIN + (others - logits[:, FAVOURED]).max()
    model.classifier.set_weights([kernel, bias])
    differences = model.logit_scale.numpy()[FAVOURED] - np.delete(model.logit_scale.numpy(), FAVOURED, axis=0)
    deviation = np.linalg.norm(differences, axis=1).max()
    model.noise.assign_scale_tril(model.noise.scale_tril.numpy() / deviation)


def noise_before_convolutions(net: Net) -> NoisyNet:
    """The net with RSE's noise in place of its own, and the same weights."""
    model = net.model
    shape = tuple(net.images.shape[1:])
    first = [IMAGE_NOISE / std for std in model.pixel_std]
    inner = build_backbone(model.backbone.name, shape, layers=lambda p: NoiseBeforeConvolutions(p, first, HIDDEN_NOISE))
    bottleneck = keras.layers.Dense(FEATURE_DIM, model.bottleneck_activation)
    noisy = NoisyNet(keras.Model(inner.input, bottleneck(inner.output)), NUM_CLASSES, model.pixel_mean, model.pixel_std)
    noisy.build((None, *shape))
    inner.set_weights(model.backbone.get_weights())
    bottleneck.set_weights(model.bottleneck.get_weights())
    noisy.classifier.set_weights(model.classifier.get_weights())
    return noisy


def _logits(model: WCANet, images: np.ndarray) -> np.ndarray:
    """Noise-free logits [N, C]."""
    parts = [model.classifier(model.features(part)) for part in np.array_split(images, -(-len(images) // 32))]
    return np.concatenate(parts)


def multiply_adds(model: WCANet) -> int:
    """Multiplications of a forward pass of one image: of convolutions and dense layers, which are nearly all.

    The gradient by the image costs as many again, that by the weights too.
    """
    total = model.bottleneck.kernel.shape.num_elements() + model.classifier.kernel.shape.num_elements()
    for layer in model.backbone.layers:
        if isinstance(layer, keras.layers.Conv2D):
            height, width = layer.output.shape[1:3]
            total += height * width * layer.kernel.shape.num_elements()
    return total


def export_net(net: Net, path: Path) -> None:
    """Write weights, images and what another library's net must reproduce to an .npz file."""
    draw = np.random.default_rng(2).normal(size=FEATURE_DIM).astype(np.float32)
    images = tf.constant(net.images[:COMPARED])
    with tf.GradientTape() as tape:
        tape.watch(images)
        features = net.model.features(images)
        logits = net.model.classifier(features)
        margins = logits[:, FAVOURED] - logits[:, 0]  # cross-entropy's gradient would be small, and mostly rounding
    noise = tf.linalg.matvec(net.model.noise.scale_tril, draw)
    arrays = {
        **_weights(net.model),
        "images": net.images,
        "labels": net.labels,
        "draw": draw,
        "logits": logits,
        "noisy_logits": net.model.classifier(features + noise),
        "gradient": tape.gradient(margins, images),
    }
    np.savez(path, **{key: np.asarray(value) for key, value in arrays.items()})


def _weights(model: WCANet) -> dict[str, Any]:
    """Weights by kind and number, in the order in which the backbone's builder made its layers."""
    kinds = {keras.layers.Conv2D: "convolution", keras.layers.PReLU: "prelu", keras.layers.BatchNormalization: "norm"}
    arrays: dict[str, Any] = {}
    for kind, name in kinds.items():
        layers = [layer for layer in model.backbone.layers if isinstance(layer, kind)]
        for number, layer in enumerate(sorted(layers, key=_made)):
            for weight, values in zip(layer.weights, layer.get_weights(), strict=True):
                arrays[f"{name}/{number}/{weight.name}"] = values
    for name in ("bottleneck", "classifier"):
        for weight in getattr(model, name).weights:
            arrays[f"{name}/{weight.name}"] = weight.numpy()
    last = model.backbone.layers[-1]
    return {
        **arrays,
        "scale_tril": model.noise.scale_tril,
        "pixel_mean": model.pixel_mean,
        "pixel_std": model.pixel_std,
        "flattened": last.input.shape[1:],  # height, width and channels of the last maps
        "rectified": model.bottleneck_activation == "relu",
    }


def _made(layer: keras.layers.Layer) -> int:
    """When a layer was made, from the number in its name: Keras lists layers by depth."""
    number = layer.name.rpartition("_")[2]
    return int(number) if number.isdigit() else 0
