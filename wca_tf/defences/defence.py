"""The base of every defence: a frozen declaration of its options, from which a net is built.

TensorFlow loads when a net is built.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar

from wca_tf.attacks import BallAttack
from wca_tf.core.lazily import keras
from wca_tf.core.options import check_declared, check_options, options_of, spell
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.nets.backbones import backbone_of, build_backbone
from wca_tf.nets.backbones.layer_factory import LayerFactory

BACKBONE_DECAY = "l2 on the kernels of backbone and bottleneck, inside the loss (paper: 0)"


@dataclasses.dataclass(frozen=True)
class NetRequest:
    """The properties of a net that is to be built.

    Attributes:
        image_shape: (H, W, channels).
        num_classes: C, the number of classes.
        pixel_mean, pixel_std: mean and standard deviation of the training images, per channel, in the images' [0, 1]
            units.
        backbone: one of `BACKBONES`, with its options, if any.
        precision: the backbone's Keras dtype policy.
        seed: the seed of the stream of training noise.
        num_train_examples: N, the number of training images; 0 where it is not known.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    pixel_mean: tuple[float, ...] = (0.0,)
    pixel_std: tuple[float, ...] = (1.0,)
    backbone: str = "lenet_plus_plus"
    precision: str = "float32"
    seed: int = 0
    num_train_examples: int = 0

    def make_backbone(self, layers: Callable[[str], LayerFactory] = LayerFactory) -> keras.Model:
        """Return the backbone; `layers` gives the factory of its layers from the precision."""
        return build_backbone(self.backbone, self.image_shape, self.precision, layers)

    @property
    def bottleneck_activation(self) -> str | None:
        """The Keras name of the activation of a bottleneck after this backbone, or `None`."""
        return backbone_of(self.backbone).bottleneck_activation

    def bottleneck(self) -> dict[str, Any]:
        """Return the arguments of a `BottleneckNet` that depend on the backbone."""
        lipschitz = backbone_of(self.backbone).lipschitz
        return {"bottleneck_activation": self.bottleneck_activation, "lipschitz_bottleneck": lipschitz}

    def normalised(self, deviation: float) -> list[float]:
        """Return a deviation of pixels in [0, 1] in the units of normalised pixels, for each channel."""
        return [deviation / std for std in self.pixel_std]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a `StochasticClassifier` that do not depend on the defence, except the backbone."""
        names = ("num_classes", "pixel_mean", "pixel_std", "seed")
        arguments: dict[str, Any] = {name: getattr(self, name) for name in names}
        if backbone_of(self.backbone).lipschitz:
            arguments["pixel_std"] = (1.0,) * len(self.pixel_mean)
        return arguments


@dataclasses.dataclass(frozen=True)
class Defence(abc.ABC):
    """A defence: its options, and the net that it builds on a backbone.

    To write a defence, derive from this class, declare the options with `wca_tf.core.options.option`, and define
    `build`. `--defence=module:Class:option=value` trains it.

    Attributes:
        source: the paper, or another origin of the defence.
        protocol: the attack of the authors' code, or else of their paper, as written in `bin/evaluate --attacks`; empty
            where they attack nothing.
        on_lipschitz: whether the net is Lipschitz where its backbone is: `build` uses `NetRequest.bottleneck`.
        text: the defence as written in `--defence`; empty for a defence made in Python.
    """

    source: ClassVar[str] = ""
    protocol: ClassVar[str] = ""
    on_lipschitz: ClassVar[bool] = False

    text: str = dataclasses.field(default="", repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        check_declared(self)
        check_options(self)

    @abc.abstractmethod
    def build(self, request: NetRequest) -> keras.Model:
        """Return a new net, a `StochasticClassifier`; its weights are drawn from Keras's global seed."""

    def load(self, module: str) -> ModuleType:
        """Return a module that TensorFlow must be loaded for: when a net is built, not when a flag is read.

        A name that begins with a dot is of a module beside the declaration.
        """
        return importlib.import_module(module, type(self).__module__)

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Return further callbacks for `fit`, such as projections after each step."""
        return []

    def adversary(self, attack: BallAttack, epsilon: float, mixed: bool) -> Callable[..., Any]:
        """Return the function that perturbs the images of adversarial training, such as `AdversarialTraining`.

        Args:
            attack: the attack that perturbs them.
            epsilon: the attack's radius.
            mixed: whether to train on the clean images too.
        """
        return AdversarialTraining(attack, epsilon, mixed)

    def adversary_text(self, attack: str, epsilon: str) -> str:
        """Return a text for people: the attack of adversarial training, and its radius."""
        return f"{attack} at ε = {epsilon}"

    def check(self, initial_weights: str, adversarial: Sequence[str]) -> None:  # noqa: B027 most take all
        """Raise InputError for a training that does not go with this defence.

        Args:
            initial_weights: the directory of the net that training starts from; empty for none.
            adversarial: the names of the flags that say which attack adversarial training has, where they are given.
        """

    def options(self) -> dict[str, Any]:
        """Return the defence's options by name."""
        return {name: getattr(self, name) for name in options_of(type(self))}

    @property
    def name(self) -> str:
        """The text of the defence in `--defence`: as it was written, or as it could be written."""
        return self.text or self.spelled

    @property
    def spelled(self) -> str:
        """The shortest text from which `parse_defence` makes this defence.

        Examples:
            >>> from wca_tf.defences import parse_defence
            >>> parse_defence("wca:covariance=anisotropic:feature_dim=64").spelled
            'wca:feature_dim=64'
        """
        kind = type(self)
        package, _, module = kind.__module__.rpartition(".")
        declared = package == __package__ and getattr(sys.modules[kind.__module__], "DEFENCE", None) is kind
        return spell(module if declared else f"{kind.__module__}:{kind.__qualname__}", self, {})
