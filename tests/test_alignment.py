"""The forms of the alignment term: their formulas, gradients, limits, and what they are worth at best."""

import itertools
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf
from toy_models import finite_differences, make_model, toy_data

from wca_tf.core.errors import InputError
from wca_tf.core.options import options_of
from wca_tf.defences import NetRequest, parse_defence
from wca_tf.defences.wca import WCA
from wca_tf.defences.wca.alignment import (
    ALIGNMENTS,
    alignment_term,
    centred_alignment_term,
    log_squared_distances,
    normalised_pairwise_alignment_term,
    pairwise_alignment_term,
)
from wca_tf.defences.wca.constraints import clip_singular_values, project_to_ball
from wca_tf.defences.wca.head import FEATURES
from wca_tf.defences.wca.net import WCANet
from wca_tf.gaussian import covariance

FORMS = [form for name, form in ALIGNMENTS.items() if name != "per_class"]


def random_weights(classes=5, dimensions=6, seed=0):
    """W [D, C] and L [D, D], float64."""
    generator = np.random.default_rng(seed)
    scale_tril = np.tril(generator.normal(size=(dimensions, dimensions)))
    return generator.normal(size=(dimensions, classes)), scale_tril + 2 * np.eye(dimensions)


def by_loops(name, weights, scale_tril):
    """Each form as it is written in its docstring, from Sigma itself."""
    sigma, classes = scale_tril @ scale_tril.T, weights.shape[1]
    centred = weights - weights.mean(axis=1, keepdims=True)
    if name == "centred":
        return sum(math.log(w @ sigma @ w) for w in centred.T)
    total = 0.0
    for i, j in itertools.combinations(range(classes), 2):
        a = weights[:, i] - weights[:, j]
        total += math.log(a @ sigma @ a / (a @ a if name == "pairwise_normalised" else 1))
    return 2 / (classes - 1) * total


@pytest.mark.parametrize("name", ["centred", "pairwise", "pairwise_normalised"])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_each_form_is_its_formula(name, classes):
    weights, scale_tril = random_weights(classes)
    assert np.isclose(ALIGNMENTS[name](weights, scale_tril), by_loops(name, weights, scale_tril), rtol=1e-10)


@pytest.mark.parametrize("name", ["centred", "pairwise", "pairwise_normalised"])
def test_gradients_are_finite_differences(name):
    weights, scale_tril = random_weights()
    inputs = [tf.constant(weights), tf.constant(scale_tril)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        value = ALIGNMENTS[name](*inputs)
    by_weights, by_scale = tape.gradient(value, inputs)
    np.testing.assert_allclose(
        by_weights, finite_differences(lambda w: by_loops(name, w, scale_tril), weights), atol=1e-6
    )
    np.testing.assert_allclose(
        by_scale, finite_differences(lambda t: by_loops(name, weights, t), scale_tril), atol=1e-6
    )


def test_for_two_classes_pairwise_is_twice_theorem_1s_term():
    weights, scale_tril = random_weights(2)
    difference = weights[:, 0] - weights[:, 1]
    expected = 2 * math.log(difference @ scale_tril @ scale_tril.T @ difference)
    assert np.isclose(pairwise_alignment_term(weights, scale_tril), expected)
    assert np.isclose(centred_alignment_term(weights, scale_tril), expected - 4 * math.log(2))


@pytest.mark.parametrize("form", FORMS)
def test_noise_that_all_classes_share_earns_nothing(form):
    """A part of the weights that all classes have, and large noise along it, change the paper's term alone."""
    weights, scale_tril = random_weights()
    weights[0], scale_tril[0, 1:], scale_tril[1:, 0] = 0, 0, 0
    common, louder = weights.copy(), scale_tril.copy()
    common[0], louder[0, 0] = 3, 100
    assert np.isclose(form(common, louder), form(weights, scale_tril))
    assert alignment_term(common, louder) > alignment_term(weights, scale_tril) + 10


def test_normalised_pairs_do_not_reward_larger_weights():
    weights, scale_tril = random_weights()
    before = normalised_pairwise_alignment_term(weights, scale_tril)
    assert np.isclose(normalised_pairwise_alignment_term(10 * weights, scale_tril), before)
    assert np.isclose(normalised_pairwise_alignment_term(weights, 10 * scale_tril), before + 5 * 2 * math.log(10))


@pytest.mark.parametrize("name", ["pairwise", "centred"])
def test_a_large_common_part_costs_no_precision(name):
    weights, scale_tril = random_weights()
    common = (weights + 1000 * np.ones((6, 1))).astype(np.float32)  # float32 itself keeps 6e-5 of the differences
    found = ALIGNMENTS[name](common, scale_tril.astype(np.float32))
    np.testing.assert_allclose(found, by_loops(name, weights, scale_tril), rtol=1e-3)


def test_the_term_of_a_thousand_classes_is_its_formula():
    rows = np.random.default_rng(0).normal(size=(1000, 64))
    assert 1000**2 * 64 > covariance.MAX_NUMBERS
    given = tf.constant(rows)
    with tf.GradientTape() as tape:
        tape.watch(given)
        value = log_squared_distances(given)
    differences = rows[3] - rows
    squares = np.sum(differences**2, axis=1) + np.eye(1000)[3]
    np.testing.assert_allclose(tape.gradient(value, given)[3], (2 * differences / squares[:, None]).sum(0), rtol=1e-8)
    squares = np.sum(rows**2, 1)[:, None] + np.sum(rows**2, 1) - 2 * rows @ rows.T
    np.testing.assert_allclose(value, np.log(squares[np.triu_indices(1000, 1)]).sum(), rtol=1e-10)


MEMORY = """
import resource, sys
import tensorflow as tf
from wca_tf.defences.wca.alignment import log_squared_distances
from wca_tf.nets.loss_terms import LipschitzMargin

def loss(weights):
    if sys.argv[1] == "alignment":
        return log_squared_distances(weights)
    return tf.reduce_sum(LipschitzMargin(0.3, 1.0).logits(tf.zeros([8, weights.shape[0]]), tf.range(8), weights))

for classes in (10, 1000):
    weights = tf.Variable(tf.random.stateless_normal([classes, 256], [0, 0]))
    with tf.GradientTape() as tape:
        value = loss(weights)
    assert tape.gradient(value, weights).shape == weights.shape
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.parametrize("term", ["alignment", "margin"])
def test_a_thousand_classes_need_bounded_memory(term, command_environment):
    """All differences of the weights of 1,000 classes, [C, C, D] with D = 256, take 1 GB."""
    done = subprocess.run([sys.executable, "-c", MEMORY, term], capture_output=True, text=True, env=command_environment)
    assert done.returncode == 0, done.stderr
    few, many = map(int, done.stdout.split())  # the peak in kB
    assert many - few < 300_000


def test_classes_of_equal_weights_are_minus_infinity_and_training_refuses_them():
    weights, scale_tril = random_weights()
    weights[:, 1] = weights[:, 2]
    assert pairwise_alignment_term(weights, scale_tril).numpy() == -np.inf
    images, labels = toy_data(8)
    model = make_model("anisotropic", alignment="pairwise")
    model.build((None, *images.shape[1:]))
    model.classifier.kernel.assign(tf.zeros_like(model.classifier.kernel))
    before = [weight.numpy() for weight in model.trainable_variables]
    with pytest.raises(tf.errors.InvalidArgumentError, match="loss"):
        model.fit(images, labels, verbose=0)
    for weight, kept in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(weight, kept)


# What the regularisers are worth at best, where the features are free (docs/concepts.md)


def least_found(classes, pairwise, decay, seed):
    """The least of term and weight decay over W and L, found from a random start; and ‖A‖'s share in one direction."""
    dimensions = classes + 1
    size, upper = classes * dimensions, np.triu_indices(classes, 1)

    def value(point):
        weights, scale = point[:size].reshape(classes, -1), point[size:].reshape(dimensions, -1)
        rows = weights @ scale
        total = decay / 2 * np.sum(point**2)
        if pairwise:
            differences = rows[:, None] - rows
            squares = np.sum(differences**2, axis=2) + np.eye(classes)
            inverse = 1 / squares - np.eye(classes)
            by_rows = -4 / (classes - 1) * (inverse.sum(1)[:, None] * rows - inverse @ rows)
            total -= 2 / (classes - 1) * np.log(squares[upper]).sum()
        else:
            squares = np.sum(rows**2, axis=1)
            by_rows = -2 * rows / squares[:, None]
            total -= np.log(squares).sum()
        gradient = np.concatenate([(by_rows @ scale.T).ravel(), (weights.T @ by_rows).ravel()])
        return total, gradient + decay * point

    start = np.random.default_rng(seed).normal(size=size + dimensions**2)
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-9}
    found = scipy.optimize.minimize(value, start, jac=True, method="L-BFGS-B", options=options)
    rows = found.x[:size].reshape(classes, -1) @ found.x[size:].reshape(dimensions, -1)
    values = np.linalg.svd(rows - (rows.mean(0) if pairwise else 0), compute_uv=False)
    return found.fun, values[0] ** 2 / np.sum(values**2)


@pytest.mark.parametrize("classes", [3, 6])
def test_the_papers_regularisers_are_least_for_noise_of_one_direction(classes):
    decay = 0.3
    expected = 2 * classes - classes * math.log(4 * classes / decay**2)
    for seed in range(3):
        least, share = least_found(classes, False, decay, seed)
        assert least == pytest.approx(expected, abs=1e-6) and share > 1 - 1e-6


@pytest.mark.parametrize("classes", [4, 6])
def test_noise_of_two_signs_is_as_good_for_the_centred_term(classes):
    decay = 0.3
    size = math.sqrt(2 * classes / decay)  # of W and of L, so that the norm of A is 2C/λ
    direction = np.eye(classes)[0]
    weights = np.outer(direction, np.resize([1.0, -1.0], classes)) * size / math.sqrt(classes)  # [D, C]
    scale_tril = np.outer(direction, direction) * size
    value = decay / 2 * (np.sum(weights**2) + np.sum(scale_tril**2)) - ALIGNMENTS["centred"](weights, scale_tril)
    assert float(value) == pytest.approx(2 * classes - classes * math.log(4 * classes / decay**2))
    deviations = covariance.logit_difference_scale(covariance.logit_scale(weights, scale_tril)).numpy()[
        np.triu_indices(classes, 1)
    ]
    assert np.sum(deviations == 0) == 2 * math.comb(classes // 2, 2)


def test_two_directions_are_worth_little_less_than_one_direction_and_nine_far_less():
    """Mean ln ‖A_i − A_j‖² of ten classes, at a nuclear norm of 1, times ten: a circle and a simplex."""
    circle = np.exp(2j * np.pi * np.arange(10) / 10) / math.sqrt(20)
    zeros = np.polynomial.hermite.hermroots([0] * 10 + [1])
    simplex = (np.eye(10) - 0.1) / 9
    shapes = [np.stack([circle.real, circle.imag]), simplex, (zeros / np.linalg.norm(zeros))[np.newaxis]]
    assert [np.linalg.norm(shape, "nuc") for shape in shapes] == pytest.approx([1, 1, 1])
    pairs = np.triu_indices(10, 1)
    of_circle, of_simplex, of_line = (
        np.log(np.sum((s[:, :, np.newaxis] - s[:, np.newaxis]) ** 2, axis=0)[pairs]).mean() for s in shapes
    )
    assert 10 * (of_line - of_circle) == pytest.approx(2.5, abs=0.05)
    assert 10 * (of_line - of_simplex) == pytest.approx(14.7, abs=0.05)


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 10])
def test_pairs_are_least_for_classes_at_the_zeros_of_hermites_polynomial(classes):
    decay, numbers = 0.3, np.arange(1, classes + 1)
    mean = 2 / (classes * (classes - 1)) * np.sum(numbers * np.log(numbers)) - math.log(classes * (classes - 1))
    expected = 2 * classes - classes * (mean + 2 * math.log(2 * classes / decay))
    zeros = np.polynomial.hermite.hermroots([0] * classes + [1])
    places = zeros / np.linalg.norm(zeros)
    pairs = itertools.combinations(places, 2)
    assert np.mean([math.log((p - q) ** 2) for p, q in pairs]) == pytest.approx(mean)
    for seed in range(12):
        least, share = least_found(classes, True, decay, seed)
        assert least == pytest.approx(expected, abs=1e-6) and share > 1 - 1e-6


@pytest.mark.parametrize("dimensions", [2, 3, 9])
@pytest.mark.parametrize("name", ["per_class", "centred", "pairwise"])
def test_one_direction_is_worth_more_than_several_on_average(name, dimensions):
    """Proposition 3 of docs/concepts.md: the rank-one matrices (‖A‖_*/‖Ag‖) A g, with g ~ N(0, I)."""
    rng = np.random.default_rng(dimensions)
    classes, draws = 10, 20_000
    rows = rng.normal(size=(classes, dimensions)) * rng.uniform(0.2, 3, size=dimensions)
    one_direction = rows @ rng.normal(size=(dimensions, draws))  # [C, draws]
    one_direction *= np.linalg.norm(rows, "nuc") / np.linalg.norm(one_direction, axis=0)
    vectors = {
        "per_class": np.eye(classes),
        "centred": np.eye(classes) - 1 / classes,
        "pairwise": np.array([a - b for a, b in itertools.combinations(np.eye(classes), 2)]),
    }[name]
    factor = classes / len(vectors)
    several = factor * np.log(np.sum((vectors @ rows) ** 2, axis=1)).sum()
    assert several == pytest.approx(float(ALIGNMENTS[name](rows.T, np.eye(dimensions))), abs=1e-4)
    gains = factor * np.log((vectors @ one_direction) ** 2).sum(axis=0) - several
    error = gains.std() / math.sqrt(draws)
    assert gains.max() > 0 and gains.mean() > -5 * error
    assert gains.mean() > 5 * error if dimensions > 2 else abs(gains.mean()) < 5 * error  # equal for two directions


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_weights_within_the_constraint_beat_the_simplex_by_pairs(classes):
    """Proposition 4 of docs/concepts.md."""
    rng = np.random.default_rng(classes)
    radius, deviation = 1.5, 0.7
    corners = np.eye(classes) - 1 / classes
    corners *= radius / np.linalg.norm(corners[0])
    noise = deviation * np.eye(classes)
    bound = classes * math.log(2 * classes * radius**2 * deviation**2 / (classes - 1))
    assert float(ALIGNMENTS["pairwise"](corners.T, noise)) == pytest.approx(bound, abs=1e-4)
    for part in (0.01, 0.1, 1.0):
        moved = project_to_ball(corners.T + part * rng.normal(size=(classes, classes)), radius)
        less = noise**2 - part * np.cov(rng.normal(size=(classes, 40)))
        scale = np.linalg.cholesky(clip_singular_values(less, 1e-4, deviation**2))
        assert float(ALIGNMENTS["pairwise"](moved, scale)) < bound


@pytest.mark.parametrize("name", ["per_class", "centred"])
def test_classes_may_coincide_at_the_best_of_other_terms_within_the_constraint(name):
    weights = np.outer(np.eye(10)[0], np.resize([1.5, -1.5], 10))  # [D, C]: half of the classes at each of two places
    found = float(ALIGNMENTS[name](weights, 0.7 * np.eye(10)))
    assert found == pytest.approx(10 * math.log((1.5 * 0.7) ** 2), abs=1e-4)


# Nets


def test_the_options_are_those_of_the_net():
    declared = options_of(WCA)
    assert set(declared["alignment"].metadata["bounds"].choices) == set(ALIGNMENTS)
    assert set(declared["features"].metadata["bounds"].choices) == set(FEATURES)


def test_normalised_features_have_length_ten_and_no_lipschitz_constant():
    net = parse_defence("wca:features=normalised").build(NetRequest((8, 8, 1), 10, backbone="lipschitz_cnn"))
    net.build((None, 8, 8, 1))
    images = np.random.default_rng(0).uniform(size=(4, 8, 8, 1)).astype(np.float32)
    np.testing.assert_allclose(np.linalg.norm(net.features(images), axis=1), 10, rtol=1e-5)
    with pytest.raises(InputError, match="free features"):
        net.lipschitz()


def test_options_survive_the_file(tmp_path):
    net = make_model("anisotropic", alignment="pairwise", alignment_weight=0.3, features="normalised")
    images, labels = toy_data(8)
    net.fit(images, labels, verbose=0)
    net.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    assert isinstance(again, WCANet)
    assert (again.alignment, again.alignment_weight, again.wca_head.feature_length) == ("pairwise", 0.3, 10.0)
    np.testing.assert_array_equal(again.noise_free_logits(images), net.noise_free_logits(images))


@pytest.mark.parametrize(("name", "value"), [("alignment", "all"), ("features", "bounded")])
def test_an_unknown_option_is_refused(name, value):
    with pytest.raises(InputError, match=f"{name} among"):
        make_model("anisotropic", **{name: value})
    with pytest.raises(InputError, match=name):
        parse_defence(f"wca:{name}={value}")


def test_the_weight_multiplies_the_term():
    nets = [make_model("anisotropic", alignment="centred", alignment_weight=weight) for weight in (0.0, 1.0, 2.5)]
    for net in nets:
        net.build((None, *toy_data(8)[0].shape[1:]))
        net.classifier.kernel.assign(nets[0].classifier.kernel)
    none, one, more = (float(net.rewards()["alignment"]) for net in nets)
    assert none == 0 and more == pytest.approx(2.5 * one) and one != 0


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("regularizer", ["penalty", "constraint"])
def test_every_form_trains_with_penalty_and_constraint(alignment, regularizer):
    defence = parse_defence(f"wca:alignment={alignment}:regularizer={regularizer}")
    images, labels = toy_data(64)
    net = make_model("anisotropic", alignment=alignment)
    net.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = None
    for _ in range(3):
        net.fit(images, labels, batch_size=16, epochs=2, callbacks=defence.callbacks(), verbose=0)
        now = float(net.rewards()["alignment"])
        assert np.isfinite(now)
        before = now if before is None else before
    if regularizer == "penalty":
        assert now > before


def test_the_share_in_common_is_told_from_1_in_float64():
    scale = np.array([[1e4, 0.0], [1e4, 1.0]])  # 1ᵀK1 = 4e8 + 1, C tr K = 4e8 + 2
    assert np.isclose(1 - covariance.common_noise_share(scale), 1 / (4e8 + 2), rtol=1e-6)
    assert covariance.common_noise_share(scale.astype(np.float32)) == 1
