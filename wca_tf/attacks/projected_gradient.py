"""Projected gradient ascent: FGSM, BIM, PGD, and the adaptive margin attacks, in one loop.

FGSM (Goodfellow et al., ICLR 2015) is one step of size epsilon; BIM (Kurakin et al., ICLR 2016) several smaller ones;
PGD (Madry et al., ICLR 2018) starts at random in the ball. EoT (Athalye et al., ICML 2018) is in the objective.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.checks import check_inputs, check_result
from wca_tf.attacks.objectives import OBJECTIVES, check_objective
from wca_tf.attacks.target import Target
from wca_tf.errors import InputError
from wca_tf.seeds import fold_in, make_seed

MOST = 1_000_000  # steps or draws; more is a slip of the pen


@dataclasses.dataclass(frozen=True)
class ProjectedGradient:
    """Steps of steepest ascent of an objective, projected to a ball and to [0, 1].

    Attributes:
        epsilon: the ball's radius, in the images' [0, 1] units; 0 returns the images.
        objective: one of `OBJECTIVES`.
        steps: gradient steps, 1 or more.
        relative_step_size: a step's length over epsilon (paper: 1/10).
        random_start: begin at random in the ball, not at the image.
        norm: "linf" or "l2".
        eot_samples: draws that a gradient averages over.
    """

    epsilon: float
    objective: str = "ce"
    steps: int = 10
    relative_step_size: float = 0.1
    random_start: bool = True
    norm: str = "linf"
    eot_samples: int = 50

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise InputError(f"expected epsilon of 0 or more, received {self.epsilon}")
        if not 0 < self.relative_step_size < math.inf:
            raise InputError(f"expected relative_step_size above 0, received {self.relative_step_size}")
        if self.norm not in BALLS:
            raise InputError(f"expected norm among {', '.join(BALLS)}; received {self.norm!r}")
        for name in ("steps", "eot_samples"):
            if not 1 <= getattr(self, name) <= MOST:
                raise InputError(f"expected {name} from 1 to {MOST}, received {getattr(self, name)}")

    def __call__(
        self, target: Target, images: tf.Tensor, labels: tf.Tensor, indices: tf.Tensor, seed: int | tf.Tensor
    ) -> tf.Tensor:
        """Adversarial images [B, H, W, channels], at most epsilon from `images` and in [0, 1].

        Args:
            target: the net.
            images: float32 [B, H, W, channels] in [0, 1].
            labels: whole numbers [B].
            indices: whole numbers [B], each example's number in its split; they decide the random starts.
            seed: whole number or int32[2].

        Raises:
            InputError: images that are NaN, Inf or out of [0, 1]; labels that are no class; a gradient that is NaN or
                Inf.
            RuntimeError: the result is not in the ball, which would be a bug.
        """
        check_objective(self.objective, target)
        images, labels, indices = tf.convert_to_tensor(images), np.asarray(labels), np.asarray(indices)
        check_inputs(images, labels, indices, target.num_classes)
        try:
            adversarial = _ascend(
                target,
                images,
                tf.constant(labels, tf.int64),
                tf.constant(indices, tf.int64),
                make_seed(seed),
                tf.constant(self.epsilon, tf.float32),
                tf.constant(self.relative_step_size * self.epsilon, tf.float32),
                tf.constant(self.steps),
                objective=self.objective,
                norm=self.norm,
                random_start=self.random_start,
                eot_samples=self.eot_samples,
            )
        except tf.errors.InvalidArgumentError as error:
            if "the attack's gradient" not in str(error):
                raise
            raise InputError("expected finite gradients, received NaN or Inf: the net's logits overflow") from None
        check_result(adversarial, images, self.norm, self.epsilon)
        return adversarial

    def zero_gradients(self, target: Target, images: tf.Tensor, labels: tf.Tensor, seed: int | tf.Tensor) -> tf.Tensor:
        """bool [B]: where this attack's gradient at `images` is exactly zero in every pixel, so that it cannot move."""
        check_objective(self.objective, target)
        return _zero_gradients(
            target,
            images,
            tf.convert_to_tensor(labels),
            make_seed(seed),
            objective=self.objective,
            draws=self.eot_samples,
        )


@tf.function(jit_compile=False)
def _zero_gradients(
    target: Target, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, *, objective: str, draws: int
) -> tf.Tensor:
    gradient = expected_gradient(target, images, labels, seed, objective=objective, draws=draws)
    return tf.reduce_all(gradient == 0, axis=[1, 2, 3])


@tf.function(jit_compile=False)
def _ascend(
    target: Target,
    images: tf.Tensor,
    labels: tf.Tensor,
    indices: tf.Tensor,
    seed: tf.Tensor,
    epsilon: tf.Tensor,
    step_size: tf.Tensor,
    steps: tf.Tensor,
    *,
    objective: str,
    norm: str,
    random_start: bool,
    eot_samples: int,
) -> tf.Tensor:
    """The loop, as one graph: traced once per target, shape, objective, norm and number of draws."""
    ball = BALLS[norm]
    adversarial = images
    if random_start:
        start = ball.random_start(fold_in(seed, 0), indices, images.shape[1:], epsilon)
        adversarial = tf.clip_by_value(images + start, 0.0, 1.0)
    for step in tf.range(steps):
        step_seed = fold_in(seed, 1, step)
        gradient = expected_gradient(target, adversarial, labels, step_seed, objective=objective, draws=eot_samples)
        moved = adversarial + step_size * ball.steepest_step(gradient)
        adversarial = tf.clip_by_value(images + ball.project(moved - images, epsilon), 0.0, 1.0)
    return adversarial


def expected_gradient(
    target: Target, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, *, objective: str, draws: int
) -> tf.Tensor:
    """Gradient of the objective's mean over draws, [B, H, W, channels]; for use inside a graph.

    A target whose draws cost passes gets them in parts of `draws_per_pass`, whose gradients are averaged.
    """
    if target.draws_per_pass is None or target.draws_per_pass >= draws:
        return _gradient(target, images, labels, seed, objective, draws)
    total = tf.zeros_like(images)
    for first in tf.range(0, draws, target.draws_per_pass):
        part = tf.minimum(target.draws_per_pass, draws - first)
        share = tf.cast(part, tf.float32) / draws
        total += share * _gradient(target.starting_at(first), images, labels, seed, objective, part)
    return total


def _gradient(
    target: Target, images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, objective: str, draws: int | tf.Tensor
) -> tf.Tensor:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(images)
        values = OBJECTIVES[objective](target, target.features(images), labels, seed, draws)
    return tf.debugging.check_numerics(tape.gradient(values, images), "the attack's gradient")
