import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from attack_nets import At, run
from scipy.stats import norm
from sklearn.decomposition import PCA

from reproduce.linear_svm import DIMENSIONS, Descent, LinearSVM, bound_curve, train_svm
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.core.errors import InputError
from wca_tf.data.batches import to_float
from wca_tf.data.config import DataConfig
from wca_tf.data.sources import load_examples
from wca_tf.defences.wca.noise import IsotropicNoise
from wca_tf.gaussian import bounds
from wca_tf.nets.judge import judge

SEEDS = range(5)
COVARIANCES = ("isotropic", "anisotropic")
EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2)
QUICK = Descent(steps=150, batch_size=64)
ROUNDING = 1e-10  # of probabilities, in float64
FLOAT32_ROUNDING = 2e-6  # of probabilities of images that are rounded to float32


@functools.cache
def zeros_and_ones(split):
    """(images uint8, labels) of the digits 0 and 1."""
    examples = load_examples(DataConfig(), split)
    chosen = examples.labels < 2
    return examples.images[chosen], examples.labels[chosen]


@functools.cache
def trained(covariance, seed):
    return train_svm(*zeros_and_ones("train"), covariance, seed, QUICK)


def float_images(images):
    return to_float(images).numpy()


def bounds_of(svm, images, labels, epsilon):
    """(the sharp bound, the paper's) for each image, [N]."""
    change = bounds.linear_output_change(svm.input_weight.ravel(), epsilon)
    margin = svm.margin(images, labels)
    return tuple(
        bound(margin, change, svm.deviation) for bound in (bounds.certified_probability, bounds.theorem_1_probability)
    )


each_svm = pytest.mark.parametrize(
    "covariance, seed",
    [pytest.param(c, s, marks=[pytest.mark.slow] if s > SEEDS[0] else []) for c in COVARIANCES for s in SEEDS],
)


# Training


@each_svm
def test_a_trained_svm_knows_the_digits_without_noise(covariance, seed):
    svm, (images, labels) = trained(covariance, seed), zeros_and_ones("test")
    assert np.mean(svm.margin(float_images(images), labels) > 0) > 0.98
    assert svm.probability_correct(float_images(images), labels).mean() > 0.95


def test_the_covariances_are_of_their_kinds():
    assert np.count_nonzero(trained("isotropic", 0).scale_tril) == DIMENSIONS
    assert np.count_nonzero(np.tril(trained("anisotropic", 0).scale_tril, -1)) > DIMENSIONS
    for covariance in COVARIANCES:
        assert np.all(np.triu(trained(covariance, 0).scale_tril, 1) == 0)


def test_pca_is_fitted_on_the_training_images():
    svm, expected = trained("anisotropic", 0), {}
    for split in ("train", "test"):
        images = float_images(zeros_and_ones(split)[0])
        pca = PCA(DIMENSIONS, svd_solver="arpack", random_state=1)
        expected[split] = pca.fit(images.reshape(len(images), -1).astype(np.float64))
    ours = svm.components.reshape(DIMENSIONS, -1)
    assert np.allclose(svm.mean.ravel(), expected["train"].mean_, atol=1e-9)
    assert np.allclose(np.abs(np.sum(ours * expected["train"].components_, axis=1)), 1, atol=1e-9)
    assert not np.allclose(np.abs(np.sum(ours * expected["test"].components_, axis=1)), 1, atol=0.1)
    assert np.allclose(ours @ ours.T, np.eye(DIMENSIONS), atol=1e-9)


def exact_loss(svm, images, labels, weight_decay):
    """The loss of `train_svm`, with the noisy hinge loss's mean in closed form."""
    short, deviation = 1 - svm.margin(images, labels), svm.deviation
    hinge = short * norm.cdf(short / deviation) + deviation * norm.pdf(short / deviation)
    return hinge.mean() - np.log(deviation**2) + weight_decay / 2 * (np.sum(svm.weight**2) + np.sum(svm.scale_tril**2))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_training_ends_at_a_minimum_of_the_exact_loss(covariance):
    images, labels = zeros_and_ones("train")
    svm = train_svm(images, labels, covariance, 0, dataclasses.replace(QUICK, steps=600))
    images = float_images(images)
    least = exact_loss(svm, images, labels, QUICK.weight_decay)
    for factor in (0.85, 1.15):
        scaled = dataclasses.replace(svm, weight=factor * svm.weight)
        assert exact_loss(scaled, images, labels, QUICK.weight_decay) > least
    for shift in (-0.3, 0.3):
        shifted = dataclasses.replace(svm, bias=svm.bias + shift)
        assert exact_loss(shifted, images, labels, QUICK.weight_decay) > least
    # The diagonal of L falls slowly where it does not help w: a little less of it would still be better.
    for factor in (0.7, 1.15):
        scaled = dataclasses.replace(svm, scale_tril=factor * svm.scale_tril)
        assert exact_loss(scaled, images, labels, QUICK.weight_decay) > least


def test_every_step_has_its_own_images_and_its_own_noise(monkeypatch):
    seeds, batches, call = [], [], IsotropicNoise.call

    def recorded(self, features, seed=None):
        seeds.append(tuple(seed.numpy()))
        batches.append(features.numpy().tobytes())
        return call(self, features, seed)

    monkeypatch.setattr(IsotropicNoise, "call", recorded)
    tf.config.run_functions_eagerly(True)
    try:
        train_svm(*zeros_and_ones("train"), "isotropic", 0, dataclasses.replace(QUICK, steps=5))
    finally:
        tf.config.run_functions_eagerly(False)
    assert len(set(seeds)) == len(set(batches)) == 5


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_same_seed_gives_the_same_svm_to_the_bit(covariance):
    again = train_svm(*zeros_and_ones("train"), covariance, 1, QUICK)
    first, other = trained(covariance, 1), trained(covariance, 2)
    for field in dataclasses.fields(LinearSVM):
        assert np.array_equal(getattr(again, field.name), getattr(first, field.name))
    assert not np.array_equal(other.weight, first.weight)


# What is refused


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_images_that_are_not_finite_are_refused(bad):
    images, labels = zeros_and_ones("test")
    images = float_images(images)
    images[3, 0, 0, 0] = bad
    with pytest.raises(InputError, match="finite"):
        train_svm(images, labels, "isotropic", 0, QUICK)
    with pytest.raises(InputError, match="finite"):
        bound_curve(trained("isotropic", 0), images, labels, [0.1], 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["weight", "bias", "scale_tril", "components", "mean"])
def test_an_svm_that_is_not_finite_is_refused(name, bad):
    svm = trained("isotropic", 0)
    with pytest.raises(InputError, match=name):
        dataclasses.replace(svm, **{name: np.asarray(getattr(svm, name)) + bad})


def test_training_that_diverges_is_refused():
    with pytest.raises(InputError, match="diverged"):
        train_svm(*zeros_and_ones("train"), "anisotropic", 0, dataclasses.replace(QUICK, learning_rate=1e30))


def test_what_cannot_be_trained_on_is_refused():
    images, labels = zeros_and_ones("test")
    with pytest.raises(InputError, match="labels from 0 to 1"):
        train_svm(images, labels + 1, "isotropic", 0, QUICK)
    with pytest.raises(InputError, match="covariance"):
        train_svm(images, labels, "none", 0, QUICK)
    with pytest.raises(InputError, match="a label for each"):
        train_svm(images, labels[1:], "isotropic", 0, QUICK)
    with pytest.raises(InputError, match="PCA"):
        train_svm(images[:DIMENSIONS], labels[:DIMENSIONS], "isotropic", 0, QUICK)
    for name in ("weight_decay", "learning_rate", "steps", "batch_size"):
        with pytest.raises(InputError, match=name):
            Descent(**{name: 0})


# The target


def test_the_target_is_the_svm():
    svm, (images, labels) = trained("anisotropic", 0), zeros_and_ones("test")
    images, target = float_images(images), svm.target()
    logits = target.noise_free_logits(target.features(images)).numpy()
    assert np.allclose(logits[:, 1] - logits[:, 0], svm.output(images), atol=1e-4)
    assert np.isclose(target.difference_scale(None)[0, 1], svm.deviation, rtol=1e-5)
    judged = judge(target, images, labels, np.arange(len(labels)), 0).probability_correct
    assert np.allclose(judged, svm.probability_correct(images, labels), atol=1e-5)


def test_the_output_is_that_of_the_reduced_features():
    svm, images = trained("isotropic", 1), float_images(zeros_and_ones("test")[0])
    features = (images - svm.mean).reshape(len(images), -1) @ svm.components.reshape(DIMENSIONS, -1).T
    assert np.allclose(svm.output(images), features @ svm.weight + svm.bias, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_pgd_from_the_image_reaches_the_optimum(covariance, epsilon):
    svm, (images, labels) = trained(covariance, 0), zeros_and_ones("test")
    images = float_images(images)
    attack = At(ProjectedGradient(random_start=False), epsilon)
    attacked = run(attack, svm.target(), images, labels).numpy()
    optimum = svm.optimum(images, labels, epsilon)
    weight = np.abs(svm.input_weight)
    felt = weight > 1e-5 * weight.max()  # of smaller weights float32 does not know the sign
    assert felt.mean() > 0.5
    assert np.abs(attacked - optimum)[:, felt].max() < 1e-6
    assert np.allclose(svm.margin(attacked, labels), svm.margin(optimum, labels), atol=1e-4)


# The bounds


@each_svm
def test_no_attack_violates_the_bounds(covariance, seed):
    svm, (images, labels) = trained(covariance, seed), zeros_and_ones("test")
    images, target, rng = float_images(images), svm.target(), np.random.default_rng(seed)
    for epsilon in EPSILONS:
        sharp, paper = bounds_of(svm, images, labels, epsilon)
        optimum = svm.probability_correct(svm.optimum(images, labels, epsilon), labels)
        assert (optimum >= sharp - ROUNDING).all() and (sharp >= paper - ROUNDING).all()
        attacked = [
            run(At(ProjectedGradient(), epsilon), target, images, labels, seed).numpy(),
            *(np.clip(images + epsilon * rng.choice([-1, 0, 1], images.shape), 0, 1) for _ in range(3)),
            *(np.clip(images + epsilon * rng.uniform(-1, 1, images.shape), 0, 1) for _ in range(3)),
        ]
        for perturbed in attacked:
            assert (svm.probability_correct(perturbed, labels) >= optimum - FLOAT32_ROUNDING).all()


@each_svm
def test_the_optimum_in_the_interior_attains_the_sharp_bound(covariance, seed):
    svm, (images, labels) = trained(covariance, seed), zeros_and_ones("test")
    for epsilon in EPSILONS:
        interior = epsilon + (1 - 2 * epsilon) * float_images(images).astype(np.float64)
        optimum = svm.probability_correct(svm.optimum(interior, labels, epsilon), labels)
        sharp, _ = bounds_of(svm, interior, labels, epsilon)
        assert np.allclose(optimum, sharp, rtol=1e-9, atol=0)  # relative: small probabilities must agree too


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_without_noise_the_bound_is_the_deterministic_svm_s_test(covariance):
    svm = dataclasses.replace(trained(covariance, 0), scale_tril=np.zeros((DIMENSIONS, DIMENSIONS)))
    images, labels = zeros_and_ones("test")
    images = float_images(images)
    for epsilon in EPSILONS:
        survives = svm.margin(images, labels) > epsilon * np.abs(svm.input_weight).sum()
        assert np.array_equal(bounds_of(svm, images, labels, epsilon)[0], survives)
        optimum = svm.optimum(images, labels, epsilon)
        assert np.array_equal(svm.probability_correct(optimum, labels), svm.margin(optimum, labels) > 0)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_curve_is_the_means_of_what_is_bounded(covariance):
    svm, (images, labels) = trained(covariance, 0), zeros_and_ones("test")
    curve = bound_curve(svm, images, labels, EPSILONS, 0)
    assert [line["epsilon"] for line in curve] == list(EPSILONS)
    clean = svm.probability_correct(float_images(images), labels).mean()
    for name in ("pgd", "optimum", "certified", "theorem_1"):
        assert np.isclose(curve[0][name], clean, rtol=0, atol=ROUNDING)
    for line in curve[1:]:
        assert line["pgd"] > line["optimum"] > line["certified"] > line["theorem_1"]
        sharp, paper = bounds_of(svm, float_images(images), labels, line["epsilon"])
        assert np.isclose(line["certified"], sharp.mean()) and np.isclose(line["theorem_1"], paper.mean())
        optimum = svm.optimum(float_images(images), labels, line["epsilon"])
        assert np.isclose(line["optimum"], svm.probability_correct(optimum, labels).mean())
    assert bound_curve(svm, images, labels, EPSILONS, 0) == curve
