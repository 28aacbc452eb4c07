"""What an attack maximises: one number per image, larger where the net is nearer to an error.

Each objective is a function (target, features, labels, seed, draws) -> [B]. Those of random nets are means over draws,
so that the gradient of a mean over parts of the draws is the mean of the parts' gradients.
"""

from collections.abc import Callable

import tensorflow as tf

from wca_tf import alignment
from wca_tf.attacks.target import HeadNoiseTarget, Target
from wca_tf.errors import InputError

# The target's type is each objective's own: `check_objective` says who can give what.
Objective = Callable[..., tf.Tensor]


def expected_cross_entropy(
    target: Target, features: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor
) -> tf.Tensor:
    """Mean over draws of the cross-entropy: the paper's Expectation over Transformation (section 4.1)."""
    logits = target.logits(features, seed, draws)
    repeated = tf.repeat(labels[tf.newaxis], tf.shape(logits)[0], axis=0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(repeated, logits), axis=0)


def negative_margin(
    target: Target, features: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor
) -> tf.Tensor:
    """−min_j (mu_y − mu_j), noise-free where the target allows, else the mean over draws. It never saturates."""
    if isinstance(target, HeadNoiseTarget):
        return -alignment.margin(target.noise_free_logits(features), labels)
    return tf.reduce_mean(-alignment.margin(target.logits(features, seed, draws), labels), axis=0)


def negative_z_margin(
    target: HeadNoiseTarget, features: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, draws: int | tf.Tensor
) -> tf.Tensor:
    """−z-margin, smooth over rivals: Theorem 1's ratio, which knows the noise and does not saturate.

    Its steps are stronger than those of the hard minimum, whose nearest rival changes from step to step.
    """
    return -alignment.soft_z_margin(target.noise_free_logits(features), labels, target.difference_scale)


OBJECTIVES: dict[str, Objective] = {
    "ce": expected_cross_entropy,
    "margin": negative_margin,
    "z_margin": negative_z_margin,
}


def check_objective(objective: str, target: Target) -> None:
    """Raise InputError when the target cannot give what the objective needs; for use before a graph is traced."""
    if objective not in OBJECTIVES:
        raise InputError(f"expected an objective among {', '.join(OBJECTIVES)}; received {objective!r}")
    if objective == "z_margin" and not isinstance(target, HeadNoiseTarget):
        raise InputError("z_margin expects a net whose noise enters behind its features; use margin or ce")
