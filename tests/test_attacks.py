"""Attacks: closed forms on linear models, balls, objectives, EoT, and what a caller may rely on for every attack."""

import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from wca_tf import alignment
from wca_tf.attacks import ATTACKS, build_attack, parse_attack, projected_gradient
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.projected_gradient import ProjectedGradient, expected_gradient
from wca_tf.attacks.target import HeadNoiseTarget, RandomNetTarget, target_of
from wca_tf.errors import InputError
from wca_tf.layers import AnisotropicNoise
from wca_tf.model import WCANet
from wca_tf.orthant import probability_correct
from wca_tf.seeds import fold_in, make_seed

SHAPE = (2, 3, 1)
PIXELS = math.prod(SHAPE)
EPSILON = 0.1
NORMS = tuple(BALLS)
# Rounding of sums of steps to float32, on pixels in [0, 1].
PIXEL_TOLERANCE = 1e-6
RANDOM_STARTS = [name for name in ATTACKS if ATTACKS[name][1]["random_start"]]


def flatten(images):
    return tf.reshape(images, [-1, math.prod(images.shape[1:])])


def linear_target(weights, scale=None, bias=0.0):
    """Features are the pixels; logits are features @ weights [F, C] + bias, with noise of scale [C, D]."""
    weights = tf.constant(weights, tf.float32)
    scale = tf.zeros([weights.shape[1], 1]) if scale is None else tf.constant(scale, tf.float32)
    return HeadNoiseTarget(flatten, lambda features: features @ weights + bias, scale)


def random_images(count, seed=0, shape=SHAPE, low=0.0, high=1.0):
    return tf.constant(np.random.default_rng(seed).uniform(low, high, (count, *shape)), tf.float32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def noisy_target():
    """Five classes, correlated noise."""
    return linear_target(normal(PIXELS, 5, seed=1), 0.3 * normal(5, 7, seed=2))


@pytest.fixture(scope="module")
def labelled(noisy_target):
    """Images, and the class that each has without noise."""
    images = random_images(8)
    return images, tf.argmax(noisy_target.noise_free_logits(flatten(images)), axis=1)


def run(attack, target, images, labels, seed=0, indices=None):
    return attack(target, images, labels, np.arange(len(images)) if indices is None else indices, seed)


def ascent_direction(weights, labels):
    """Gradient of h_other − h_label for two classes, [B, *SHAPE]."""
    difference = (weights[:, 1] - weights[:, 0]).reshape(SHAPE)
    return np.where(np.reshape(labels, [-1, 1, 1, 1]) == 0, difference, -difference)


# Closed forms


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd:steps=25", "margin", "z_margin"])
def test_two_linear_classes_reach_the_optimum(name):
    weights = normal(PIXELS, 2, seed=3)
    images = random_images(6).numpy()
    images[0], images[1] = 0.0, 1.0  # the walls of [0, 1] bind
    labels = np.array([0, 1, 0, 1, 0, 1])
    target = linear_target(weights, normal(2, 4, seed=4))
    adversarial = run(build_attack(name, EPSILON), target, images, labels)
    optimum = np.clip(images + EPSILON * np.sign(ascent_direction(weights, labels)), 0, 1)
    np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize("name", ["fgsm", "bim", "pgd:steps=200", "margin:steps=200", "z_margin:steps=200"])
def test_l2_reaches_the_optimum_far_from_the_walls(name):
    weights = normal(PIXELS, 2, seed=3)
    images = random_images(4, low=0.3, high=0.7).numpy()
    labels = np.array([0, 1, 0, 1])
    adversarial = run(build_attack(f"{name}:norm=l2", EPSILON), linear_target(weights, normal(2, 4)), images, labels)
    direction = ascent_direction(weights, labels)
    optimum = images + EPSILON * direction / np.linalg.norm(weights[:, 1] - weights[:, 0])
    np.testing.assert_allclose(adversarial, optimum, rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize("norm", NORMS)
def test_margins_shrink(noisy_target, labelled, norm):
    images, labels = labelled

    def margins(x):
        logits = noisy_target.noise_free_logits(flatten(x))
        return {
            "margin": alignment.margin(logits, labels).numpy(),
            "z_margin": alignment.z_margin(logits, labels, noisy_target.difference_scale).numpy(),
        }

    for name in ("margin", "z_margin"):
        adversarial = run(build_attack(f"{name}:norm={norm}", EPSILON), noisy_target, images, labels)
        assert np.all(margins(adversarial)[name] < margins(images)[name])


def test_z_margin_against_all_corners():
    """The smooth z-margin is concave on a linear model, so that its minimum over a box is at a corner."""
    weights, scale = normal(PIXELS, 3, seed=5), np.diag([0.2, 0.5, 3.0]).astype(np.float32)
    target = linear_target(weights, scale)
    images = random_images(40, seed=6, low=0.2, high=0.8)
    labels = tf.argmax(target.noise_free_logits(flatten(images)), axis=1)
    corners = EPSILON * np.array(list(itertools.product([-1, 1], repeat=PIXELS)), np.float32).reshape(-1, 1, *SHAPE)

    def measured(function, x):
        return function(target.noise_free_logits(flatten(x)), labels, target.difference_scale).numpy()

    adversarial = run(build_attack("z_margin", EPSILON), target, images, labels)
    found = measured(alignment.soft_z_margin, adversarial)
    best = np.stack([measured(alignment.soft_z_margin, images + corner) for corner in corners]).min(axis=0)
    assert np.all(found >= best - 1e-4)
    # Ascent may end at the corner of the rival it met first; that is rare.
    assert np.mean(found < best + 1e-4) >= 0.9
    hard = measured(alignment.z_margin, adversarial)
    hardest = np.stack([measured(alignment.z_margin, images + corner) for corner in corners]).min(axis=0)
    assert np.mean(hard < hardest + 1e-4) >= 0.8


# What holds for every attack


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack(noisy_target, labelled, name, norm):
    images, labels = labelled
    attack = build_attack(f"{name}:norm={norm}", 0.4, eot_samples=8)
    adversarial = run(attack, noisy_target, images, labels)
    assert adversarial.dtype == tf.float32 and adversarial.shape == images.shape
    assert tf.reduce_min(adversarial) >= 0 and tf.reduce_max(adversarial) <= 1
    difference = (adversarial - images).numpy().reshape(len(images), -1).astype(np.float64)
    distances = np.linalg.norm(difference, np.inf if norm == "linf" else 2, axis=1)
    assert np.all((distances > 0) & (distances <= 0.4 + PIXEL_TOLERANCE))
    np.testing.assert_array_equal(run(attack, noisy_target, images, labels), adversarial)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_epsilon_zero_is_the_identity(noisy_target, labelled, name, norm):
    attack = build_attack(f"{name}:norm={norm}", 0.0, eot_samples=8)
    np.testing.assert_array_equal(run(attack, noisy_target, *labelled), labelled[0])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", RANDOM_STARTS)
def test_the_seed_decides_the_random_start(noisy_target, labelled, name, norm):
    attack = build_attack(f"{name}:norm={norm}:steps=2", EPSILON, eot_samples=8)
    first, again, other = (run(attack, noisy_target, *labelled, seed=seed) for seed in (0, make_seed(0), 1))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.any(first.numpy() != other.numpy(), axis=(1, 2, 3)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_image_does_not_depend_on_its_batch(noisy_target, labelled, name, norm):
    """Up to the rounding of a matrix product, which may depend on its number of rows."""
    images, labels = labelled
    attack = build_attack(f"{name}:norm={norm}:steps=3", EPSILON, eot_samples=8)
    indices = np.arange(100, 100 + len(images))
    together = run(attack, noisy_target, images, labels, indices=indices)
    reversed_ = run(attack, noisy_target, images[::-1], labels[::-1], indices=indices[::-1])
    np.testing.assert_allclose(reversed_[::-1], together, rtol=0, atol=PIXEL_TOLERANCE)
    for i in (0, 5):
        alone = run(attack, noisy_target, images[i : i + 1], labels[i : i + 1], indices=indices[i : i + 1])
        np.testing.assert_allclose(alone[0], together[i], rtol=0, atol=PIXEL_TOLERANCE)


@pytest.mark.parametrize(
    "images",
    [
        np.full((2, *SHAPE), np.nan, np.float32),
        np.full((2, *SHAPE), np.inf, np.float32),
        np.full((2, *SHAPE), 1.01, np.float32),
        np.full((2, *SHAPE), -0.01, np.float32),
        np.zeros((2, *SHAPE), np.uint8),
        np.zeros((2, *SHAPE), np.float64),
        np.zeros((2, PIXELS), np.float32),
    ],
    ids=["nan", "inf", "above 1", "below 0", "uint8", "float64", "flat"],
)
def test_unusable_images(noisy_target, images):
    with pytest.raises(InputError, match="expected .*images"):
        run(build_attack("pgd", EPSILON), noisy_target, images, np.zeros(2, np.int64))


@pytest.mark.parametrize("epsilon", [-0.1, -1e-9, math.nan])
def test_unusable_epsilon(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        build_attack("pgd", epsilon)


@pytest.mark.parametrize("text", ["pdg", "", "pgd:stepz=3", "pgd:steps=3.5", "pgd:steps=0", "pgd:norm=l1", "pgd:steps"])
def test_unusable_text(text):
    with pytest.raises(InputError, match="expected"):
        parse_attack(text)
    with pytest.raises(InputError, match="expected"):
        build_attack(text, EPSILON)


def test_text_sets_parameters():
    attack = build_attack("z_margin:steps=3:random_start=false:relative_step_size=0.5", 0.2, eot_samples=4)
    expected = {"objective": "z_margin", "steps": 3, "random_start": False, "relative_step_size": 0.5}
    assert attack == ProjectedGradient(0.2, eot_samples=4, **expected)


@pytest.mark.parametrize("name", ATTACKS)
def test_logits_that_overflow_raise(name):
    features = lambda images: 1e38 * flatten(images)  # noqa: E731
    weights = tf.constant(10 * np.abs(normal(PIXELS, 3)))
    target = HeadNoiseTarget(features, lambda f: f @ weights, tf.ones([3, 3]) + tf.eye(3))
    images = random_images(2, low=0.5)
    assert not np.isfinite(target.noise_free_logits(features(images)).numpy()).any()
    with pytest.raises(InputError, match="finite gradients") as raised:
        run(build_attack(name, EPSILON), target, images, np.array([0, 1]))
    assert "\n" not in str(raised.value)


# Expectation over Transformation


@pytest.fixture(scope="module")
def wide_target():
    """A net that is not linear: 5 features of tanh, 3 classes, noise of a full covariance; and its head's weights."""
    inner, weights = tf.constant(normal(PIXELS, 5, seed=7)), tf.constant(normal(5, 3, seed=8))
    scale_tril = tf.constant(np.tril(normal(5, 5, seed=9)))
    scale = alignment.logit_scale(weights, scale_tril)
    target = HeadNoiseTarget(lambda images: tf.tanh(flatten(images) @ inner), lambda f: f @ weights + 0.1, scale)
    return target, weights


@pytest.mark.parametrize("draws", [1, 2, 50])
def test_expected_gradient_is_the_mean_of_naive_gradients(wide_target, draws):
    """The naive gradient passes through the whole net once per draw, with the noise added to the features."""
    target, weights = wide_target
    images, labels, seed = random_images(4), tf.constant([0, 1, 2, 0]), make_seed(3)
    features = target.features(images)
    noise = target.logits(features, seed, draws)[:, 0] - target.noise_free_logits(features)[0]
    feature_noise = noise @ tf.linalg.pinv(weights)  # z with z W = the noise of the logits
    total = np.zeros(images.shape, np.float64)
    for z in feature_noise:
        with tf.GradientTape() as tape:
            tape.watch(images)
            logits = target.noise_free_logits(target.features(images) + z)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        total += tape.gradient(loss, images)
    gradient = expected_gradient(target, images, labels, seed, objective="ce", draws=draws)
    np.testing.assert_allclose(gradient, total / draws, rtol=1e-5, atol=1e-5 * np.abs(total / draws).max())


@pytest.mark.parametrize("eot_samples", [1, 50])
def test_zero_noise_is_deterministic_pgd(wide_target, eot_samples):
    """Bit for bit, against the ten lines that PGD is."""
    noisy, _ = wide_target
    target = HeadNoiseTarget(noisy.features, noisy.noise_free_logits, tf.zeros_like(noisy.logit_scale))
    images, labels = random_images(4), tf.constant([0, 1, 2, 0])
    epsilon, step_size = tf.constant(EPSILON), tf.constant(0.1 * EPSILON)
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


def seeded_net(images, seed):
    """Noise on the pixels, as by a GaussianNoise layer, inside a net that is not linear."""
    noisy = images + 0.2 * tf.random.stateless_normal(tf.shape(images), seed)
    return tf.tanh(flatten(noisy) @ normal(PIXELS, 8, seed=10)) @ normal(8, 3, seed=11)


@pytest.mark.parametrize("draws_per_pass", [1, 3, 7, 50])
def test_draws_in_parts(draws_per_pass):
    """The parts are of the same draws as the whole: draw i has the seed (seed, i)."""
    target = RandomNetTarget(seeded_net, draws_per_pass)
    images, labels, seed = random_images(4), tf.constant([0, 1, 2, 0]), make_seed(5)
    total = np.zeros(images.shape, np.float64)
    for draw_seed in [fold_in(seed, draw) for draw in range(7)]:
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, seeded_net(images, draw_seed))
        total += tape.gradient(loss, images)
    gradient = tf.function(expected_gradient)(target, images, labels, seed, objective="ce", draws=7)
    np.testing.assert_allclose(gradient, total / 7, rtol=1e-5, atol=1e-5 * np.abs(total / 7).max())


@pytest.mark.parametrize("name", ["pgd", "margin"])
def test_noise_anywhere(name):
    images = random_images(64)
    seeds = [fold_in(make_seed(9), draw) for draw in range(20)]

    def draw(x):
        return tf.stack([seeded_net(x, seed) for seed in seeds])

    labels = tf.argmax(tf.reduce_mean(draw(images), axis=0), axis=1)
    attack = build_attack(name, 0.2, eot_samples=5)
    target = RandomNetTarget(seeded_net, draws_per_pass=2)
    adversarial = run(attack, target, images, labels)
    before, after = (np.mean(tf.argmax(draw(x), axis=2) == labels) for x in (images, adversarial))
    assert after < before - 0.3
    np.testing.assert_array_equal(run(attack, target, images, labels), adversarial)


def test_z_margin_needs_noise_behind_the_features():
    target = RandomNetTarget(seeded_net)
    with pytest.raises(InputError, match="z_margin expects") as raised:
        run(build_attack("z_margin", EPSILON), target, random_images(2), np.array([0, 1]))
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="z_margin expects"):
        build_attack("z_margin", EPSILON).zero_gradients(target, random_images(2), np.array([0, 1]), 0)


# Targets


def test_moments_of_head_noise(noisy_target):
    draws = 100_000
    features = flatten(random_images(2))
    logits = noisy_target.logits(features, make_seed(4), draws).numpy().astype(np.float64)
    mean = noisy_target.noise_free_logits(features).numpy()
    covariance = (noisy_target.logit_scale @ tf.transpose(noisy_target.logit_scale)).numpy()
    variances = np.diag(covariance)
    for i in range(2):
        assert np.all(np.abs(logits[:, i].mean(axis=0) - mean[i]) < 5 * np.sqrt(variances / draws))
        error = np.abs(np.cov(logits[:, i].T) - covariance)
        assert np.all(error < 5 * np.sqrt((np.outer(variances, variances) + covariance**2) / draws))


def test_target_of_a_plain_classifier():
    inputs = keras.Input(SHAPE)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Flatten()(keras.layers.Dropout(0.5)(inputs))))
    target, images, labels = target_of(model), random_images(6), np.arange(6) % 4
    np.testing.assert_array_equal(target.noise_free_logits(target.features(images)), model(images, training=False))
    np.testing.assert_array_equal(target.logit_scale, np.zeros_like(target.logit_scale))
    kernel = model.layers[-1].kernel.numpy()
    probability = tf.nn.softmax(model(images, training=False)).numpy() - np.eye(4)[labels]
    gradient = (probability @ kernel.T).reshape(-1, *SHAPE)
    expected = np.clip(images + EPSILON * np.sign(gradient), 0, 1)
    np.testing.assert_allclose(
        run(build_attack("fgsm", EPSILON), target, images, labels), expected, rtol=0, atol=PIXEL_TOLERANCE
    )


@pytest.mark.parametrize("covariance", ["none", "isotropic", "anisotropic"])
def test_target_of_a_wca_net(covariance):
    inputs = keras.Input(SHAPE)
    model = WCANet(
        keras.Model(inputs, keras.layers.Flatten()(inputs)), num_classes=3, feature_dim=4, covariance=covariance
    )
    model.build((None, *SHAPE))
    target, images = target_of(model), random_images(5)
    features = target.features(images)
    np.testing.assert_array_equal(features, model.features(images))
    np.testing.assert_array_equal(target.noise_free_logits(features), model.classifier(features))
    np.testing.assert_array_equal(target.logit_scale, model.logit_scale)
    assert np.any(target.logit_scale) == (covariance != "none")


# Vanished gradients, traces


def test_zero_gradients_where_cross_entropy_saturates():
    images = np.zeros((3, 1, 1, 1), np.float32)
    images[:, 0, 0, 0] = [1.0, 0.1, 0.0]  # logit differences 300, 30, 0; exp(-300) is 0 in float32, exp(-30) is not
    target = linear_target([[150.0, -150.0]])
    right, wrong = np.array([0, 0, 0]), np.array([1, 1, 1])
    cross_entropy = build_attack("pgd", EPSILON, eot_samples=3)
    assert tf.nn.softmax(target.noise_free_logits(flatten(tf.constant(images))))[0].numpy().tolist() == [1.0, 0.0]
    assert cross_entropy.zero_gradients(target, images, right, 0).numpy().tolist() == [True, False, False]
    assert cross_entropy.zero_gradients(target, images, wrong, 0).numpy().tolist() == [False, False, False]
    for name in ("margin", "z_margin"):
        attack = build_attack(name, EPSILON)
        assert attack.zero_gradients(target, images, right, 0).numpy().tolist() == [False, False, False]


def test_one_trace_for_all_radii_and_steps():
    target, images, labels = linear_target(normal(PIXELS, 3)), random_images(4), np.array([0, 1, 2, 0])
    before = projected_gradient._ascend.experimental_get_tracing_count()
    for epsilon, steps in itertools.product((0.0, 0.1, 8 / 255), (2, 40)):
        for seed in (0, 1):
            run(build_attack(f"pgd:steps={steps}", epsilon), target, images, labels, seed=seed)
    assert projected_gradient._ascend.experimental_get_tracing_count() == before + 1


# Balls


def test_linf_random_start_is_uniform():
    starts = BALLS["linf"].random_start(make_seed(1), tf.range(2000), SHAPE, tf.constant(0.3)).numpy()
    assert stats.kstest(starts.ravel(), stats.uniform(-0.3, 0.6).cdf).pvalue > 0.01
    correlation = np.corrcoef(starts.reshape(len(starts), -1).T) - np.eye(PIXELS)
    assert np.abs(correlation).max() < 5 / math.sqrt(len(starts))


def test_l2_random_start_is_uniform():
    starts = BALLS["l2"].random_start(make_seed(1), tf.range(2000), SHAPE, tf.constant(0.3)).numpy()
    flat = starts.reshape(len(starts), -1)
    radii = np.linalg.norm(flat, axis=1)
    assert stats.kstest((radii / 0.3) ** PIXELS, "uniform").pvalue > 0.01
    for coordinate in (flat / radii[:, np.newaxis]).T:  # (1 + u_i) / 2 of a uniform direction u is a beta variable
        symmetric_beta = stats.beta((PIXELS - 1) / 2, (PIXELS - 1) / 2)
        assert stats.kstest((1 + coordinate) / 2, symmetric_beta.cdf).pvalue > 0.001


@pytest.mark.parametrize("norm", NORMS)
def test_random_start_depends_on_the_index_alone(norm):
    def start(indices):
        return BALLS[norm].random_start(make_seed(1), tf.constant(indices), SHAPE, tf.constant(0.3)).numpy()

    together = start([4, 9, 2])
    np.testing.assert_array_equal(start([2, 4])[::-1], together[[0, 2]])
    assert not np.array_equal(together[0], together[1])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [0.01, 0.2, 5.0])
def test_projection_is_the_nearest_point(norm, size):
    ball, epsilon = BALLS[norm], tf.constant(0.3)
    points = tf.constant(size * normal(20, *SHAPE))
    nearest = ball.project(points, epsilon)
    assert np.all(ball.distance(nearest) <= 0.3 * (1 + 1e-6))
    np.testing.assert_allclose(ball.project(nearest, epsilon), nearest, rtol=3e-7, atol=0)
    inside = ball.distance(points).numpy() <= 0.3
    np.testing.assert_array_equal(nearest.numpy()[inside], points.numpy()[inside])
    # p is nearest in a convex set exactly when <x − p, q − p> ≤ 0 for each q of the set.
    others = ball.random_start(make_seed(2), tf.range(500), SHAPE, epsilon)
    outward, along = flatten(points - nearest).numpy(), flatten(others).numpy()
    products = outward @ along.T - np.sum(outward * flatten(nearest).numpy(), axis=1, keepdims=True)
    assert np.all(products <= 1e-5)


def test_projection_to_a_point():
    for ball in BALLS.values():
        for points in (normal(3, *SHAPE), np.zeros((3, *SHAPE), np.float32)):
            assert not np.any(ball.project(tf.constant(points), tf.constant(0.0)))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_steepest_step(norm, dual, size):
    """A step of norm 1 whose product with the gradient is the gradient's dual norm, the most there is."""
    gradient = normal(20, *SHAPE)
    step = BALLS[norm].steepest_step(tf.constant(np.float32(size) * gradient))
    np.testing.assert_allclose(BALLS[norm].distance(step), 1, rtol=1e-6)
    products = np.sum(gradient * step, axis=(1, 2, 3))
    np.testing.assert_allclose(products, np.linalg.norm(gradient.reshape(20, -1), dual, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(BALLS[norm].steepest_step(tf.zeros([2, *SHAPE])), np.zeros([2, *SHAPE]))


# What it is for


def probabilities(target, x, labels):
    mean = target.noise_free_logits(flatten(x)).numpy()
    return probability_correct(mean, labels.numpy(), target.logit_scale.numpy(), tolerance=1e-3)[0]


def test_z_margin_is_the_strongest_for_two_classes():
    """P(correct) is then a growing function of the z-margin, image by image."""
    target = linear_target(normal(PIXELS, 2, seed=13), normal(2, 8, seed=12))
    images = random_images(100, seed=14)
    labels = tf.argmax(target.noise_free_logits(flatten(images)), axis=1)
    by_pgd = run(build_attack("pgd:steps=40", EPSILON), target, images, labels)
    by_z_margin = run(build_attack("z_margin", EPSILON), target, images, labels)
    left = probabilities(target, by_z_margin, labels)
    assert np.all(left <= probabilities(target, by_pgd, labels) + 1e-6)
    assert np.mean(left) < np.mean(probabilities(target, images, labels)) - 0.01


@pytest.mark.parametrize("seed", range(4))
def test_z_margin_moves_where_cross_entropy_saturates(seed):
    """Large logits, five classes, equal steps: the z-margin leaves a lower mean P(correct).

    Not so for every net: where the noise is as large as the margins, several rivals share the errors, and the mean over
    draws of the cross-entropy, which sees them all, can leave a lower P(correct) than the nearest rival's z-margin.
    """
    target = linear_target(300 * normal(PIXELS, 5, seed=seed), 3 * normal(5, 8, seed=100 + seed))
    images = random_images(100, seed=200 + seed)
    labels = tf.argmax(target.noise_free_logits(flatten(images)), axis=1)
    pgd = build_attack("pgd:steps=40", EPSILON)
    assert np.mean(pgd.zero_gradients(target, images, labels, 0)) > 0.2
    by_pgd = run(pgd, target, images, labels)
    by_z_margin = run(build_attack("z_margin", EPSILON), target, images, labels)
    left = np.mean(probabilities(target, by_z_margin, labels))
    assert left < np.mean(probabilities(target, by_pgd, labels)) - 0.02


# Inputs, and nets whose features are random


@pytest.mark.parametrize(
    ("labels", "indices", "message"),
    [
        (np.array([0, 3]), np.arange(2), "labels from 0 to 2"),
        (np.array([0, -1]), np.arange(2), "labels from 0 to 2"),
        (np.array([0, 1, 2]), np.arange(2), "2 whole numbers as labels"),
        (np.array([0.0, 1.0]), np.arange(2), "2 whole numbers as labels"),
        (np.array([0, 1]), np.arange(3), "2 whole numbers as indices"),
    ],
)
def test_labels_and_indices_are_checked(labels, indices, message):
    target = linear_target(normal(PIXELS, 3, seed=5), np.eye(3, dtype=np.float32))
    with pytest.raises(InputError, match=message):
        build_attack("margin", EPSILON)(target, random_images(2), labels, indices, 0)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 10**10}, {"eot_samples": 0}, {"norm": "l3"}])
def test_a_configuration_out_of_range_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ProjectedGradient(EPSILON, **wrong)


def test_a_net_with_random_features_has_no_exact_target():
    layers = [keras.layers.Flatten(), keras.layers.Dense(8), AnisotropicNoise(), keras.layers.Dense(3)]
    net = keras.Sequential([keras.Input(SHAPE), *layers])
    with pytest.raises(InputError, match="RandomNetTarget"):
        target_of(net)
