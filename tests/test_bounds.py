import itertools

import numpy as np
import pytest
from scipy.stats import norm

from wca_tf.core.errors import InputError
from wca_tf.gaussian import bounds, covariance, margins
from wca_tf.gaussian.probability import probability_correct

ROUNDING = 1e-12  # of sums in float64, against probabilities of order 1


def random_noise(dimension, covariance, rng):
    """L [D, D] of a covariance's kind."""
    scale = np.diag(rng.uniform(0.2, 2.0, dimension))
    return scale if covariance == "isotropic" else scale + np.tril(rng.standard_normal((dimension, dimension)), -1)


def random_linear(inputs, classes, dimension, seed):
    """A linear model: V [inputs, C], and A [C, D] of noise about as large as the differences of its logits."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((inputs, classes)), 0.5 * rng.standard_normal((classes, dimension))


def difference_changes(weights, epsilon):
    """Delta [C, C] of a linear model, by loops."""
    classes = weights.shape[1]
    changes = np.zeros((classes, classes))
    for i, j in itertools.product(range(classes), repeat=2):
        changes[i, j] = epsilon * np.abs(weights[:, i] - weights[:, j]).sum()
    return changes


# Two classes


@pytest.mark.parametrize("covariance", ["isotropic", "anisotropic"])
def test_the_deviation_is_the_root_of_the_quadratic_form(covariance):
    rng = np.random.default_rng(0)
    weight, scale_tril = rng.standard_normal(6), random_noise(6, covariance, rng)
    assert np.isclose(bounds.output_deviation(weight, scale_tril) ** 2, weight @ scale_tril @ scale_tril.T @ weight)


@pytest.mark.parametrize("norm_name, order", [("linf", np.inf), ("l2", 2)])
def test_the_change_of_a_linear_output_is_the_largest_in_the_ball(norm_name, order):
    rng = np.random.default_rng(1)
    weights, epsilon = rng.standard_normal(7), 0.3
    change = bounds.linear_output_change(weights, epsilon, norm_name)
    perturbations = rng.standard_normal((5000, 7))
    perturbations *= epsilon / np.linalg.norm(perturbations, order, axis=1, keepdims=True)
    assert (np.abs(perturbations @ weights) <= change + ROUNDING).all()
    best = np.sign(weights) if norm_name == "linf" else weights / np.linalg.norm(weights)
    assert np.isclose(epsilon * best @ weights, change)


def test_the_change_of_several_linear_outputs_is_that_of_each():
    weights, _ = random_linear(7, 4, 3, seed=0)
    differences = weights[:, :, np.newaxis] - weights[:, np.newaxis, :]
    assert np.allclose(bounds.linear_output_change(differences, 0.1), difference_changes(weights, 0.1))


@pytest.mark.parametrize("epsilon, norm_name", [(-0.1, "linf"), (np.nan, "linf"), (np.inf, "l2"), (0.1, "l1")])
def test_a_wrong_ball_is_refused(epsilon, norm_name):
    with pytest.raises(InputError, match="expected"):
        bounds.linear_output_change(np.ones(3), epsilon, norm_name)


def test_both_bounds_are_the_paper_s_formulas():
    rng = np.random.default_rng(2)
    margin, change, deviation = rng.normal(0, 2, 300), rng.uniform(0, 2, 300), rng.uniform(0.1, 2, 300)
    certified = bounds.certified_probability(margin, change, deviation)
    assert np.allclose(certified, 1 - norm.cdf((-margin + change) / deviation), rtol=0, atol=ROUNDING)
    gap = bounds.adversarial_gap_bound(change, deviation)
    assert np.allclose(gap, change / np.sqrt(2 * np.pi * deviation**2), rtol=1e-12)
    paper = np.maximum(0, norm.cdf(margin / deviation) - gap)
    assert np.allclose(bounds.theorem_1_probability(margin, change, deviation), paper, rtol=0, atol=ROUNDING)
    assert 0.1 < np.mean(paper > 0) < 0.9  # both sides of the maximum are there


@pytest.mark.parametrize("seed", range(5))
def test_the_paper_s_bound_is_below_the_sharp_one(seed):
    rng = np.random.default_rng(seed)
    margin, change, deviation = rng.normal(0, 3, 2000), rng.uniform(0, 3, 2000), 10 ** rng.uniform(-2, 1, 2000)
    sharp = bounds.certified_probability(margin, change, deviation)
    assert (bounds.theorem_1_probability(margin, change, deviation) <= sharp + ROUNDING).all()


@pytest.mark.parametrize("bound", [bounds.certified_probability, bounds.theorem_1_probability])
def test_without_attack_both_bounds_are_the_clean_probability(bound):
    margin = np.linspace(-3, 3, 50)
    assert np.allclose(bound(margin, 0.0, 0.7), norm.cdf(margin / 0.7), rtol=0, atol=ROUNDING)


def test_without_noise_the_bounds_are_the_deterministic_margin_s_test():
    margin, change = np.array([-1.0, 0.0, 0.5, 1.0, 2.0]), 1.0
    assert bounds.certified_probability(margin, change, 0.0).tolist() == [0, 0, 0, 0, 1]  # a tie is an error
    assert bounds.certified_probability(margin, 0.0, 0.0).tolist() == [0, 0, 1, 1, 1]
    assert bounds.theorem_1_probability(margin, 0.0, 0.0).tolist() == [0, 0, 1, 1, 1]
    assert bounds.theorem_1_probability(margin, change, 0.0).tolist() == [0, 0, 0, 0, 0]  # says nothing
    assert bounds.adversarial_gap_bound([0.0, 1.0], 0.0).tolist() == [0, np.inf]


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_without_noise_the_bound_is_the_limit_of_vanishing_noise(change):
    margin = np.array([-1.0, 0.2, 0.7, 3.0])
    limit = bounds.certified_probability(margin, change, 1e-9)
    assert np.array_equal(bounds.certified_probability(margin, change, 0.0), limit)


def exact_gap(margin, change, deviation):
    return norm.cdf((-margin + change) / deviation) - norm.cdf(-margin / deviation)


@pytest.mark.parametrize("seed", range(20))
def test_theorem_1_bounds_the_exact_adversarial_gap(seed):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal(5) * 10 ** rng.uniform(-2, 2)
    deviation = bounds.output_deviation(weight, random_noise(5, "anisotropic", rng))
    change = deviation * 10 ** rng.uniform(-3, 2, 500)
    margin = change * rng.uniform(-1, 3, 500)
    # Rounding: a difference of two probabilities is exact to about 1e-16.
    assert np.all(bounds.adversarial_gap_bound(change, deviation) >= exact_gap(margin, change, deviation) - 1e-15)


@pytest.mark.parametrize("deviation", [0.01, 1.0, 30.0])
def test_theorem_1_is_tight_for_a_small_change_across_the_decision_boundary(deviation):
    change = 0.1 * deviation
    bound = bounds.adversarial_gap_bound(change, deviation)
    assert np.isclose(bound, exact_gap(change / 2, change, deviation), rtol=0.01)


# Several classes


def test_the_union_bounds_are_sums_over_rivals():
    rng = np.random.default_rng(3)
    weights, scale = random_linear(6, 4, 5, seed=3)
    logits, labels, changes = rng.normal(0, 3, (40, 4)), rng.integers(4, size=40), difference_changes(weights, 0.05)
    covariance = scale @ scale.T
    sharp, gap = np.zeros(40), np.zeros(40)
    for b, y in enumerate(labels):
        for j in set(range(4)) - {int(y)}:
            deviation = np.sqrt(covariance[y, y] + covariance[j, j] - 2 * covariance[y, j])
            margin = logits[b, y] - logits[b, j]
            sharp[b] += norm.cdf(-(margin - changes[y, j]) / deviation)
            gap[b] += norm.cdf(-margin / deviation) + changes[y, j] / (np.sqrt(2 * np.pi) * deviation)
    assert np.allclose(bounds.union_error_bound(logits, labels, scale, changes), np.minimum(sharp, 1))
    assert np.allclose(bounds.union_gap_error_bound(logits, labels, scale, changes), np.minimum(gap, 1))
    assert (sharp < 1).any() and (sharp > 1).any()


def worst_perturbations(weights, labels, epsilon, rng):
    """Perturbations [B, inputs] of the linf ball: the worst towards each rival, and random corners of the ball."""
    towards = [-np.sign(weights[:, labels] - weights[:, [j]]).T for j in range(weights.shape[1])]
    corners = [rng.choice([-1.0, 1.0], (len(labels), len(weights))) for _ in range(3)]
    return [epsilon * direction for direction in (*towards, *corners)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_no_attack_on_a_linear_model_violates_the_union_bounds(classes, seed):
    rng = np.random.default_rng([classes, seed])
    weights, scale = random_linear(8, classes, 4, seed)
    images = rng.standard_normal((30, 8))
    labels = (images @ weights).argmax(1)
    for epsilon in (0.0, 0.01, 0.05, 0.2):
        changes = difference_changes(weights, epsilon)
        bound = bounds.union_error_bound(images @ weights, labels, scale, changes)
        assert (bound <= bounds.union_gap_error_bound(images @ weights, labels, scale, changes) + ROUNDING).all()
        assert (bound < 0.9).any()  # it says something
        for perturbation in worst_perturbations(weights, labels, epsilon, rng):
            probability, error = probability_correct((images + perturbation) @ weights, labels, scale)
            # `error` is a 95 % half-width, of a thousand numbers: two of them.
            assert (1 - probability <= bound + 2 * error + ROUNDING).all()


def test_the_union_bound_is_nearly_reached_when_one_rival_is_near():
    weights, scale = random_linear(8, 4, 4, seed=7)
    images = np.random.default_rng(7).standard_normal((2000, 8))
    labels = (images @ weights).argmax(1)
    deviations = covariance.logit_difference_scale(scale)
    ratios = np.sort(margins.z_margins(images @ weights, labels, deviations).numpy(), axis=1)
    alone = (ratios[:, 0] < 2) & (ratios[:, 1] > 4.5)
    assert alone.sum() > 10
    images, labels = images[alone], labels[alone]
    bound = bounds.union_error_bound(images @ weights, labels, scale, difference_changes(weights, 0.01))
    attacked = [images + p for p in worst_perturbations(weights, labels, 0.01, np.random.default_rng(0))]
    worst = np.max([1 - probability_correct(x @ weights, labels, scale)[0] for x in attacked], axis=0)
    assert np.allclose(bound, worst, atol=1e-3)


@pytest.mark.parametrize("noise", [0.0, 0.8])
def test_two_classes_are_the_binary_case(noise):
    rng = np.random.default_rng(4)
    outputs, labels, scale = rng.standard_normal(50), rng.integers(2, size=50), noise * rng.standard_normal((1, 3))
    logits = np.stack([-outputs / 2, outputs / 2], axis=1)
    changes = np.array([[0, 0.3], [0.3, 0]])
    binary = ((2 * labels - 1) * outputs, 0.3, np.linalg.norm(scale))
    halves = np.concatenate([-scale / 2, scale / 2])
    union = bounds.union_error_bound(logits, labels, halves, changes)
    assert np.allclose(union, 1 - bounds.certified_probability(*binary), rtol=0, atol=ROUNDING)
    gap = bounds.union_gap_error_bound(logits, labels, halves, changes)
    assert np.allclose(gap, 1 - bounds.theorem_1_probability(*binary), rtol=0, atol=ROUNDING)
    assert 0.1 < union.mean() < 0.9


def test_classes_that_share_their_noise_are_decided_by_their_means():
    scale = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # the first two never differ by chance
    logits, labels = np.array([[0.1, 0.0, -90.0], [0.0, 0.0, -90.0]]), np.array([0, 0])
    for change, expected in ((0.05, [0.0, 1.0]), (0.2, [1.0, 1.0])):
        changes = change * (1 - np.eye(3))
        assert np.allclose(bounds.union_error_bound(logits, labels, scale, changes), expected)
