"""ln P(error) of a Gaussian classifier: against the exact P(correct), finite differences, and its limits."""

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import build_attack, linear_target, normal, random_images, run, tanh_target
from scipy import stats

from wca_tf.attacks.objectives import check_objective
from wca_tf.core.errors import InputError
from wca_tf.gaussian.log_error import log_error_probability
from wca_tf.gaussian.probability import probability_correct


def random_heads(count, classes, seed, size=1.0):
    """(mu [B, C], labels [B], A [C, R]), with errors that are neither sure nor impossible."""
    random = np.random.default_rng(seed)
    mean, labels = random.normal(size=(count, classes)), random.integers(0, classes, count)
    return mean, labels, size * random.normal(size=(classes, 6))


@pytest.mark.parametrize(("classes", "size"), [(2, 1.0), (3, 0.3), (10, 0.5), (10, 3.0), (16, 1.0)])
def test_it_is_the_logarithm_of_one_minus_the_exact_probability(classes, size):
    mean, labels, scale = random_heads(20, classes, seed=classes, size=size)
    correct, error = probability_correct(mean, labels, scale)
    received = np.exp(log_error_probability(tf.constant(mean), tf.constant(labels), tf.constant(scale)))
    np.testing.assert_allclose(received, 1 - correct, atol=0.02 + error.max())  # of 64 points


def test_two_classes_have_the_closed_form_far_into_the_tail():
    distances = np.array([-3.0, 0.0, 3.0, 30.0, 300.0])
    mean = np.stack([distances, np.zeros(5)], axis=1)
    received = log_error_probability(tf.constant(mean), tf.zeros(5, tf.int64), tf.constant([[1.0], [0.0]], tf.float64))
    np.testing.assert_allclose(received, stats.norm.logcdf(-distances), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("margin", [0.0, 5.0, 100.0])
def test_the_gradient_is_finite_and_that_of_the_value(margin):
    mean, labels, scale = random_heads(8, 10, seed=3)
    mean[np.arange(8), labels] += margin
    direction, h = np.random.default_rng(4).normal(size=mean.shape), 1e-5

    def value(x):
        return log_error_probability(tf.constant(x), tf.constant(labels), tf.constant(scale))

    watched = tf.constant(mean)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        values = log_error_probability(watched, tf.constant(labels), tf.constant(scale))
    received = np.sum(tape.gradient(values, watched) * direction, axis=1)
    slope = (value(mean + h * direction) - value(mean - h * direction)) / (2 * h)
    np.testing.assert_allclose(received, slope, rtol=1e-3, atol=1e-4 * np.abs(slope).max())
    assert np.all(np.isfinite(received)) and np.any(received != 0)


def test_baselines_that_share_all_their_noise_are_no_nan():
    mean, scale = np.array([[1.0, 0.5, 0.0, 0.9]]), np.ones((4, 3))
    scale[0] = 2.0  # the other three have the same noise
    watched = tf.constant(mean)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        value = log_error_probability(watched, tf.constant([0]), tf.constant(scale))
    correct, _ = probability_correct(mean, [0], scale)
    np.testing.assert_allclose(np.exp(value), 1 - correct, atol=1e-3)
    assert np.all(np.isfinite(tape.gradient(value, watched)))


def test_an_a_for_each_image_is_that_images_own():
    mean, labels, _ = random_heads(5, 4, seed=5)
    scales = np.random.default_rng(6).normal(size=(5, 4, 3))
    together = log_error_probability(tf.constant(mean), tf.constant(labels), tf.constant(scales))
    for row in range(5):
        part = slice(row, row + 1)
        alone = log_error_probability(tf.constant(mean[part]), tf.constant(labels[part]), tf.constant(scales[row]))
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-9)


def test_its_attack_moves_where_cross_entropy_has_no_gradient():
    """Logits so large that the softmax of every draw is exactly 1."""
    target = linear_target(1000 * normal(6, 4, seed=1), scale=50 * normal(4, 5, seed=2))
    images = random_images(12, seed=3)
    labels = np.argmax(target.noise_free_logits(target.features(images)), axis=1)
    moved = {}
    for objective in ("ce", "log_error"):
        found = run(build_attack(f"bim:objective={objective}", 0.1), target, images, labels)
        moved[objective] = np.any(found != images, axis=(1, 2, 3))
    assert not np.all(moved["ce"])
    assert np.all(moved["log_error"])


def test_it_leaves_no_more_than_the_z_margin_on_average():
    """Both climb the same mean and noise; ln P(error) counts all rivals exactly."""
    target = tanh_target(scale=0.7)
    images = random_images(64, seed=8)
    labels = np.argmax(target.noise_free_logits(target.features(images)), axis=1)
    left = {}
    for objective in ("z_margin", "log_error"):
        found = run(build_attack(f"bim:objective={objective}:steps=20", 0.05), target, images, labels)
        mean = target.noise_free_logits(target.features(found)).numpy()
        left[objective] = probability_correct(mean, labels, target.logit_scale.numpy())[0].mean()
    assert left["log_error"] < left["z_margin"] + 0.005


def test_a_net_without_noise_or_a_wanted_class_is_refused():
    images, noisy = random_images(2), tanh_target(scale=0.5)
    check_objective("log_error", noisy, images)
    for target, targeted in ((noisy.without_noise(), False), (noisy, True)):
        with pytest.raises(InputError, match="log_error expects noise behind the features and no target class"):
            check_objective("log_error", target, images, targeted)
