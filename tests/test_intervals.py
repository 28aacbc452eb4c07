"""Intervals cover what they say, and no number is made of the draws that chose it."""

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import flatten, normal, predictions, random_images, run

from wca_tf.attacks import build_attack
from wca_tf.attacks.target import HeadNoiseTarget
from wca_tf.evaluation.accuracy import Judgement, judge, least_probability, mean_with_interval

SEEDS = 64
COVERED = 57  # of 64, of intervals of 95 %: fewer has a chance of 2 in 100
COUNT = 1000


def judged(hits):
    """Judgement of images whose P(correct) is estimated from hits [N, draws]."""
    probability = hits.mean(axis=1)
    return Judgement(hits[:, 0], np.full(len(hits), np.nan), probability, 0 * probability, 0 * probability, hits)


def exact(probability):
    """Judgement of images whose P(correct) is known."""
    zeros = np.zeros(len(probability))
    return Judgement(zeros, zeros, np.asarray(probability), zeros, zeros, np.zeros((len(probability), 0), bool))


def covers(number, value):
    return number["low"] <= value <= number["high"]


# Over seeds of an attack


@pytest.fixture(scope="module")
def very_noisy():
    """(target, images, labels): three classes, whose noise was made four times as large."""
    inner, outer = tf.constant(normal(36, 8, seed=80) / 2), tf.constant(normal(8, 3, seed=81))
    noise = tf.constant(4 * 0.4 * normal(3, 4, seed=82))
    target = HeadNoiseTarget(lambda images: tf.tanh((flatten(images) - 0.5) @ inner), lambda f: f @ outer, noise)
    images = random_images(COUNT, shape=(6, 6, 1))
    return target, images, predictions(target, images)


@pytest.mark.parametrize(
    "text", ["fgsm:eot_samples=1", pytest.param("pgd", marks=pytest.mark.slow), "pgd:steps=5:eot_samples=5"]
)
def test_the_interval_of_an_attack_covers_its_mean_over_seeds(very_noisy, text):
    """The draws of FGSM without EoT, had all images the same, would move them all together."""
    target, images, labels = very_noisy
    attack, indices = build_attack(text, 0.1), tf.range(COUNT)
    numbers = [
        judge(target, run(attack, target, images, labels, seed=seed), labels, indices, seed).numbers()
        for seed in range(SEEDS)
    ]
    for name in ("accuracy", "expected_accuracy"):
        of_name = [number[name] for number in numbers]
        mean = np.mean([number["value"] for number in of_name])
        assert sum(covers(number, mean) for number in of_name) >= COVERED, name


# Of estimates from draws


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_intervals_allow_for_noise_that_images_share(shared):
    """A share of the images answers alike under each draw; 0.75 is every image's P(correct)."""
    covered = {"accuracy": 0, "expected_accuracy": 0, "10": 0}
    rounds = 100
    for seed in range(rounds):
        random = np.random.default_rng(seed)
        hits = np.where(np.arange(200)[:, np.newaxis] < 200 * shared, random.random(200), random.random((200, 200)))
        numbers = judged(hits < 0.75).numbers()
        for name in ("accuracy", "expected_accuracy"):
            covered[name] += covers(numbers[name], 0.75)
        covered["10"] += covers(numbers["n_query_accuracy"]["10"], 0.75**10)
    assert min(covered.values()) >= 0.9 * rounds, covered  # 95 of 100 expected, at the least


def test_without_draws_the_interval_is_that_of_the_images():
    probability = np.random.default_rng(0).random(50)
    assert exact(probability).numbers()["expected_accuracy"] == mean_with_interval(probability)


# The worst case


def test_a_net_that_nothing_can_change_is_reported_at_its_true_probability():
    """The least of eight estimates from 200 draws of the same P, 0.75, is 0.70 on average."""
    random = np.random.default_rng(1)
    attacks = [judged(random.random((300, 200)) < 0.75) for _ in range(8)]
    naive = np.min([attack.probability_correct for attack in attacks], axis=0).mean()
    assert naive < 0.72
    assert covers(least_probability(attacks).numbers()["expected_accuracy"], 0.75)
    assert abs(least_probability(attacks).probability_correct.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 60_000)


def test_the_worst_case_by_draws_is_that_of_the_attack_that_works():
    random = np.random.default_rng(2)
    true = np.where(np.arange(300) % 2, [[0.9], [0.2]], [[0.1], [0.8]])  # each attack works on half of the images
    worst = least_probability([judged(random.random((300, 200)) < each[:, np.newaxis]) for each in true])
    assert abs(worst.probability_correct.mean() - true.min(axis=0).mean()) < 0.01
    assert worst.hits.shape == (300, 200)


def test_the_worst_case_of_exact_numbers_is_their_least():
    random = np.random.default_rng(3).random((4, 50))
    worst = least_probability([exact(probability) for probability in random])
    np.testing.assert_array_equal(worst.probability_correct, random.min(axis=0))
