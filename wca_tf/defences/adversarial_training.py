"""Adversarial training: each step's images are attacked first, with EoT over the noise (paper, section 4.4).

Where noise enters in the head, all draws of a step share one pass of the backbone. The cost of k steps is then k + 1
passes, as in adversarial training of the undefended net. With noise anywhere else, each draw of each step is a pass:
`--adversarial_attack=pgd:eot_samples=1` is affordable there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from wca_tf.attacks.attack import BallAttack
from wca_tf.core.lazily import keras, tf
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.distribution.replicas import first_row
from wca_tf.nets.batch import Batch
from wca_tf.nets.targets import AnyTarget, has_noise


@dataclasses.dataclass(frozen=True)
class AdversarialTraining:
    """An attack inside `StochasticClassifier.train_step`, on the net as it is in evaluation (batch statistics fixed).

    Attributes:
        attack: the attack on the net of the step; its random start and draws follow from the net's seed and the step.
        epsilon: the attack's radius.
        mixed: whether to train on the clean images too, in equal parts (CT+AT), or on the attacked images alone (AT).
    """

    attack: BallAttack
    epsilon: float
    mixed: bool

    def __call__(
        self, model: Any, images: tf.Tensor, labels: tf.Tensor, sample_weight: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Return (images, labels, sample_weight) to train on, [B, ...], or [2B, ...] when mixed; inside a graph."""
        images = tf.cast(images, tf.float32)
        rows = tf.shape(images)[0]
        indices = tf.cast(first_row(rows) + tf.range(rows), tf.int64)  # rows of the global batch
        batch = Batch(images, tf.cast(tf.reshape(labels, [-1]), tf.int64), indices)
        seed = fold_in(make_seed(model.seed), Purpose.ADVERSARY, model.optimizer.iterations)
        target = self.target(model)
        attack = self.attack if has_noise(target) else dataclasses.replace(self.attack, eot_samples=1)
        # Keras traces training steps without AutoGraph, which the attack's loop needs.
        perturb = tf.function(attack.perturb, jit_compile=False)
        made = perturb(target, batch, tf.constant(self.epsilon, tf.float32), seed)
        adversarial = made[0] if isinstance(made, tuple) else made
        adversarial = tf.stop_gradient(tf.ensure_shape(adversarial, images.shape))
        if not self.mixed:
            return adversarial, labels, sample_weight
        # Each image is next to its attacked copy, so that a replica's rows are its rows of the global batch.
        both = tf.reshape(tf.stack([images, adversarial], axis=1), tf.concat([[2 * rows], tf.shape(images)[1:]], 0))
        labels, weight = (None if v is None else tf.repeat(v, 2, axis=0) for v in (labels, sample_weight))
        return tf.ensure_shape(both, [None, *images.shape[1:]]), labels, weight

    def target(self, model: keras.Model) -> AnyTarget:
        """Return the net as the attack sees it."""
        return model.target()
