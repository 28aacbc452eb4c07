"""Certificates: no attack in feature space or image space goes below them, and their limits are the known ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from wca_tf.core.errors import InputError
from wca_tf.gaussian.certificates import (
    deterministic_certificate,
    gaussian_shift_certificate,
    known_draw_certificate,
    quantile_from_below,
    shift_gain,
    union_certificate,
)
from wca_tf.gaussian.probability import probability_correct

CERTIFICATES = (known_draw_certificate, gaussian_shift_certificate, union_certificate)


def random_head(seed, classes=4, dimensions=8, aligned=False):
    """Features [20, D], labels, W [C, D], b [C] and L [D, D]; `aligned` noise is along the weights."""
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(classes, dimensions))
    features = 2 * generator.normal(size=(20, dimensions))
    bias = 0.3 * generator.normal(size=classes)
    scale_tril = np.tril(generator.normal(size=(dimensions, dimensions)))
    if aligned:
        scale_tril = np.linalg.cholesky(weights.T @ weights + 0.01 * np.eye(dimensions))
    labels = (features @ weights.T + bias).argmax(axis=1)
    labels[:2] = (labels[:2] + 1) % classes  # some images are wrong
    return features, labels, weights, bias, generator.uniform(0.05, 1.5) * scale_tril


def worst_found(features, labels, weights, bias, scale, change, seed):
    """The least P(correct) [N] that attacks in feature space find, less the error of the probability."""
    generator = np.random.default_rng(seed)
    found = np.ones(len(labels))
    moves = [np.zeros_like(features)]
    for rival in range(len(weights)):
        moves.append(weights[rival] - weights[labels])
    for label in range(len(weights)):  # the directions that move the margins most, in deviations of their noise
        differences, noise = (np.delete(rows[label] - rows, label, axis=0) for rows in (weights, scale))
        direction = np.linalg.svd(np.linalg.pinv(noise) @ differences)[2][0]
        moves += [np.tile(sign * direction, (len(features), 1)) for sign in (1, -1)]
    moves += list(generator.normal(size=(4, *features.shape)))
    for move in moves:
        length = np.linalg.norm(move, axis=1, keepdims=True)
        moved = features + change * np.divide(move, length, out=np.zeros_like(move), where=length > 0)
        probability, error = probability_correct(moved @ weights.T + bias, labels, scale)
        found = np.minimum(found, probability + error)
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    classes=st.integers(2, 6),
    dimensions=st.integers(2, 9),
    aligned=st.booleans(),
    change=st.sampled_from([0.0, 0.05, 0.3, 1.0, 3.0]),
)
def test_no_attack_on_the_features_goes_below_a_certificate(seed, classes, dimensions, aligned, change):
    features, labels, weights, bias, scale_tril = random_head(seed, classes, dimensions, aligned)
    logits, scale = features @ weights.T + bias, weights @ scale_tril
    found = worst_found(features, labels, weights, bias, scale, change, seed)
    for certificate in CERTIFICATES:
        bound = certificate(logits, labels, weights, scale, change)
        assert (bound >= 0).all() and (bound <= 1).all()
        assert (bound <= found + 1e-9).all(), certificate.__name__


def test_a_lipschitz_constant_that_is_too_small_is_caught():
    """The same attacks go below certificates that are given a quarter of the change: the test above can fail."""
    caught = dict.fromkeys(CERTIFICATES, 0)
    for seed in range(10):
        features, labels, weights, bias, scale_tril = random_head(seed)
        logits, scale = features @ weights.T + bias, weights @ scale_tril
        found = worst_found(features, labels, weights, bias, scale, 2.0, seed)
        for certificate in CERTIFICATES:
            caught[certificate] += (certificate(logits, labels, weights, scale, 0.5) > found + 1e-3).any()
    assert min(caught.values()) >= 5


def test_for_two_classes_both_certificates_are_the_closed_form():
    features, labels, weights, bias, scale_tril = random_head(1, classes=2)
    logits, scale = features @ weights.T + bias, weights @ scale_tril
    [margin] = np.diff(logits, axis=1).T * np.where(labels == 1, 1, -1)
    distance, deviation = np.linalg.norm(weights[0] - weights[1]), np.linalg.norm(scale[0] - scale[1])
    expected = special.ndtr((margin - 0.7 * distance) / deviation)
    for certificate in (known_draw_certificate, gaussian_shift_certificate):
        np.testing.assert_allclose(certificate(logits, labels, weights, scale, 0.7), expected, rtol=1e-9)


@pytest.mark.parametrize("certificate", [known_draw_certificate, gaussian_shift_certificate])
def test_without_noise_a_certificate_is_the_deterministic_one(certificate):
    for seed in range(10):
        features, labels, weights, bias, scale_tril = random_head(seed)
        logits = features @ weights.T + bias
        known = deterministic_certificate(logits, labels, weights, 0.4)
        assert known.any() and not known.all()
        np.testing.assert_array_equal(certificate(logits, labels, weights, 0 * scale_tril[:4], 0.4), known)
    limit = known_draw_certificate(logits, labels, weights, 1e-9 * weights @ scale_tril, 0.4)
    np.testing.assert_allclose(limit, known, atol=1e-3)


def test_at_radius_0_c1_and_c2_are_the_probability():
    features, labels, weights, bias, scale_tril = random_head(2)
    logits, scale = features @ weights.T + bias, weights @ scale_tril
    probability, error = probability_correct(logits, labels, scale, unseen=True)
    assert error.max() <= 5e-4
    np.testing.assert_allclose(known_draw_certificate(logits, labels, weights, scale, 0.0), probability - error)
    shifted = gaussian_shift_certificate(logits, labels, weights, scale, 0.0)
    assert (shifted <= probability + 1e-9).all() and (shifted >= probability - error - 1e-9).all()


def test_c1_is_the_mean_over_draws_of_the_deterministic_certificate():
    features, labels, weights, bias, scale_tril = random_head(3)
    logits, scale = features @ weights.T + bias, weights @ scale_tril
    draws = logits + np.random.default_rng(0).normal(size=(100_000, 1, 8)) @ scale.T
    held = deterministic_certificate(draws.reshape(-1, 4), np.tile(labels, 100_000), weights, 0.3)
    mean = held.reshape(100_000, -1).mean(axis=0)
    bound = known_draw_certificate(logits, labels, weights, scale, 0.3)
    np.testing.assert_allclose(bound, mean, atol=5e-4 + 4 * np.sqrt(0.25 / 100_000))


def test_the_gain_is_never_above_that_of_randomised_smoothing():
    for seed in range(50):
        _, _, weights, _, scale_tril = random_head(seed)
        gains = shift_gain(weights, weights @ scale_tril)
        smallest = np.linalg.svd(scale_tril, compute_uv=False)[-1]
        assert (gains <= (1 + 1e-9) / smallest).all()


def test_noise_that_leaves_a_margin_free_certifies_nothing_by_its_shift():
    features, labels, weights, bias, _ = random_head(4)
    scale = weights @ np.eye(8)[:, :2]  # two directions of noise for three margins
    bound = gaussian_shift_certificate(features @ weights.T + bias, labels, weights, scale, 0.1)
    assert (bound == 0).all() and np.isinf(shift_gain(weights, scale)).all()


@pytest.mark.parametrize("certificate", CERTIFICATES)
def test_noise_that_all_classes_share_gives_the_deterministic_certificate(certificate):
    features, labels, weights, bias, _ = random_head(5)
    logits, scale = features @ weights.T + bias, np.tile(np.arange(8.0), (4, 1))
    for change in (0.0, 0.4):
        known = deterministic_certificate(logits, labels, weights, change)
        np.testing.assert_array_equal(certificate(logits, labels, weights, scale, change), known)


def test_c2_is_sound_where_the_probability_rounds_to_one():
    """Φ⁻¹ of a probability that rounds to 1 is Inf: the naive bound stays 1 at every radius."""
    caught = 0
    for seed in range(10):
        features, labels, weights, bias, scale_tril = random_head(seed)
        features, scale = 4 * features, 0.3 * weights @ scale_tril
        logits = features @ weights.T + bias
        probability, _ = probability_correct(logits, labels, scale)
        naive = special.ndtr(special.ndtri(probability) - 2.0 * shift_gain(weights, scale)[labels])
        found = worst_found(features, labels, weights, bias, scale, 2.0, seed)
        caught += (naive > found + 1e-3).any()
        assert (gaussian_shift_certificate(logits, labels, weights, scale, 2.0) <= found + 1e-9).all()
    assert caught >= 1


def test_c2_is_sound_where_the_points_of_the_integral_miss_whole_rivals():
    """Nine rivals that nearly always lose or win together: 64 points agree on a probability that is too high."""
    place, correlation = np.full(9, 4.7), np.full(9, 0.91)
    weights = np.zeros((10, 10))
    weights[0, 0], weights[1:, 0] = 1, 1 - correlation
    weights[range(1, 10), range(1, 10)] = -np.sqrt(1 - correlation**2)
    logits, direction = np.r_[0, -place], (weights[0] - weights[1:]).sum(axis=0)
    moved = logits - weights @ (4.34 * direction / np.linalg.norm(direction))
    draws = np.random.default_rng(0).normal(size=(400_000, 10)) @ weights.T
    found = ((moved + draws).argmax(axis=1) == 0).mean()
    bound = gaussian_shift_certificate(logits[np.newaxis], [0], weights, weights, 4.34)[0]
    assert 0.3 < bound < found - 0.02
    probability, error = probability_correct(logits[np.newaxis], [0], weights)
    naive = special.ndtr(special.ndtri(probability - error) - 4.34 * shift_gain(weights, weights)[0])
    assert naive[0] > found + 0.02  # with the error of the scatter alone


def test_the_quantile_is_that_of_the_probability_where_this_is_not_extreme():
    features, labels, weights, bias, scale_tril = random_head(5, classes=3)
    logits, scale = features @ weights.T + bias, weights @ scale_tril
    probability, _ = probability_correct(logits, labels, scale)
    known = (probability > 1e-6) & (probability < 1 - 1e-6)
    assert known.sum() > 5
    found = quantile_from_below(logits, labels, scale)
    np.testing.assert_allclose(found[known], stats.norm.ppf(probability[known]), atol=1e-5)


@pytest.mark.parametrize("change", [-0.1, np.inf, np.nan])
@pytest.mark.parametrize("certificate", CERTIFICATES)
def test_an_impossible_change_is_refused(certificate, change):
    features, labels, weights, bias, scale_tril = random_head(0)
    with pytest.raises(InputError, match="change of the features"):
        certificate(features @ weights.T + bias, labels, weights, weights @ scale_tril, change)
