"""Fresh draws of a net's logits, by kernels that keep no state in the exported file.

The kernels have seeds of 0. They seed themselves when a process loads them, and keep their state to themselves. There
is no variable that a file could restore, or that requests could race for.
"""

import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.gaussian.class_probabilities import ClassProbabilities
from wca_tf.nets.headed_net import KnownNet
from wca_tf.serving.adapted_net import AdaptedNet

Exportable = KnownNet | AdaptedNet
# The most numbers in one array of draws, 4 MB, unless a single draw for the batch has more.
CHUNK = 2**20


class GaussianSampler:
    """Draws of a net whose logits are N(mu, K), K the same for every image: mu + T ε. A draw costs no pass.

    Args:
        noise_factor: T [C, r] with T Tᵀ = K; `None` for a net without noise.
    """

    per_image_noise = True

    def __init__(self, noise_factor: np.ndarray | None) -> None:
        self.noise_factor = noise_factor
        self.has_noise = noise_factor is not None
        self.class_probabilities = ClassProbabilities(noise_factor)

    def at_once(self, mean: tf.Tensor) -> tf.Tensor:
        """Return how many draws fit into memory."""
        return tf.maximum(1, CHUNK // tf.maximum(1, tf.size(mean)))

    def draws(self, mean: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
        """Return logits [count, n, C] from mu [n, C]."""
        if self.noise_factor is None:
            return tf.repeat(mean[tf.newaxis], count, axis=0)
        images, factor = tf.shape(mean)[0], tf.constant(self.noise_factor, tf.float32)
        shape = [count * images, factor.shape[1]]
        normal = tf.raw_ops.RandomStandardNormal(shape=shape, dtype=tf.float32, seed=0, seed2=0)
        noise = tf.matmul(normal, factor, transpose_b=True)
        return mean[tf.newaxis] + tf.reshape(noise, [count, images, factor.shape[0]])


class PassSampler:
    """Draws of a net with noise anywhere, made by passes through the net.

    Args:
        model: the net.
    """

    has_noise = True

    def __init__(self, model: Exportable) -> None:
        self._target = model.target()
        self.per_image_noise = self._target.per_image_noise

    def at_once(self, images: tf.Tensor) -> tf.Tensor:
        """Return how many draws fit into memory."""
        return tf.constant(self._target.draws_per_pass)

    def draws(self, images: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
        """Return logits [count, n, C] of float images [n, H, W, channels]."""
        images_at_least_one = tf.cond(tf.shape(images)[0] > 0, lambda: images, lambda: tf.zeros([1, *images.shape[1:]]))
        seed = tf.raw_ops.RandomUniformInt(shape=[2], minval=tf.int32.min, maxval=tf.int32.max, seed=0, seed2=0)
        indices = tf.range(tf.shape(images_at_least_one, tf.int64)[0])
        logits = self._target.logits(self._target.features(images_at_least_one), seed, count, indices)
        return tf.debugging.check_numerics(logits, "the logits of a draw")[:, : tf.shape(images)[0]]


def sampler_of(model: Exportable, image_shape: tuple[int, int, int]) -> GaussianSampler | PassSampler:
    """Return the sampler of a net; the net says whether its logits are Gaussian.

    Raises:
        InputError: the noise is NaN or Inf.
    """
    gaussian = model.gaussian_logits(tf.zeros([1, *image_shape]))
    if gaussian is None or gaussian[1].shape.rank == 3:
        return PassSampler(model)
    return GaussianSampler(noise_factor(gaussian[1].numpy()))


def noise_factor(logit_scale: np.ndarray) -> np.ndarray | None:
    """Return T [C, r], float64, with T Tᵀ = K = A Aᵀ, the covariance of the logits; r = min(C, D).

    T is the triangular factor of A [C, D]. It draws the same noise from fewer numbers. Return `None` without noise.
    """
    scale = logit_scale.astype(np.float64)
    if not np.isfinite(scale).all():
        raise InputError("expected a trained model of finite weights, received NaN or Inf in those of the noise")
    return np.transpose(np.linalg.qr(scale.T, mode="r")) if scale.any() else None
