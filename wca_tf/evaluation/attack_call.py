"""The call of an attack on a model. This module brings attacks, models and the judge together."""

from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks.attack import Attack, AttackResult
from wca_tf.attacks.run import perturbed
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import as_arrays
from wca_tf.evaluation.judging import judge
from wca_tf.nets.keras_target import as_target
from wca_tf.runs.transfer_source import with_source

JUDGING = 6  # folded into the seed of the call, so that the attack does not see the draws that judge


def attack_and_judge(
    attack: Attack,
    model: Any,
    images: Any,
    labels: Any,
    epsilon: Any,
    indices: Any,
    seed: Any,
    targets: Any,
) -> AttackResult:
    """Return the result of `Attack.__call__`, which describes the arguments."""
    images, labels = as_arrays(images, labels)
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise InputError(f"expected uint8 images, or float images in [0, 1], received {images.dtype}")
        images = images.astype(np.float32)
    target = as_target(model, images.shape[1:])
    images = to_float(tf.constant(images))
    indices = np.arange(len(images)) if indices is None else indices
    made = perturbed(with_source(attack), target, images, labels, epsilon, indices, seed, targets)
    found, generations = made.told.get("found"), made.told.get("generations")
    if len(images) == 0:
        return AttackResult(made.images.numpy(), np.zeros(0), np.zeros(0, bool), found, generations)

    own = fold_in(make_seed(seed), JUDGING)

    def probability(classes: Any) -> np.ndarray:
        return judge(target, made.images, tf.constant(classes), tf.constant(indices), own).probability_correct

    correct = probability(labels)
    success = correct < 0.5 if targets is None else probability(np.asarray(targets)) > 0.5
    return AttackResult(
        made.images.numpy(), correct, success, None if found is None else found.astype(bool), generations
    )
