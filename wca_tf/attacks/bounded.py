"""Attacks on the bounded margin: a smooth share of the draws in which the net errs. Free of TensorFlow until run."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wca_tf.attacks.attack import Round, WorstCase
from wca_tf.attacks.gradient_attacks import ProjectedGradient
from wca_tf.attacks.query_attacks import BOUND
from wca_tf.core.options import option

if TYPE_CHECKING:
    import tensorflow as tf

    from wca_tf.nets.targets import Target


@dataclasses.dataclass(frozen=True)
class BoundedAscent(ProjectedGradient):
    """Projected gradient on the bounded margin, which starts smooth and ends sharp.

    The sharpness rises from 1 to `final_sharpness`, as a power of the share of steps made. The steps shrink to 0 along
    half a cosine. A step follows the gradients so far, each divided by its mean absolute value, with weights that fall
    by `momentum` from step to step (Dong et al., CVPR 2018).
    """

    algorithm = 1

    objective: str = option("bounded", "the loss that the steps increase", choices=("bounded",))
    steps: int = option(40, "number of gradient steps")
    relative_step_size: float = option(0.5, "the first step's length over epsilon")
    random_start: bool = option(False, "begin at random in the ball, not at the image")
    momentum: float = option(0.75, "the weight of the steps before in a step", minimum=0, maximum=1)
    final_sharpness: float = option(100.0, "of the bounded margin at the last step; 1 at the first", minimum=1)

    @property
    def passes(self) -> int:
        return 2 * self.steps  # each draw passes the first image too, for its unit

    def schedule(self, step: "tf.Tensor") -> "tuple[tf.Tensor, tf.Tensor]":
        import tensorflow as tf

        share = tf.cast(step, tf.float32) / max(self.steps - 1, 1)
        return self.relative_step_size * (1 + tf.cos(math.pi * share)) / 2, self.final_sharpness**share

    def direction(self, previous: "tf.Tensor", gradient: "tf.Tensor") -> "tf.Tensor":
        import tensorflow as tf

        size = tf.reduce_max(tf.abs(gradient), axis=[1, 2, 3], keepdims=True)
        scaled = tf.math.divide_no_nan(gradient, size)  # first by the largest: the mean of tiny numbers would vanish
        size = tf.reduce_mean(tf.abs(scaled), axis=[1, 2, 3], keepdims=True)
        return self.momentum * previous + tf.math.divide_no_nan(scaled, size)


@dataclasses.dataclass(frozen=True)
class Bounded(WorstCase):
    """Projected gradient on the bounded margin: from the image, from random starts, and towards each other class."""

    algorithm = 1

    steps: int = option(80, "number of gradient steps away from the label, from each start", quick=5)
    class_steps: int = option(40, "number of gradient steps towards each other class", quick=3)
    classes: int = option(9, "number of other classes to aim at, at most", quick=2)
    restarts: int = option(5, "number of starts; the first is the image", quick=2)
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    @property
    def gradient_objective(self) -> str:
        return "bounded"

    def rounds(self, target: "Target | None" = None) -> Sequence[Round]:
        shared: dict[str, Any] = {"norm": self.norm, "eot_samples": self.eot_samples, "targeted": self.targeted}
        ascent = BoundedAscent(steps=self.steps, **shared)
        rounds = [Round(ascent)]
        if self.restarts > 1:
            rounds.append(Round(dataclasses.replace(ascent, random_start=True), self.restarts - 1))
        rivals = number_of_rivals(self.classes, target)
        if rivals > 1 and not self.targeted:
            rounds.append(Round(dataclasses.replace(ascent, steps=self.class_steps), rivals=rivals))
        return rounds


def number_of_rivals(classes: int, target: "Target | None") -> int:
    """Return the number of other classes to aim at: all of the target, `classes` at most."""
    return min(classes, target.num_classes - 1) if target and target.num_classes else classes
