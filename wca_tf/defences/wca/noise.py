"""Keras layers that add learned Gaussian noise to features, in training and at test time alike."""

import math
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import outermost_call
from wca_tf.defences.wca import alignment, covariance
from wca_tf.distribution.replicas import first_row, num_replicas
from wca_tf.nets.random_stream import RandomStream


class _Unaligned(keras.regularizers.Regularizer):
    """A term of 0 that warns once where Keras's own training step asks for it: no other term aligns the noise then."""

    def __init__(self, noise: "GaussianFeatureNoise") -> None:
        self.noise = noise

    def __call__(self, weight: tf.Tensor) -> tf.Tensor:
        model = self.noise.trained_by()
        if not self.noise.is_aligned and getattr(type(model), "train_step", None) is keras.Model.train_step:
            self.noise.is_aligned = True
            warnings.warn(
                f"no term of the loss aligns the noise of {self.noise.name!r} with the classifier's weights: "
                "wca_tf.WCAHead(num_classes) has this term, or subtract alignment_term(weights) from the loss",
                stacklevel=2,
            )
        return tf.zeros([])


class GaussianFeatureNoise(RandomStream):
    """A layer that adds z ~ N(0, Sigma) to features, one independent z per example.

    Sigma = L Lᵀ is learned (paper, section 3). The layer is the base of `AnisotropicNoise` and `IsotropicNoise`. It
    computes in float32 under every precision policy. The random stream is the weight `random_state` (seed, number of
    calls), so that a saved layer continues it. Nothing trains the noise along the classifier's weights but a loss with
    `alignment_term`: the layer warns once where a model is fitted without. `WCAHead` has the whole loss.

    Args:
        seed: whole number that starts the random stream.
        initial_scale: above `covariance.MIN_SCALE`; L starts at `initial_scale` times the identity.

    Call arguments:
        features: [B, D], any float type. Under tf.distribute every replica has the same number of rows, and gets its
            rows of the global batch's noise.
        seed: optional int32[2]. When it is given, it alone decides the noise, and the stream does not advance.
        training: whether the model trains; the noise is the same.
    """

    is_aligned = False  # whether a loss has asked for `alignment_term`

    def __init__(self, seed: int = 0, initial_scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(seed, **{**kwargs, "dtype": "float32", "autocast": False})
        if not covariance.MIN_SCALE < initial_scale < math.inf:
            raise InputError(f"expected initial_scale above {covariance.MIN_SCALE}, received {initial_scale}")
        self.initial_scale = initial_scale
        self.regularizer: keras.regularizers.Regularizer = _Unaligned(self)
        self.trained_by: Any = lambda: None  # the model that trains, in its training step

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        with tf.init_scope():  # Keras may build a layer in a graph of its own, which is gone when the weight is made
            initial = self._initial_vector(int((input_shape or (0,))[-1] or 0))
        self.scale_vector = self.add_weight(
            name="scale_vector",
            shape=initial.shape,
            initializer=lambda shape, dtype: tf.cast(initial, dtype),
            regularizer=self.regularizer,
        )
        super().build()

    def call(self, features: tf.Tensor, seed: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        self.trained_by = outermost_call() if training else lambda: None
        features = tf.cast(features, tf.float32)
        seed = self.next_seed() if seed is None else seed
        return features + self._draws(tf.shape(features)[0], seed)

    def distribution(self) -> tfp.distributions.Distribution:
        """Return the distribution of z, with event shape [D]."""
        raise NotImplementedError

    @property
    def scale_tril(self) -> tf.Tensor:
        """L [D, D], float32, lower-triangular with a positive diagonal."""
        raise NotImplementedError

    def assign_scale_tril(self, scale_tril: np.ndarray) -> None:
        """Set the L of the noise to a [D, D] matrix, lower-triangular with a diagonal above `MIN_SCALE`."""
        raise NotImplementedError

    def alignment_term(self, class_weights: tf.Tensor) -> tf.Tensor:
        """Return L_WCA of `class_weights` [D, C] and this noise, a scalar (paper, Eq. 3)."""
        self.is_aligned = True
        return alignment.alignment_term(class_weights, self.scale_tril)

    def squared_norm(self) -> tf.Tensor:
        """Return ‖L‖², which weight decay penalises."""
        return tf.reduce_sum(tf.square(self.scale_tril))

    def _draws(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return z [B, D] for `rows` examples: on each replica, its rows of the global batch's noise."""
        first = first_row(rows)
        return self.distribution().sample(rows * num_replicas(), seed=seed)[first : first + rows]

    def _initial_vector(self, feature_dim: int) -> tf.Tensor:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["dtype"]  # always float32
        return {**config, "initial_scale": self.initial_scale}


@keras.saving.register_keras_serializable("wca_tf")
class AnisotropicNoise(GaussianFeatureNoise):
    """Noise with a full covariance: L is any lower-triangular matrix with a positive diagonal (paper, section 3.2)."""

    def distribution(self) -> tfp.distributions.Distribution:
        return tfp.distributions.MultivariateNormalTriL(scale_tril=self.scale_tril)

    @property
    def scale_tril(self) -> tf.Tensor:
        return covariance.scale_tril_from_vector(tf.convert_to_tensor(self.scale_vector))

    def assign_scale_tril(self, scale_tril: np.ndarray) -> None:
        self.scale_vector.assign(covariance.vector_from_scale_tril(tf.constant(scale_tril, tf.float32)))

    def _initial_vector(self, feature_dim: int) -> tf.Tensor:
        return covariance.vector_from_scale_tril(self.initial_scale * tf.eye(feature_dim))


@keras.saving.register_keras_serializable("wca_tf")
class IsotropicNoise(GaussianFeatureNoise):
    """Noise with a diagonal covariance, learned per feature; the paper calls it isotropic."""

    def distribution(self) -> tfp.distributions.Distribution:
        return tfp.distributions.MultivariateNormalDiag(scale_diag=self._scale_diag)

    @property
    def scale_tril(self) -> tf.Tensor:
        return tf.linalg.diag(self._scale_diag)

    def assign_scale_tril(self, scale_tril: np.ndarray) -> None:
        self.scale_vector.assign(covariance.vector_from_scale_diag(tf.constant(np.diag(scale_tril), tf.float32)))

    @property
    def _scale_diag(self) -> tf.Tensor:
        return covariance.scale_diag_from_vector(tf.convert_to_tensor(self.scale_vector))

    def _initial_vector(self, feature_dim: int) -> tf.Tensor:
        return covariance.vector_from_scale_diag(tf.fill([feature_dim], self.initial_scale))


NOISE_LAYERS: dict[str, type[GaussianFeatureNoise]] = {"isotropic": IsotropicNoise, "anisotropic": AnisotropicNoise}
