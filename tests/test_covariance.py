import numpy as np
import pytest
import tensorflow as tf

from wca_tf.defences.wca import covariance

SIZES = (1, 2, 7, 32)
SPREADS = (0.1, 1.0, 30.0, 1e4)


def random_vector(length, spread=1.0, seed=0):
    return (spread * np.random.default_rng(seed).standard_normal(length)).astype(np.float32)


@pytest.mark.parametrize("dimension", SIZES)
@pytest.mark.parametrize("spread", SPREADS)
def test_scale_tril_is_lower_triangular_with_positive_diagonal_for_any_vector(dimension, spread):
    length = dimension * (dimension + 1) // 2
    scale_tril = covariance.scale_tril_from_vector(random_vector(length, spread)).numpy()
    assert scale_tril.shape == (dimension, dimension)
    assert np.all(np.triu(scale_tril, 1) == 0)
    assert np.all(np.diagonal(scale_tril) > 0)
    assert np.all(np.isfinite(scale_tril))


@pytest.mark.parametrize("value", [-50.0, -1e6, -3e38])
def test_diagonal_stays_positive_for_hugely_negative_vectors(value):
    scale_tril = covariance.scale_tril_from_vector(tf.fill([6], value)).numpy()
    scale_diag = covariance.scale_diag_from_vector(tf.fill([6], value)).numpy()
    assert np.all(np.diagonal(scale_tril) >= 0.99 * covariance.MIN_SCALE)
    assert np.all(scale_diag >= 0.99 * covariance.MIN_SCALE)
    assert np.all(np.isfinite(np.log(np.diagonal(scale_tril) ** 2)))


@pytest.mark.parametrize("dimension", [1, 2, 6])
def test_every_entry_of_the_vector_moves_exactly_one_entry_of_the_lower_triangle(dimension):
    length = dimension * (dimension + 1) // 2
    base = covariance.scale_tril_from_vector(tf.zeros([length])).numpy()
    moved = {
        tuple(np.argwhere(covariance.scale_tril_from_vector(unit).numpy() != base).ravel())
        for unit in np.eye(length, dtype=np.float32)
    }
    assert moved == set(zip(*np.tril_indices(dimension), strict=True))


@pytest.mark.parametrize("dimension", SIZES)
def test_tril_round_trips(dimension):
    vector = random_vector(dimension * (dimension + 1) // 2)
    scale_tril = covariance.scale_tril_from_vector(vector)
    assert np.allclose(covariance.vector_from_scale_tril(scale_tril), vector, atol=1e-4)
    again = covariance.scale_tril_from_vector(covariance.vector_from_scale_tril(scale_tril))
    assert np.allclose(again, scale_tril, rtol=1e-5, atol=1e-6)


def test_a_given_cholesky_factor_is_recovered():
    square = np.random.default_rng(1).standard_normal((5, 9))
    expected = np.linalg.cholesky(square @ square.T).astype(np.float32)
    scale_tril = covariance.scale_tril_from_vector(covariance.vector_from_scale_tril(expected)).numpy()
    assert np.allclose(scale_tril, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 40.0])
def test_a_multiple_of_the_identity_is_recovered(scale):
    identity = (scale * np.eye(4)).astype(np.float32)
    scale_tril = covariance.scale_tril_from_vector(covariance.vector_from_scale_tril(identity))
    scale_diag = covariance.scale_diag_from_vector(covariance.vector_from_scale_diag(np.diagonal(identity)))
    assert np.allclose(scale_tril, identity, rtol=1e-4, atol=0)
    assert np.allclose(scale_diag, scale, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dimension", SIZES)
def test_diag_round_trips(dimension):
    vector = random_vector(dimension)
    scale_diag = covariance.scale_diag_from_vector(vector)
    assert np.allclose(covariance.vector_from_scale_diag(scale_diag), vector, atol=1e-4)


@pytest.mark.parametrize("spread", SPREADS)
def test_scale_diag_is_positive_and_increases_with_the_vector(spread):
    vector = np.sort(random_vector(50, spread))
    scale_diag = covariance.scale_diag_from_vector(vector).numpy()
    assert np.all(scale_diag > 0)
    assert np.all(np.isfinite(scale_diag))
    assert np.all(np.diff(scale_diag) >= 0)


def test_scale_diag_is_the_softplus_above_the_smallest_scale():
    vector = random_vector(50, 3.0)
    expected = np.logaddexp(0.0, vector.astype(np.float64)) + covariance.MIN_SCALE
    assert np.allclose(covariance.scale_diag_from_vector(vector), expected, rtol=1e-5)


@pytest.mark.parametrize("offset", [0.0, -50.0, 50.0])
def test_gradients_exist_and_are_finite(offset):
    tril_vector, diag_vector = tf.Variable(random_vector(15) + offset), tf.Variable(random_vector(5) + offset)
    with tf.GradientTape() as tape:
        scale_tril = covariance.scale_tril_from_vector(tril_vector)
        sigma = tf.matmul(scale_tril, scale_tril, transpose_b=True)
        value = tf.reduce_sum(sigma) + tf.reduce_sum(tf.math.log(covariance.scale_diag_from_vector(diag_vector)))
    gradients = tape.gradient(value, [tril_vector, diag_vector])
    assert all(gradient is not None and np.all(np.isfinite(gradient)) for gradient in gradients)
    assert all(np.any(gradient != 0) for gradient in gradients)


def test_gradient_of_the_sum_is_one_off_the_diagonal_and_the_sigmoid_on_it():
    vector = tf.Variable(random_vector(10))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(covariance.scale_tril_from_vector(vector))
    gradient = np.sort(tape.gradient(total, vector).numpy())
    diagonal = np.diagonal(covariance.scale_tril_from_vector(vector)).astype(np.float64) - covariance.MIN_SCALE
    sigmoid = 1 - np.exp(-diagonal)  # sigmoid(v) = 1 - exp(-softplus(v))
    assert np.allclose(gradient, np.sort(np.concatenate([sigmoid, np.ones(6)])), atol=1e-5)
