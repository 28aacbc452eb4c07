import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from toy_models import CLASSES, DIMENSIONS, make_model, toy_data

from wca_tf.core.errors import DivergedError, InputError
from wca_tf.defences.wca.constraints import (
    CovarianceConstraint,
    WeightNormConstraint,
    clip_singular_values,
    project_to_ball,
)

NOISY = pytest.mark.parametrize("covariance", ["isotropic", "anisotropic"])


def random_covariance(dimensions, seed, rank=None):
    factor = np.random.default_rng(seed).standard_normal((dimensions, rank or dimensions))
    return factor @ factor.T


def feasible(covariance, smallest, largest):
    values = np.linalg.eigvalsh(covariance)
    return values.min() >= smallest - 1e-9 and values.max() <= largest + 1e-9


class Before(keras.callbacks.Callback):
    """Weights and covariance as each step left them, before the projections that come after this in the list."""

    def on_train_batch_end(self, batch, logs=None):
        self.kernel = self.model.classifier.kernel.numpy().astype(np.float64)
        scale_tril = self.model.noise.scale_tril.numpy().astype(np.float64)
        self.covariance = scale_tril @ scale_tril.T


# The projections


def test_weights_outside_the_ball_get_its_norm_and_keep_their_direction():
    weights = np.array([[3.0, 0.3, 0.0], [4.0, 0.4, 0.0]])
    np.testing.assert_allclose(project_to_ball(weights, 1.0), [[0.6, 0.3, 0.0], [0.8, 0.4, 0.0]])


def test_the_projected_weight_is_the_nearest_of_the_ball():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((5, 1)) * 3
    distance = np.linalg.norm(project_to_ball(weight, 1.5) - weight)
    others = rng.standard_normal((5, 10_000))
    others *= 1.5 * rng.uniform(size=10_000) ** (1 / 5) / np.linalg.norm(others, axis=0)
    assert distance <= np.linalg.norm(others - weight, axis=0).min()
    assert np.isclose(distance, np.linalg.norm(weight) - 1.5)


@pytest.mark.parametrize("seed", range(5))
def test_clipping_keeps_the_eigenvectors_and_clips_the_eigenvalues(seed):
    covariance = random_covariance(6, seed)
    values, vectors = np.linalg.eigh(covariance)
    expected = vectors @ np.diag(np.clip(values, 0.5, 4.0)) @ vectors.T
    np.testing.assert_allclose(clip_singular_values(covariance, 0.5, 4.0), expected, atol=1e-12)


def test_a_covariance_within_the_bounds_stays():
    covariance = random_covariance(4, 1)
    np.testing.assert_allclose(clip_singular_values(covariance, 1e-9, 1e9), covariance, atol=1e-12)


@pytest.mark.parametrize("dimensions", [8, 32])
@pytest.mark.parametrize("seed", range(5))
def test_a_covariance_that_is_nearly_singular_becomes_positive_definite(dimensions, seed):
    """Where U diag(clipped) Vᵀ has negative eigenvalues: its singular vectors of near-zero values differ in sign."""
    covariance = random_covariance(dimensions, seed, rank=dimensions // 2)
    clipped = clip_singular_values(covariance, 1e-4, 1.0)
    assert feasible(clipped, 1e-4, 1.0)
    factor = np.linalg.cholesky(clipped)
    np.testing.assert_allclose(factor @ factor.T, clipped, atol=1e-12)


def test_the_clipped_covariance_is_the_nearest_feasible_one():
    covariance = random_covariance(3, 2)
    nearest = clip_singular_values(covariance, 0.5, 2.0)
    for seed in range(2000):
        other = clip_singular_values(nearest + 0.3 * random_covariance(3, seed) - 0.3 * np.eye(3), 0.5, 2.0)
        assert np.linalg.norm(nearest - covariance) <= np.linalg.norm(other - covariance) + 1e-12


# In training


@NOISY
def test_after_a_step_weights_and_covariance_are_numpys_projections(covariance):
    images, labels = toy_data(32)
    model = make_model(covariance, learning_rate=0.3)
    before = Before()
    constraints = [before, WeightNormConstraint(0.7), CovarianceConstraint(1.2, 0.5)]
    model.fit(images, labels, batch_size=16, epochs=3, callbacks=constraints, verbose=0)
    kernel, scale_tril = model.classifier.kernel.numpy(), model.noise.scale_tril.numpy().astype(np.float64)
    norms = np.linalg.norm(before.kernel, axis=0)
    assert (norms > 0.7).any(), "nothing to project"
    np.testing.assert_allclose(kernel, before.kernel * np.minimum(1, 0.7 / norms), rtol=1e-6)
    values, vectors = np.linalg.eigh(before.covariance)
    assert values.max() > 1.2, "nothing to clip"
    expected = np.linalg.cholesky(vectors @ np.diag(np.clip(values, 0.5, 1.2)) @ vectors.T)
    np.testing.assert_allclose(scale_tril, expected, atol=2e-6)
    if covariance == "isotropic":
        assert np.count_nonzero(scale_tril - np.diag(np.diag(scale_tril))) == 0


@NOISY
def test_the_alignment_term_grows_to_its_bound_and_no_further(covariance):
    """w_iᵀ Sigma w_i is at most γ² times the largest variance, for each of the classes."""
    images, labels = toy_data(96)
    model = make_model(covariance, learning_rate=0.1, weight_decay=0.0)
    constraints = [WeightNormConstraint(2.0), CovarianceConstraint(0.25)]
    history = model.fit(images, labels, epochs=20, callbacks=constraints, verbose=0).history
    bound = CLASSES * np.log(2.0**2 * 0.25)
    assert history["alignment"][-1] < bound + 1e-3
    assert model.noise.alignment_term(model.classifier.kernel).numpy() > bound - 0.5


def test_noise_that_is_not_finite_ends_training_in_one_line():
    model = make_model("anisotropic")
    constraint = CovarianceConstraint(1.0)
    constraint.set_model(model)
    model.noise.scale_vector.assign(np.full(model.noise.scale_vector.shape, np.nan))
    with pytest.raises(DivergedError, match="NaN or Inf; try a smaller --learning_rate"):
        constraint.on_train_batch_end(0)


@pytest.mark.parametrize("make", [lambda: WeightNormConstraint(0.0), lambda: WeightNormConstraint(float("nan"))])
def test_a_norm_that_is_not_above_zero_is_refused(make):
    with pytest.raises(InputError, match="max_norm"):
        make()


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (1.0, 1.0), (1.0, 2.0), (float("inf"), 0.1), (float("nan"), 0.1)])
def test_bounds_out_of_order_are_refused(bounds):
    with pytest.raises(InputError, match="smallest"):
        CovarianceConstraint(*bounds)


MIRRORED = f"""
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from toy_models import convolution, make_model, toy_data
from wca_tf.attacks import parse_attack
from wca_tf.defences.wca.constraints import CovarianceConstraint, WeightNormConstraint, clip_singular_values
from wca_tf.nets.adapter import adapt
from wca_tf.distribution.strategy import synchronise_batch_normalisation
from test_constraints import Before
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice())
images, labels = toy_data(64)
with strategy.scope():
    model = make_model("anisotropic", learning_rate=0.3)
before = Before()
model.fit(images, labels, batch_size=32, epochs=3, verbose=0,
          callbacks=[before, WeightNormConstraint(0.7), CovarianceConstraint(1.2, 0.5)])
for variable in (model.classifier.kernel.value, model.noise.scale_vector.value):
    one, other = (replica.numpy() for replica in strategy.experimental_local_results(variable))
    np.testing.assert_array_equal(one, other)
norms = np.linalg.norm(before.kernel, axis=0)
np.testing.assert_allclose(model.classifier.kernel.numpy(), before.kernel * np.minimum(1, 0.7 / norms), rtol=1e-6)
assert (norms > 0.7).any()
expected = np.linalg.cholesky(clip_singular_values(before.covariance, 0.5, 1.2))
np.testing.assert_allclose(model.noise.scale_tril.numpy(), expected, atol=2e-6)
assert model.noise.scale_tril.shape == ({DIMENSIONS}, {DIMENSIONS})

def descended(covariance):  # with a large penalty, by plain steps: behind Adam a small gradient could hide
    net = make_model(covariance, convolution(), weight_decay=1.0)
    synchronise_batch_normalisation(net, tf.distribute.get_strategy())
    net.compile(keras.optimizers.SGD(0.02), net.loss, jit_compile=False)
    reported = net.fit(images, labels, batch_size=32, epochs=2, shuffle=False, verbose=0).history
    return [*net.variables], reported
for covariance in ("anisotropic", "none"):
    alone, reported = descended(covariance)
    with strategy.scope():
        shared, also_reported = descended(covariance)
    for one, other in zip(alone, shared):
        np.testing.assert_allclose(one, other, atol=1e-6, err_msg=one.path)
    for name in reported:
        np.testing.assert_allclose(reported[name], also_reported[name], rtol=1e-5, err_msg=name)

model = make_model("anisotropic", convolution())
with strategy.scope():
    also = make_model("anisotropic", convolution())
attack = parse_attack("pgd:steps=3")
alone = attack(model, images[:7], labels[:7], 8 / 255).images  # which two replicas cannot share evenly
with strategy.scope():
    shared = attack(also, images[:7], labels[:7], 8 / 255).images
np.testing.assert_allclose(alone, shared, atol=1e-6)
assert np.abs(alone - images[:7]).max() > 0.03
print("in sync")
"""


@pytest.mark.slow
def test_projections_gradients_and_attacks_are_alike_on_mirrored_replicas(root):
    path = os.pathsep.join([str(root), str(root / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", MIRRORED], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert "in sync" in done.stdout, done.stderr[-3000:]
