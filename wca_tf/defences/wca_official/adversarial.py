"""Adversarial training of the authors' code, where it differs from the paper's (paper, section 4.4)."""

import dataclasses
from typing import Any

import tensorflow as tf

from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.nets.targets import AnyTarget, GaussianLogitsTarget

OFFICIAL_EPSILON, OFFICIAL_STEP = 0.03, 0.01  # for every data set


@dataclasses.dataclass(frozen=True)
class OfficialAdversarialTraining(AdversarialTraining):
    """Adversarial training as in the authors' code: the attacked net gets images that are not normalised.

    The net gets such images at no other time.
    """

    def target(self, model: Any) -> AnyTarget:
        noisy = bool(model.noise)
        return GaussianLogitsTarget(model.normalised_features, model.logits_of, lambda: model.logit_scale, noisy)


@dataclasses.dataclass(frozen=True)
class OfficialProjectedGradient(ProjectedGradient):
    """The authors' PGD: it never clears its gradient, and steps along the sign of the sum of all gradients so far."""

    def direction(self, previous: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        return previous + gradient


def official_adversary(mixed: bool) -> OfficialAdversarialTraining:
    """Return adversarial training by PGD with epsilon 0.03, steps of 0.01 and one draw.

    The authors average over draws that are all equal, which is the same as one draw.
    """
    attack = OfficialProjectedGradient(relative_step_size=OFFICIAL_STEP / OFFICIAL_EPSILON, eot_samples=1)
    return OfficialAdversarialTraining(attack, OFFICIAL_EPSILON, mixed)
