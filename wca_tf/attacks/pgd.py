"""Projected gradient ascent: FGSM, BIM, PGD, and the adaptive margin attacks, in one loop.

FGSM (Goodfellow et al., ICLR 2015) is one step of size epsilon. BIM (Kurakin et al., ICLR 2017) takes several smaller
steps. PGD (Madry et al., ICLR 2018) starts at random in the ball. EoT (Athalye et al., ICML 2018) is in the objective.
"""

from __future__ import annotations

import dataclasses
import math

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.attacks.objectives import OBJECTIVES, SHARPNESS
from wca_tf.core.lazily import tf
from wca_tf.core.options import option
from wca_tf.core.seeds import fold_in
from wca_tf.nets.batch import Batch
from wca_tf.nets.targets import Target

EACH_STEP = "a step's length over epsilon"


@dataclasses.dataclass(frozen=True)
class ProjectedGradient(BallAttack):
    """Steps of steepest ascent of an objective, projected to a ball and to [0, 1]."""

    objective: str = option("ce", "the loss that the steps increase", choices=tuple(OBJECTIVES))
    steps: int = option(10, "number of gradient steps")
    relative_step_size: float = option(0.1, EACH_STEP)
    random_start: bool = option(True, "begin at random in the ball, not at the image")

    @property
    def passes(self) -> int:
        return self.steps

    def schedule(self, step: tf.Tensor) -> tuple[float | tf.Tensor, float | tf.Tensor]:
        """Return the length of a step over epsilon, and the sharpness of the bounded margin."""
        return self.relative_step_size, SHARPNESS

    def direction(self, previous: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        """Return the direction of a step [B, H, W, channels], from the previous direction and the gradient."""
        return gradient

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        ball = BALLS[self.norm]
        adversarial = batch.images
        if self.random_start:
            start = ball.random_start(fold_in(seed, 0), batch.indices, adversarial.shape[1:], epsilon)
            adversarial = tf.clip_by_value(batch.images + start, 0.0, 1.0)
        first, direction = adversarial, tf.zeros_like(adversarial)
        for step in tf.range(self.steps):
            step_seed, step_size, sharpness = fold_in(seed, 1, step), *self.schedule(step)
            gradient = expected_gradient(
                target,
                adversarial,
                batch,
                step_seed,
                objective=self.objective,
                draws=self.eot_samples,
                start=first,
                sharpness=sharpness,
            ).gradient
            direction = self.direction(direction, gradient)
            moved = adversarial + step_size * epsilon * ball.steepest_step(direction)
            adversarial = tf.clip_by_value(batch.images + ball.project(moved - batch.images, epsilon), 0.0, 1.0)
        return adversarial


@dataclasses.dataclass(frozen=True)
class SingleDraw(ProjectedGradient):
    """Projected gradient on the net that one draw gives; other draws judge. It overstates robustness: do not quote it.

    The draw of an image is the same in all steps. This is the protocol of CTRW, RPF and RNA, among others.
    """

    steps: int = option(20, "number of gradient steps")
    relative_step_size: float = option(0.25, EACH_STEP)

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        fixed = target.with_fixed_draw(fold_in(seed, 2), batch.indices)
        return super().perturb(fixed, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class MomentumPGD(ProjectedGradient):
    """Projected gradient with momentum and shrinking steps, which average the noise of gradients of few draws.

    The steps shrink to 0 along half a cosine. A step follows the gradients so far, each divided by its mean absolute
    value, with weights that fall by `momentum` from step to step (Dong et al., CVPR 2018). The bounded margin starts
    smooth and ends sharp: its sharpness rises from 1 to `final_sharpness`, as a power of the share of steps made.
    """

    objective: str = option("bounded", "the loss that the steps increase", choices=("bounded", "expected_margin"))
    steps: int = option(40, "number of gradient steps")
    relative_step_size: float = option(0.5, "the first step's length over epsilon")
    random_start: bool = option(False, "begin at random in the ball, not at the image")
    momentum: float = option(0.75, "the weight of the steps before in a step", minimum=0, maximum=1)
    final_sharpness: float = option(100.0, "of the bounded margin at the last step; 1 at the first", minimum=1)

    @property
    def passes(self) -> int:
        return self.steps * (1 + (self.objective == "bounded"))  # its draws pass the first image too, for their units

    def schedule(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        share = tf.cast(step, tf.float32) / max(self.steps - 1, 1)
        return self.relative_step_size * (1 + tf.cos(math.pi * share)) / 2, self.final_sharpness**share

    def direction(self, previous: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        size = tf.reduce_max(tf.abs(gradient), axis=[1, 2, 3], keepdims=True)
        scaled = tf.math.divide_no_nan(gradient, size)  # first by the largest: the mean of tiny numbers would vanish
        size = tf.reduce_mean(tf.abs(scaled), axis=[1, 2, 3], keepdims=True)
        return self.momentum * previous + tf.math.divide_no_nan(scaled, size)
