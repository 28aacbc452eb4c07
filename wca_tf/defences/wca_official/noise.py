"""The noise of the authors' code (github.com/peustr/WCA-net, 97bf252), where it differs from the paper's."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.defences.wca.noise import GaussianFeatureNoise
from wca_tf.gaussian import covariance


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


@keras.saving.register_keras_serializable("wca_tf")
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


@keras.saving.register_keras_serializable("wca_tf")
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
