"""The conventions of others, against a direct simulation of each protocol: images are answered by fresh draws."""

import dataclasses

import numpy as np
import pytest
from evaluation_nets import dense_net, digits

import wca_tf
from wca_tf.evaluation.conventions import CONVENTIONS, all_right, lowest_mean, majority_right
from wca_tf.nets.judge import Judgement
from wca_tf.nets.targets import GaussianLogitsTarget

IMAGES, DRAWS, ROUNDS = 40, 200, 4000
RNG = np.random.default_rng(0)
# P(correct) of each image: clean, and after two attacks.
CLEAN, FIRST, SECOND = (RNG.beta(a, b, IMAGES) for a, b in ((6, 1), (2, 2), (2, 3)))


def exact(probability):
    zeros, places = np.zeros(IMAGES), np.arange(IMAGES)
    none = np.zeros((IMAGES, 0), bool)
    return Judgement(probability > 0.5, zeros, probability, zeros, zeros, none, places)


def drawn(probability, rng, kind=bool):
    hits = rng.random((IMAGES, DRAWS)) < probability[:, np.newaxis]
    if kind is not bool:  # each draw gives a probability, whose mean is P(correct)
        hits = np.where(hits, 0.5 + 0.5 * probability[:, np.newaxis], 0.5 * probability[:, np.newaxis])
    return dataclasses.replace(exact(hits.mean(axis=1)), hits=hits)


def answers(probability, count, rng):
    """Whether each of `count` fresh answers is right [rounds, N, count]."""
    return rng.random((ROUNDS, IMAGES, count)) < probability[:, np.newaxis]


def rand(rng):
    """AutoAttack's rand: one answer each to the clean image, and to those of both attacks."""
    return np.all([answers(each, 1, rng)[..., 0] for each in (CLEAN, FIRST, SECOND)], axis=0)


def fixed(rng):
    """Fixed AutoAttack: 20 answers to the image of each attack, and the lowest share counts."""
    return np.min([answers(each, 20, rng).mean(axis=2) for each in (FIRST, SECOND)], axis=0)


def majority(rng):
    """DiffBreak: more than half of 10 answers wrong is an error."""
    return answers(SECOND, 10, rng).sum(axis=2) >= 5


PROTOCOLS = {
    "rand": (rand, lambda judge: all_right([judge(CLEAN), judge(FIRST), judge(SECOND)])),
    "fixed": (fixed, lambda judge: lowest_mean([judge(FIRST), judge(SECOND)], 20)),
    "majority": (majority, lambda judge: majority_right(judge(SECOND), 10)),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_closed_forms_are_the_expectation_of_each_protocol(name):
    simulate, formula = PROTOCOLS[name]
    simulated = simulate(np.random.default_rng(1)).mean(axis=0)
    found = formula(exact)
    error = np.sqrt(np.maximum(found * (1 - found), 1e-4) / ROUNDS)
    assert np.all(np.abs(simulated - found) < 5 * error)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_estimates_from_draws_are_those_of_each_protocol_on_average(name):
    simulate, formula = PROTOCOLS[name]
    rng = np.random.default_rng(2)
    estimates = np.array([formula(lambda p: drawn(p, rng)).mean() for _ in range(200)])
    simulated = simulate(np.random.default_rng(3)).mean()
    assert abs(estimates.mean() - simulated) < 5 * estimates.std() / 200**0.5 + 0.002
    assert abs(formula(lambda p: drawn(p, rng)).mean() - simulated) < 0.03


def test_the_lowest_of_many_answers_is_below_what_any_attack_leaves():
    """The answers that choose also judge: a net that no attack can change seems worse with each attack."""
    same = [exact(np.full(IMAGES, 0.75))] * 8
    assert lowest_mean(same[:1], 20) == pytest.approx(np.full(IMAGES, 0.75))
    assert lowest_mean(same, 20).mean() < 0.65


def test_draws_with_probabilities_count_as_their_mean():
    rng = np.random.default_rng(4)
    judged = drawn(SECOND, rng, float)
    assert majority_right(judged, 10) == pytest.approx(majority_right(exact(judged.probability_correct), 10))


@pytest.fixture(scope="module")
def report():
    test, net = digits(4)[1], dense_net(4)
    noisy = GaussianLogitsTarget(net, lambda logits: logits, 2.0 * np.eye(4, dtype=np.float32))
    asked = {"attacks": "pgd:steps=3,apgd_ce:steps=4,apgd_dlr:steps=4", "epsilons": "0.1,0.2", "known_draws": True}
    return wca_tf.evaluate(noisy, test.images[:30], test.labels[:30], eot_samples=4, **asked)


def test_an_evaluation_has_a_row_for_each_convention(report):
    rows = {row["key"]: row["number"]["value"] for row in report.conventions("0.1")}
    assert list(rows) == list(CONVENTIONS)
    assert rows["queries"] <= rows["single_verdict"] <= rows["lowest_of_20"] <= rows["expected"]
    assert rows["expected"] <= report.attack("pgd:steps=3", 0.1).judgement.probability_correct.mean()
    assert report["conventions"][0]["rows"] == report.conventions("0.1")
    assert [row["key"] for row in report.conventions(0.2)] == [key for key in CONVENTIONS if key != "known_draw"]
    assert "AutoAttack rand" in repr(report)


def test_a_net_without_noise_has_no_conventions():
    test = digits(4)[1]
    plain = wca_tf.evaluate(dense_net(4), test.images[:20], test.labels[:20], attacks="fgsm", epsilons=0.1)
    assert plain.conventions() == [] and "conventions" not in plain
