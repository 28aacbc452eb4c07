"""The objectives that attacks maximise: one number per image, larger where the net is nearer to an error.

Each objective is a function (target, features, logits [S, B, C], batch) -> [B]. It is a mean over the S draws, or uses
no draws. The mean of an objective over parts of the draws is therefore the objective over all draws. A targeted attack
maximises the negative of the untargeted objective at the wanted class. DLR has another formula when targeted, the
bounded margin changes the sign inside its sigmoid, and ln P(error) has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import tf
from wca_tf.core.seeds import Purpose, fold_in, make_seed, uniform_by_index
from wca_tf.gaussian import margins
from wca_tf.gaussian.log_error import log_error_probability
from wca_tf.nets.batch import Batch
from wca_tf.nets.function_net import NO_GRADIENT
from wca_tf.nets.mixture_target import mean_of_draws
from wca_tf.nets.targets import GaussianLogitsTarget, Target, has_gradient, is_gaussian

# Objectives need targets of different types: `check_objective` says which target has which objective.
Objective = Callable[..., Any]
SHARPNESS = 3.0  # of the bounded margin, for attacks that do not change it
_SMALLEST_SPREAD = 1e-12  # of the logits: DLR divides by it
_SMALLEST_UNIT = 0.01  # of the bounded margin, as a share of the spread of a draw's logits


def expected_cross_entropy(target: Target, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return the mean over draws of the cross-entropy: the paper's Expectation over Transformation (section 4.1)."""
    sign, classes = _goal(batch)
    repeated = tf.repeat(classes[tf.newaxis], tf.shape(logits)[0], axis=0)
    return sign * mean_of_draws(target, tf.nn.sparse_softmax_cross_entropy_with_logits(repeated, logits))


def exact_cross_entropy(target: Target, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return the mean over draws of ln(1 + Σ_j≠y exp(h_j − h_y)): cross-entropy, computed so that float32 keeps it.

    `expected_cross_entropy` computes softmax_y − 1, which float32 rounds to 0 where the label leads by 17 logits. Here
    the value and the gradient reach 0 at a lead of about 80.
    """
    sign, classes = _goal(batch)
    is_class = tf.one_hot(classes, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    own = tf.reduce_sum(tf.where(is_class, logits, 0.0), axis=-1, keepdims=True)
    others = tf.where(is_class, -math.inf, logits - own)
    return sign * mean_of_draws(target, tf.nn.softplus(tf.reduce_logsumexp(others, axis=-1)))


def negative_expected_margin(target: Target, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return −mean over draws of min_j (h_y − h_j): the difference of logits of Carlini & Wagner, under EoT."""
    sign, classes = _goal(batch)
    return -sign * mean_of_draws(target, margins.margin(logits, classes))


def bounded_margin(target: Target, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return the mean over draws of σ(−margin / unit), in (0, 1): a smooth share of the draws in which the net errs.

    What is judged is 0 or 1 in each draw. A mean over draws of an unbounded score follows the draws with the largest
    logits, and goes on gaining from draws that err already. `margin_units` gives the unit of each draw.
    """
    sign, classes = _goal(batch)
    units = tf.transpose(batch.units)
    # σ of the negative keeps its gradient in float32 where the attack is far from its goal; 1 − σ would lose it.
    return mean_of_draws(target, tf.sigmoid(-sign * margins.margin(logits, classes) / units))


def margin_units(logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return |margin| of logits [S, B, C], [B, S]: the unit of the bounded margin in each draw.

    A margin below 0.01 of the spread of its draw's logits counts as 0.01 of the spread.
    """
    spread = tf.reduce_max(logits, axis=-1) - tf.reduce_min(logits, axis=-1)
    size = tf.maximum(tf.abs(margins.margin(logits, _goal(batch)[1])), _SMALLEST_UNIT * spread)
    return tf.stop_gradient(tf.transpose(tf.maximum(size, _SMALLEST_SPREAD)))


def negative_margin(target: Target, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return −min_j (mu_y − mu_j), noise-free for Gaussian logits, else the mean over draws. It never saturates."""
    if not is_gaussian(target):
        return negative_expected_margin(target, features, logits, batch)
    sign, classes = _goal(batch)
    return -sign * margins.margin(target.noise_free_logits(features), classes)


def negative_z_margin(target: GaussianLogitsTarget, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return −z-margin, smooth over the classes: the ratio of Theorem 1, which knows the noise and does not saturate.

    Its steps are stronger than the steps of the hard minimum, whose nearest other class changes from step to step.
    """
    sign, classes = _goal(batch)
    return -sign * margins.soft_z_margin(target.noise_free_logits(features), classes, target.difference_scale(features))


def difference_of_logits_ratio(target: Target, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return DLR (Croce & Hein, ICML 2020), mean over draws: −(z_y − max_j≠y z_j) / (z_π1 − z_π3).

    z_π1, z_π2, ... are the logits from the largest down. Targeted: −(z_y − z_t) / (z_π1 − (z_π3 + z_π4)/2). Unlike
    cross-entropy, DLR does not change with the scale of the logits.
    """
    ordered = tf.sort(logits, axis=-1, direction="DESCENDING")
    if batch.targets is None:
        difference, spread = margins.margin(logits, batch.labels), ordered[..., 0] - ordered[..., 2]
    else:
        wanted = tf.reduce_sum(logits * tf.one_hot(batch.targets, logits.shape[-1]), axis=-1)
        label = tf.reduce_sum(logits * tf.one_hot(batch.labels, logits.shape[-1]), axis=-1)
        difference, spread = label - wanted, ordered[..., 0] - (ordered[..., 2] + ordered[..., 3]) / 2
    # No sum: TensorFlow's graphs reorder `a - b + 1e-12`, and the 1e-12 is lost.
    return -mean_of_draws(target, difference / tf.maximum(spread, _SMALLEST_SPREAD))


def log_error(target: GaussianLogitsTarget, features: tf.Tensor, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return ln P(error), over all draws and classes: the logarithm of what the evaluation measures."""
    noise_free = target.noise_free_logits(features)
    return tf.cast(log_error_probability(noise_free, batch.labels, target.scale_of(features)), noise_free.dtype)


OBJECTIVES: dict[str, Objective] = {
    "ce": expected_cross_entropy,
    "ce_exact": exact_cross_entropy,
    "expected_margin": negative_expected_margin,
    "bounded": bounded_margin,
    "margin": negative_margin,
    "z_margin": negative_z_margin,
    "dlr": difference_of_logits_ratio,
    "log_error": log_error,
}


def check_objective(objective: str, target: Target, images: tf.Tensor, targeted: bool = False) -> None:
    """Raise InputError when the target does not have the objective. For use before a graph is traced."""
    if objective not in OBJECTIVES:
        raise InputError(f"expected an objective among {', '.join(OBJECTIVES)}; received {objective!r}")
    if not has_gradient(target):
        raise InputError(NO_GRADIENT)
    if objective == "z_margin" and not is_gaussian(target):
        raise InputError("z_margin expects a net whose noise enters behind its features; use margin or ce")
    if objective == "log_error" and (targeted or not is_gaussian(target) or not target.has_noise):
        raise InputError("log_error expects noise behind the features and no target class; use z_margin or margin")
    if objective == "dlr":
        least, classes = (4 if targeted else 3), num_classes_of(target, images)
        if classes < least:
            kind = "targeted dlr" if targeted else "dlr"
            raise InputError(f"{kind} expects {least} classes or more, received {classes}; use ce or margin")


def num_classes_of(target: Target, images: tf.Tensor) -> int:
    """Return C; a target that does not know C yet gets it from the logits of an image."""
    if target.num_classes is None:
        target.num_classes = int(target.logits(target.features(images[:1]), make_seed(0), 1).shape[-1])
    return target.num_classes


def _goal(batch: Batch) -> tuple[float, tf.Tensor]:
    """Return (1, label) to move away from the label, or (−1, target) to move towards the target."""
    return (1.0, batch.labels) if batch.targets is None else (-1.0, batch.targets)


def score_logits(target: Target, logits: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (share of draws [B] where the attack fails, mean margin [B] by which it fails), from logits [S, B, C]."""
    logits = tf.debugging.check_numerics(logits, "the attack's logits")
    sign, classes = _goal(batch)
    is_class = tf.cast(tf.argmax(logits, axis=-1) == classes, tf.float32)
    p_fails = is_class if batch.targets is None else 1 - is_class
    margin = mean_of_draws(target, margins.margin(logits, classes))
    return mean_of_draws(target, p_fails), sign * margin


def other_classes(labels: tf.Tensor, indices: tf.Tensor, num_classes: int, seed: tf.Tensor) -> tf.Tensor:
    """Return a class other than the label for each image, at random by the seed and the image's index."""
    uniform = uniform_by_index(fold_in(seed, Purpose.WANTED_CLASS), indices, (1,))[:, 0]
    offset = 1 + tf.cast(uniform * (num_classes - 1), labels.dtype)
    return (labels + offset) % num_classes
