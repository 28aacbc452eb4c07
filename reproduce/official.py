"""WCA-Net as in the authors' code (github.com/peustr/WCA-net, 97bf252), where it differs from the paper.

It helps to understand published numbers. docs/paper.md lists the differences and their effects.

    bin/train --defence=reproduce.official:WCAOfficial:covariance=isotropic
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from wca_tf import BallAttack, GaussianLogitsTarget, InputError, NetRequest, WCAHead, WCANet, make_seed
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.core.seeds import fold_in
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.defences.wca import LearnedNoise
from wca_tf.defences.wca.constraints import CovarianceConstraint, HeadConstraint
from wca_tf.defences.wca.noise import GaussianFeatureNoise
from wca_tf.gaussian import covariance

OFFICIAL_EPSILON, OFFICIAL_STEP = 0.03, 0.01  # of adversarial training, for every data set
OFFICIAL_VARIANCES = (0.1, 1.0)  # the least and the largest in the authors' code (peustr/A2SNN, commit cc1f920)


class _OfficialNoise(GaussianFeatureNoise):
    """Noise with one draw for all examples of a call, and weight decay on the weights as they are stored."""

    def squared_norm(self) -> tf.Tensor:
        return tf.reduce_sum(tf.square(self.scale_vector))

    def _draws(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return self.distribution().sample(1, seed=seed)

    def _uniform(self, size: int) -> tf.Tensor:
        return tf.random.stateless_uniform([size], fold_in(make_seed(self.seed), 0, 1))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["initial_scale"]  # the start is U(0, 1)
        return config


@keras.saving.register_keras_serializable("reproduce")
class OfficialAnisotropicNoise(_OfficialNoise):
    """Noise whose L is the stored lower triangle, U(0, 1) at first; nothing keeps its diagonal positive.

    L_WCA is ln Σ_i w_iᵀ Sigma w_i: the logarithm of the sum, not the sum of the logarithms.
    """

    def distribution(self) -> tfp.distributions.Distribution:
        return tfp.distributions.MultivariateNormalTriL(scale_tril=self.scale_tril)

    @property
    def scale_tril(self) -> tf.Tensor:
        return tfp.math.fill_triangular(tf.convert_to_tensor(self.scale_vector))

    def assign_scale_tril(self, scale_tril: np.ndarray) -> None:
        self.scale_vector.assign(tfp.math.fill_triangular_inverse(tf.constant(scale_tril, tf.float32)))

    def alignment_term(self, class_weights: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.reduce_sum(tf.square(covariance.logit_scale(class_weights, self.scale_tril))))

    def _initial_vector(self, feature_dim: int) -> tf.Tensor:
        return self._uniform(feature_dim * (feature_dim + 1) // 2)


@keras.saving.register_keras_serializable("reproduce")
class OfficialIsotropicNoise(_OfficialNoise):
    """Noise with standard deviations softplus(σ); the raw σ is U(0, 1) at first.

    L_WCA is ln Σ_i w_iᵀ diag(σ) w_i, of the raw σ.
    """

    def distribution(self) -> tfp.distributions.Distribution:
        return tfp.distributions.MultivariateNormalDiag(scale_diag=tf.nn.softplus(self.scale_vector))

    @property
    def scale_tril(self) -> tf.Tensor:
        return tf.linalg.diag(tf.nn.softplus(self.scale_vector))

    def assign_scale_tril(self, scale_tril: np.ndarray) -> None:
        diagonal = tf.constant(np.diag(scale_tril), tf.float32)
        self.scale_vector.assign(tfp.math.softplus_inverse(diagonal))

    def alignment_term(self, class_weights: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.reduce_sum(tf.square(class_weights) * self.scale_vector[:, tf.newaxis]))

    def _initial_vector(self, feature_dim: int) -> tf.Tensor:
        return self._uniform(feature_dim)


@keras.saving.register_keras_serializable("reproduce")
class WCAOfficialHead(WCAHead):
    """A `WCAHead` with the authors' noise and alignment term. The penalty includes the bias."""

    noise_layers = {"isotropic": OfficialIsotropicNoise, "anisotropic": OfficialAnisotropicNoise}

    def squared_norm(self) -> tf.Tensor:
        """Return ‖W‖² + ‖b‖² + ‖L‖²; for isotropic noise, the raw σ takes the place of L."""
        kernel, bias = (tf.reduce_sum(tf.square(each)) for each in (self.classifier.kernel, self.classifier.bias))
        return kernel + bias + self.noise.squared_norm()


@keras.saving.register_keras_serializable("reproduce")
class WCAOfficialNet(WCANet):
    """A `WCANet` that ends in a `WCAOfficialHead`."""

    head_class = WCAOfficialHead


class UnitNormWeights(HeadConstraint):
    """The authors' constraint on the weights: after every batch each w_i has norm 1, also where it was shorter."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        kernel = self.head.classifier.kernel
        weights = kernel.numpy().astype(np.float64)
        kernel.assign(weights / np.linalg.norm(weights, axis=0))


class ClippedRawVariance(HeadConstraint):
    """The authors' constraint on isotropic noise: after every batch its raw values are clipped."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        raw = self.head.noise.scale_vector
        raw.assign(np.clip(raw.numpy(), *OFFICIAL_VARIANCES))


@dataclasses.dataclass(frozen=True)
class OfficialAdversarialTraining(AdversarialTraining):
    """Adversarial training as in the authors' code: the attacked net gets images that are not normalised.

    The net gets such images at no other time.
    """

    def target(self, model: Any) -> GaussianLogitsTarget:
        noisy = bool(model.noise)
        return GaussianLogitsTarget(model.normalised_features, model.logits_of, lambda: model.logit_scale, noisy)


@dataclasses.dataclass(frozen=True)
class OfficialProjectedGradient(ProjectedGradient):
    """The authors' PGD: it never clears its gradient, and steps along the sign of the sum of all gradients so far."""

    def direction(self, previous: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        return previous + gradient


def official_adversary(mixed: bool) -> OfficialAdversarialTraining:
    """Return adversarial training by PGD with epsilon 0.03, steps of 0.01 and one draw.

    The authors average over draws that are all equal, which is the same as one draw.
    """
    attack = OfficialProjectedGradient(relative_step_size=OFFICIAL_STEP / OFFICIAL_EPSILON, eot_samples=1)
    return OfficialAdversarialTraining(attack, OFFICIAL_EPSILON, mixed)


@dataclasses.dataclass(frozen=True)
class WCAOfficial(LearnedNoise):
    """WCA-Net as in the authors' code: one draw for a batch, ln Σ in place of Σ ln, its own constraint and attack.

    Weight decay also applies to the classifier's bias, and to the noise as it is stored.
    """

    source = "the authors' code, github.com/peustr/WCA-net"
    protocol = "pgd"

    def build(self, request: NetRequest) -> keras.Model:
        arguments = request.arguments()
        if request.image_shape[-1] == 1:  # the authors feed grey images as they are
            arguments |= {"pixel_mean": (0.0,), "pixel_std": (1.0,)}
        return WCAOfficialNet(
            request.make_backbone(),
            feature_dim=self.feature_dim,
            covariance=self.covariance,
            bottleneck_activation=request.bottleneck_activation,
            weight_decay=self.weight_decay if self.regularizer == "penalty" else 0.0,
            **arguments,
        )

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Return the authors' projections, for the constraint; no callbacks for the penalty."""
        if self.regularizer == "penalty":
            return []
        smallest, largest = OFFICIAL_VARIANCES
        isotropic = self.covariance == "isotropic"
        return [UnitNormWeights(), ClippedRawVariance() if isotropic else CovarianceConstraint(largest, smallest)]

    def adversary(self, attack: BallAttack, epsilon: float, mixed: bool) -> Callable[..., Any]:
        """Return the authors' adversary, whatever `attack` and `epsilon` are."""
        return official_adversary(mixed)

    def adversary_text(self, attack: str, epsilon: str) -> str:
        return "the PGD of the authors' code at ε = 0.03"

    def check(self, initial_weights: str, adversarial: Sequence[str]) -> None:
        for name in adversarial:
            raise InputError(f"expected no --{name} with --defence={self.name}, which has its own; received one")
