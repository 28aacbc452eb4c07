import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm

from wca_tf.gaussian.class_probabilities import ClassProbabilities
from wca_tf.gaussian.probability import probability_correct


def random_logits(num_classes, dimensions, images, spread, seed=0):
    """(mu [images, C] float32, A [C, D]): deviations near 2, means `spread` apart."""
    rng = np.random.default_rng(seed)
    mean = (rng.normal(size=(images, num_classes)) * spread).astype(np.float32)
    return mean, 2 * rng.normal(size=(num_classes, dimensions)) / dimensions**0.5


def in_graph(scale):
    """The graph, with the batch dimension free, of the triangular factor of A."""
    factor = None if scale is None else np.linalg.qr(scale.T, mode="r").T
    signature = [tf.TensorSpec([None, None if factor is None else len(factor)], tf.float32)]
    return tf.function(ClassProbabilities(factor), input_signature=signature, autograph=False)


def every_class(mean, scale, **options):
    """P(class) by wca_tf.gaussian.probability, as an evaluation has it, class by class."""
    classes = range(mean.shape[1])
    return np.stack([probability_correct(mean, np.full(len(mean), c), scale, **options)[0] for c in classes], axis=1)


@pytest.mark.parametrize("spread", [0.5, 3, 20])
@pytest.mark.parametrize(("num_classes", "dimensions"), [(2, 4), (3, 8), (10, 32)])
def test_every_class_has_the_probability_that_an_evaluation_computes(num_classes, dimensions, spread):
    mean, scale = random_logits(num_classes, dimensions, 12, spread)
    probabilities = in_graph(scale)(mean).numpy()
    expected = every_class(mean, scale, tolerance=2e-4)
    np.testing.assert_allclose(probabilities, expected, atol=6e-4)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=2e-3)


def test_two_classes_have_the_closed_form():
    mean, scale = random_logits(2, 3, 50, 2)
    deviation = np.linalg.norm(scale[0] - scale[1])
    expected = norm.cdf(-np.diff(mean.astype(np.float64))[:, 0] / deviation)
    np.testing.assert_allclose(in_graph(scale)(mean).numpy(), np.stack([expected, 1 - expected], axis=1), rtol=1e-9)


@pytest.mark.parametrize("spread", [1, 8])
def test_a_hundred_classes(spread):
    mean, scale = random_logits(100, 256, 1, spread)
    probabilities = in_graph(scale)(mean).numpy()[0]
    classes = np.concatenate([np.argsort(probabilities)[::-1][:3], [5, 50, 95]])
    expected, _ = probability_correct(np.repeat(mean, len(classes), axis=0), classes, scale)
    np.testing.assert_allclose(probabilities[classes], expected, atol=2e-3)


def test_tiny_noise_on_one_difference_counts_beside_large_noise_on_the_others():
    deviation = np.array([1e-11, 1.0, 1.0, 1.0])
    upper = deviation * np.array([-0.5, 0.3, 1.0, 2.0])
    scale = np.concatenate([np.zeros((1, 4)), np.diag(deviation)])
    mean = np.append(0.0, -upper)[np.newaxis].astype(np.float32)
    assert abs(in_graph(scale)(mean).numpy()[0, 0] - np.prod(norm.cdf(upper / deviation))) < 1e-3


def test_noise_in_fewer_dimensions_than_rivals():
    mean, scale = random_logits(10, 2, 8, 2)  # a plane: the covariance of the differences is singular
    np.testing.assert_allclose(in_graph(scale)(mean).numpy(), every_class(mean, scale), atol=1e-2)


def test_a_certain_answer_is_certain_and_an_impossible_one_impossible():
    scale = random_logits(4, 8, 1, 1)[1]
    probabilities = in_graph(scale)(np.float32([[500, 0, 0, 0], [0, 0, -300, 200]])).numpy()
    np.testing.assert_array_equal(probabilities, [[1, 0, 0, 0], [0, 0, 0, 1]])


def test_without_noise_the_largest_logit_is_certain_and_a_tie_is_an_error():
    mean = np.float32([[1, 3, 2], [5, 5, 0], [-1, -1, -1], [0, -2, 1]])
    probabilities = in_graph(None)(mean).numpy()
    np.testing.assert_array_equal(probabilities, [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(probabilities, every_class(mean, np.zeros((3, 2))))


def test_two_classes_that_share_their_noise_differ_for_certain():
    scale = np.array([[1.0, 0.5], [1.0, 0.5], [0.2, -1.0]])
    mean = np.float32([[1, 0, 0.5], [0, 1, 0.5]])
    probabilities = in_graph(scale)(mean).numpy()
    np.testing.assert_allclose(probabilities, every_class(mean, scale), atol=1e-3)
    assert probabilities[0, 1] == probabilities[1, 0] == 0


def test_an_answer_does_not_depend_on_the_batch():
    mean, scale = random_logits(10, 32, 90, 1)  # more pairs than a chunk has
    graph = in_graph(scale)
    together = graph(mean).numpy()
    one_by_one = np.concatenate([graph(mean[i : i + 1]).numpy() for i in range(0, 90, 9)])
    np.testing.assert_allclose(together[::9], one_by_one, atol=1e-8)  # far rivals may be there or not: 1e-9 each
    assert graph(mean[:0]).shape == (0, 10)
