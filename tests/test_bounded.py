"""The bounded margin, and attacks on it: nets whose draws differ in scale, against optima by linear programs."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    EPSILON,
    NORMS,
    PIXELS,
    SHAPE,
    At,
    ascent_direction,
    batch_of,
    build_attack,
    linear_target,
    normal,
    perturbations,
    random_images,
    run,
    tanh_target,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import mixtures
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.attacks.objectives import OBJECTIVES, margin_units
from wca_tf.attacks.pgd import MomentumPGD
from wca_tf.core.seeds import make_seed
from wca_tf.nets.batch import Batch
from wca_tf.nets.sampled_target import SampledTarget

ONE_POINT = 0.01


def bounded(logits, labels, units, targets=None):
    """The objective of logits [S, B, C], with units [S, B]."""
    batch = batch_of(np.zeros((len(labels), *SHAPE)), labels, targets)._replace(units=tf.transpose(units))
    return OBJECTIVES["bounded"](None, None, tf.constant(logits), batch).numpy()


def sigmoid(values):
    return 1 / (1 + np.exp(-np.asarray(values, np.float64)))


def test_the_bounded_margin_is_the_mean_of_the_sigmoid_of_each_draws_margin():
    logits, units = normal(5, 3, 4), np.abs(normal(5, 3, seed=1)) + 0.1
    labels, wanted = np.array([0, 3, 1]), np.array([2, 0, 3])

    def margin(classes):
        own = np.take_along_axis(logits, np.tile(classes, (5, 1))[..., np.newaxis], 2)[..., 0]
        others = np.where(np.arange(4) == classes[:, np.newaxis], -np.inf, logits).max(axis=-1)
        return own - others

    np.testing.assert_allclose(bounded(logits, labels, units), sigmoid(-margin(labels) / units).mean(axis=0), rtol=1e-5)
    targeted = bounded(logits, labels, units, wanted)
    np.testing.assert_allclose(targeted, sigmoid(margin(wanted) / units).mean(axis=0), rtol=1e-5)


def test_the_bounded_margin_does_not_depend_on_the_scale_of_any_draw():
    logits, factors = normal(6, 2, 3), 10.0 ** np.arange(-3, 3).reshape(6, 1, 1).astype(np.float32)
    labels = np.array([1, 2])
    batch = batch_of(np.zeros((2, *SHAPE)), labels)
    plain, scaled = (
        bounded(each, labels, tf.transpose(margin_units(tf.constant(each), batch)))
        for each in (logits, logits * factors)
    )
    np.testing.assert_allclose(scaled, plain, rtol=1e-5)


def test_a_margin_of_zero_has_a_hundredth_of_the_spread_as_its_unit():
    logits = tf.constant([[[2.0, 2.0, 0.0], [3.0, 1.0, 0.0], [1.0, 1.0, 1.0]]])
    units = margin_units(logits, batch_of(np.zeros((3, *SHAPE)), [0, 0, 0])).numpy()[:, 0]
    np.testing.assert_allclose(units[:2], [0.02, 2.0], rtol=1e-6)
    assert 0 < units[2] < 1e-6


def test_the_gradient_is_not_lost_where_the_label_leads_by_far():
    """1 − σ(40) is 0 in float32, and so would the gradient be."""
    logits = tf.constant([[[40.0, 0.0]]])
    batch = batch_of(np.zeros((1, *SHAPE)), [0])._replace(units=tf.ones([1, 1]))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = OBJECTIVES["bounded"](None, None, logits, batch)
    np.testing.assert_allclose(tape.gradient(value, logits)[0, 0], [-np.exp(-40), np.exp(-40)], rtol=1e-4)


def test_units_are_of_the_start_in_the_same_draws_and_no_gradient_flows_through_them():
    weights = tf.constant(normal(PIXELS, 2, seed=3))

    def net(images, seed):  # a draw's scale is a power of ten
        scale = 10.0 ** tf.random.stateless_uniform([], seed, -3, 3)
        return scale * (tf.reshape(images, [-1, PIXELS]) @ weights)

    target = SampledTarget(net)
    images, start = random_images(3, seed=1), random_images(3, seed=2)
    batch = batch_of(images, [0, 1, 0])
    ascent = expected_gradient(
        target, images, batch, make_seed(0), objective="bounded", draws=8, start=start, sharpness=2.0
    )
    difference = normal(PIXELS, 2, seed=3) @ [-1.0, 1.0] * np.array([[1], [-1], [1]])  # rival less label
    now, then = (np.sum(difference * x.numpy().reshape(3, -1), axis=1) for x in (images, start))
    values = sigmoid(2 * now / np.abs(then))
    np.testing.assert_allclose(ascent.values, values, rtol=1e-4)
    slope = (values * (1 - values) * 2 / np.abs(then))[:, np.newaxis] * difference
    np.testing.assert_allclose(ascent.gradient.numpy().reshape(3, -1), slope, rtol=2e-3, atol=1e-6)


# The optimum of nets that pick one of several linear nets


@pytest.mark.parametrize(
    "name",
    [
        "2 members, 30:1, C = 2",
        "4 members, 27:9:3:1, C = 2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in mixtures.CASES
            if "members" in name
            and "C = 10" not in name
            and name not in ("2 members, 30:1, C = 2", "4 members, 27:9:3:1, C = 2")
        ),
    ],
)
def test_bounded_is_within_a_point_of_the_optimum_of_linear_members(name):
    case = mixtures.CASES[name](name)
    least = mixtures.optimum(case.members)
    left = case.left_by("bounded")
    assert np.all(left >= least - 1e-9)  # no attack beats the linear programs
    assert left.mean() <= least.mean() + ONE_POINT


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["2 members, 1000:1, C = 3", "4 members, 1000:100:10:1, C = 2", "8 members, 1000:1, C = 2"]
)
def test_adaptive_is_within_a_point_of_the_optimum_of_linear_members(name):
    case = mixtures.CASES[name](name)
    assert case.left_by("adaptive").mean() <= mixtures.optimum(case.members).mean() + ONE_POINT


def test_adaptive_breaks_two_members_of_different_scale():
    case = mixtures.CASES["2 members, 30:1, C = 2"]("")
    assert case.left_by("adaptive:steps=20:apgd_steps=10:queries=50").mean() <= ONE_POINT


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in mixtures.CASES if "members" not in name or "C = 10" in name])
def test_bounded_is_within_a_point_of_four_times_its_steps_and_ten_starts(name):
    case = mixtures.CASES[name](name)
    assert case.left_by("bounded").mean() <= case.left_by(mixtures.STRONG).mean() + ONE_POINT


def test_square_breaks_the_member_with_small_logits_too():
    """The mean margin is that of the member with large logits: Square by it leaves half of the draws right."""
    case = mixtures.CASES["2 members, 1000:1, C = 2"]("")
    assert case.left_by("square:queries=600").mean() <= 0.25


def test_the_linear_programs_agree_with_a_search_over_all_corners():
    """Of a ball of four pixels that no edge of [0, 1] cuts. A linear function is largest at a corner."""
    members = mixtures.make_members((1.0, 1.0), 2, side=2, seed=3)
    images = np.full((mixtures.IMAGES, 4), 0.5)
    members = mixtures.Members(members.weights, members.biases, images)
    corners = np.array(list(itertools.product((-1, 1), repeat=4))) * mixtures.EPSILON
    grid = np.concatenate([corners * share for share in np.linspace(0, 1, 11)])
    least = members.probability_correct(np.clip(0.5 + grid, 0, 1).reshape(-1, 2, 2, 1)).min()
    assert mixtures.optimum(members)[0] <= least
    one = mixtures.Members(members.weights[:1], members.biases[:1], images)
    np.testing.assert_array_equal(mixtures.optimum(one), 0)  # 40 % of what the ball allows


# One draw, and no noise


@pytest.mark.parametrize("norm", NORMS)
def test_without_noise_it_reaches_the_end_of_a_linear_nets_ball(norm):
    weights = normal(PIXELS, 2, seed=7)
    images, labels = random_images(6, low=0.3, high=0.7), np.array([0, 1] * 3)
    ascent = At(MomentumPGD(norm=norm, eot_samples=1), EPSILON)
    moved = perturbations(run(ascent, linear_target(weights), images, labels), images)
    direction = ascent_direction(weights, labels).reshape(6, -1)
    gained = np.sum(moved * direction, axis=1)
    dual = np.abs(direction).sum(axis=1) if norm == "linf" else np.linalg.norm(direction, axis=1)
    np.testing.assert_allclose(gained, EPSILON * dual, rtol=1e-3)


def test_it_runs_on_gaussian_logits_and_gains_on_them():
    target, images = tanh_target(scale=0.5), random_images(8)
    labels = np.argmax(target.noise_free_logits(target.features(images)), axis=1)
    found = run(build_attack("bounded:steps=10", EPSILON), target, images, labels)
    assert np.abs(perturbations(found, images)).max() <= EPSILON + 1e-6 and np.any(found != images)


def test_steps_shrink_to_zero_and_sharpness_grows():
    ascent = MomentumPGD(steps=5, relative_step_size=0.5, final_sharpness=16.0)
    lengths, sharpness = zip(*(ascent.schedule(tf.constant(step)) for step in range(5)), strict=True)
    np.testing.assert_allclose(lengths, 0.5 * (1 + np.cos(np.pi * np.arange(5) / 4)) / 2, atol=1e-7)
    np.testing.assert_allclose(sharpness, [1, 2, 4, 8, 16], rtol=1e-6)


def test_momentum_weighs_gradients_of_any_size_alike():
    ascent, tiny = MomentumPGD(momentum=0.5), np.float32(1e-35)
    gradient = normal(1, *SHAPE)
    first = ascent.direction(tf.zeros([1, *SHAPE]), tf.constant(gradient * tiny))
    expected = gradient / np.abs(gradient).mean()
    np.testing.assert_allclose(first, expected, rtol=1e-4)
    np.testing.assert_allclose(ascent.direction(first, tf.constant(gradient)), 1.5 * expected, rtol=1e-4)
    np.testing.assert_array_equal(ascent.direction(first, tf.zeros([1, *SHAPE])), 0.5 * first)


def test_bounded_starts_at_the_image_then_at_random_then_aims_at_each_class():
    target = tanh_target()
    rounds = build_attack("bounded:restarts=3", EPSILON).stages(target)
    assert [(r.attack.random_start, r.restarts, r.target_classes) for r in rounds] == [
        (False, 1, 0),
        (True, 2, 0),
        (False, 1, 3),
    ]
    targeted = build_attack("bounded:restarts=1:targeted=true", EPSILON).stages(target)
    assert [(r.attack.random_start, r.restarts, r.target_classes) for r in targeted] == [(False, 1, 0)]
    two = build_attack("bounded", EPSILON).stages(tanh_target(classes=2))
    assert not any(r.target_classes for r in two)  # towards the only other class is away from the label


def test_units_are_taken_with_their_rows():
    batch = Batch(tf.zeros([3, *SHAPE]), tf.zeros(3, tf.int64), tf.range(3), units=tf.constant([[1.0], [2.0], [3.0]]))
    np.testing.assert_array_equal(batch.take(tf.constant([2, 0])).units, [[3.0], [1.0]])
