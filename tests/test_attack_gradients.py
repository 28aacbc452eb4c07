"""Objectives and their gradients: EoT against passes per draw, NumPy's formulas, lost gradients, traces."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    EPSILON,
    PIXELS,
    batch_of,
    build_attack,
    flatten,
    linear_target,
    normal,
    random_images,
    run,
    seeded_net,
    tanh_target,
    useless_gradients_of,
    zero_gradients_of,
)

from wca_tf.attacks import ATTACKS, gradients
from wca_tf.attacks.gradients import expected_gradient, score_images, selection_score
from wca_tf.attacks.objectives import OBJECTIVES
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.gaussian import covariance
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget


@pytest.fixture(scope="module")
def wide_target():
    """A net that is not linear: 5 features of tanh, 3 classes, noise of a full covariance; and its head's weights."""
    inner, weights = tf.constant(normal(PIXELS, 5, seed=7)), tf.constant(normal(5, 3, seed=8))
    scale_tril = tf.constant(np.tril(normal(5, 5, seed=9)))
    scale = covariance.logit_scale(weights, scale_tril)
    target = GaussianLogitsTarget(lambda images: tf.tanh(flatten(images) @ inner), lambda f: f @ weights + 0.1, scale)
    return target, weights


LABELS = np.array([0, 1, 2, 0])


def compiled(target, images, batch, seed, objective="ce", draws=7):
    return tf.function(expected_gradient)(target, images, batch, seed, objective=objective, draws=draws)


def assert_same_gradient(received, expected):
    """To rounding of sums of tens of float32 terms."""
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


# Expectation over Transformation


@pytest.mark.parametrize("draws", [1, 2, 50])
def test_expected_gradient_is_the_mean_of_naive_gradients(wide_target, draws):
    """The naive gradient passes through the whole net once per draw, with the noise added to the features."""
    target, weights = wide_target
    images, seed = random_images(4), make_seed(3)
    features = target.features(images)
    noise = target.logits(features, seed, draws, tf.range(4)) - target.noise_free_logits(features)
    feature_noise = noise @ tf.linalg.pinv(weights)  # z [S, B, F] with z W = the noise of the logits
    total, values = np.zeros(images.shape, np.float64), np.zeros(4)
    for z in feature_noise:
        with tf.GradientTape() as tape:
            tape.watch(images)
            logits = target.noise_free_logits(target.features(images) + z)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits)
        total += tape.gradient(losses, images)
        values += losses
    ascent = expected_gradient(target, images, batch_of(images, LABELS), seed, objective="ce", draws=draws)
    assert_same_gradient(ascent.gradient, total / draws)
    np.testing.assert_allclose(ascent.values, values / draws, rtol=1e-5)
    np.testing.assert_array_equal(ascent.features, features)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_is_that_of_the_values(wide_target, objective):
    """Against central differences: their error is the third derivative times h², and float32 rounding over h."""
    target, _ = wide_target
    images, seed, h = random_images(4), make_seed(3), 2e-4
    for targets in (None, np.array([1, 2, 0, 2])):
        if objective == "dlr" and targets is not None:
            continue  # needs four classes; its formula has a test of its own
        batch = batch_of(images, LABELS, targets)

        def values(x, batch=batch):
            return expected_gradient(target, x, batch, seed, objective=objective, draws=20).values.numpy()

        gradient = expected_gradient(target, images, batch, seed, objective=objective, draws=20).gradient.numpy()
        direction = normal(*images.shape, seed=30)
        slope = (values(images + h * direction) - values(images - h * direction)) / (2 * h)
        expected = np.sum(gradient * direction, axis=(1, 2, 3))
        # The margins have kinks between the draws' nearest rivals: hence the small h.
        np.testing.assert_allclose(slope, expected, rtol=0.05, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("eot_samples", [1, 50])
def test_zero_noise_is_deterministic_pgd(wide_target, eot_samples):
    """Bit for bit, against the ten lines that PGD is."""
    noisy, _ = wide_target
    target = noisy.without_noise()
    images, labels = random_images(4), tf.constant(LABELS)
    epsilon = tf.constant(EPSILON)
    step_size = 0.1 * epsilon
    expected = images
    for _ in range(10):
        with tf.GradientTape() as tape:
            tape.watch(expected)
            logits = noisy.noise_free_logits(noisy.features(expected))
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        moved = expected + step_size * tf.sign(tape.gradient(loss, expected))
        expected = tf.clip_by_value(images + tf.clip_by_value(moved - images, -epsilon, epsilon), 0.0, 1.0)
    received = run(build_attack("bim", EPSILON, eot_samples), target, images, labels)
    np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize(("draws", "parts"), [(1000, [250] * 4), (600, [250, 250, 100])])
def test_many_draws_of_head_noise_are_made_in_parts(wide_target, draws, parts):
    """250 at a time, each part of draws of its own."""
    target, _ = wide_target
    images, seed, batch = random_images(4), make_seed(3), batch_of(random_images(4), LABELS)
    total, values, held, margins = np.zeros(images.shape), np.zeros(4), np.zeros(4), np.zeros(4)
    for first, count in zip(itertools.accumulate([0, *parts[:-1]]), parts, strict=True):
        with tf.GradientTape() as tape:
            tape.watch(images)
            indices = tf.range(4) if draws < 1000 else None
            logits = target.with_draw_offset(first).logits(target.features(images), seed, count, indices)
            repeated = np.repeat(LABELS[np.newaxis], count, axis=0)
            losses = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(repeated, logits), axis=0)
        total += tape.gradient(losses, images)
        values += losses
        held += np.sum(np.argmax(logits, axis=2) == LABELS, axis=0)
        own = np.take_along_axis(logits.numpy(), np.repeat(LABELS[np.newaxis, :, np.newaxis], count, axis=0), axis=2)
        others = np.where(np.arange(3) == LABELS[:, np.newaxis], -np.inf, logits)
        margins += np.sum(own[..., 0] - others.max(axis=2), axis=0)
    ascent = compiled(target, images, batch, seed, draws=draws)
    assert_same_gradient(ascent.gradient, total / draws)
    np.testing.assert_allclose(ascent.values, values / draws, rtol=1e-5)
    np.testing.assert_allclose(ascent.score.p_correct, held / draws, rtol=0, atol=1e-6)
    np.testing.assert_allclose(ascent.score.margin, margins / draws, rtol=1e-5, atol=1e-6)
    apart = tf.function(score_images)(target, target.features(images), batch, seed, draws)
    np.testing.assert_allclose(apart.p_correct, held / draws, rtol=0, atol=1e-6)
    np.testing.assert_allclose(apart.margin, margins / draws, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("draws_per_pass", [1, 3, 7, 50])
def test_draws_of_a_random_net_in_parts(draws_per_pass):
    """The parts are of the same draws as the whole: draw i has the seed (seed, i)."""
    target = SampledTarget(seeded_net, draws_per_pass)
    images, seed = random_images(4), make_seed(5)
    total = np.zeros(images.shape, np.float64)
    for draw_seed in [fold_in(seed, draw) for draw in range(7)]:
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, seeded_net(images, draw_seed))
        total += tape.gradient(loss, images)
    ascent = compiled(target, images, batch_of(images, LABELS), seed)
    assert_same_gradient(ascent.gradient, total / 7)


def five_classes(images, seed):
    """Noise on the pixels of a net that is not linear."""
    noisy = images + 0.2 * tf.random.stateless_normal(tf.shape(images), seed)
    return tf.tanh(flatten(noisy) @ normal(PIXELS, 8, seed=10)) @ normal(8, 5, seed=12)


# In one pass 5 draws, and 2 + 2 + 1. The other attacks are these, or go by the same means over draws. Of three classes
# DLR would not do: where the label is the last of three it is 1 whatever the image, and its gradient is rounding.
@pytest.mark.parametrize(
    "text",
    [
        "pgd",
        "square:queries=10",
        *(
            pytest.param(text, marks=pytest.mark.slow)
            for text in (
                "margin",
                "apgd_dlr:steps=10",
                "cw:steps=50:searches=3:learning_rate=0.03:initial_constant=0.1",
            )
        ),
    ],
)
def test_the_memory_budget_does_not_change_an_attack(text):
    images = random_images(6)
    labels = np.argmax(five_classes(images, make_seed(1)), axis=1)
    attack = build_attack(text, 0.2, eot_samples=5)
    whole, parts = (run(attack, SampledTarget(five_classes, per_pass), images, labels) for per_pass in (5, 2))
    assert np.any(whole != images)
    # Gradients differ in the order of a sum: 1e-7 of their size, which Adam's normalisation in cw magnifies at first.
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-4 if text.startswith("cw") else 1e-6)


@pytest.mark.parametrize("name", ["pgd", "margin"])
def test_noise_anywhere(name):
    images = random_images(64)
    seeds = [fold_in(make_seed(9), draw) for draw in range(20)]

    def draw(x):
        return tf.stack([seeded_net(x, seed) for seed in seeds])

    labels = tf.argmax(tf.reduce_mean(draw(images), axis=0), axis=1)
    attack = build_attack(name, 0.2, eot_samples=5)
    target = SampledTarget(seeded_net, draws_per_pass=2)
    adversarial = run(attack, target, images, labels)
    before, after = (np.mean(tf.argmax(draw(x), axis=2) == labels) for x in (images, adversarial))
    assert after < before - 0.3
    np.testing.assert_array_equal(run(attack, target, images, labels), adversarial)


def test_images_are_chosen_by_draws_that_all_of_an_attack_share(wide_target):
    images, batch = random_images(4), batch_of(random_images(4), LABELS)
    cheap, _ = wide_target
    ascent = expected_gradient(cheap, images, batch, make_seed(3), objective="ce", draws=5)
    chosen = tf.function(selection_score)(cheap, ascent, batch, 5)
    many = tf.function(score_images)(cheap, cheap.features(images), batch, make_seed(0), 1000)
    np.testing.assert_array_equal(chosen.p_correct, many.p_correct)
    np.testing.assert_array_equal(chosen.margin, many.margin)
    costly = SampledTarget(seeded_net, 5)
    ascents = [expected_gradient(costly, images, batch, make_seed(n), objective="ce", draws=5) for n in (3, 4)]
    one, other = (selection_score(costly, each, batch, 5) for each in ascents)
    np.testing.assert_array_equal(one.margin, other.margin)  # whatever the draws of the gradient
    many = selection_score(costly, ascents[0], batch, 200)
    assert np.all(np.abs(one.p_correct - many.p_correct) < 5 * np.sqrt(0.25 / 5 + 0.25 / 200))


@pytest.mark.parametrize("kind", ["head", "anywhere"])
def test_equal_numbers_of_draws_are_equal_shares(kind):
    """To the bit, whatever the parts that the draws were in: between equal shares the margin decides."""
    images, draws = random_images(200), 1000 if kind == "head" else 10
    target = tanh_target(scale=1.0) if kind == "head" else SampledTarget(seeded_net, draws_per_pass=3)
    batch = batch_of(images, np.arange(200) % 3)
    share = tf.function(score_images)(target, target.features(images), batch, make_seed(0), draws).p_correct.numpy()
    counts = np.round(share.astype(np.float64) * draws)
    assert len(set(share)) == len(set(counts)) > 5


def test_a_better_survival_is_a_lower_probability_and_then_a_lower_margin():
    one = gradients.Score(tf.constant([0.1, 0.2, 0.2, 0.2, 0.3]), tf.constant([9.0, 1.0, 2.0, 3.0, 0.0]))
    other = gradients.Score(tf.constant([0.2, 0.2, 0.2, 0.2, 0.2]), tf.constant([0.0, 2.0, 2.0, 2.0, 5.0]))
    assert one.better_for_attacker(other).numpy().tolist() == [True, True, False, False, False]


# DLR


def dlr_in_numpy(logits, label, target=None):
    """The formula of Croce & Hein (2020), section 4 and appendix, of one image's logits."""
    z = np.sort(np.asarray(logits, np.float64))[::-1]
    if target is not None:
        return -(logits[label] - logits[target]) / (z[0] - (z[2] + z[3]) / 2 + 1e-12)
    rival = max(value for number, value in enumerate(logits) if number != label)
    return -(logits[label] - rival) / (z[0] - z[2] + 1e-12)


@pytest.mark.parametrize("targets", [None, np.array([3, 0, 4, 1, 2, 0])])
def test_dlr_is_the_published_formula(targets):
    logits, labels = normal(9, 6, 5, seed=31), np.array([0, 1, 2, 3, 4, 2])
    images = random_images(6)
    received = OBJECTIVES["dlr"](None, None, tf.constant(logits), batch_of(images, labels, targets))
    wanted = [None] * 6 if targets is None else targets
    expected = np.mean([[dlr_in_numpy(*row) for row in zip(draw, labels, wanted, strict=True)] for draw in logits], 0)
    # Differences of float32 logits of size 1 over differences that may be 0.1: rounding of 1e-6.
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)


def test_dlr_does_not_change_with_the_scale_of_logits():
    logits, batch = tf.constant(normal(1, 6, 5, seed=31)), batch_of(random_images(6), [0, 1, 2, 3, 4, 2])
    small, large = (OBJECTIVES["dlr"](None, None, scale * logits, batch) for scale in (1.0, 1000.0))
    np.testing.assert_allclose(large, small, rtol=1e-4)


@pytest.mark.parametrize("targets", [None, np.array([1])])
@pytest.mark.parametrize("logits", [[1.0, 1.0, 1.0, 1.0, -1.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
def test_dlr_stays_finite_in_a_graph_where_the_largest_logits_are_equal(logits, targets):
    """Grappler reorders π1 − π3 + 1e-12, and loses the 1e-12; logits of bfloat16 and of tanh are often equal."""
    batch = batch_of(random_images(1), [4], targets)

    @tf.function
    def value_and_gradient(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = OBJECTIVES["dlr"](None, None, logits, batch)
        return value, tape.gradient(value, logits)

    for found in value_and_gradient(tf.constant([[logits]])):
        assert np.all(np.isfinite(found))


@pytest.mark.parametrize("kind", ["head", "anywhere"])
@pytest.mark.parametrize(
    ("classes", "targeted", "message"),
    [(2, False, "dlr expects 3 classes"), (2, True, "dlr expects 4 classes"), (3, True, "targeted dlr expects 4")],
)
@pytest.mark.parametrize("text", ["apgd_dlr", "auto_rand", "pgd:objective=dlr"])
def test_dlr_needs_classes(text, classes, targeted, message, kind):
    target, images = linear_target(normal(PIXELS, classes)), random_images(2)
    if kind == "anywhere":
        weights = normal(PIXELS, classes)
        target = SampledTarget(lambda x, seed: flatten(x) @ weights)
    attack = build_attack(f"{text}:targeted={str(targeted).lower()}", EPSILON)
    with pytest.raises(InputError, match=message) as raised:
        run(attack, target, images, np.array([0, 1]), targets=np.array([1, 0]) if targeted else None)
    assert "\n" not in str(raised.value)


def test_dlr_takes_the_least_number_of_classes():
    images = random_images(2)
    for classes, targets in ((3, None), (4, np.array([1, 0]))):
        text = f"pgd:objective=dlr:targeted={str(targets is not None).lower()}"
        adversarial = run(build_attack(text, EPSILON), tanh_target(classes=classes), images, [0, 1], targets=targets)
        assert np.all(np.any(adversarial != images, axis=(1, 2, 3)))


# Exact cross-entropy


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("classes", [2, 10])
def test_exact_cross_entropy_keeps_value_and_gradient_at_every_lead(classes, targeted):
    """Against NumPy in float64: where the class leads by 80 logits, too, and where all logits are large."""
    leads = np.array([-80, 0, 10, 17, 30, 60, 80], np.float32)
    logits = np.concatenate([normal(2, 7, classes), 300 + normal(2, 7, classes, seed=1)], axis=1)
    goal = np.arange(14) % classes
    is_goal = np.eye(classes, dtype=bool)[goal]
    nearest = np.where(is_goal, -np.inf, logits).max(axis=2) + np.tile(leads, 2)
    logits = np.where(is_goal, nearest[..., np.newaxis], logits).astype(np.float32)
    batch = batch_of(np.zeros((14, 1, 1, 1)), (goal + targeted) % classes, goal if targeted else None)
    with tf.GradientTape() as tape:
        tape.watch(inputs := tf.constant(logits))
        value = OBJECTIVES["ce_exact"](None, None, inputs, batch)
    odds = np.where(is_goal, 0, np.exp(logits.astype(np.float64) - logits[:, is_goal][..., np.newaxis]))
    sign, total = (-1 if targeted else 1), odds.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(value, sign * np.log1p(total[..., 0]).mean(axis=0), rtol=3e-5)
    gradient = np.where(is_goal, -total, odds) / (1 + total) / 2  # of the mean over two draws
    np.testing.assert_allclose(tape.gradient(value, inputs), sign * gradient, rtol=3e-5)


# Vanished gradients, needs, traces


def test_z_margin_needs_noise_behind_the_features():
    target = SampledTarget(seeded_net)
    with pytest.raises(InputError, match="z_margin expects") as raised:
        run(build_attack("z_margin", EPSILON), target, random_images(2), np.array([0, 1]))
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="z_margin expects"):
        zero_gradients_of(build_attack("z_margin", EPSILON), target, random_images(2), np.array([0, 1]))


def test_zero_gradients_where_cross_entropy_saturates():
    images = np.zeros((3, 1, 1, 1), np.float32)
    images[:, 0, 0, 0] = [1.0, 0.1, 0.0]  # logit differences 300, 30, 0; exp(-300) is 0 in float32, exp(-30) is not
    images = tf.constant(images)
    target = linear_target([[150.0, -150.0]])
    right, wrong = np.array([0, 0, 0]), np.array([1, 1, 1])
    assert tf.nn.softmax(target.noise_free_logits(flatten(images)))[0].numpy().tolist() == [1.0, 0.0]
    for name in ("pgd", "pgd_restarts", "apgd_ce"):
        cross_entropy = build_attack(name, EPSILON, eot_samples=3)
        assert zero_gradients_of(cross_entropy, target, images, right).tolist() == [True, False, False]
        assert zero_gradients_of(cross_entropy, target, images, wrong).tolist() == [False, False, False]
    for name in ("margin", "z_margin", "cw"):
        attack = build_attack(name, EPSILON)
        assert zero_gradients_of(attack, target, images, right).tolist() == [False, False, False]


def leading(*leads, noise=0.0):
    """A net of two classes, and images on which the logit of class 0 leads by these numbers, up to noise."""
    images = tf.reshape(tf.constant(leads, tf.float32) / 300, [-1, 1, 1, 1])
    return linear_target([[150.0, -150.0]], [[noise], [-noise]]), images


def test_cross_entropy_has_no_use_where_float32_loses_the_term_of_the_label():
    """From a lead of ln 2²⁴ = 16.6 on; its gradient is zero only from 104 on, where exp is 0."""
    target, images = leading(300, 90, 17, 16, 0)
    right, wrong = np.zeros(5, int), np.ones(5, int)
    pgd = build_attack("pgd", EPSILON)
    assert useless_gradients_of(pgd, target, images, right).tolist() == [True, True, True, False, False]
    assert not useless_gradients_of(pgd, target, images, wrong).any()
    exact = build_attack("pgd:objective=ce_exact", EPSILON)
    assert useless_gradients_of(exact, target, images[2:], right[2:]).tolist() == [False] * 3
    target, images = leading(80)
    assert not useless_gradients_of(exact, target, images, right[:1]).any()
    for name in ("margin", "multi_targeted:objective=ce"):
        assert not useless_gradients_of(build_attack(name), target, images, right[:1]).any()


def test_a_single_draw_that_keeps_the_term_of_the_label_makes_a_gradient_useful():
    labels = np.zeros(1, int)
    for noise, useless in ((1.0, True), (20.0, False)):  # the lead's deviation is twice the noise
        target, images = leading(60, noise=noise)
        assert useless_gradients_of(build_attack("pgd"), target, images, labels) == [useless]


def test_a_targeted_attack_loses_the_term_of_the_wanted_class():
    attack = build_attack("pgd:targeted=true")
    target, images = leading(30)
    for wanted, useless in ((0, True), (1, False)):
        labels, targets = np.array([1 - wanted]), np.array([wanted])
        assert useless_gradients_of(attack, target, images, labels, targets=targets) == [useless]


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_that_follow_gradients_say_where_there_are_none(name):
    """Saturated cross-entropy is a zero gradient for those that climb it; None is for those that follow none."""
    images = tf.ones([2, 1, 1, 1])
    target = linear_target([[150.0, -150.0, -150.0]])
    attack = build_attack(name, EPSILON, eot_samples=3)
    assert (zero_gradients_of(attack, target, images, np.array([0, 0])) is None) == (attack.gradient_objective is None)


def test_one_trace_for_all_radii_and_seeds():
    target, images = linear_target(normal(PIXELS, 3)), random_images(4)
    traces = []

    def features(x):
        traces.append(x)
        return flatten(x)

    counted = GaussianLogitsTarget(features, target.noise_free_logits, target.logit_scale)
    for epsilon, seed in itertools.product((0.0, 0.1, 8 / 255), (0, 1)):
        run(build_attack("pgd", epsilon), counted, images, LABELS % 3, seed=seed)
    once = len(traces)
    run(build_attack("pgd", 0.2), counted, images, LABELS % 3)
    assert len(traces) == once and once <= 2  # AutoGraph may trace a loop's body twice
