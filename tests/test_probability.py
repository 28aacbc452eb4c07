import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import multivariate_normal, norm

from wca_tf.gaussian.probability import probability_correct

DRAWS = 100_000
# The stated error is a 95 % half-width, about two standard errors. Among many, the worst may be three times it.
SURELY = 3


def random_problem(examples, classes, dimensions, seed=0):
    """mu [B, C], y [B], A [C, D] with P(correct) spread over (0, 1)."""
    rng = np.random.default_rng(seed)
    scale = rng.standard_normal((classes, dimensions)) / np.sqrt(dimensions)
    mean = rng.standard_normal((examples, classes))
    labels = rng.integers(classes, size=examples)
    mean[np.arange(examples), labels] += rng.uniform(-0.5, 3.0, examples)
    return mean, labels, scale


def monte_carlo(mean, labels, scale, seed=1):
    """P(correct) [B] as the share of correct draws among `DRAWS`; a tie is an error, as it is in probability 0."""
    noise = np.random.default_rng(seed).standard_normal((DRAWS, scale.shape[1])) @ scale.T
    share = np.zeros(len(mean))
    for example, label in enumerate(labels):
        logits = noise + mean[example]
        rivals = np.delete(logits, label, axis=1).max(axis=1)
        share[example] = np.mean(logits[:, label] > rivals)
    return share


def assert_agrees_with_monte_carlo(mean, labels, scale, **options):
    probability, error = probability_correct(mean, labels, scale, **options)
    standard_error = np.sqrt(probability * (1 - probability) / DRAWS)
    difference = np.abs(probability - monte_carlo(mean, labels, scale))
    assert np.all(difference <= error + 4 * standard_error)


def nearly_parallel_differences(examples, classes, levels, seed=0):
    """Upper limits u, loads b and own deviations r [B, C−1]: the differences are u_j + b_j g + r_j e_j, g and e normal.

    An example's r/b is of the order of 10^level, its level drawn from the interval `levels`. Some loads are negative.
    """
    rng = np.random.default_rng(seed)
    shape = (examples, classes - 1)
    load = rng.choice([-1.0, 1.0], shape, p=[0.2, 0.8]) * np.exp(rng.normal(0, 0.3, shape))
    own = np.abs(load) * 10 ** rng.uniform(*levels, (examples, 1)) * rng.uniform(0.3, 1, shape)
    scatter = 10 ** rng.uniform(-3, 0, (examples, 1)) * rng.standard_normal(shape)
    return np.abs(load) * (rng.normal(1.0, 1.2, (examples, 1)) + scatter), load, own


def one_dimensional_integral(upper, load, own, nodes=24, widest=9):
    """P(all differences > 0) [B]: the integral over g by Gauss-Legendre between cuts that follow every step.

    Given g the differences are independent; the j-th factor is a step at u_j/b_j, |r_j/b_j| wide.
    """
    multiples = np.arange(-widest, widest + 1)
    steps = (upper / load)[..., np.newaxis] + (own / np.abs(load))[..., np.newaxis] * multiples
    coarse = np.broadcast_to(multiples, (len(upper), len(multiples)))
    cuts = np.sort(np.clip(np.concatenate([coarse, steps.reshape(len(upper), -1)], axis=1), -widest, widest), axis=1)
    position, weight = np.polynomial.legendre.leggauss(nodes)
    total = np.zeros(len(upper))
    for start, end in zip(cuts.T[:-1], cuts.T[1:], strict=True):
        g = ((start + end)[:, np.newaxis] + (end - start)[:, np.newaxis] * position) / 2
        integrand = norm.pdf(g)
        for j in range(upper.shape[1]):
            integrand *= ndtr((upper[:, [j]] - load[:, [j]] * g) / own[:, [j]])
        total += (end - start) / 2 * (integrand @ weight)
    return total


def probabilities_of_differences(upper, load, own):
    """P(correct) [B] and its error [B], every example with an A [C, C] of its own and a label in turn."""
    common = np.random.default_rng(1).standard_normal(upper.shape[1] + 1)
    results = []
    for example in range(len(upper)):
        label = example % len(common)
        differences = np.column_stack([load[example], np.diag(own[example])])
        scale = np.insert(common - differences, label, common, axis=0)
        mean = np.insert(-upper[example], label, 0.0)
        results.append(probability_correct(mean[np.newaxis], np.array([label]), scale))
    probability, error = np.array(results)[..., 0].T
    return probability, error


@pytest.mark.parametrize(
    "classes, examples, levels",
    [(3, 3000, (-12, -1)), (4, 300, (-12, -1)), (4, 300, (-0.8, -0.3)), (10, 80, (-12, -1))],
)
def test_the_stated_error_holds_where_differences_are_almost_parallel(classes, examples, levels):
    problem = nearly_parallel_differences(examples, classes, levels)
    probability, error = probabilities_of_differences(*problem)
    difference = np.abs(probability - one_dimensional_integral(*problem))
    assert np.mean(difference <= error + 1e-9) >= 0.95
    assert np.mean(difference <= np.maximum(error, 5e-4)) >= 0.95
    assert np.sum(difference > 2 * np.maximum(error, 5e-4)) <= 3 * examples / 3000


@pytest.mark.parametrize("levels", [(-12, -1), (-1, 1)])
def test_three_classes_have_a_closed_form(levels):
    problem = nearly_parallel_differences(500, 3, levels)
    probability, error = probabilities_of_differences(*problem)
    assert np.allclose(probability, one_dimensional_integral(*problem), rtol=0, atol=1e-9)
    assert np.all(error == 0)


@pytest.mark.parametrize("ratio", [1.0, -1.0])
def test_three_classes_with_parallel_differences_give_a_half_line_or_interval(ratio):
    noise = np.random.default_rng(0).standard_normal(5)
    scale = np.stack([np.zeros(5), -noise, -ratio * noise])
    first, second = np.random.default_rng(1).normal(size=(2, 200))
    probability, _ = probability_correct(np.stack([np.zeros(200), -first, -second], axis=1), np.zeros(200, int), scale)
    h, k = ndtr(first / np.linalg.norm(noise)), ndtr(second / np.linalg.norm(noise))
    expected = np.minimum(h, k) if ratio > 0 else np.maximum(h + k - 1, 0)
    assert np.allclose(probability, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("means", [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)])
def test_three_classes_that_tie_in_the_mean_agree_with_scipy(means):
    scale = np.random.default_rng(0).standard_normal((3, 4))
    probability, _ = probability_correct([[0.0, -means[0], -means[1]]], [0], scale)
    difference = scale[1:] - scale[0]
    expected = multivariate_normal.cdf(means, cov=difference @ difference.T)
    assert np.isclose(probability[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_tiny_noise_on_one_difference_counts_beside_large_noise_on_the_others(classes):
    deviation = np.ones(classes - 1)
    deviation[0] = 1e-11
    upper = deviation * np.linspace(-0.5, 2.0, classes - 1)
    scale = np.concatenate([np.zeros((1, classes - 1)), np.diag(deviation)])
    probability, error = probability_correct(np.append(0.0, -upper)[np.newaxis], np.array([0]), scale)
    assert abs(probability[0] - np.prod(ndtr(upper / deviation))) <= error[0] + 1e-12


def test_two_classes_have_a_closed_form():
    mean, labels, scale = random_problem(500, 2, 5)
    probability, error = probability_correct(mean, labels, scale)
    rows = np.arange(500)
    margin = mean[rows, labels] - mean[rows, 1 - labels]
    assert np.allclose(probability, norm.cdf(margin / np.linalg.norm(scale[0] - scale[1])), rtol=0, atol=1e-12)
    assert np.all(error == 0)


@pytest.mark.parametrize(
    "classes, dimensions, examples, tolerance", [(2, 4, 20, 5e-4), (10, 32, 20, 5e-4), (100, 128, 3, 2e-3)]
)
def test_probability_equals_the_share_of_correct_draws(classes, dimensions, examples, tolerance):
    assert_agrees_with_monte_carlo(*random_problem(examples, classes, dimensions), tolerance=tolerance)


def test_nearly_rank_one_noise_equals_the_share_of_correct_draws():
    mean, labels, scale = random_problem(12, 10, 16)
    rng = np.random.default_rng(2)
    scale = 1e-3 * scale + np.outer(rng.standard_normal(10), rng.standard_normal(16))
    assert_agrees_with_monte_carlo(mean, labels, scale)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_noise_of_lower_rank_than_the_rivals_equals_the_share_of_correct_draws(dimensions):
    assert_agrees_with_monte_carlo(*random_problem(12, 10, dimensions))


def test_repeated_rows_equal_the_share_of_correct_draws():
    mean, labels, scale = random_problem(20, 10, 12)
    scale[[3, 7, 9]] = scale[0]
    assert_agrees_with_monte_carlo(mean, labels, scale)


def test_common_noise_of_all_classes_changes_nothing():
    mean, labels, scale = random_problem(20, 5, 5)
    common = np.concatenate([scale, np.full((5, 1), 3.0)], axis=1)
    probability, error = probability_correct(mean, labels, scale)
    shifted, shifted_error = probability_correct(mean, labels, common)
    assert np.all(np.abs(probability - shifted) <= error + shifted_error)


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_vanishing_noise_gives_exactly_the_correctness_of_the_argmax(classes, size):
    mean, labels, scale = random_problem(200, classes, 8)
    probability, error = probability_correct(mean, labels, size * scale)
    assert np.array_equal(probability, (mean.argmax(axis=1) == labels).astype(float))
    assert np.all(error <= (5e-4 if size else 0))


@pytest.mark.parametrize("classes", [2, 3, 5, 10, 30])
def test_equal_means_and_independent_noise_give_one_over_the_number_of_classes(classes):
    labels = np.arange(classes)
    probability, error = probability_correct(np.full((classes, classes), 0.7), labels, np.eye(classes))
    assert np.all(np.abs(probability - 1 / classes) <= np.maximum(SURELY * error, 1e-12))


def test_four_classes_agree_with_scipy():
    mean, labels, scale = random_problem(60, 4, 6)
    probability, error = probability_correct(mean, labels, scale, tolerance=1e-4)
    assert np.all(error <= 1e-4)
    for example, label in enumerate(labels):
        difference = np.delete(scale, label, axis=0) - scale[label]
        reference = multivariate_normal.cdf(
            mean[example, label] - np.delete(mean[example], label),
            cov=difference @ difference.T,
            abseps=1e-6,
            rng=np.random.default_rng(0),
        )
        assert abs(probability[example] - reference) <= SURELY * error[example] + 1e-5


@pytest.mark.parametrize("dimensions", [2, 16])
def test_an_example_does_not_depend_on_its_batch(dimensions):
    mean, labels, scale = random_problem(40, 6, dimensions)
    probability, error = probability_correct(mean, labels, scale)
    for example in range(0, 40, 4):
        one = slice(example, example + 1)
        alone, alone_error = probability_correct(mean[one], labels[one], scale)
        assert alone[0] == probability[example]
        assert alone_error[0] == error[example]
    reverse, _ = probability_correct(mean[::-1], labels[::-1], scale)
    assert np.array_equal(reverse[::-1], probability)


def test_an_example_of_a_batch_too_large_for_one_chunk_equals_itself_alone():
    mean, labels, scale = random_problem(2300, 30, 10)
    probability, _ = probability_correct(mean, labels, scale, tolerance=1.0)
    for example in (0, 1200, 2299):
        one = slice(example, example + 1)
        assert probability_correct(mean[one], labels[one], scale, tolerance=1.0)[0][0] == probability[example]


@pytest.mark.parametrize("classes, dimensions", [(3, 3), (6, 4), (10, 32)])
def test_probabilities_of_all_labels_sum_to_one(classes, dimensions):
    mean, _, scale = random_problem(6, classes, dimensions)
    totals, errors = np.zeros(6), np.zeros(6)
    for label in range(classes):
        probability, error = probability_correct(mean, np.full(6, label), scale)
        totals, errors = totals + probability, errors + error
    assert np.all(np.abs(totals - 1) <= SURELY * errors + 1e-12)


@pytest.mark.parametrize("classes, dimensions", [(3, 3), (5, 8), (4, 2)])
def test_the_stated_error_is_honest(classes, dimensions):
    mean, labels, scale = random_problem(20, classes, dimensions, seed=3)
    reference, reference_error = probability_correct(mean, labels, scale, tolerance=5e-5, seed=999)
    outside = []
    for seed in range(30):  # examples share the scramblings of a seed, and miss together
        probability, error = probability_correct(mean, labels, scale, seed=seed)
        outside.append(np.mean(np.abs(probability - reference) > error + reference_error + 1e-12))
    # 5 % are expected. The share of one seed scatters by 8 %, the mean of 30 by 1.5 %.
    assert np.mean(outside) < 0.12


@pytest.mark.parametrize("classes, dimensions", [(4, 2), (5, 3)])
def test_a_stated_error_of_zero_means_that_the_value_is_exact(classes, dimensions):
    mean, labels, scale = random_problem(1000, classes, dimensions, seed=3)
    probability, error = probability_correct(mean, labels, scale)
    exact = error == 0
    share = monte_carlo(mean[exact], labels[exact], scale)
    standard_error = np.sqrt(share * (1 - share) / DRAWS)
    assert np.all(np.abs(probability[exact] - share) <= 4 * standard_error + 1e-12)


def test_a_smaller_tolerance_gives_a_smaller_error():
    problem = random_problem(50, 8, 8)
    errors = [probability_correct(*problem, tolerance=tolerance)[1].max() for tolerance in (1.0, 1e-3, 1e-4)]
    assert errors[1] <= 1e-3 < errors[0]
    assert errors[2] <= 1e-4


def test_the_seed_alone_decides_the_result():
    problem = random_problem(20, 6, 6)
    assert np.array_equal(probability_correct(*problem, seed=4), probability_correct(*problem, seed=4))
    assert not np.array_equal(probability_correct(*problem, seed=4), probability_correct(*problem, seed=5))


def test_float32_and_integer_types_are_accepted():
    mean, labels, scale = random_problem(10, 4, 4)
    exact, error = probability_correct(mean, labels, scale)
    single, _ = probability_correct(mean.astype(np.float32), labels.astype(np.int32), scale.astype(np.float32))
    assert single.dtype == np.float64
    assert np.allclose(single, exact, rtol=0, atol=1e-5)
    assert error.dtype == np.float64


def test_more_noise_leads_a_correct_example_towards_chance():
    mean = np.array([[3.0, 0.0, 0.0, 0.0]])
    probabilities = [
        probability_correct(mean, np.array([0]), size * np.eye(4))[0][0] for size in (0.3, 1.0, 3.0, 10.0, 1e6)
    ]
    assert np.all(np.diff(probabilities) < 0)
    assert np.isclose(probabilities[-1], 0.25, atol=1e-3)
