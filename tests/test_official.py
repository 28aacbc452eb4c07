"""What `reproduce.official:WCAOfficial` does differently, against the authors' formulas written out in NumPy."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from attack_nets import batch_of, normal, random_images, tanh_target
from toy_models import DIMENSIONS, make_model, toy_data

from reproduce.official import (
    OfficialAdversarialTraining,
    OfficialAnisotropicNoise,
    OfficialIsotropicNoise,
    OfficialProjectedGradient,
    WCAOfficialNet,
    official_adversary,
)
from wca_tf.attacks import parse_attack
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.defences import parse_defence
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.defences.wca.net import WCANet
from wca_tf.defences.wca.noise import AnisotropicNoise
from wca_tf.nets.model_files import load_model
from wca_tf.runs import training
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.training import train

OFFICIAL = "reproduce.official:WCAOfficial"
LAYERS = {"isotropic": OfficialIsotropicNoise, "anisotropic": OfficialAnisotropicNoise}
EACH = pytest.mark.parametrize("covariance", list(LAYERS))


def official(covariance, **options):
    return make_model(covariance, net_class=WCAOfficialNet, **options)


def softplus(x):
    return np.log1p(np.exp(x))


@EACH
def test_all_examples_of_a_call_share_one_draw_and_the_next_call_has_another(covariance):
    model = official(covariance)
    image = toy_data(1)[0]
    logits = model(np.repeat(image, 4, axis=0)).numpy()
    assert np.ptp(logits, axis=0).max() < 1e-6
    assert not np.allclose(logits, model(np.repeat(image, 4, axis=0)))
    papers = make_model(covariance)(np.repeat(image, 4, axis=0)).numpy()
    assert np.ptp(papers, axis=0).min() > 1e-3


def test_anisotropic_alignment_is_the_logarithm_of_the_sum():
    layer = OfficialAnisotropicNoise()
    layer.build((None, 5))
    weights, scale_tril = normal(5, 3).astype(np.float64), layer.scale_tril.numpy().astype(np.float64)
    expected = np.log(np.trace(weights.T @ scale_tril @ scale_tril.T @ weights))
    assert np.isclose(layer.alignment_term(tf.constant(weights, tf.float32)), expected, rtol=1e-5)


def test_isotropic_noise_has_deviation_softplus_but_is_aligned_by_the_raw_value():
    layer = OfficialIsotropicNoise(seed=2)
    layer.build((None, 5))
    raw, weights = layer.scale_vector.numpy().astype(np.float64), normal(5, 3).astype(np.float64)
    np.testing.assert_allclose(layer.scale_tril.numpy(), np.diag(softplus(raw)), rtol=1e-6)
    expected = np.log(np.trace(weights.T @ np.diag(raw) @ weights))
    assert np.isclose(layer.alignment_term(tf.constant(weights, tf.float32)), expected, rtol=1e-5)


@EACH
def test_the_start_is_uniform_on_the_unit_interval_and_decided_by_the_seed(covariance):
    layers = [LAYERS[covariance](seed=seed) for seed in (0, 0, 1)]
    for layer in layers:
        layer.build((None, 60))
    first, again, other = (layer.scale_vector.numpy() for layer in layers)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.min() >= 0
    assert first.max() < 1
    deviation = np.sqrt(1 / 12 / len(first))
    assert abs(first.mean() - 0.5) < 5 * deviation


def test_nothing_keeps_the_diagonal_positive():
    layer = OfficialAnisotropicNoise()
    layer.build((None, 3))
    scale_tril = np.array([[-1.0, 0, 0], [0.5, 0.0, 0], [0.1, -0.2, 2.0]], np.float32)
    layer.assign_scale_tril(scale_tril)
    np.testing.assert_allclose(layer.scale_tril.numpy(), scale_tril)
    noise = layer(tf.zeros([4, 3])).numpy()
    assert np.isfinite(noise).all()


@EACH
@pytest.mark.parametrize("net_class", [WCANet, WCAOfficialNet])
def test_an_assigned_factor_is_the_noises(covariance, net_class):
    model = make_model(covariance, net_class=net_class)
    factor = np.tril(0.3 * normal(DIMENSIONS, DIMENSIONS)) + 2 * np.eye(DIMENSIONS, dtype=np.float32)
    factor = np.diag(np.diag(factor)) if covariance == "isotropic" else factor
    model.noise.assign_scale_tril(factor)
    np.testing.assert_allclose(model.noise.scale_tril.numpy(), factor, atol=1e-6)


@EACH
def test_the_penalty_is_of_the_stored_weights_and_the_bias_too(covariance):
    model = official(covariance, weight_decay=0.3)
    model.classifier.bias.assign([0.5, -1.0, 2.0])
    kernel, bias, raw = (v.numpy().astype(np.float64) for v in (*model.classifier.weights, model.noise.scale_vector))
    expected = 0.15 * ((kernel**2).sum() + (bias**2).sum() + (raw**2).sum())
    assert np.isclose(model.penalty().numpy(), expected, rtol=1e-5)


@EACH
def test_an_official_net_trains_and_is_the_same_after_saving(covariance, tmp_path):
    images, labels = toy_data()
    model = official(covariance)
    model.fit(images, labels, epochs=2, verbose=0)
    model.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert isinstance(loaded.noise, LAYERS[covariance])
    np.testing.assert_array_equal(loaded(images[:5]).numpy(), model(images[:5]).numpy())


@EACH
def test_a_constrained_run_has_weights_of_norm_one_and_clipped_variances(covariance, tiny_config, tmp_path):
    defence = f"{OFFICIAL}:covariance={covariance}:regularizer=constraint"
    changes = {"defence": defence, "max_train_examples": 64, "epochs": 1, "learning_rate": 0.05}
    train(dataclasses.replace(tiny_config, **changes), tmp_path / "model")
    model = load_model(tmp_path / "model" / "last.keras")
    np.testing.assert_allclose(np.linalg.norm(model.classifier.kernel, axis=0), 1, rtol=1e-6)
    scale_tril, raw = model.noise.scale_tril.numpy(), model.noise.scale_vector.numpy()
    values = raw if covariance == "isotropic" else np.linalg.eigvalsh(scale_tril @ scale_tril.T)
    assert values.min() > 0.1 - 1e-5
    assert values.max() < 1 + 1e-5
    assert min(abs(values.min() - 0.1), abs(values.max() - 1)) < 1e-4, "nothing was clipped"


def test_weights_shorter_than_one_are_made_longer_as_well():
    model = official("anisotropic")
    model.classifier.kernel.assign(0.1 * model.classifier.kernel)
    [weights, _] = parse_defence(f"{OFFICIAL}:regularizer=constraint").callbacks()
    weights.set_model(model)
    weights.on_train_batch_end(0)
    np.testing.assert_allclose(np.linalg.norm(model.classifier.kernel, axis=0), 1, rtol=1e-6)


def test_grey_images_are_not_normalised_and_the_adversary_is_the_authors(tiny_config, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(training, "_fit", lambda model, *rest: seen.append(model))
    for defence in (OFFICIAL, "wca"):
        config = dataclasses.replace(tiny_config, defence=defence, adversarial="at", max_train_examples=64)
        with pytest.raises(FileNotFoundError):  # nothing was trained
            train(config, tmp_path / defence)
    theirs, papers = seen
    assert (theirs.pixel_mean, theirs.pixel_std) == ((0.0,), (1.0,))
    assert papers.pixel_mean[0] > 0.1
    assert isinstance(theirs.adversary, OfficialAdversarialTraining)
    assert type(papers.adversary) is AdversarialTraining
    assert papers.adversary.epsilon == 8 / 255


@pytest.mark.parametrize("fixed", [{"adversarial_attack": "fgsm"}, {"adversarial_epsilon": "0.1"}])
def test_the_attack_that_the_authors_code_fixes_cannot_be_set(fixed):
    with pytest.raises(InputError, match=f"no --{next(iter(fixed))} with --defence={OFFICIAL}"):
        TrainConfig(defence=OFFICIAL, **fixed)


@pytest.mark.parametrize("option", ["max_weight_norm", "max_variance"])
def test_the_bounds_that_the_authors_code_fixes_cannot_be_set(option):
    with pytest.raises(InputError, match=f"{OFFICIAL}:OPTION=VALUE with an option among .*{option}"):
        TrainConfig(defence=f"{OFFICIAL}:{option}=0.5")


def test_a_negative_sum_of_raw_variances_is_divergence_not_a_number():
    images, labels = toy_data(32)
    model = official("isotropic")
    model.noise.scale_vector.assign(-np.ones(DIMENSIONS, np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="training diverged"):
        model.fit(images, labels, verbose=0)


def test_the_papers_noise_is_the_default():
    assert isinstance(make_model("anisotropic").noise, AnisotropicNoise)


def test_the_authors_pgd_steps_along_the_sum_of_all_gradients_so_far():
    target, images, labels = tanh_target(), random_images(4), np.array([0, 1, 2, 3])
    attack = OfficialProjectedGradient(relative_step_size=1 / 3, eot_samples=1)
    batch, seed = batch_of(images, labels), make_seed(5)
    found = tf.function(attack.perturb)(target, batch, tf.constant(0.1), seed).numpy()
    start = 0.1 * (
        2 * np.array([tf.random.stateless_uniform(images.shape[1:], fold_in(seed, 0, i)) for i in range(4)]) - 1
    )
    expected, total = np.clip(images + start, 0, 1), 0.0
    for step in range(10):
        at = tf.constant(expected, tf.float32)
        total += expected_gradient(target, at, batch, fold_in(seed, 1, step), objective="ce", draws=1).gradient.numpy()
        moved = expected + 0.1 / 3 * np.sign(total)
        expected = np.clip(images + np.clip(moved - images, -0.1, 0.1), 0, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_authors_adversary_attacks_images_that_are_not_normalised():
    model = official("anisotropic", pixel_mean=(0.4,), pixel_std=(0.2,))
    images = tf.constant(toy_data(3)[0])
    theirs = official_adversary(mixed=False)
    assert (theirs.epsilon, theirs.attack.eot_samples) == (0.03, 1)
    np.testing.assert_allclose(theirs.epsilon * theirs.attack.relative_step_size, 0.01)
    normalised = theirs.target(model).features((images - 0.4) / 0.2)
    np.testing.assert_allclose(normalised, model.features(images), rtol=1e-5)
    papers = AdversarialTraining(parse_attack("pgd"), 0.1, mixed=False).target(model)
    np.testing.assert_allclose(papers.features(images), model.features(images), rtol=1e-5)
