"""What every attack is: a frozen declaration of its options, and a pure call. This module is free of TensorFlow.

The call checks what goes in, runs `perturb` as one graph, and checks the reach of what comes out (run.py).
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from wca_tf.options import check_options, option, options_of

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from wca_tf.attacks.batch import Batch
    from wca_tf.nets.targets import Target

OBJECTIVES = ("ce", "expected_margin", "margin", "z_margin", "dlr")
NORMS = ("linf", "l2")
EPSILON = 8 / 255


class AttackResult(NamedTuple):
    """Adversarial images, and what they do to the net.

    Attributes:
        images: float32 [B, H, W, channels] in [0, 1].
        probability_correct: [B], P(the label | image), exact where the noise enters in the head, else a share of draws;
            these draws are none that the attack saw.
        success: bool [B], whether P(correct) is below ½; of a targeted attack, whether P(the target) is above ½.
        found: bool [B], whether the attack found what it looked for, of an attack that searches the nearest image; else
            None.
        generations: whole numbers [B], how many generations each image was searched for, of n_pixel; else None.
    """

    images: "np.ndarray"
    probability_correct: "np.ndarray"
    success: "np.ndarray"
    found: "np.ndarray | None" = None
    generations: "np.ndarray | None" = None


@dataclasses.dataclass(frozen=True)
class Attack(abc.ABC):
    """An attack without a radius; `BallAttack` has one.

    An attack of your own derives from one of both, declares its options with `wca_tf.options.option`, and defines
    `perturb`. `--attacks=module:Class:option=value` runs it.

    Attributes:
        eot_samples: draws of the noise that a gradient or a loss averages over.
        targeted: towards the `targets` of the call, in place of away from the labels.
        text: as written in `--attacks`; empty for an attack made in Python.
    """

    algorithm: ClassVar[int] = 3  # raise it with every change after which the same options give other images
    has_radius: ClassVar[bool] = False

    eot_samples: int = option(50, "draws that a gradient or a loss averages over")
    targeted: bool = option(False, "towards a class, another for each image, in place of away from the label")
    text: str = dataclasses.field(default="", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(
        self,
        model: Any,
        images: Any,
        labels: Any,
        epsilon: float = EPSILON,
        *,
        indices: Any = None,
        seed: Any = 0,
        targets: Any = None,
    ) -> AttackResult:
        """Attack a net, and judge the images by draws that the attack did not see.

        Args:
            model: a Keras classifier that returns logits, or a target. Called in a loop on the same model, the attack
                is traced once.
            images: [B, H, W, channels], uint8, or float32 in [0, 1].
            labels: whole numbers [B].
            epsilon: the ball's radius, in the images' [0, 1] units, 0 or more; an attack without a radius ignores it.
            indices: whole numbers [B], each example's number in its split, which decide its random numbers; 0 to B − 1
                when absent.
            seed: whole number or int32[2].
            targets: whole numbers [B], the classes wanted; for a targeted attack, and for it alone.

        Raises:
            InputError: images that are NaN, Inf or out of [0, 1]; labels or targets that are no class; an objective
                that this net does not have; a model that returns probabilities.
            NonFiniteError: a gradient or logits that are NaN or Inf.
            RuntimeError: the result is out of reach, which would be a bug.
        """
        from wca_tf.attack_model import attack_and_judge

        return attack_and_judge(self, model, images, labels, epsilon, indices, seed, targets)

    @abc.abstractmethod
    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]":
        """Return the adversarial images, inside a graph; with them, if it has any, the `told` of `Perturbed`.

        Args:
            target: the net.
            batch: the images under attack.
            epsilon: the radius, a scalar; attacks without a radius ignore it.
            seed: int32[2].
        """

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """Forward passes, with a backward one where there is a gradient, that an image costs at most."""

    @property
    def gradient_objective(self) -> str | None:
        """The objective whose gradient the attack follows on the net itself; None for an attack without gradients."""
        return getattr(self, "objective", None)

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        """Raise InputError when the target cannot give what the attack needs."""
        from wca_tf.attacks.objectives import check_objective

        if self.gradient_objective:
            check_objective(self.gradient_objective, target, images, self.targeted)

    def check_reach(self, adversarial: "tf.Tensor", images: "tf.Tensor", epsilon: float) -> None:
        """Raise RuntimeError when a result is out of [0, 1], or out of the attack's reach."""
        from wca_tf.attacks.checks import check_result

        check_result(adversarial, images)

    def options(self) -> dict[str, Any]:
        """Return the attack's options by name."""
        return {name: getattr(self, name) for name in options_of(type(self))}

    @property
    def name(self) -> str:
        """The attack as written, or as it could be written, in `--attacks`."""
        from wca_tf.attacks import spell_attack

        return self.text or spell_attack(self)


@dataclasses.dataclass(frozen=True)
class BallAttack(Attack):
    """An attack within a ball.

    Attributes:
        norm: of the ball.
    """

    has_radius: ClassVar[bool] = True

    norm: str = option("linf", "of the ball", choices=NORMS)

    def check_reach(self, adversarial: "tf.Tensor", images: "tf.Tensor", epsilon: float) -> None:
        from wca_tf.attacks.checks import check_result

        check_result(adversarial, images, self.norm, epsilon)


class WorstCase(BallAttack):
    """Per image, the worst of several rounds; rounds are not spent on images that are lost already."""

    bound: float

    @abc.abstractmethod
    def rounds(self, target: "Target | None" = None) -> Sequence[tuple[BallAttack, int]]:
        """Return the attacks on a target, and how often each is run; without a target, on any."""

    @property
    def passes(self) -> int:
        return sum((attack.passes + 1) * times for attack, times in self.rounds())

    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]":
        from wca_tf.attacks.worst_case import worst_of_rounds

        return worst_of_rounds(self, target, batch, epsilon, seed)

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        for attack, _ in self.rounds(target):
            attack.check_target(target, images)
