"""Feature extractors by name. Each builder is in a separate module, which is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import keras
from wca_tf.nets.backbones.layer_factory import LayerFactory

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


class Backbone(NamedTuple):
    """A feature extractor, and the bottleneck that goes with it.

    Attributes:
        module: the module with its builder, a function of the backbone's name.
        bottleneck_activation: the Keras name of the activation of a bottleneck after the backbone, or `None`.
        lipschitz: whether the backbone is 1-Lipschitz in l2. The bottleneck then is too, and pixels are not divided by
            their deviation.
    """

    module: str
    bottleneck_activation: str | None = None
    lipschitz: bool = False


BACKBONES: dict[str, Backbone] = {
    "lenet_plus_plus": Backbone("wca_tf.nets.backbones.lenet"),
    "lenet5": Backbone("wca_tf.nets.backbones.lenet5"),
    "resnet18": Backbone("wca_tf.nets.backbones.resnet", "relu"),
    "resnet18_narrow": Backbone("wca_tf.nets.backbones.resnet", "relu"),
    "resnet18_imagenet": Backbone("wca_tf.nets.backbones.resnet_imagenet", "relu"),
    "wide_resnet34_10": Backbone("wca_tf.nets.backbones.wide_resnet", "relu"),
    "airbench93": Backbone("wca_tf.nets.backbones.airbench"),
    "airbench94": Backbone("wca_tf.nets.backbones.airbench"),
    "airbench93_relu": Backbone("wca_tf.nets.backbones.airbench"),
    "airbench94_relu": Backbone("wca_tf.nets.backbones.airbench"),
    "lipschitz_cnn": Backbone("wca_tf.nets.backbones.lipschitz_cnn", lipschitz=True),
}


def build_backbone(
    name: str,
    image_shape: tuple[int, int, int],
    precision: str = "float32",
    layers: Callable[[str], LayerFactory] = LayerFactory,
) -> keras.Model:
    """Return a Keras model [B, H, W, channels] -> [B, features].

    Args:
        name: one of `BACKBONES`.
        image_shape: (H, W, channels).
        precision: the layers' Keras dtype policy, such as "float32" or "mixed_bfloat16".
        layers: precision -> `LayerFactory`, a function or class. A defence's factory puts noise on activations or
            weights.

    Raises:
        InputError: an unknown name; images too small for the backbone; another factory than `LayerFactory` for a
            backbone that makes its layers itself.

    Examples:
        >>> build_backbone("lenet_plus_plus", (28, 28, 1)).output_shape
        (None, 2048)
    """
    if name not in BACKBONES:
        raise InputError(f"expected a backbone among {', '.join(BACKBONES)}; received {name!r}")
    module = importlib.import_module(BACKBONES[name].module)
    return getattr(module, name)(image_shape, layers(precision))
