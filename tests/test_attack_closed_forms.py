"""Where attacks must end: on linear models the optimum is known, and the adaptive attacks are measured against it."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    EPSILON,
    NORMS,
    PIXEL_TOLERANCE,
    PIXELS,
    SHAPE,
    ascent_direction,
    flatten,
    linear_target,
    normal,
    predictions,
    random_images,
    run,
)

from wca_tf import alignment
from wca_tf.attacks import build_attack
from wca_tf.attacks.target import RandomNetTarget
from wca_tf.orthant import probability_correct
from wca_tf.seeds import fold_in, make_seed

# A third class never near, which DLR needs.
NEVER = -1000.0


def with_a_class_never_near(weights):
    return np.concatenate([weights, np.zeros((PIXELS, 1), np.float32)], axis=1), np.array([0, 0, NEVER], np.float32)


# Two linear classes


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd:steps=25", "margin", "z_margin", "transfer", "apgd_ce:steps=10"])
def test_two_linear_classes_reach_the_optimum(name):
    weights = normal(PIXELS, 2, seed=3)
    images = random_images(6).numpy()
    images[0], images[1] = 0.0, 1.0  # the walls of [0, 1] bind
    labels = np.array([0, 1, 0, 1, 0, 1])
    target = linear_target(weights, normal(2, 4, seed=4))
    adversarial = run(build_attack(name, EPSILON), target, images, labels)
    optimum = np.clip(images + EPSILON * np.sign(ascent_direction(weights, labels)), 0, 1)
    np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize(
    "name", ["pgd_restarts:steps=25:restarts=2", "auto_rand:steps=10", "apgd_dlr:steps=10", "square:queries=400"]
)
def test_attacks_that_stop_at_success_reach_the_optimum(name):
    """At images that are far from lost: half a million draws in their favour by a bias of 100.

    Square: a proposal is one of 6 pixels and a sign, each right one is kept for good, and of 345 proposals of single
    pixels none is of a given kind with probability (11/12)**345 < 1e-12.
    """
    weights, bias = with_a_class_never_near(normal(PIXELS, 2, seed=3))
    images = random_images(6).numpy()
    images[0], images[1] = 0.0, 1.0
    for label in (0, 1):
        favour = bias + 100 * np.eye(3, dtype=np.float32)[label]
        target = linear_target(weights, normal(3, 4, seed=4), favour)
        adversarial = run(build_attack(name, EPSILON, eot_samples=4), target, images, np.full(6, label))
        if name.startswith(("pgd_restarts", "auto_rand")):  # cross-entropy saturates there: what it finds is chance
            continue
        optimum = np.clip(images + EPSILON * np.sign(ascent_direction(weights, np.full(6, label))), 0, 1)
        np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd:steps=200", "margin:steps=200", "z_margin:steps=200"])
def test_l2_reaches_the_optimum_far_from_the_walls(name):
    weights = normal(PIXELS, 2, seed=3)
    images = random_images(4, low=0.3, high=0.7).numpy()
    labels = np.array([0, 1, 0, 1])
    adversarial = run(build_attack(f"{name}:norm=l2", EPSILON), linear_target(weights, normal(2, 4)), images, labels)
    direction = ascent_direction(weights, labels)
    optimum = images + EPSILON * direction / np.linalg.norm(weights[:, 1] - weights[:, 0])
    np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)
