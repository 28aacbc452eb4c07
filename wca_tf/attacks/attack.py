"""The base of every attack: a frozen declaration of its options, and a pure call. This module is free of TensorFlow.

The call checks its arguments, runs `perturb` as one graph, and checks that the result is within reach (run.py).
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from wca_tf.core.errors import InputError
from wca_tf.core.options import check_declared, check_options, option, options_of

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from wca_tf.attacks.batch import Batch
    from wca_tf.nets.targets import Target

OBJECTIVES = ("ce", "ce_exact", "expected_margin", "bounded", "margin", "z_margin", "dlr", "log_error")
SHARPNESS = 3.0  # of the bounded margin, for attacks that do not change it
NORMS = ("linf", "l2")
EPSILON = 8 / 255


class AttackResult(NamedTuple):
    """Adversarial images, and their effect on the net.

    Attributes:
        images: float32 [B, H, W, channels] in [0, 1].
        probability_correct: [B], P(the label | image). It is exact where the noise enters in the head, else a share of
            draws. The attack did not see these draws.
        success: bool [B], whether P(the label | image) is below ½; for a targeted attack, whether P(the target | image)
            is above ½.
        found: bool [B], whether an attack that searches for the nearest adversarial image found one; `None` for any
            other attack.
        generations: whole numbers [B], the number of generations that n_pixel spent on each image; `None` for any other
            attack.
    """

    images: "np.ndarray"
    probability_correct: "np.ndarray"
    success: "np.ndarray"
    found: "np.ndarray | None" = None
    generations: "np.ndarray | None" = None


@dataclasses.dataclass(frozen=True)
class Attack(abc.ABC):
    """An attack without a radius; `BallAttack` has one.

    To write an attack, derive from one of these two classes, declare the options with `wca_tf.core.options.option`, and
    define `perturb`. `--attacks=module:Class:option=value` runs it.

    Attributes:
        eot_samples: number of draws of the noise that a gradient or a loss is averaged over.
        targeted: whether images move towards the `targets` of the call, instead of away from the labels.
        text: the attack as written in `--attacks`; empty for an attack made in Python.
    """

    algorithm: ClassVar[int] = 3  # raise it whenever a change makes the same options give other images
    has_radius: ClassVar[bool] = False

    eot_samples: int = option(50, "number of draws that a gradient or a loss averages over")
    targeted: bool = option(False, "attack towards a class other than the label, instead of away from the label")
    text: str = dataclasses.field(default="", repr=False, kw_only=True)

    def __post_init__(self) -> None:
        check_declared(self)
        check_options(self)

    def __call__(
        self,
        model: Any,
        images: Any,
        labels: Any,
        epsilon: float | str = EPSILON,
        *,
        indices: Any = None,
        seed: Any = 0,
        targets: Any = None,
    ) -> AttackResult:
        """Attack a net, and judge the images by draws that the attack did not see.

        Args:
            model: a Keras classifier that returns logits, or a target. Repeated calls on the same model trace the
                attack once.
            images: [B, H, W, channels], uint8, or float32 in [0, 1].
            labels: whole numbers [B].
            epsilon: the ball's radius, one number in the images' [0, 1] units, 0 or more, at most 1 in linf; a text
                such as "8/255" or "linf:8/255" too. An attack without a radius ignores it.
            indices: whole numbers [B], the number of each example in its split; it decides the example's random
                numbers. 0 to B − 1 when absent.
            seed: whole number of int32, or int32[2].
            targets: whole numbers [B], the wanted classes. A targeted attack needs them; no other attack takes them.

        Raises:
            InputError: images are NaN, Inf or out of [0, 1]; labels or targets are not classes; this net does not have
                the objective; the model returns probabilities, or fails another check of `check_answers`.
            NonFiniteError: a gradient or the logits are NaN or Inf.
            RuntimeError: the result is out of reach, which would be a bug.
        """
        from wca_tf.evaluation.attack_call import attack_and_judge

        return attack_and_judge(self, model, images, labels, epsilon, indices, seed, targets)

    @abc.abstractmethod
    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]":
        """Return the adversarial images, alone or with further whole numbers [B] by name. Runs inside a graph.

        Args:
            target: the net.
            batch: the images under attack.
            epsilon: the radius, a scalar; attacks without a radius ignore it.
            seed: int32[2].
        """

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """The number of passes of an image: forward, and backward too where there is a gradient.

        It is an estimate. It does not count passes that compare candidates. It counts one pass for all draws, also
        where each draw needs a pass of its own.
        """

    @property
    def gradient_objective(self) -> str | None:
        """The objective whose gradient tells whether the attack can move; `None` without a gradient of the net."""
        return getattr(self, "objective", None)

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        """Raise InputError when the attack cannot run on this target."""
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
        """The text of the attack in `--attacks`: as it was written, or as it could be written."""
        from wca_tf.attacks import spell_attack

        return self.text if self.text and self._is_as_written() else spell_attack(self)

    def _is_as_written(self) -> bool:
        """Return whether the text gives these options; it does not after a change by `dataclasses.replace`."""
        from wca_tf.attacks import parse_attack

        try:
            written = parse_attack(self.text, eot_samples=self.eot_samples).options()
        except InputError:  # the class can no longer be imported
            return True
        # The source is a net in place of its directory, once it is read.
        return all(value == written[name] for name, value in self.options().items() if name != "source")


@dataclasses.dataclass(frozen=True)
class BallAttack(Attack):
    """An attack within a ball.

    Attributes:
        norm: the norm of the ball.
    """

    has_radius: ClassVar[bool] = True

    norm: str = option("linf", "the norm of the ball, whose radius is epsilon", choices=NORMS)

    def check_reach(self, adversarial: "tf.Tensor", images: "tf.Tensor", epsilon: float) -> None:
        from wca_tf.attacks.checks import check_result

        check_result(adversarial, images, self.norm, epsilon)


class Round(NamedTuple):
    """A member of a worst case.

    Attributes:
        attack: the attack.
        times: how many times it runs, with other random numbers each time.
        rivals: 0 to move away from the label; k to run `times` times towards each of k other classes, the class of the
            largest logit first.
    """

    attack: BallAttack
    times: int = 1
    rivals: int = 0

    @property
    def passes(self) -> int:
        """The number of passes of an image that survives: of the attack, one to judge, and one to rank the classes."""
        return (self.attack.passes + 1 + (self.rivals > 0)) * self.times * max(self.rivals, 1)


class WorstCase(BallAttack):
    """Several rounds of attacks: each image keeps its worst result, and an image that is lost gets no more rounds."""

    algorithm = 4

    bound: float

    @abc.abstractmethod
    def rounds(self, target: "Target | None" = None) -> Sequence[Round]:
        """Return the attacks to run on a target, in this order; without a target, in general."""

    @property
    def passes(self) -> int:
        return sum(each.passes for each in self.rounds())

    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]":
        from wca_tf.attacks.worst_case import worst_of_rounds

        return worst_of_rounds(self, target, batch, epsilon, seed)

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        for each in self.rounds(target):
            each.attack.check_target(target, images)
