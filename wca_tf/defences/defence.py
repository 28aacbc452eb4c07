"""What every defence is: a frozen declaration of its options, from which a net is built. Free of TensorFlow."""

import abc
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from wca_tf.backbones import BACKBONES, build_backbone
from wca_tf.backbones.layer_factory import LayerFactory
from wca_tf.options import check_options, options_of

if TYPE_CHECKING:
    import keras

    from wca_tf.attacks import BallAttack
    from wca_tf.config import TrainConfig
    from wca_tf.nets.classifier import Adversary, StochasticClassifier


@dataclasses.dataclass(frozen=True)
class NetRequest:
    """What a net is built for.

    Attributes:
        image_shape: (H, W, channels).
        num_classes: C.
        pixel_mean, pixel_std: of the training images, per channel, in the images' [0, 1] units.
        backbone: one of `BACKBONES`.
        precision: the backbone's Keras dtype policy.
        seed: starts the stream of training noise.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    pixel_mean: tuple[float, ...] = (0.0,)
    pixel_std: tuple[float, ...] = (1.0,)
    backbone: str = "lenet_plus_plus"
    precision: str = "float32"
    seed: int = 0

    def make_backbone(self, layers: Callable[[str], LayerFactory] = LayerFactory) -> "keras.Model":
        """Return the backbone, made of the layers that `layers` makes."""
        return build_backbone(self.backbone, self.image_shape, self.precision, layers)

    @property
    def bottleneck_activation(self) -> str | None:
        """The Keras name of the activation of a bottleneck behind this backbone."""
        return BACKBONES[self.backbone][1]

    def arguments(self) -> dict[str, Any]:
        """Return those arguments of a `StochasticClassifier` that are not its defence's."""
        names = ("num_classes", "pixel_mean", "pixel_std", "seed")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class Defence(abc.ABC):
    """A defence: its options, and the net that it makes of a backbone.

    A defence of your own derives from it, declares its options with `wca_tf.options.option`, and defines `build`.
    `--defence=module:Class:option=value` trains it.

    Attributes:
        source: the paper, or where the defence comes from.
        text: as written in `--defence`; empty for one made in Python.
    """

    source: ClassVar[str] = ""

    text: str = dataclasses.field(default="", repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        check_options(self)

    @abc.abstractmethod
    def build(self, request: NetRequest) -> "StochasticClassifier":
        """Return a new net; its weights are drawn from Keras's global seed."""

    def callbacks(self) -> "list[keras.callbacks.Callback]":
        """Return what `fit` calls besides, as projections after each step."""
        return []

    def adversary(self, attack: "BallAttack", epsilon: float, mixed: bool) -> "Adversary":
        """Return what perturbs the images of adversarial training.

        Args:
            attack: by what.
            epsilon: its radius.
            mixed: whether clean images are trained on too.
        """
        from wca_tf.adversarial import AdversarialTraining

        return AdversarialTraining(attack, epsilon, mixed)

    def adversary_text(self, config: "TrainConfig") -> str:
        """Return what perturbs the images of adversarial training, for people."""
        return f"{config.adversarial_attack} at ε = {config.adversarial_epsilon}"

    def check(self, config: "TrainConfig") -> None:  # noqa: B027 most defences go with every configuration
        """Raise InputError for a configuration that does not go with this defence."""

    def options(self) -> dict[str, Any]:
        """Return the defence's options by name."""
        return {name: getattr(self, name) for name in options_of(type(self))}

    @property
    def name(self) -> str:
        """The defence as written, or as it could be written, in `--defence`."""
        from wca_tf.defences import spell_defence

        return self.text or spell_defence(self)
