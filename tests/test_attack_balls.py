"""The geometry of attacks: nearest points, steepest steps, and what is uniform about random starts."""

import math

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import NORMS, PIXELS, SHAPE, flatten, normal
from scipy import stats

from wca_tf.attacks.balls import BALLS
from wca_tf.core.seeds import make_seed


def test_linf_random_start_is_uniform():
    starts = BALLS["linf"].random_start(make_seed(1), tf.range(2000), SHAPE, tf.constant(0.3)).numpy()
    assert stats.kstest(starts.ravel(), stats.uniform(-0.3, 0.6).cdf).pvalue > 0.01
    correlation = np.corrcoef(starts.reshape(len(starts), -1).T) - np.eye(PIXELS)
    assert np.abs(correlation).max() < 5 / math.sqrt(len(starts))


@pytest.mark.slow
def test_l2_random_start_is_uniform():
    starts = BALLS["l2"].random_start(make_seed(1), tf.range(2000), SHAPE, tf.constant(0.3)).numpy()
    flat = starts.reshape(len(starts), -1)
    radii = np.linalg.norm(flat, axis=1)
    assert stats.kstest((radii / 0.3) ** PIXELS, "uniform").pvalue > 0.01
    for coordinate in (flat / radii[:, np.newaxis]).T:  # (1 + u_i) / 2 of a uniform direction u is a beta variable
        symmetric_beta = stats.beta((PIXELS - 1) / 2, (PIXELS - 1) / 2)
        assert stats.kstest((1 + coordinate) / 2, symmetric_beta.cdf).pvalue > 0.001


@pytest.mark.parametrize("norm", NORMS)
def test_random_start_depends_on_the_index_alone(norm):
    def start(indices):
        return BALLS[norm].random_start(make_seed(1), tf.constant(indices), SHAPE, tf.constant(0.3)).numpy()

    together = start([4, 9, 2])
    np.testing.assert_array_equal(start([2, 4])[::-1], together[[0, 2]])
    assert not np.array_equal(together[0], together[1])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [0.01, 0.2, 5.0])
def test_projection_is_the_nearest_point(norm, size):
    ball, epsilon = BALLS[norm], tf.constant(0.3)
    points = tf.constant(size * normal(20, *SHAPE))
    nearest = ball.project(points, epsilon)
    assert np.all(ball.distance(nearest) <= 0.3 * (1 + 1e-6))
    np.testing.assert_allclose(ball.project(nearest, epsilon), nearest, rtol=3e-7, atol=0)
    inside = ball.distance(points).numpy() <= 0.3
    np.testing.assert_array_equal(nearest.numpy()[inside], points.numpy()[inside])
    # p is nearest in a convex set exactly when <x − p, q − p> ≤ 0 for each q of the set.
    others = ball.random_start(make_seed(2), tf.range(500), SHAPE, epsilon)
    outward, along = flatten(points - nearest).numpy(), flatten(others).numpy()
    products = outward @ along.T - np.sum(outward * flatten(nearest).numpy(), axis=1, keepdims=True)
    assert np.all(products <= 1e-5)


def test_projection_to_a_point():
    for ball in BALLS.values():
        for points in (normal(3, *SHAPE), np.zeros((3, *SHAPE), np.float32)):
            assert not np.any(ball.project(tf.constant(points), tf.constant(0.0)))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_steepest_step(norm, dual, size):
    """A step of norm 1 whose product with the gradient is the gradient's dual norm, the most there is."""
    gradient = normal(20, *SHAPE)
    step = BALLS[norm].steepest_step(tf.constant(np.float32(size) * gradient))
    np.testing.assert_allclose(BALLS[norm].distance(step), 1, rtol=1e-6)
    products = np.sum(gradient * step, axis=(1, 2, 3))
    np.testing.assert_allclose(products, np.linalg.norm(gradient.reshape(20, -1), dual, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(BALLS[norm].steepest_step(tf.zeros([2, *SHAPE])), np.zeros([2, *SHAPE]))


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
def test_random_direction_is_on_the_sphere(norm):
    directions = BALLS[norm].random_direction(make_seed(1), tf.range(2000), SHAPE, tf.constant(0.3))
    np.testing.assert_allclose(BALLS[norm].distance(directions), 0.3, rtol=1e-6)
    # Symmetric about 0: the mean of 2,000 numbers in [-0.3, 0.3] is within 5 standard errors of it.
    assert np.abs(directions.numpy().mean(axis=0)).max() < 5 * 0.3 / math.sqrt(2000)
    again = BALLS[norm].random_direction(make_seed(1), tf.constant([7, 3]), SHAPE, tf.constant(0.3))
    np.testing.assert_array_equal(again, directions.numpy()[[7, 3]])
