"""Adversarial training: each step's images are attacked first, with EoT over the noise in the head (paper, 4.4).

All draws of a step share one pass of the backbone, so that this costs what adversarial training of the undefended net
costs: k + 1 passes.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from wca_tf.attacks.batch import Batch
from wca_tf.attacks.declarations import ProjectedGradient
from wca_tf.attacks.projected_gradient import projected_gradient
from wca_tf.classifier import StochasticClassifier
from wca_tf.distribution.replicas import first_row
from wca_tf.seeds import fold_in, make_seed
from wca_tf.targets import AnyTarget, HeadNoiseTarget, Target, has_noise

OFFICIAL_EPSILON, OFFICIAL_STEP = 0.03, 0.01  # the authors', for every data set


@dataclasses.dataclass(frozen=True)
class AdversarialTraining:
    """PGD inside `StochasticClassifier.train_step`, on the net as it is in evaluation (batch statistics fixed).

    Attributes:
        attack: made against the net of the step; its random start and draws follow from the net's seed and the step.
        epsilon: its radius.
        mixed: train on the clean images too, in equal parts (CT+AT); else on the attacked ones alone (AT).
    """

    attack: ProjectedGradient
    epsilon: float
    mixed: bool

    def __call__(
        self, model: Any, images: tf.Tensor, labels: tf.Tensor, sample_weight: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """(images, labels, sample_weight) to train on: [B, ...], or [2B, ...] when mixed; inside a graph."""
        images = tf.cast(images, tf.float32)
        rows = tf.shape(images)[0]
        indices = tf.cast(first_row(rows) + tf.range(rows), tf.int64)  # rows of the global batch
        batch = Batch(images, tf.cast(tf.reshape(labels, [-1]), tf.int64), indices)
        seed = fold_in(make_seed(model.seed), 2, model.optimizer.iterations)
        target = self.target(model)
        attack = self.attack if has_noise(target) else dataclasses.replace(self.attack, eot_samples=1)
        # Keras traces training steps without AutoGraph, which the attack's loop needs.
        perturb = tf.function(attack.perturb, jit_compile=False)
        adversarial = perturb(target, batch, tf.constant(self.epsilon, tf.float32), seed)
        adversarial = tf.stop_gradient(tf.ensure_shape(adversarial, images.shape))
        if not self.mixed:
            return adversarial, labels, sample_weight
        # Each image beside its attacked one: a replica's rows are then those it has in the global batch.
        both = tf.reshape(tf.stack([images, adversarial], axis=1), tf.concat([[2 * rows], tf.shape(images)[1:]], 0))
        labels, weight = (None if v is None else tf.repeat(v, 2, axis=0) for v in (labels, sample_weight))
        return tf.ensure_shape(both, [None, *images.shape[1:]]), labels, weight

    def target(self, model: StochasticClassifier) -> AnyTarget:
        """What the attack sees of the net."""
        return model.target()


@dataclasses.dataclass(frozen=True)
class OfficialAdversarialTraining(AdversarialTraining):
    """As in the authors' code: the attacked net gets images that are not normalised, as it never does otherwise."""

    def target(self, model: Any) -> AnyTarget:
        noisy = bool(model.noise)
        return HeadNoiseTarget(model.normalised_features, model.classifier, lambda: model.logit_scale, noisy)


@dataclasses.dataclass(frozen=True)
class OfficialProjectedGradient(ProjectedGradient):
    """The authors' PGD: it never clears its gradient, and steps along the sign of the sum of all so far."""

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return projected_gradient(self, target, batch, epsilon, seed, sum_gradients=True)


def adversary(name: str, epsilon: float, compat: str) -> AdversarialTraining | None:
    """The adversary of a training run: PGD with k = 10 steps of epsilon/10 and EoT-50 (paper, 4.4).

    The authors' code has epsilon 0.03 and steps of 0.01 for every data set, and an average over equal draws, which is
    one draw.

    Args:
        name: "none", "at" or "ct_at".
        epsilon: the attack's radius; the authors' code does not ask.
        compat: "paper" or "official".
    """
    if name == "none":
        return None
    if compat == "official":
        step = OFFICIAL_STEP / OFFICIAL_EPSILON
        attack = OfficialProjectedGradient(relative_step_size=step, eot_samples=1)
        return OfficialAdversarialTraining(attack, OFFICIAL_EPSILON, name == "ct_at")
    return AdversarialTraining(ProjectedGradient(), epsilon, name == "ct_at")
