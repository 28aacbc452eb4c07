"""Carlini & Wagner: the distance to the boundary of a linear net, the confidence, and images without an answer."""

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    PIXELS,
    ascent_direction,
    linear_target,
    normal,
    perturbations,
    predictions,
    random_images,
    run,
    seeded_net,
    tanh_target,
)

from wca_tf.attacks.carlini_wagner import CarliniWagner
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.gaussian.margins import margin as margin_of
from wca_tf.nets.sampled_target import SampledTarget

WEIGHTS = 4 * normal(PIXELS, 2, seed=60)
DIFFERENCE = WEIGHTS[:, 1] - WEIGHTS[:, 0]


def two_classes():
    """Images far from walls, with margins between 0.2 and 1; the classes meet at one half."""
    bias = np.array([0, -0.5 * DIFFERENCE.sum()], np.float32)
    target = linear_target(WEIGHTS, bias=bias)
    images = random_images(300, seed=61, low=0.4, high=0.6)
    size = np.abs(np.asarray(target.noise_free_logits(tf.reshape(images, [-1, PIXELS]))) @ [1, -1])
    images = tf.gather(images, np.flatnonzero((size > 0.2) & (size < 1))[:6])
    return target, images, predictions(target, images)


def margins(target, images, labels):
    logits = target.noise_free_logits(target.features(tf.convert_to_tensor(images)))
    return margin_of(logits, labels).numpy()


def attack(**changes):
    """Faster than the paper's learning rate, and with a first constant nearer to the answer."""
    return CarliniWagner(**{"steps": 400, "learning_rate": 5e-3, "initial_constant": 0.01, "eot_samples": 4, **changes})


@pytest.mark.parametrize("confidence", [0.0, 1.0, 5.0])
def test_distance_to_a_linear_boundary(confidence):
    """(margin + κ) / ‖w₁ − w₀‖, straight ahead, and never less than it by more than rounding.

    More than it by what Adam's last steps leave: a step is 0.005 in tanh space, or 0.0025 per pixel at most, which it
    takes ever smaller; half of one step in six pixels is 0.003.
    """
    target, images, labels = two_classes()
    adversarial = run(attack(confidence=confidence), target, images, labels)
    distances = np.linalg.norm(perturbations(adversarial, images), axis=1)
    expected = (margins(target, images, labels) + confidence) / np.linalg.norm(DIFFERENCE)
    optimum = images + expected[:, None, None, None] * ascent_direction(WEIGHTS, labels) / np.linalg.norm(DIFFERENCE)
    assert np.all((optimum > 0.05) & (optimum < 0.95))  # no wall is near
    assert np.all(distances >= expected - 1e-5) and np.all(distances <= expected + 0.003)
    assert np.all(margins(target, adversarial, labels) < -confidence + 1e-5)


@pytest.mark.parametrize("confidence", [0.0, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("targeted", [False, True])
def test_the_confidence_is_enforced(confidence, targeted):
    """On the draws of the attack, an image that changed has the margin that was asked for.

    Those that did not change have not, but for those that had it from the start.
    """
    target, images = tanh_target(seed=63, scale=0.5), random_images(20)
    labels = predictions(target, images)
    targets = (labels + 1) % 4 if targeted else None
    found = run(
        attack(confidence=confidence, targeted=targeted, steps=150, learning_rate=0.02),
        target,
        images,
        labels,
        5,
        None,
        targets,
    )
    sign, classes = (-1, targets) if targeted else (1, labels)

    def mean_margin(images):
        logits = target.logits(target.features(images), fold_in(make_seed(5), 0), 4, tf.range(20))
        return sign * tf.reduce_mean(margin_of(logits, tf.repeat(classes[None], 4, axis=0)), axis=0).numpy()

    margin, had_it = mean_margin(found), mean_margin(images) <= -confidence
    changed = np.any(found != images, axis=(1, 2, 3))
    assert np.all(margin[changed] <= -confidence + 1e-5)  # rounding of logits of size 3
    assert changed.any()
    assert not changed[had_it].any()
    assert np.all(margin[~changed & ~had_it] > -confidence - 1e-5)


def test_more_confidence_is_farther():
    target, images, labels = two_classes()
    distances = [
        np.linalg.norm(perturbations(run(attack(confidence=confidence), target, images, labels), images), axis=1)
        for confidence in (0.0, 1.0, 5.0)
    ]
    assert np.all(np.diff(distances, axis=0) > 0.9 * np.diff([0, 1, 5])[:, None] / np.linalg.norm(DIFFERENCE))


def test_images_already_wrong_stay():
    """To the bit, though the way to tanh space and back moves black and white pixels by up to half a millionth."""
    target, images, labels = two_classes()
    images = tf.concat([images, random_images(4).numpy().round()], axis=0)
    wrong = 1 - predictions(target, images)
    sure = np.minimum(-margins(target, images, wrong), 0.5).min() * 0.9
    for confidence in (0.0, sure):
        made = attack(confidence=confidence, steps=30)
        result = made.run(target, images, wrong, 0.0, np.arange(len(images)), 0)
        np.testing.assert_array_equal(result.images, images)
        assert result.extras["found"].all()  # at distance 0, which is no failure


def test_images_without_an_answer_come_back_unchanged():
    """To the bit: no image in [0, 1] gets the other class; but others in the batch do."""
    far = np.array([[0.0, -100.0]], np.float32)
    unreachable = linear_target(WEIGHTS, bias=far)
    images = tf.concat([random_images(4), random_images(2).numpy().round()], axis=0)
    nothing = attack(steps=50).run(unreachable, images, np.zeros(6, np.int64), 0.0, np.arange(6), 0)
    np.testing.assert_array_equal(nothing.images, images)
    assert nothing.extras["found"].tolist() == [False] * 6
    target, images, labels = two_classes()
    most = np.abs(DIFFERENCE).sum()
    adversarial = run(attack(steps=50, confidence=float(most)), target, images, labels)
    np.testing.assert_array_equal(adversarial, images)


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_under_noise_the_boundary_is_of_the_mean_of_the_draws(confidence):
    """They are the same in every step: the seed's, folded with 0."""
    still, images, labels = two_classes()
    bias = still.noise_free_logits(tf.zeros([1, PIXELS]))
    target = linear_target(WEIGHTS, 0.4 * normal(2, 3, seed=62), bias)
    adversarial = run(attack(confidence=confidence, eot_samples=16), target, images, labels, seed=9)
    logits = target.logits(target.features(images), fold_in(make_seed(9), 0), 16, tf.range(len(images))).numpy()
    mean = logits.mean(axis=0) @ [1, -1] * np.where(labels == 0, 1, -1)
    expected = np.maximum(mean + confidence, 0) / np.linalg.norm(DIFFERENCE)
    distances = np.linalg.norm(perturbations(adversarial, images), axis=1)
    assert np.all(distances >= expected - 1e-5) and np.all(distances <= expected + 0.003)


def test_z_margins_count_in_deviations():
    still, images, labels = two_classes()
    bias = still.noise_free_logits(tf.zeros([1, PIXELS]))
    target = linear_target(WEIGHTS, 0.4 * normal(2, 3, seed=62), bias)
    deviation = target.difference_scale(None).numpy()[0, 1]
    adversarial = run(attack(confidence=2.0, objective="z_margin"), target, images, labels)
    expected = (margins(target, images, labels) + 2 * deviation) / np.linalg.norm(DIFFERENCE)
    distances = np.linalg.norm(perturbations(adversarial, images), axis=1)
    assert np.all(distances >= expected - 1e-5) and np.all(distances <= expected + 0.003)


def test_noise_anywhere():
    """On the attack's own draws: the mean margin is at most −κ where an image was found."""
    images = random_images(10)
    target = SampledTarget(seeded_net, draws_per_pass=3)
    draws = lambda x: target.logits(x, fold_in(make_seed(0), 0), 5)  # noqa: E731
    labels = np.argmax(np.mean(draws(images), axis=0), axis=1)
    # Every image at every step in the same place of the batch: which draws an image gets depends on it.
    found = run(attack(confidence=0.5, eot_samples=5, steps=100, learning_rate=0.02), target, images, labels)
    changed = np.any(found != images, axis=(1, 2, 3))
    assert changed.mean() > 0.5
    fresh = target.logits(found, make_seed(123), 200)
    margin = tf.reduce_mean(margin_of(fresh, tf.repeat(labels[None], 200, axis=0)), axis=0).numpy()
    assert np.mean(margin[changed]) < 0


def test_a_search_that_no_longer_falls_ends():
    """Its constant is too small to move it: two tenths of the steps, and half of them without progress, are spent."""
    passes = tf.Variable(0)
    target, images, labels = two_classes()

    def features(x):
        passes.assign_add(1)
        return tf.reshape(x, [-1, PIXELS])

    counted = type(target)(features, target.noise_free_logits, target.logit_scale)
    long = attack(steps=1000, searches=1, initial_constant=1e-6)
    adversarial = run(long, counted, images, labels)
    np.testing.assert_array_equal(adversarial, images)
    assert 500 <= passes.numpy() <= 700


def test_pixels_at_the_walls_can_leave_them():
    """Black and white images of one pixel whose other end is the other class."""
    target = linear_target([[-4.0, 4.0]], bias=np.array([2.0, -2.0], np.float32))
    images, labels = np.array([0.0, 1.0], np.float32).reshape(2, 1, 1, 1), np.array([0, 1])
    adversarial = run(attack(steps=1000, learning_rate=0.05), target, images, labels)
    np.testing.assert_allclose(adversarial.numpy().ravel(), 0.5, atol=0.02)
