"""The base of every defence: a frozen declaration of its options, from which a net is built. Free of TensorFlow."""

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from wca_tf.core.options import check_declared, check_options, options_of
from wca_tf.nets.backbones import BACKBONES, build_backbone
from wca_tf.nets.backbones.layer_factory import LayerFactory

if TYPE_CHECKING:
    import keras

    from wca_tf.attacks import BallAttack
    from wca_tf.nets.classifier import Adversary, StochasticClassifier
    from wca_tf.runs.config import TrainConfig

BACKBONE_DECAY = "l2 on the kernels of backbone and bottleneck, inside the loss (paper: 0)"


@dataclasses.dataclass(frozen=True)
class NetRequest:
    """The properties of a net that is to be built.

    Attributes:
        image_shape: (H, W, channels).
        num_classes: C, the number of classes.
        pixel_mean, pixel_std: mean and standard deviation of the training images, per channel, in the images' [0, 1]
            units.
        backbone: one of `BACKBONES`.
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

    def make_backbone(self, layers: Callable[[str], LayerFactory] = LayerFactory) -> "keras.Model":
        """Return the backbone; `layers` gives the factory of its layers from the precision."""
        return build_backbone(self.backbone, self.image_shape, self.precision, layers)

    @property
    def bottleneck_activation(self) -> str | None:
        """The Keras name of the activation of a bottleneck after this backbone, or `None`."""
        return BACKBONES[self.backbone].bottleneck_activation

    def bottleneck(self) -> dict[str, Any]:
        """Return the arguments of a `BottleneckNet` that depend on the backbone."""
        lipschitz = BACKBONES[self.backbone].lipschitz
        return {"bottleneck_activation": self.bottleneck_activation, "lipschitz_bottleneck": lipschitz}

    def normalised(self, deviation: float) -> list[float]:
        """Return a deviation of pixels in [0, 1] in the units of normalised pixels, for each channel."""
        return [deviation / std for std in self.pixel_std]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a `StochasticClassifier` that do not depend on the defence, except the backbone."""
        names = ("num_classes", "pixel_mean", "pixel_std", "seed")
        arguments: dict[str, Any] = {name: getattr(self, name) for name in names}
        if BACKBONES[self.backbone].lipschitz:
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
    def build(self, request: NetRequest) -> "StochasticClassifier":
        """Return a new net; its weights are drawn from Keras's global seed."""

    def callbacks(self) -> "list[keras.callbacks.Callback]":
        """Return further callbacks for `fit`, such as projections after each step."""
        return []

    def adversary(self, attack: "BallAttack", epsilon: float, mixed: bool) -> "Adversary":
        """Return the function that perturbs the images of adversarial training.

        Args:
            attack: the attack that perturbs them.
            epsilon: the attack's radius.
            mixed: whether to train on the clean images too.
        """
        from wca_tf.defences.adversarial_training import AdversarialTraining

        return AdversarialTraining(attack, epsilon, mixed)

    def adversary_text(self, config: "TrainConfig") -> str:
        """Return a text for people: the attack of adversarial training, and its radius."""
        return f"{config.adversarial_attack} at ε = {config.adversarial_epsilon}"

    def check(self, config: "TrainConfig") -> None:  # noqa: B027 most defences go with every configuration
        """Raise InputError for a configuration that does not go with this defence."""

    def options(self) -> dict[str, Any]:
        """Return the defence's options by name."""
        return {name: getattr(self, name) for name in options_of(type(self))}

    @property
    def name(self) -> str:
        """The text of the defence in `--defence`: as it was written, or as it could be written."""
        from wca_tf.defences import spell_defence

        return self.text or spell_defence(self)
