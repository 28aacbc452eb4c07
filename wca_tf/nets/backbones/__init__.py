"""Feature extractors by name. Each builder is in a separate module, which is imported when it is first used."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import keras
from wca_tf.core.options import option, parse_options
from wca_tf.nets.backbones.layer_factory import LayerFactory

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(frozen=True)
class OrthogonalNetOptions:
    """Options of `orthogonal_net`."""

    width: int = option(64, "channels of the first stage; each next stage has twice as many", minimum=4)
    blocks: int = option(2, "of each stage", minimum=0)


class Backbone(NamedTuple):
    """A feature extractor, and the bottleneck that goes with it.

    Attributes:
        module: the module with its builder, a function of the backbone's name.
        bottleneck_activation: the Keras name of the activation of a bottleneck after the backbone, or `None`.
        lipschitz: the kind of layers of a backbone with a Lipschitz constant in l2 of about 1, a key of
            `gaussian_head.BOTTLENECKS`; `None` for others. The bottleneck then is of this kind too, and pixels are not
            divided by their deviation.
        options: a dataclass of the builder's options; `None` for a builder without.
    """

    module: str
    bottleneck_activation: str | None = None
    lipschitz: str | None = None
    options: type | None = None


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
    "lipschitz_cnn": Backbone("wca_tf.nets.backbones.lipschitz_cnn", lipschitz="aol"),
    "orthogonal_net": Backbone(
        "wca_tf.nets.backbones.orthogonal_net", lipschitz="orthogonal", options=OrthogonalNetOptions
    ),
}


def backbone_of(text: str) -> Backbone:
    """Return the backbone of a text NAME or NAME:option=value; raise InputError for an unknown name."""
    name = text.partition(":")[0]
    if name not in BACKBONES:
        raise InputError(f"expected a backbone among {', '.join(BACKBONES)}; received {name!r}")
    return BACKBONES[name]


def backbone_options(text: str) -> dict[str, Any]:
    """Return the options of a text such as orthogonal_net:width=128; raise InputError for a wrong one."""
    backbone, (name, *assignments) = backbone_of(text), text.split(":")
    if assignments and backbone.options is None:
        raise InputError(f"expected {name} without options, received {text!r}")
    return parse_options(backbone.options, name, assignments, {}) if backbone.options else {}


def build_backbone(
    name: str,
    image_shape: tuple[int, int, int],
    precision: str = "float32",
    layers: Callable[[str], LayerFactory] = LayerFactory,
) -> keras.Model:
    """Return a Keras model [B, H, W, channels] -> [B, features].

    Args:
        name: one of `BACKBONES`, with its options, if any: orthogonal_net:width=128.
        image_shape: (H, W, channels).
        precision: the layers' Keras dtype policy, such as "float32" or "mixed_bfloat16".
        layers: precision -> `LayerFactory`, a function or class. A defence's factory puts noise on activations or
            weights.

    Raises:
        InputError: an unknown name or option; images too small for the backbone; another factory than `LayerFactory`
            for a backbone that makes its layers itself.

    Examples:
        >>> build_backbone("lenet_plus_plus", (28, 28, 1)).output_shape
        (None, 2048)
    """
    options = backbone_options(name)
    module = importlib.import_module(backbone_of(name).module)
    return getattr(module, name.partition(":")[0])(image_shape, layers(precision), **options)
