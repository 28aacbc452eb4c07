"""Attacks that search: differential evolution of pixels, and random search over squares."""

import dataclasses
import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import (
    NORMS,
    PIXEL_TOLERANCE,
    PIXELS,
    SHAPE,
    At,
    batch_of,
    build_attack,
    counting_target,
    flatten,
    linear_target,
    normal,
    perturbations,
    perturbed_by,
    predictions,
    random_images,
    run,
    tanh_target,
)
from scipy import special

from wca_tf.attacks import square
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.gradients import score_images
from wca_tf.attacks.n_pixel import NPixel, paint
from wca_tf.attacks.square import Square
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.gaussian.probability import probability_correct
from wca_tf.nets.adapter import adapt
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget, is_reproducible

LARGE = (20, 20, 3)

# n-pixel


def test_paint_sets_pixels():
    """Rows and columns are equal parts of [0, 1]; of two on the same place the later counts."""
    images = tf.zeros([2, 2, 4, 3])
    vectors = [
        [0.49, 0.24, 0.1, 0.2, 0.3, 1.0, 1.0, 0.4, 0.5, 0.6],
        [0.5, 0.25, 0.1, 0.2, 0.3, 0.9, 0.49, 0.4, 0.5, 0.6],
    ]
    expected = np.zeros((2, 2, 4, 3), np.float32)
    expected[0, 0, 0], expected[0, 1, 3] = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    expected[1, 1, 1] = [0.4, 0.5, 0.6]
    np.testing.assert_array_equal(paint(images, tf.constant(vectors)), expected)


@pytest.mark.parametrize("pixels", [1, 2, 3])
def test_n_pixel_changes_so_many_pixels_at_most(pixels):
    """And all of them where each lowers the label's probability."""
    shape, classes = (4, 5, 3), 3
    weights = tf.constant(normal(math.prod(shape), classes, seed=40))
    target = GaussianLogitsTarget(flatten, lambda f: f @ weights, tf.zeros([classes, 1]))
    images = random_images(6, shape=shape, low=0.2, high=0.8)
    labels = predictions(target, images)
    attack = build_attack(f"n_pixel:pixels={pixels}:population=20:generations=15")
    adversarial = run(attack, target, images, labels)
    changed = np.any(adversarial != images, axis=3).sum(axis=(1, 2))
    assert np.all(changed <= pixels) and np.max(changed) == pixels and np.all(changed >= 1)


@dataclasses.dataclass(frozen=True)
class OnePixelMore(NPixel):
    """Changes a pixel more than it may."""

    def perturb(self, target, batch, epsilon, seed):
        vectors = tf.constant([[0.0, pixel / 5, 1.0] for pixel in range(self.pixels + 1)])
        count = tf.shape(batch.images)[0]
        return paint(batch.images, tf.repeat(tf.reshape(vectors, [1, -1]), count, axis=0)), {}


def test_a_pixel_too_many_is_seen_from_outside():
    images = random_images(2, shape=(4, 5, 1), low=0.2, high=0.8)
    target = GaussianLogitsTarget(flatten, lambda f: f[:, :3], tf.zeros([3, 1]))
    with pytest.raises(RuntimeError, match="left its reach: l0 distance 3.0, at most 2"):
        run(OnePixelMore(pixels=2), target, images, np.zeros(2, np.int64))


def test_one_pixel_finds_the_best_pixel_of_a_linear_model():
    """Against all pixels and the values 0 and 1, of which one is best: the energy is monotone in each pixel.

    The value itself is found up to what the criterion of convergence leaves: energies that agree to 1 %.
    """
    sizes = np.array([1, -0.9, 1.1, 0.8, -1.2, -0.7], np.float32)  # no pixel is all that matters
    weights, images = np.stack([-sizes, sizes], axis=1), random_images(24)
    bias = np.array([0, -0.5 * (weights[:, 1] - weights[:, 0]).sum()], np.float32)  # the classes meet at one half
    target = linear_target(weights, bias=bias)
    labels = predictions(target, images)
    adversarial = run(build_attack("n_pixel:population=60:generations=60:stop_at=0"), target, images, labels)

    def energies(x):
        return special.softmax(x.reshape(-1, PIXELS) @ weights + bias, axis=1)[np.arange(24), labels]

    candidates = []
    for pixel, value in itertools.product(range(PIXELS), (0.0, 1.0)):
        changed = images.numpy().reshape(24, PIXELS)
        changed[:, pixel] = value
        candidates.append(energies(changed))
    found, best = energies(adversarial.numpy()), np.min(candidates, axis=0)
    lost = predictions(target, adversarial) != labels  # the search ends there
    assert not lost.all() and np.all(found[~lost] <= 1.03 * best[~lost]) and np.all(found >= best * (1 - 1e-5))
    # Where it is sure to exist at all: an image that can be lost by one pixel is.
    losable = best < 0.5 - 0.03
    assert np.all(lost[losable]) and losable.any()


def test_n_pixel_is_judged_by_the_share_of_draws_that_it_leaves():
    """Of the same draws for all candidates: the seed's, folded with 1."""
    target, images = tanh_target(scale=0.5), random_images(6)
    labels = predictions(target, images)
    attack = NPixel(pixels=3, population=30, generations=20, stop_at=0.3, eot_samples=40)
    adversarial = run(attack, target, images, labels, seed=2)
    batch = batch_of(adversarial, labels)
    held = score_images(target, target.features(adversarial), batch, fold_in(make_seed(2), 1), 40).p_correct
    clean = score_images(target, target.features(images), batch, fold_in(make_seed(2), 1), 40).p_correct
    assert np.any(held <= 0.3) and np.mean(held) < np.mean(clean) - 0.1


def test_n_pixel_does_not_stop_at_a_candidate_that_only_its_own_draws_call_lost():
    """Two draws are both errors for many candidates: by them alone the search ends in its first round."""
    target, images = tanh_target(scale=1.0), random_images(12)
    labels = predictions(target, images)
    result = perturbed_by(NPixel(population=20, generations=3, eot_samples=2), target, images, labels)
    batch = batch_of(result.images, labels)
    held = score_images(target, target.features(result.images), batch, make_seed(99), 2000).p_correct.numpy()
    assert held.min() > 0.01  # none is at the bound
    np.testing.assert_array_equal(result.extras["generations"], 3)


def test_n_pixel_keeps_an_error_though_the_label_is_more_probable_there():
    """0.2 is the label's probability, and the largest, of a clean image; 0.3 beside 0.4 of a painted one."""
    clean, painted = np.log([0.2, *[0.16] * 5]), np.log([0.3, 0.4, *[0.075] * 4])

    def head(features):
        touched = tf.reduce_any(features != 0.5, axis=1, keepdims=True)
        return tf.where(touched, tf.constant(painted, tf.float32), tf.constant(clean, tf.float32))

    target = GaussianLogitsTarget(flatten, head, tf.zeros([6, 1]))
    images = tf.fill([3, *SHAPE], 0.5)
    attack = NPixel(population=5, generations=2, eot_samples=1)
    assert np.all(predictions(target, images) == 0)
    assert np.all(predictions(target, run(attack, target, images, np.zeros(3, np.int64))) == 1)
    # What is an error already stays: painted, it would be right.
    np.testing.assert_array_equal(run(attack, target, images, np.ones(3, np.int64)), images)


def test_n_pixel_tells_how_many_generations_each_image_was_searched():
    """On a saturated net all candidates have a softmax of 1: the paper's rule stops after one generation."""
    still, images = tanh_target(), random_images(8)
    labels = predictions(still, images)
    saturated = GaussianLogitsTarget(still.features, lambda f: 1e5 * still.noise_free_logits(f), tf.zeros([4, 1]))
    few = "n_pixel:population=10:generations=7"
    result = perturbed_by(build_attack(few), saturated, images, labels)
    held = predictions(saturated, result.images) == labels
    assert held.any() and np.all(result.extras["generations"][held] == 1)
    assert np.all(result.extras["generations"] <= 7) and "found" not in result.extras
    longer = perturbed_by(build_attack(f"{few}:objective=margin"), saturated, images, labels)
    np.testing.assert_array_equal(longer.extras["generations"], 7)  # no rule stops it
    assert "generations" not in perturbed_by(build_attack("fgsm", 0.1), still, images, labels).extras


def test_n_pixel_on_the_margin_finds_what_saturation_hides():
    """The softmax of a sure net is the same for every candidate; its margin is not."""
    net, images, labels = (each[:12] if i else each for i, each in enumerate(noisy_net_of_100_pixels()))
    target = GaussianLogitsTarget(net.features, lambda f: 1e4 * net.noise_free_logits(f), 200 * net.logit_scale)
    left = {}
    for objective in ("probability", "margin"):
        attack = build_attack(f"n_pixel:pixels=3:population=20:generations=20:objective={objective}")
        left[objective] = expected_accuracy(target, run(attack, target, images, labels), labels)
    assert left["margin"] < left["probability"] - 0.1


@pytest.mark.parametrize("objective", ["ce", "z_margin"])
def test_n_pixel_has_two_objectives(objective):
    with pytest.raises(InputError, match="objective among probability, margin"):
        NPixel(objective=objective)


def test_n_pixel_does_not_depend_on_the_memory_budget(monkeypatch):
    target, images = tanh_target(), random_images(3)
    labels = predictions(target, images)
    found = []
    for per_pass in (1000, 7):
        monkeypatch.setattr("wca_tf.attacks.n_pixel.IMAGES_PER_PASS", per_pass)
        # Another parameter, so that the graph is another; it does not matter, as no draw differs without noise.
        attack = NPixel(population=20, generations=5, eot_samples=1 + per_pass % 2)
        found.append(run(attack, target, images, labels))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=PIXEL_TOLERANCE)


# Square Attack


def share_of_pixels(iteration, initial=0.8):
    """p of Square Attack's authors: halved after iterations 10, 50, 200, ..., the first iteration being 0."""
    return initial / 2 ** sum(iteration > edge for edge in (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000))


@pytest.mark.parametrize("queries", [1, 2, 11, 12, 13, 60, 5000, 10_000])
@pytest.mark.parametrize(("norm", "least"), [("linf", 1), ("l2", 3)])
def test_sides_of_squares(queries, norm, least):
    """One query is the start's; every other one is a proposal, with the side that the authors' schedule gives it."""
    attack, shape = Square(norm=norm, queries=queries), (28, 28, 1)
    sides = [size for first, last, size in square.phases(attack, shape) for _ in range(first, last)]
    numbers = [number for first, last, _ in square.phases(attack, shape) for number in range(first, last)]
    times = [int(i / queries * 10_000) for i in range(queries - 1)]  # the schedule is stretched, as in their paper
    expected = [max(round(math.sqrt(share_of_pixels(time) * 28 * 28)), least) for time in times]
    if norm == "l2":
        expected = [side + (side % 2 == 0) for side in expected]
    assert sides == expected
    assert numbers == list(range(1, queries))  # each its own random numbers, and none the start's


@pytest.mark.parametrize("share", ["stop_at", "initial_share"])
def test_shares_are_at_most_one(share):
    """Whole numbers too: a bound of 2 would end the search at its start."""
    for value in (2, 1.5):
        with pytest.raises(InputError, match=f"{share} .* 1, received {value}"):
            Square(**{share: value})
    Square(**{share: 1})


def test_sides_fit_small_images():
    for norm in NORMS:
        for shape in ((1, 1, 1), (2, 3, 1), (3, 2, 1), (28, 5, 3)):
            assert all(
                1 <= size <= min(shape[:2]) for _, _, size in square.phases(Square(norm=norm, queries=9000), shape)
            )


def test_linf_start_is_vertical_stripes():
    start = square._START["linf"](make_seed(1), tf.range(50), LARGE, tf.constant(0.2)).numpy()
    np.testing.assert_array_equal(np.abs(start), np.float32(0.2))
    np.testing.assert_array_equal(start, np.repeat(start[:, :1], 20, axis=1))
    assert abs(np.mean(start > 0) - 0.5) < 5 * 0.5 / math.sqrt(50 * 20 * 3)  # signs per column and channel


@pytest.mark.parametrize("shape", [LARGE, (28, 28, 1), (13, 17, 2), (4, 3, 1), (1, 1, 1)])
def test_l2_start_has_norm_epsilon(shape):
    start = square._START["l2"](make_seed(1), tf.range(5), shape, tf.constant(0.7)).numpy()
    assert start.shape == (5, *shape)
    np.testing.assert_allclose(np.linalg.norm(start.reshape(5, -1), axis=1), 0.7, rtol=1e-5)


@pytest.mark.parametrize("size", [3, 5, 9, 20])
def test_linf_proposals_are_squares_at_the_walls_of_the_ball(size):
    images, epsilon = random_images(40, shape=LARGE), 0.1
    incumbent = tf.clip_by_value(images + square._START["linf"](make_seed(1), tf.range(40), LARGE, epsilon), 0.0, 1.0)
    uniforms = tf.random.stateless_uniform([40, 8], make_seed(2))
    proposal = square._linf_proposal(incumbent, images, tf.constant(epsilon), size, uniforms).numpy()
    assert np.all((proposal >= 0) & (proposal <= 1))
    assert np.abs(perturbations(proposal, images)).max() <= epsilon + PIXEL_TOLERANCE
    at_wall = np.isclose(np.abs(proposal - images), epsilon, atol=1e-6) | (proposal == 0) | (proposal == 1)
    assert at_wall.all()
    corners = set()
    for one, other in zip(proposal, incumbent.numpy(), strict=True):
        rows, columns = np.nonzero(np.any(np.abs(one - other) > 1e-6, axis=2))
        if len(rows):
            assert np.ptp(rows) < size and np.ptp(columns) < size
            corners.add((rows.min(), columns.min()))
    assert len(corners) > 1 or size == 20


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_no_linf_proposal_is_its_incumbent(channels):
    """As in the authors' code: signs are drawn until they change something. One that does not would waste a query."""
    images, epsilon = random_images(4000, shape=(6, 6, channels)), tf.constant(0.1)
    uniforms = tf.random.stateless_uniform([4000, 5 + channels], make_seed(3))
    incumbent = tf.clip_by_value(images + epsilon, 0.0, 1.0)  # a proposal of + alone would be the same
    proposal = square._linf_proposal(incumbent, images, epsilon, 2, uniforms).numpy()
    signs = np.any(proposal < incumbent.numpy() - 1e-6, axis=(1, 2))  # [B, channels], where it is -
    kinds = signs @ 2 ** np.arange(channels)
    for axis in (1, 2):  # the others, each as often, wherever the square is
        places = np.any(proposal != incumbent.numpy(), axis=(3 - axis, 3)).argmax(axis=1)
        for place in range(5):
            counts = np.bincount(kinds[places == place], minlength=2**channels)
            expected = counts.sum() / (2**channels - 1)
            assert counts[0] == 0 and counts.sum() > 600
            assert np.all(np.abs(counts[1:] - expected) <= 5 * math.sqrt(expected))
    assert np.all(perturbations(proposal, images) >= -0.1 - 1e-6)


@pytest.mark.parametrize("size", [3, 5, 9])
def test_l2_proposals_stay_on_the_sphere(size):
    """From an incumbent on the sphere, where no wall is near: nothing of epsilon is unspent. Near walls it is less."""
    epsilon = tf.constant(0.5)
    uniforms = tf.random.stateless_uniform([40, 8], make_seed(2))
    for low, high in ((0.5, 0.5), (0.0, 1.0)):
        images = random_images(40, shape=LARGE, low=low, high=high)
        start = square._START["l2"](make_seed(1), tf.range(40), LARGE, epsilon)
        incumbent = tf.clip_by_value(images + start, 0.0, 1.0)
        proposal = square._l2_proposal(incumbent, images, epsilon, size, uniforms).numpy()
        assert np.all((proposal >= 0) & (proposal <= 1))
        norms = np.linalg.norm(perturbations(proposal, images), axis=1)
        assert np.all(norms <= 0.5 * (1 + 1e-5))
        if low == high:
            np.testing.assert_allclose(norms, 0.5, rtol=1e-5)
        for one, other in zip(proposal, incumbent.numpy(), strict=True):
            moved = np.abs(one - other).max(axis=2) > 1e-3 * np.abs(one - other).max()
            assert 0 < moved.sum()
    # Only two squares change by more than the common factor that keeps the norm.
    change = perturbations(proposal, images).reshape(40, -1, 3) / perturbations(incumbent, images).reshape(40, -1, 3)
    for ratios in change:
        common = np.median(ratios)
        outside = np.all(np.isclose(ratios, common, rtol=1e-3), axis=1).sum()
        assert outside >= 400 - 2 * size**2 - 60  # 60: pixels at walls


def test_the_pattern_is_a_hill_and_a_valley():
    """Of Square Attack's section 3.3: norm 1, antisymmetric for even sizes, each half largest at its centre."""
    for size in (2, 3, 5, 8, 11):
        pattern = square._pattern(size)
        assert pattern.shape == (size, size)
        np.testing.assert_allclose(np.linalg.norm(pattern), 1)
        assert np.all(pattern[: size // 2] > 0) and np.all(pattern[size // 2 :] < 0)
        if size % 2 == 0:
            np.testing.assert_allclose(pattern[: size // 2], -pattern[size // 2 :])
    hill = square._hill(3, 5)
    assert np.unravel_index(hill.argmax(), hill.shape) == (1, 2)
    np.testing.assert_allclose(hill / hill[1, 2] * (1 + 1 / 4 + 1 / 9), _sums_of_squares(3, 5))


def _sums_of_squares(height, width):
    """1/(k+1)² summed over the squares around the centre that a place is in."""
    row, column = height // 2, width // 2
    rings = np.maximum(*np.abs(np.mgrid[:height, :width] - np.array([[[row]], [[column]]])))
    return np.array([[sum(1 / (k + 1) ** 2 for k in range(ring, max(row, column) + 1)) for ring in r] for r in rings])


@pytest.mark.parametrize("norm", NORMS)
def test_square_is_never_worse_than_its_start(norm):
    """Without noise: the margin falls from proposal to proposal, so that a search cut short is worse or equal."""
    target, images = tanh_target(seed=50), random_images(20)
    labels = predictions(target, images)
    margins = []
    for queries in (1, 10, 60):
        attack = At(Square(norm=norm, queries=queries, eot_samples=1), 0.05)
        adversarial = run(attack, target, images, labels)
        held = score_images(target, target.features(adversarial), batch_of(adversarial, labels), make_seed(0), 1)
        margins.append(held.margin.numpy())
    start = square._START[norm](fold_in(make_seed(0), 0), tf.range(20, dtype=tf.int64), SHAPE, tf.constant(0.05))
    first = tf.clip_by_value(images + start, 0.0, 1.0)
    held = score_images(target, target.features(first), batch_of(first, labels), make_seed(0), 1)
    np.testing.assert_allclose(margins[0], held.margin, rtol=0, atol=1e-6)
    assert np.all(margins[1] <= margins[0] + 1e-6) and np.any(margins[1] < margins[0] - 1e-3)
    assert np.all(margins[2] <= margins[1] + 1e-6) and np.any(margins[2] < margins[1] - 1e-3)


def test_square_lowers_the_mean_margin_of_a_random_net():
    """On draws that it has not seen. A kept proposal may be kept by luck: the mean over images falls all the same.

    In units of the standard error of a mean over eot_samples draws, which is what luck is worth.
    """
    target, images = tanh_target(seed=50, scale=1.0), random_images(30)
    labels = predictions(target, images)
    means = []
    for queries in (1, 5, 150):
        attack = At(Square(queries=queries, eot_samples=50, stop_at=0.0), 0.2)
        adversarial = run(attack, target, images, labels)
        fresh = tf.function(score_images)(
            target, target.features(adversarial), batch_of(adversarial, labels), make_seed(77), 2000
        )
        means.append(np.mean(fresh.margin))
    assert means[0] > means[1] > means[2]
    assert means[2] < means[0] - 5 * np.sqrt(np.square(target.logit_scale).sum(axis=1).mean() / 50 / 30)


def noisy_net_of_100_pixels():
    """(target, images, labels): noise that is large beside the margins of a net that is not linear."""
    inner, outer = tf.constant(normal(100, 16, seed=70) / 3), tf.constant(normal(16, 4, seed=71))
    target = GaussianLogitsTarget(
        lambda images: tf.tanh((flatten(images) - 0.5) @ inner), lambda f: f @ outer, tf.constant(normal(4, 5, seed=72))
    )
    images = random_images(40, shape=(10, 10, 1))
    return target, images, predictions(target, images)


def expected_accuracy(target, images, labels):
    logits = target.noise_free_logits(target.features(tf.convert_to_tensor(images))).numpy()
    return probability_correct(logits, labels, target.logit_scale.numpy())[0].mean()


def test_square_with_common_draws_is_as_strong_as_pgd_on_a_noisy_net():
    """Proposals that meet their own draws are compared with the luckiest so far, and the search stalls."""
    net = noisy_net_of_100_pixels()
    left = {
        text: expected_accuracy(net[0], run(build_attack(text, 0.05), *net), net[2])
        for text in ("pgd:steps=40", "square:queries=300", "square:queries=300:resample_noise=true")
    }
    assert left["square:queries=300"] <= left["pgd:steps=40"] + 0.03
    assert left["square:queries=300:resample_noise=true"] >= left["square:queries=300"] + 0.2


@pytest.mark.slow
def test_square_meets_common_draws_on_a_keras_net_whose_layers_draw_its_noise():
    """Their streams follow the seed of a call."""
    target, images, labels = noisy_net_of_100_pixels()

    @keras.saving.register_keras_serializable("tests")
    class LogitNoise(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.seed_generator = keras.random.SeedGenerator(1)

        def call(self, logits):
            draw = keras.random.normal((tf.shape(logits)[0], 5), seed=self.seed_generator)
            return logits + draw @ tf.transpose(target.logit_scale)

    inputs = keras.Input(images.shape[1:])
    hidden = keras.layers.Lambda(lambda x: target.noise_free_logits(target.features(x)))(inputs)
    net = adapt(keras.Model(inputs, LogitNoise()(hidden)))
    assert isinstance(net, SampledTarget) and is_reproducible(net, images)
    adversarial = run(build_attack("square:queries=150", 0.05), net, images[:20], labels[:20])
    luck = run(build_attack("square:queries=150:resample_noise=true", 0.05), net, images[:20], labels[:20])
    common, fresh = (expected_accuracy(target, found, labels[:20]) for found in (adversarial, luck))
    assert common < fresh - 0.1


def noise_by_place(images, seed):
    """A net whose draws differ from place to place in the batch, as a layer's do that draws for a whole batch."""
    noise = tf.random.stateless_normal([tf.shape(images)[0], 3], seed)
    return 4 * tf.tanh(flatten(images) @ normal(PIXELS, 8, seed=10)) @ normal(8, 3, seed=11) + noise


@pytest.mark.parametrize(
    "text",
    [
        "square:queries=20:stop_at=0.3",
        "pgd_restarts:restarts=3:steps=2:stop_at=0.3",
        "cw:steps=40:searches=2:learning_rate=0.03:initial_constant=1.0",
        "n_pixel:population=8:generations=5:stop_at=0.3",
    ],
)
def test_an_image_meets_the_same_draws_whatever_becomes_of_the_others(text):
    """Of eight images the odd ones are attacked; the others are lost from the start, or not before the end."""
    images = random_images(8)
    mean = tf.reduce_mean(tf.stack([noise_by_place(images, [seed, 0]) for seed in range(100)]), axis=0)
    right, wrong = tf.argmax(mean, axis=1).numpy(), tf.argmin(mean, axis=1).numpy()
    odd = np.arange(8) % 2 == 1
    attack = build_attack(text, 0.1, eot_samples=4)
    found = [
        run(attack, SampledTarget(noise_by_place), images, np.where(odd, right, others)).numpy()
        for others in (right, wrong)
    ]
    np.testing.assert_array_equal(found[0][odd], found[1][odd])
    assert np.any(found[0][odd] != images.numpy()[odd])


def test_square_calls_no_image_lost_for_the_luck_of_its_draws():
    """At P(correct) = 0.04 one image in eight has no hit in 50 draws, and none as few as 10 in 1,000."""
    weight = 2 * special.ndtri(0.04)  # h_0 − h_1 ~ N(weight, 4)
    target = GaussianLogitsTarget(
        flatten, lambda f: tf.ones_like(f[:, :2]) * [weight, 0.0], tf.constant([[1.0], [-1.0]])
    )
    images = random_images(400)
    batch = batch_of(images, np.zeros(400))
    attack = Square()
    lucky = score_images(target, target.features(images), batch, fold_in(make_seed(3), 1, 0), 50).p_correct == 0
    batch = batch._replace(units=square._units(attack, target, images, batch, make_seed(3)))
    score = tf.function(square._score)(attack, target, images, batch, make_seed(3), tf.constant(0))
    assert 20 < np.sum(lucky) < 90
    assert np.all(score.p_correct > attack.stop_at)


def test_square_asks_no_more_about_images_that_are_lost():
    target, counted = counting_target()
    attack, images = At(Square(queries=30, eot_samples=2), 0.1), random_images(8)
    for lost in (8, 3, 0):
        counted.assign(0)
        run(attack, target, images, np.where(np.arange(8) < lost, 1, 0))
        # Two passes more, of the image and of the start: for the units of the bounded margin.
        assert counted.numpy() == 3 * lost + 32 * (8 - lost)


# Random sampling


@pytest.mark.parametrize("norm", NORMS)
def test_the_worst_of_random_points_is_taken(norm):
    """Against all the points, judged here: by the share of 1,000 common draws, then by the margin."""
    target, images = tanh_target(seed=50, scale=0.5), random_images(10)
    labels = predictions(target, images)
    attack = build_attack(f"random_sampling:points=10:norm={norm}", 0.3, eot_samples=5)
    adversarial = run(attack, target, images, labels, seed=4)

    def held(x):
        judged = tf.function(score_images)(target, target.features(x), batch_of(images, labels), make_seed(0), 1000)
        return judged.p_correct.numpy()

    def point(number):
        start = BALLS[norm].random_start(fold_in(make_seed(4), number), tf.range(10), SHAPE, tf.constant(0.3))
        return tf.clip_by_value(images + start, 0.0, 1.0)

    shares = np.stack([held(images), *(held(point(number)) for number in range(10))])
    assert np.all(held(adversarial) <= shares.min(axis=0) + 1.5e-3)  # a draw at the edge may go either way by rounding
    assert np.any(held(adversarial) < shares[0] - 1.5e-3)
