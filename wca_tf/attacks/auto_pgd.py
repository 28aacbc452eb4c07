"""Auto-PGD (Croce & Hein, ICML 2020): projected gradient with momentum, which halves its step size by itself.

For a random net the objective is a mean over draws. Steps are compared by means over draws too; the original compares
them by the last draw alone.
"""

from __future__ import annotations

import dataclasses

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.balls import BALLS, Ball
from wca_tf.attacks.gradients import ValueAndGradient, expected_gradient, selection_score
from wca_tf.attacks.objectives import OBJECTIVES
from wca_tf.core.lazily import tf
from wca_tf.core.options import option
from wca_tf.core.seeds import fold_in
from wca_tf.nets.batch import Batch, per_image
from wca_tf.nets.targets import Target

MOMENTUM = 0.75  # alpha in the paper of Auto-PGD
HALVED = "a step size is halved when at most this share of its steps increased the objective"


@dataclasses.dataclass(frozen=True)
class AutoPGD(BallAttack):
    """Auto-PGD: momentum, and a step size that halves itself; returns the iterate at which the net fails most."""

    version = 4

    objective: str = option("ce", "the loss that the steps increase", choices=tuple(OBJECTIVES))
    steps: int = option(100, "number of gradient steps", quick=20)
    rho: float = option(0.75, HALVED, maximum=1)

    @property
    def passes(self) -> int:
        return self.steps + 1

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        def climb(images: tf.Tensor, step: tf.Tensor) -> ValueAndGradient:
            draws, step_seed = self.eot_samples, fold_in(seed, 1, step)
            return expected_gradient(target, images, batch, step_seed, objective=self.objective, draws=draws)

        ball = BALLS[self.norm]
        checks = checkpoint_periods(self.steps)
        x = batch.images + ball.random_direction(fold_in(seed, 0), batch.indices, batch.images.shape[1:], epsilon)
        x = tf.clip_by_value(x, 0.0, 1.0)
        ascent = climb(x, tf.constant(0))
        gradient, previous_x, previous_values = ascent.gradient, x, ascent.values
        best_x, best_gradient, best_values, checked_values = x, gradient, ascent.values, ascent.values
        weakest, score = x, selection_score(target, ascent, batch, self.eot_samples)
        step_size = 2 * epsilon * tf.ones_like(best_values)
        increases, halved = tf.zeros_like(best_values), tf.ones_like(best_values, tf.bool)
        for step in tf.range(self.steps):
            momentum = tf.where(step > 0, MOMENTUM, 1.0)
            moved = _move(ball, batch.images, x, previous_x, gradient, step_size, momentum, epsilon)
            previous_x, x = x, moved
            ascent = climb(x, step + 1)
            gradient = ascent.gradient
            found = selection_score(target, ascent, batch, self.eot_samples)
            lower = found.better_for_attacker(score)
            weakest, score = tf.where(per_image(lower), x, weakest), found.where(lower, score)

            higher = ascent.values > best_values
            best_x = tf.where(per_image(higher), x, best_x)
            best_gradient = tf.where(per_image(higher), gradient, best_gradient)
            best_values = tf.where(higher, ascent.values, best_values)
            increases += tf.cast(ascent.values > previous_values, tf.float32)
            previous_values = ascent.values
            period = tf.gather(checks, step)
            if period > 0:
                stuck = ~halved & (checked_values >= best_values)
                halved = (increases <= self.rho * tf.cast(period, tf.float32)) | stuck
                step_size = tf.where(halved, step_size / 2, step_size)
                x = tf.where(per_image(halved), best_x, x)
                gradient = tf.where(per_image(halved), best_gradient, gradient)
                checked_values, increases = best_values, tf.zeros_like(increases)
        return weakest


def _move(
    ball: Ball,
    images: tf.Tensor,
    x: tf.Tensor,
    previous_x: tf.Tensor,
    gradient: tf.Tensor,
    step_size: tf.Tensor,
    momentum: tf.Tensor,
    epsilon: tf.Tensor,
) -> tf.Tensor:
    """Return the images after a projected step, mixed with the step before."""

    def project(moved: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(images + ball.project(moved - images, epsilon), 0.0, 1.0)

    stepped = project(x + per_image(step_size) * ball.steepest_step(gradient))
    return project(x + momentum * (stepped - x) + (1 - momentum) * (x - previous_x))


def checkpoint_periods(steps: int) -> list[int]:
    """Return a number for each step: at a checkpoint, the number of steps since the last checkpoint; otherwise 0.

    For 100 steps the checkpoints are at 22, 41, 57, ...
    """
    period, least, decrease = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    periods, since = [0] * steps, 0
    for step in range(steps):
        since += 1
        if since == period:
            periods[step] = period
            period, since = max(period - decrease, least), 0
    return periods
