"""Projected gradient ascent: FGSM, BIM, PGD, and the adaptive margin attacks, in one loop.

FGSM (Goodfellow et al., ICLR 2015) is one step of size epsilon; BIM (Kurakin et al., ICLR 2016) several smaller ones;
PGD (Madry et al., ICLR 2018) starts at random in the ball. EoT (Athalye et al., ICML 2018) is in the objective.
"""

import dataclasses

import tensorflow as tf

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.batch import Batch
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.attacks.target import Target
from wca_tf.seeds import fold_in


@dataclasses.dataclass(frozen=True)
class ProjectedGradient(BallAttack):
    """Steps of steepest ascent of an objective, projected to a ball and to [0, 1].

    Attributes:
        objective: one of `OBJECTIVES`.
        steps: gradient steps, 1 or more.
        relative_step_size: a step's length over epsilon (paper: 1/10).
        random_start: begin at random in the ball, not at the image.
    """

    objective: str = "ce"
    steps: int = 10
    relative_step_size: float = 0.1
    random_start: bool = True

    @property
    def passes(self) -> int:
        return self.steps

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        ball = BALLS[self.norm]
        adversarial = batch.images
        if self.random_start:
            start = ball.random_start(fold_in(seed, 0), batch.indices, adversarial.shape[1:], epsilon)
            adversarial = tf.clip_by_value(batch.images + start, 0.0, 1.0)
        ascent = tf.zeros_like(adversarial)
        for step in tf.range(self.steps):
            step_seed = fold_in(seed, 1, step)
            gradient = expected_gradient(
                target, adversarial, batch, step_seed, objective=self.objective, draws=self.eot_samples
            ).gradient
            ascent = self.ascent(ascent, gradient)
            moved = adversarial + self.relative_step_size * epsilon * ball.steepest_step(ascent)
            adversarial = tf.clip_by_value(batch.images + ball.project(moved - batch.images, epsilon), 0.0, 1.0)
        return adversarial

    def ascent(self, before: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        """What a step climbs, from what the step before climbed and the gradient, each [B, H, W, channels]."""
        return gradient
