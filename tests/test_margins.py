import numpy as np
import pytest
import tensorflow as tf
from toy_models import finite_differences

from wca_tf.defences.wca import alignment
from wca_tf.gaussian import covariance, margins


def random_weights(dimension=6, classes=4, seed=0):
    """W [D, C] and L [D, D], float64."""
    rng = np.random.default_rng(seed)
    scale_tril = np.tril(rng.standard_normal((dimension, dimension)), -1)
    return rng.standard_normal((dimension, classes)), scale_tril + np.diag(rng.uniform(0.2, 2.0, dimension))


def alignment_by_loops(weights, scale_tril):
    sigma = scale_tril @ scale_tril.T
    total = 0.0
    for i in range(weights.shape[1]):
        variance = 0.0
        for j in range(weights.shape[0]):
            for k in range(weights.shape[0]):
                variance += weights[j, i] * sigma[j, k] * weights[k, i]
        total += np.log(variance)
    return total


@pytest.mark.parametrize("dimension, classes", [(1, 1), (3, 2), (6, 4), (4, 9)])
def test_alignment_term_is_the_sum_of_log_variances(dimension, classes):
    weights, scale_tril = random_weights(dimension, classes)
    expected = alignment_by_loops(weights, scale_tril)
    assert np.isclose(alignment.alignment_term(weights, scale_tril), expected, rtol=1e-12)
    single = alignment.alignment_term(weights.astype(np.float32), scale_tril.astype(np.float32))
    assert single.dtype == tf.float32
    assert np.isclose(single, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", [0.01, 0.5, -3.0, 100.0])
def test_scaling_the_weights_adds_two_log_factors_per_class(factor):
    weights, scale_tril = random_weights()
    growth = alignment.alignment_term(factor * weights, scale_tril) - alignment.alignment_term(weights, scale_tril)
    assert np.isclose(growth, 2 * 4 * np.log(abs(factor)), rtol=1e-10)


def test_alignment_term_with_unit_noise_is_the_sum_of_log_squared_norms():
    weights, _ = random_weights()
    expected = 2 * np.log(np.linalg.norm(weights, axis=0)).sum()
    assert np.isclose(alignment.alignment_term(weights, np.eye(6)), expected, rtol=1e-12)


def test_alignment_term_is_minus_infinity_for_a_zero_weight_vector():
    weights, scale_tril = random_weights()
    weights[:, 2] = 0
    assert alignment.alignment_term(weights, scale_tril).numpy() == -np.inf


def test_alignment_gradients_equal_finite_differences():
    weights, scale_tril = random_weights()
    inputs = [tf.constant(weights), tf.constant(scale_tril)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = alignment.alignment_term(*inputs)
    by_weights, by_scale = tape.gradient(value, inputs)
    assert np.allclose(by_weights, finite_differences(lambda w: alignment_by_loops(w, scale_tril), weights), atol=1e-7)
    assert np.allclose(by_scale, finite_differences(lambda s: alignment_by_loops(weights, s), scale_tril), atol=1e-7)


@pytest.mark.parametrize("dimension, classes", [(6, 4), (2, 5), (1, 1)])
def test_logit_scale_is_a_factor_of_the_covariance_of_the_logits(dimension, classes):
    weights, scale_tril = random_weights(dimension, classes)
    scale = covariance.logit_scale(weights, scale_tril).numpy()
    assert scale.shape == (classes, dimension)
    assert np.allclose(scale @ scale.T, weights.T @ (scale_tril @ scale_tril.T) @ weights, rtol=1e-12)


def test_many_classes_have_the_same_differences_a_class_at_a_time(monkeypatch):
    scale = np.random.default_rng(0).standard_normal((7, 5))
    together = covariance.logit_difference_scale(scale).numpy()
    monkeypatch.setattr(covariance, "MAX_NUMBERS", 0)
    np.testing.assert_allclose(covariance.logit_difference_scale(scale), together, rtol=1e-12)


def test_logit_difference_scale_is_the_deviation_of_every_difference():
    weights, scale_tril = random_weights()
    of_logits = weights.T @ scale_tril @ scale_tril.T @ weights
    deviations = covariance.logit_difference_scale(covariance.logit_scale(weights, scale_tril)).numpy()
    assert np.all(np.diagonal(deviations) == 0)
    for i in range(4):
        for j in range(4):
            variance = of_logits[i, i] + of_logits[j, j] - 2 * of_logits[i, j]
            assert np.isclose(deviations[i, j] ** 2, variance, atol=1e-12)


def test_z_margin_is_the_smallest_ratio_over_the_rivals():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((40, 5)), rng.integers(5, size=40)
    scale = rng.standard_normal((5, 7))
    deviations = covariance.logit_difference_scale(scale)
    expected = [
        min((logits[b, y] - logits[b, j]) / np.sqrt(np.sum((scale[y] - scale[j]) ** 2)) for j in range(5) if j != y)
        for b, y in enumerate(labels)
    ]
    assert np.allclose(margins.z_margin(logits, labels, deviations), expected, rtol=1e-12)


def test_z_margin_has_the_sign_of_correctness():
    rng = np.random.default_rng(1)
    logits, labels = rng.standard_normal((200, 4)), rng.integers(4, size=200)
    z_margin = margins.z_margin(logits, labels, covariance.logit_difference_scale(rng.standard_normal((4, 4))))
    assert np.array_equal(z_margin.numpy() > 0, logits.argmax(1) == labels)


def test_z_margin_without_noise_is_the_plain_margin():
    rng = np.random.default_rng(2)
    logits, labels = rng.standard_normal((30, 4)), rng.integers(4, size=30)
    z_margin = margins.z_margin(logits, labels, np.zeros((4, 4)))
    assert np.allclose(z_margin, [row[y] - np.delete(row, y).max() for row, y in zip(logits, labels, strict=True)])


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_gradient_of_z_margin_points_from_the_nearest_rival_to_the_label(noise):
    logits = tf.constant([[1.0, 0.4, -2.0]])
    deviations = noise * tf.constant([[0.0, 0.5, 8.0], [0.5, 0.0, 8.0], [8.0, 8.0, 0.0]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        z_margin = margins.z_margin(logits, [0], deviations)
    slope = 1 / 0.5 if noise else 1.0  # the ratios are 1.2 and 0.375 with noise; the margins 0.6 and 3 without
    nearest = [slope, -slope, 0.0] if not noise else [1 / 8, 0.0, -1 / 8]
    assert np.allclose(tape.gradient(z_margin, logits), [nearest])


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_margin_is_the_label_logit_minus_the_largest_other(leading):
    rng = np.random.default_rng(3)
    logits, labels = rng.standard_normal((*leading, 8, 4)), rng.integers(4, size=8)
    found = margins.margin(tf.constant(logits), labels).numpy()
    assert found.shape == (*leading, 8)
    for index in np.ndindex(found.shape):
        row, label = logits[index], labels[index[-1]]
        assert np.isclose(found[index], row[label] - np.delete(row, label).max(), rtol=1e-12)


def test_margin_of_a_tie_is_zero():
    assert margins.margin(tf.constant([[2.0, 2.0, 1.0]]), [1]).numpy() == 0


@pytest.mark.parametrize("num_classes", [2, 5])
def test_the_soft_z_margin_is_below_the_z_margin_by_at_most_its_softness(num_classes):
    rng = np.random.default_rng(num_classes)
    logits = rng.normal(size=(50, num_classes)).astype(np.float32) * 5
    labels = rng.integers(0, num_classes, 50)
    scale = covariance.logit_difference_scale(rng.normal(size=(num_classes, 6)).astype(np.float32))
    hard = margins.z_margin(logits, labels, scale).numpy()
    soft = margins.soft_z_margin(logits, labels, scale).numpy()
    assert (soft <= hard + 1e-5).all()
    assert (soft >= hard - np.log(num_classes - 1) / margins.SOFTNESS - 1e-5).all()


def test_the_soft_z_margin_sees_every_near_rival_where_the_hard_one_sees_one():
    logits = tf.constant([[1.0, 0.0, 0.0, -9.0]])
    scale = covariance.logit_difference_scale(tf.eye(4))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        soft = margins.soft_z_margin(logits, tf.constant([0]), scale)
    gradient = tape.gradient(soft, logits).numpy()[0]
    np.testing.assert_allclose(gradient * np.sqrt(2), [1.0, -0.5, -0.5, 0.0], atol=1e-5)


def test_the_z_margin_of_an_image_does_not_depend_on_the_images_beside_it():
    rng = np.random.default_rng(0)
    mu, scales = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(2, 3, 3)).astype(np.float32)
    scales[0, 1] = scales[0, 0]  # two classes that share their noise
    scales[1] *= 1e8
    both = margins.z_margins(mu, [0, 1], covariance.logit_difference_scale(scales))
    alone = margins.z_margins(mu[:1], [0], covariance.logit_difference_scale(scales[:1]))
    np.testing.assert_allclose(both[:1], alone)
