"""Where attacks must end: on linear models the optimum is known, and the adaptive attacks are measured against it."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    EPSILON,
    NORMS,
    PIXEL_TOLERANCE,
    PIXELS,
    SHAPE,
    At,
    ascent_direction,
    build_attack,
    flatten,
    linear_target,
    normal,
    predictions,
    random_images,
    run,
    seeded_net,
    zero_gradients_of,
)

from wca_tf.attacks import parse_attack
from wca_tf.attacks.transfer import Transfer
from wca_tf.core.errors import InputError
from wca_tf.gaussian import margins
from wca_tf.gaussian.probability import probability_correct
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget


def never_lost(weights, count, radius, low, high):
    """Images and labels whose margins [B] are more than an attack of this reach on margins can take away."""
    images = np.clip(np.random.default_rng(15).uniform(low, high, (200, *SHAPE)), 0, 1).astype(np.float32)
    margins = images.reshape(200, -1) @ (weights[:, 0] - weights[:, 1])
    places = np.flatnonzero(np.abs(margins) > 1.1 * radius)
    zeros, ones = places[margins[places] > 0], places[margins[places] < 0]
    chosen = np.concatenate([zeros[: count // 2], ones[: count // 2]])
    assert len(chosen) == count
    return images[chosen], (margins[chosen] < 0).astype(np.int64)


def three_classes(weights):
    """A linear net whose third class is never near, which DLR needs; without noise."""
    third = np.zeros((PIXELS, 1), np.float32)
    return linear_target(np.concatenate([weights, third], axis=1), bias=np.array([0, 0, -1000], np.float32))


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
    "name",
    [
        *("z_margin:restarts=2", "adaptive:queries=60", "pgd_restarts:steps=25:restarts=2"),
        *("auto_rand:steps=10", "apgd_dlr:steps=10", "square:queries=400"),
    ],
)
def test_attacks_that_stop_at_success_reach_the_optimum_where_there_is_none(name):
    """Square: a right pixel is kept for good; of 349 proposals of a pixel and its sign, all of 12 kinds are made.

    One of the 6 right ones is missing with probability 6 (11/12)^349 < 1e-12 an image.
    """
    weights = normal(PIXELS, 2, seed=3)
    difference = weights[:, 1] - weights[:, 0]
    # Some pixels are at a wall.
    images, labels = never_lost(weights, 6, EPSILON * np.abs(difference).sum(), low=-0.3, high=1.3)
    adversarial = run(build_attack(name, EPSILON, eot_samples=4), three_classes(weights), images, labels)
    optimum = np.clip(images + EPSILON * np.sign(ascent_direction(weights, labels)), 0, 1)
    np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("pgd_restarts:steps=100:restarts=2", 0.9999),
        ("apgd_ce:steps=30", 0.9999),
        ("apgd_dlr:steps=30", 0.9999),
        ("square:queries=300", 0.6),  # its pattern has one form: on 2×3 pixels not every direction can be made of it
    ],
)
def test_l2_takes_most_of_the_margin_that_can_be_taken(name, share):
    """Where no image is lost and no wall is near. A share of 0.9999 is an angle of 0.8 degrees to the optimum."""
    weights = normal(PIXELS, 2, seed=3)
    difference = weights[:, 1] - weights[:, 0]
    images, labels = never_lost(weights, 6, EPSILON * np.linalg.norm(difference), low=0.2, high=0.8)
    attack = build_attack(f"{name}:norm=l2", EPSILON, eot_samples=4)
    adversarial = run(attack, three_classes(weights), images, labels)
    taken = np.sum((adversarial - images) * ascent_direction(weights, labels), axis=(1, 2, 3))
    most = EPSILON * np.linalg.norm(difference)
    assert np.all(taken > share * most) and np.all(taken < most * (1 + 1e-5))


@pytest.mark.parametrize("norm", NORMS)
def test_random_sampling_does_not_beat_the_optimum(norm):
    weights, images = normal(PIXELS, 2, seed=3), random_images(6, low=0.3, high=0.7)
    target = linear_target(weights, bias=0.0)
    labels = predictions(target, images)
    few, many = (
        run(build_attack(f"random_sampling:points={points}:norm={norm}", EPSILON), target, images, labels)
        for points in (3, 100)
    )
    direction = ascent_direction(weights, labels)
    taken = [np.sum((adversarial - images) * direction, axis=(1, 2, 3)) for adversarial in (few, many)]
    size = np.linalg.norm(weights[:, 1] - weights[:, 0], 1 if norm == "linf" else 2)
    assert np.all(taken[1] >= taken[0] - 1e-6) and np.any(taken[1] > taken[0])
    # Of uniform points: the mean of 100 would be 0, and half the optimum is 1.5 or 1.2 standard deviations away.
    assert np.all(taken[1] > 0.5 * EPSILON * size) and np.all(taken[1] < EPSILON * size)


def test_transfer_from_the_declared_net_without_noise():
    """Noise anywhere, on a net that says what it is without."""
    weights, images, labels = normal(PIXELS, 2, seed=3), random_images(4), np.array([0, 1, 0, 1])
    target = SampledTarget(
        lambda images, seed: flatten(images) @ weights + tf.random.stateless_normal([len(images), 2], seed),
        noise_free_logits=lambda images: flatten(images) @ weights,
    )
    optimum = np.clip(images + EPSILON * np.sign(ascent_direction(weights, labels)), 0, 1)
    np.testing.assert_allclose(
        run(At(Transfer(), EPSILON), target, images, labels), optimum, rtol=0, atol=PIXEL_TOLERANCE
    )


def test_transfer_from_a_net_of_other_images_is_one_line():
    weights = normal(PIXELS, 2, seed=3)
    source = linear_target(normal(2 * PIXELS, 2))
    with pytest.raises(InputError, match=r"a source that takes images \(2, 3, 1\)") as raised:
        run(At(Transfer(source=source), EPSILON), linear_target(weights), random_images(2), np.array([0, 1]))
    assert "\n" not in str(raised.value)


def test_an_error_inside_the_source_of_a_transfer_is_told():
    def broken(images, seed):
        raise ValueError("a fault of the source's own")

    with pytest.raises(InputError, match="source.*a fault of the source's own"):
        run(At(Transfer(source=SampledTarget(broken)), EPSILON), linear_target(normal(PIXELS, 2)), *one_image())


def test_a_source_of_transfer_that_returns_probabilities_is_refused():
    source = SampledTarget(lambda images, seed: tf.nn.softmax(flatten(images) @ normal(PIXELS, 2)))
    with pytest.raises(InputError, match="source of transfer: expected a net that returns logits"):
        run(At(Transfer(source=source), EPSILON), linear_target(normal(PIXELS, 2)), *one_image())


def test_an_error_inside_the_net_without_noise_is_not_laid_on_its_images():
    def broken(images):
        raise ValueError("a fault of the net's own")

    target = SampledTarget(seeded_net, noise_free_logits=broken)
    with pytest.raises(ValueError, match="a fault of the net's own"):
        run(At(Transfer(), EPSILON), target, *one_image())


def one_image():
    return random_images(1), np.array([0])


def test_transfer_is_the_attack_on_its_source():
    """Of another net's optimum nothing is known but that it is that net's; the default is the net without its noise."""
    weights, others = normal(PIXELS, 2, seed=3), normal(PIXELS, 2, seed=33)
    images, labels = random_images(4), np.array([0, 1, 0, 1])
    target, source = linear_target(weights, normal(2, 4)), linear_target(others)
    adversarial = run(At(Transfer(source=source), EPSILON), target, images, labels)
    optimum = np.clip(images + EPSILON * np.sign(ascent_direction(others, labels)), 0, 1)
    np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)
    with pytest.raises(InputError, match="transfer expects a source"):
        run(At(Transfer(), EPSILON), SampledTarget(seeded_net), images, labels)
    with pytest.raises(InputError, match="a source of 2 classes, received 3"):
        run(At(Transfer(source=linear_target(normal(PIXELS, 3))), EPSILON), target, images, labels)
    with pytest.raises(InputError, match="DIRECTORY|model|found"):
        parse_attack("transfer:source=/nonexistent")(target, images, labels, EPSILON)


def test_transfer_from_a_keras_model_is_transfer_from_its_target():
    weights, others = normal(PIXELS, 2, seed=3), normal(PIXELS, 2, seed=33)
    images, labels, target = random_images(4), np.array([0, 1, 0, 1]), linear_target(weights)
    source = keras.Sequential([keras.Input(images.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(2)])
    source.layers[-1].set_weights([others, np.zeros(2)])
    found = Transfer(source=source)(target, images, labels, EPSILON)
    expected = Transfer(source=linear_target(others))(target, images, labels, EPSILON)
    np.testing.assert_allclose(found.images, expected.images, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd:steps=200", "margin:steps=200", "z_margin:steps=200"])
def test_l2_reaches_the_optimum_far_from_the_walls(name):
    weights = normal(PIXELS, 2, seed=3)
    images = random_images(4, low=0.3, high=0.7).numpy()
    labels = np.array([0, 1, 0, 1])
    adversarial = run(build_attack(f"{name}:norm=l2", EPSILON), linear_target(weights, normal(2, 4)), images, labels)
    direction = ascent_direction(weights, labels)
    optimum = images + EPSILON * direction / np.linalg.norm(weights[:, 1] - weights[:, 0])
    np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)


# The adaptive attacks


@pytest.mark.parametrize("norm", NORMS)
def test_margins_shrink(norm):
    noisy_target, images = linear_target(normal(PIXELS, 5, seed=1), 0.3 * normal(5, 7, seed=2)), random_images(8)
    labels = predictions(noisy_target, images)

    def both(x):
        logits = noisy_target.noise_free_logits(flatten(x))
        return {
            "margin": margins.margin(logits, labels).numpy(),
            "z_margin": margins.z_margin(logits, labels, noisy_target.difference_scale(flatten(x))).numpy(),
        }

    for name in ("margin", "z_margin"):
        adversarial = run(build_attack(f"{name}:norm={norm}", EPSILON), noisy_target, images, labels)
        assert np.all(both(adversarial)[name] < both(images)[name])


@pytest.mark.parametrize("restarts", [1, 3])
def test_z_margin_without_noise_does_not_depend_on_the_scale_of_the_logits(restarts):
    """To the bit, for powers of two: its softness is in units of the margins' own spread."""
    inner, outer = tf.constant(normal(PIXELS, 8, seed=20)), tf.constant(normal(8, 6, seed=21))
    images = random_images(60)
    found = []
    for scale in (1.0, 1 / 8, 1 / 128):
        target = GaussianLogitsTarget(
            lambda x: tf.tanh(flatten(x) @ inner), lambda f, scale=scale: f @ (scale * outer), tf.zeros([6, 1])
        )
        labels = predictions(target, images)
        found.append(run(build_attack(f"z_margin:steps=10:restarts={restarts}", EPSILON), target, images, labels))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_z_margin_against_all_corners():
    """The smooth z-margin is concave on a linear model, so that its minimum over a box is at a corner."""
    weights, scale = normal(PIXELS, 3, seed=5), np.diag([0.2, 0.5, 3.0]).astype(np.float32)
    target = linear_target(weights, scale)
    images = random_images(40, seed=6, low=0.2, high=0.8)
    labels = tf.argmax(target.noise_free_logits(flatten(images)), axis=1)
    corners = EPSILON * np.array(list(itertools.product([-1, 1], repeat=PIXELS)), np.float32).reshape(-1, 1, *SHAPE)

    def measured(function, x):
        return function(target.noise_free_logits(flatten(x)), labels, target.difference_scale(flatten(x))).numpy()

    adversarial = run(build_attack("z_margin", EPSILON), target, images, labels)
    found = measured(margins.soft_z_margin, adversarial)
    best = np.stack([measured(margins.soft_z_margin, images + corner) for corner in corners]).min(axis=0)
    assert np.all(found >= best - 1e-4)
    # ValueAndGradient may end at the corner of the rival it met first; that is rare.
    assert np.mean(found < best + 1e-4) >= 0.9
    hard = measured(margins.z_margin, adversarial)
    hardest = np.stack([measured(margins.z_margin, images + corner) for corner in corners]).min(axis=0)
    assert np.mean(hard < hardest + 1e-4) >= 0.8


def probabilities(target, x, labels):
    mean = target.noise_free_logits(flatten(x)).numpy()
    return probability_correct(mean, np.asarray(labels), target.logit_scale.numpy(), tolerance=1e-3)[0]


def test_z_margin_is_the_strongest_for_two_classes():
    """P(correct) is then a growing function of the z-margin, image by image."""
    target = linear_target(normal(PIXELS, 2, seed=13), normal(2, 8, seed=12))
    images = random_images(100, seed=14)
    labels = tf.argmax(target.noise_free_logits(flatten(images)), axis=1)
    by_pgd = run(build_attack("pgd:steps=40", EPSILON), target, images, labels)
    by_z_margin = run(build_attack("z_margin", EPSILON), target, images, labels)
    left = probabilities(target, by_z_margin, labels)
    assert np.all(left <= probabilities(target, by_pgd, labels) + 1e-6)
    assert np.mean(left) < np.mean(probabilities(target, images, labels)) - 0.01


@pytest.mark.parametrize("seed", range(4))
def test_z_margin_moves_where_cross_entropy_saturates(seed):
    """Large logits, five classes, equal steps: the z-margin leaves a lower mean P(correct).

    Not so for every net: where the noise is as large as the margins, several rivals share the errors, and the mean over
    draws of the cross-entropy, which sees them all, can leave a lower P(correct) than the nearest rival's z-margin.
    """
    target = linear_target(300 * normal(PIXELS, 5, seed=seed), 3 * normal(5, 8, seed=100 + seed))
    images = random_images(100, seed=200 + seed)
    labels = tf.argmax(target.noise_free_logits(flatten(images)), axis=1)
    pgd = build_attack("pgd:steps=40", EPSILON)
    assert np.mean(zero_gradients_of(pgd, target, images, labels)) > 0.2
    by_pgd = run(pgd, target, images, labels)
    by_z_margin = run(build_attack("z_margin", EPSILON), target, images, labels)
    left = np.mean(probabilities(target, by_z_margin, labels))
    assert left < np.mean(probabilities(target, by_pgd, labels)) - 0.02
