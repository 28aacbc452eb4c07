"""Restarted PGD and AutoAttack's rand: no round is better for an image, and lost images are left alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    NORMS,
    PIXEL_TOLERANCE,
    At,
    build_attack,
    counting_target,
    predictions,
    random_images,
    run,
    seeded_net,
    tanh_target,
)

from wca_tf.attacks import parse_attack
from wca_tf.attacks.auto_pgd import AutoPGD
from wca_tf.attacks.cascade import Stage, WorstCase, likeliest_other_classes
from wca_tf.attacks.gradients import score_images
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.batch import Batch
from wca_tf.nets.sampled_target import SampledTarget

CHEAP_DRAWS = 1000


@pytest.fixture(scope="module")
def target():
    return tanh_target(scale=0.5)


@pytest.fixture(scope="module")
def labelled(target):
    images = random_images(16, seed=2)
    return images, predictions(target, images)


def judged(target, images, labels):
    """(share of 1,000 common draws that give the label, mean margin)."""
    batch = Batch(images, tf.constant(labels), tf.range(len(images)))
    held = tf.function(score_images)(target, target.features(images), batch, make_seed(0), CHEAP_DRAWS)
    return held.p_correct.numpy(), held.margin.numpy()


@pytest.mark.parametrize(
    "text",
    [
        "pgd_restarts:restarts=4:steps=3",
        pytest.param("pgd_restarts:restarts=4:steps=3:norm=l2", marks=pytest.mark.slow),
        pytest.param("auto_rand:steps=6", marks=pytest.mark.slow),
    ],
)
def test_an_image_is_no_better_than_in_any_round(target, labelled, text):
    images, labels = labelled
    attack = build_attack(text, 0.05, eot_samples=5).replace(stop_at=0.0)
    found = run(attack, target, images, labels, seed=3)
    share, margin = judged(target, found, labels)
    rounds = [
        run(At(single, 0.05), target, images, labels, seed=fold_in(make_seed(3), number, time))
        for number, (single, times, _) in enumerate(attack.stages())
        for time in range(times)
    ]
    outcomes = [judged(target, images, labels), *(judged(target, tf.constant(x), labels) for x in rounds)]
    shares = np.stack([outcome[0] for outcome in outcomes])
    # Gathering the images that are left changes the rounding of products: a draw at the edge may go either way.
    assert np.all(share <= shares.min(axis=0) + 1.5 / CHEAP_DRAWS)
    assert len(set(np.argmin(shares, axis=0))) > 1  # not always the same round's
    candidates = np.stack([images, *rounds])
    distances = np.abs(candidates - found).max(axis=(2, 3, 4)).min(axis=0)
    assert np.all(distances <= PIXEL_TOLERANCE)


def test_rounds():
    """PGD so often, and Auto-PGD on cross-entropy and on DLR: with the parameters of the whole."""
    restarted = build_attack("pgd_restarts:restarts=7:steps=3:norm=l2:targeted=true", 0.2, eot_samples=4)
    assert restarted.stages() == [(ProjectedGradient(steps=3, norm="l2", targeted=True, eot_samples=4), 7, 0)]
    both = build_attack("auto_rand:steps=9:rho=0.5:norm=l2", 0.2)
    options = {"steps": 9, "rho": 0.5, "norm": "l2", "eot_samples": 20}
    assert both.stages() == [(AutoPGD(objective=name, **options), 1, 0) for name in ("ce", "dlr")]
    assert restarted.passes == 7 * (3 + 1) and both.passes == 2 * (10 + 1)


@pytest.mark.parametrize("norm", NORMS)
def test_lost_images_cost_no_more_rounds(norm):
    """Rows that pass the features, by the label: of lost images one pass, to see that they are."""
    target, counted = counting_target()
    images, steps, restarts = random_images(8), 5, 3
    text = f"pgd_restarts:steps={steps}:restarts={restarts}:norm={norm}:objective=margin"
    attack = build_attack(text, 0.1, eot_samples=2)
    for lost in (8, 3, 0):
        labels = np.where(np.arange(8) < lost, 1, 0)
        counted.assign(0)
        adversarial = run(attack, target, images, labels)
        # A step is a pass, and so is every judgement: one at first, and one a round.
        assert counted.numpy() == 8 + (8 - lost) * restarts * (steps + 1)
        np.testing.assert_array_equal(adversarial[:lost], images[:lost])
        assert np.all(np.any(adversarial[lost:] != images[lost:], axis=(1, 2, 3)))


def test_a_bound_of_one_leaves_every_image(target, labelled):
    attack = build_attack("pgd_restarts:restarts=4:steps=3:stop_at=1", 0.05, eot_samples=5)
    np.testing.assert_array_equal(run(attack, target, *labelled), labelled[0])


def test_more_restarts_are_no_worse(target, labelled):
    images, labels = labelled
    shares = []
    for restarts in (1, 4):
        attack = build_attack(f"pgd_restarts:restarts={restarts}:steps=3", 0.05, eot_samples=5)
        shares.append(judged(target, run(attack, target, images, labels), labels)[0])
    # A draw at the edge may go either way by rounding.
    assert np.all(shares[1] <= shares[0] + 1.5 / CHEAP_DRAWS) and np.any(shares[1] < shares[0] - 1.5 / CHEAP_DRAWS)


# One class after the other


def test_multi_targeted_aims_at_every_other_class_once(target, labelled):
    images, labels = labelled
    batch = Batch(images, tf.constant(labels), tf.range(len(images)))
    attack = build_attack("multi_targeted:classes=9", 0.05)
    [(_, times, rivals)] = attack.stages(target)
    assert (times, rivals) == (1, 3)  # of four classes
    wanted = likeliest_other_classes(target, batch, make_seed(0)).numpy()
    logits = target.noise_free_logits(target.features(images)).numpy()
    for row, label in enumerate(labels):
        expected = [c for c in np.argsort(-logits[row], kind="stable") if c != label]
        np.testing.assert_array_equal(wanted[row], expected)


class Aimed:
    """An attack that keeps the classes that it is aimed at, and changes nothing."""

    def __init__(self):
        self.classes = []

    def perturb(self, target, batch, epsilon, seed):
        self.classes.append(batch.targets.numpy())
        return batch.images


@pytest.mark.parametrize("times", [1, 2])
def test_where_noise_decides_the_ranking_each_class_is_aimed_at_too(times):
    """Under other draws for each attack, a class would be aimed at twice, and another never."""
    net = SampledTarget(lambda x, seed: tf.random.stateless_normal([len(x), 6], seed))
    images, labels, member = random_images(8, seed=2), np.arange(8) % 6, Aimed()
    batch = Batch(images, tf.constant(labels), tf.range(8))
    attack = SimpleNamespace(stages=lambda _: [Stage(member, times, 5)], eot_samples=5, stop_at=-1.0)
    WorstCase.perturb(attack, net, batch, tf.constant(0.1), make_seed(0))
    aimed = np.stack(member.classes, axis=1)
    for row, label in zip(aimed, labels, strict=True):
        np.testing.assert_array_equal(np.sort(row), np.repeat([c for c in range(6) if c != label], times))


def test_multi_targeted_is_the_worst_of_its_targeted_attacks(target, labelled):
    images, labels = labelled
    found = run(
        build_attack("multi_targeted:steps=6:objective=z_margin:stop_at=0", 0.05), target, images, labels, seed=3
    )
    share, _ = judged(target, found, labels)
    batch = Batch(images, tf.constant(labels), tf.range(len(images)))
    single = build_attack("pgd:targeted=true:steps=6:objective=z_margin", 0.05)
    shares = []
    for rank, wanted in enumerate(likeliest_other_classes(target, batch, make_seed(0)).numpy().T):
        seed = fold_in(make_seed(3), rank, 0)
        shares.append(judged(target, run(single, target, images, labels, seed=seed, targets=wanted), labels)[0])
    assert np.all(share <= np.min(shares, axis=0) + 1.5 / CHEAP_DRAWS)
    assert len(set(np.argmin(shares, axis=0))) > 1  # not always the same class


# Margins that start again, and the cascade


def test_more_starts_of_z_margin_leave_no_image_better(target, labelled):
    images, labels = labelled
    once, more = (
        judged(target, run(build_attack(f"z_margin:steps=5:restarts={times}", 0.05), target, images, labels), labels)
        for times in (1, 6)
    )
    assert np.all(more[0] <= once[0] + 1.5 / CHEAP_DRAWS) and np.mean(more[0]) < np.mean(once[0])


CASCADE = "adaptive:steps=5:apgd_steps=5:class_steps=3:bounded_steps=4:restarts=1:queries=30"


@pytest.mark.slow
def test_adaptive_is_no_weaker_than_any_of_its_members(target, labelled):
    images, labels = labelled
    attack = build_attack(CASCADE, 0.05).replace(stop_at=0.0)
    share, _ = judged(target, run(attack, target, images, labels, seed=3), labels)
    batch, number = Batch(images, tf.constant(labels), tf.range(len(images))), 0
    ranked = likeliest_other_classes(target, batch, make_seed(0))
    for member, times, rivals in attack.stages(target):
        assert times == 1
        for wanted in tf.unstack(ranked, axis=1)[:rivals] if rivals else [None]:
            seed = fold_in(make_seed(3), number, 0)
            alone = At(member, 0.05).replace(targeted=wanted is not None)
            alone = run(alone, target, images, labels, seed=seed, targets=wanted)
            assert np.all(share <= judged(target, tf.constant(alone), labels)[0] + 1.5 / CHEAP_DRAWS)
            number += 1
    assert number == 3 + 3 + 2  # three away from the label, towards each other class, and two more


def test_the_bound_of_adaptive_is_that_of_its_square(target):
    assert build_attack("adaptive:stop_at=0.2", 0.05).stages(target)[-1].attack.stop_at == 0.2


def test_adaptive_spends_nothing_on_lost_images():
    """Rows that pass the features: of lost images one, to see that they are."""
    target, counted = counting_target()
    attack, rows = build_attack(CASCADE, 0.1, eot_samples=2), {}
    for lost in (8, 4, 0):
        counted.assign(0)
        run(attack, target, random_images(8), np.where(np.arange(8) < lost, 1, 0))
        rows[lost] = counted.numpy() - 8
    assert rows[8] == 0 and rows[4] == rows[0] / 2 > 0


def kinds(attack, target):
    """(class, what is climbed, number of rivals) of each member."""
    return [
        (type(member).__name__, getattr(member, "source_objective", member.gradient_objective), rivals)
        for member, _, rivals in attack.stages(target)
    ]


def test_adaptive_takes_the_attacks_that_the_net_allows(target):
    attack = build_attack(CASCADE, 0.05)
    ends = [("Square", None, 0)]
    noise_free = [("Transfer", "margin", 0), ("Transfer", "margin", 3)]  # the second towards each of three classes
    exact = [("ProjectedGradient", "z_margin", 0), ("AutoPGD", "dlr", 0), *noise_free]
    assert kinds(attack, target) == [*exact, ("Transfer", "dlr", 0), *ends]
    assert kinds(attack, target.without_noise()) == exact + ends
    drawn = SampledTarget(seeded_net)
    attack.check_target(drawn, random_images(1))  # it finds the number of classes
    mean = ("MomentumPGD", "expected_margin", 0)
    over_draws = [("MomentumPGD", "bounded", 0), ("MomentumPGD", "bounded", 2), mean, ("AutoPGD", "dlr", 0)]
    assert kinds(attack, drawn) == [*over_draws, *ends]
    starts = [(r.attack.random_start, r.restarts) for r in attack.replace(restarts=4).stages(drawn)[:2]]
    assert starts == [(False, 1), (True, 3)]
    known = SampledTarget(seeded_net, noise_free_logits=lambda x: seeded_net(x, make_seed(0)))
    attack.check_target(known, random_images(1))
    of_three = [noise_free[0], ("Transfer", "margin", 2)]
    assert kinds(attack, known) == [*over_draws, *of_three, ("Transfer", "dlr", 0), *ends]
    towards_a_class = [rivals for _, _, rivals in attack.replace(targeted=True).stages(known)]
    assert not any(towards_a_class)
    two = tanh_target(classes=2, scale=0.5)
    pair = SampledTarget(lambda x, seed: seeded_net(x, seed)[:, :2])
    attack.check_target(pair, random_images(1))
    assert kinds(attack, pair) == [("MomentumPGD", "bounded", 0), mean, ("AutoPGD", "bounded", 0), *ends]
    assert ("AutoPGD", "expected_margin", 0) in kinds(attack, two) and ("Transfer", "dlr", 0) not in kinds(attack, two)


def test_adaptive_has_as_many_draws_as_before_where_they_cost_no_pass(target):
    """And few where each costs one; more where the user wants more."""
    attack = parse_attack("adaptive")
    assert {r.attack.eot_samples for r in attack.stages(target)} == {50}
    assert {r.attack.eot_samples for r in attack.stages(SampledTarget(seeded_net))} == {10}
    assert {r.attack.eot_samples for r in parse_attack("adaptive:eot_samples=80").stages(target)} == {80}


def trap(images):
    """Logits [B, 3]. Near the image class 1 is the nearest rival of 0 and never wins. Class 2 wins far away."""
    signs = tf.repeat(tf.reshape([1.0, -1.0, 1.0, -1.0], [4, 1, 1]), 4, axis=1)  # rows alternate
    along = tf.reduce_mean((images - 0.5) * signs, axis=[1, 2, 3]) / 0.1  # -1 to 1 in the ball of radius 0.1
    return tf.stack([tf.zeros_like(along), 0.5 * along - 1, -4 * along - 3], axis=1)


def trap_net(noise_free_logits=trap):
    return SampledTarget(lambda images, _: trap(images), noise_free_logits=noise_free_logits)


@pytest.mark.parametrize("text", ["margin", "apgd_dlr", "apgd_ce:objective=margin", "square:queries=300"])
def test_attacks_away_from_the_label_follow_its_nearest_rival_into_a_trap(text):
    images, labels = tf.fill([4, 4, 4, 1], 0.5), np.zeros(4, np.int64)
    found = run(build_attack(text, 0.1), trap_net(), images, labels)
    assert np.all(np.argmax(trap(tf.constant(found)), axis=1) == 0)


@pytest.mark.parametrize("noise_free_logits", [trap, None])
def test_adaptive_aims_at_each_class_where_the_nearest_rival_is_a_trap(noise_free_logits):
    images, labels, target = tf.fill([4, 4, 4, 1], 0.5), np.zeros(4, np.int64), trap_net(noise_free_logits)
    attack = build_attack("adaptive:queries=30:apgd_steps=20:restarts=1:eot_samples=2", 0.1)
    attack.check_target(target, images)
    found = run(attack, target, images, labels)
    assert np.all(np.argmax(trap(tf.constant(found)), axis=1) == 2)


def test_adaptive_attacks_nets_of_two_classes_with_noise_anywhere():
    """For which DLR, the difference to the third class, is not defined."""
    images = random_images(4)
    net = SampledTarget(lambda x, seed: seeded_net(x, seed)[:, :2], draws_per_pass=5)
    labels = tf.argmax(tf.reduce_mean(net.logits(images, make_seed(0), 20), axis=0), axis=1)
    adversarial = run(build_attack(CASCADE, 0.1, eot_samples=5), net, images, labels)
    assert np.any(adversarial != images)


def test_a_net_with_noise_anywhere_is_given_up_on_by_many_draws():
    """P(correct) is 0.08 on the clean images: five draws are all wrong for two of three, though attacks gain more."""

    def noisy(images, seed):
        margin = tf.reduce_mean(images, axis=[1, 2, 3]) * 10 - 6.405 + tf.random.stateless_normal([len(images)], seed)
        return tf.stack([margin, tf.zeros_like(margin)], axis=1)

    images, target = tf.fill([100, 2, 2, 1], 0.5), SampledTarget(noisy)
    attack = build_attack("pgd_restarts:restarts=2:objective=expected_margin:steps=4:relative_step_size=1", 0.2)
    found = run(attack.replace(eot_samples=5), target, images, tf.zeros(100, tf.int64))
    np.testing.assert_allclose(found, 0.3, atol=PIXEL_TOLERANCE)  # the darkest image in the ball, for every image
