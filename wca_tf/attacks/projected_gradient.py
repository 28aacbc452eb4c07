"""Projected gradient ascent: FGSM, BIM, PGD, and the adaptive margin attacks, in one loop.

FGSM (Goodfellow et al., ICLR 2015) is one step of size epsilon. BIM (Kurakin et al., ICLR 2017) takes several smaller
steps. PGD (Madry et al., ICLR 2018) starts at random in the ball. EoT (Athalye et al., ICML 2018) is in the objective.
"""

import math

import tensorflow as tf

from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.batch import Batch
from wca_tf.attacks.gradient_attacks import ProjectedGradient
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.core.seeds import fold_in
from wca_tf.nets.targets import Target, is_gaussian

RANKING_DRAWS = 8  # that decide the order of classes to aim at


def projected_gradient(
    attack: ProjectedGradient, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Return images after steps of steepest ascent, each projected to the ball and to [0, 1]. Runs inside a graph.

    The arguments but the first are those of `Attack.perturb`.
    """
    ball = BALLS[attack.norm]
    adversarial = batch.images
    if attack.random_start:
        start = ball.random_start(fold_in(seed, 0), batch.indices, adversarial.shape[1:], epsilon)
        adversarial = tf.clip_by_value(batch.images + start, 0.0, 1.0)
    first, direction = adversarial, tf.zeros_like(adversarial)
    for step in tf.range(attack.steps):
        step_seed, step_size, sharpness = fold_in(seed, 1, step), *attack.schedule(step)
        gradient = expected_gradient(
            target,
            adversarial,
            batch,
            step_seed,
            objective=attack.objective,
            draws=attack.eot_samples,
            start=first,
            sharpness=sharpness,
        ).gradient
        direction = attack.direction(direction, gradient)
        moved = adversarial + step_size * epsilon * ball.steepest_step(direction)
        adversarial = tf.clip_by_value(batch.images + ball.project(moved - batch.images, epsilon), 0.0, 1.0)
    return adversarial


def likeliest_rivals(target: Target, batch: Batch, seed: tf.Tensor) -> tf.Tensor:
    """Return the classes other than the label of each image, int64 [B, C − 1], the largest logit first.

    The logits are those of the unperturbed images without noise; of a net with noise anywhere, the mean of a few draws.
    """
    features = target.features(batch.images)
    if is_gaussian(target):
        logits = target.noise_free_logits(features)
    else:
        logits = tf.reduce_mean(target.logits(features, seed, RANKING_DRAWS, batch.indices), axis=0)
    is_label = tf.one_hot(batch.labels, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    order = tf.argsort(tf.where(is_label, -tf.constant(math.inf, logits.dtype), logits), direction="DESCENDING")
    return tf.cast(order[:, :-1], tf.int64)
