"""Fresh draws of a net's logits, by kernels that keep no state in the exported file.

Normal numbers come from TensorFlow's kernel; or, for runtimes that lack it, from uniform numbers. The kernels have
seeds of 0. They seed themselves when a process loads them, and keep their state to themselves. There is no variable
that a file could restore, or that requests could race for.
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
BITS = 23  # of a uniform number


def normal_kernel(rows: tf.Tensor, columns: int) -> tf.Tensor:
    """Return N(0, 1) numbers, float32 [rows, columns]."""
    return tf.raw_ops.RandomStandardNormal(shape=[rows, columns], dtype=tf.float32, seed=0, seed2=0)


def box_muller(rows: tf.Tensor, columns: int) -> tf.Tensor:
    """Return N(0, 1) numbers, float32 [rows, columns], from uniform ones (Box and Muller 1958, Ann. Math. Statist. 29).

    A second uniform number continues the first one near 0, where the tails come from: they reach 7.98, not 5.64.
    """
    shape = [3, rows, -(-columns // 2)]
    first, second, turn = tf.unstack(tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32, seed=0, seed2=0))
    above_zero = tf.maximum(1 - first - second * 2.0**-BITS, 4.0**-BITS)
    radius, angle = tf.sqrt(-2 * tf.math.log(above_zero)), 2 * np.pi * turn
    return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)[:, :columns]


NORMAL_NUMBERS = {"normal": normal_kernel, "uniform": box_muller}


class GaussianSampler:
    """Draws of a net whose logits are N(mu, K), K the same for every image: mu + T ε. A draw costs no pass.

    Args:
        noise_factor: T [C, r] with T Tᵀ = K; `None` for a net without noise.
        export_random: a name of `NORMAL_NUMBERS`.
    """

    per_image_noise = True

    def __init__(self, noise_factor: np.ndarray | None, export_random: str = "normal") -> None:
        self.noise_factor, self._normal = noise_factor, NORMAL_NUMBERS[export_random]
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
        noise = tf.matmul(self._normal(count * images, factor.shape[1]), factor, transpose_b=True)
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


def sampler_of(
    model: Exportable, image_shape: tuple[int, int, int], export_random: str = "normal"
) -> GaussianSampler | PassSampler:
    """Return the sampler of a net; the net says whether its logits are Gaussian.

    Raises:
        InputError: the noise is NaN or Inf; or draws are made by passes, whose normal numbers are TensorFlow's.
    """
    gaussian = model.gaussian_logits(tf.zeros([1, *image_shape]))
    if gaussian is not None and gaussian[1].shape.rank == 2:
        return GaussianSampler(noise_factor(gaussian[1].numpy()), export_random)
    if export_random != "normal":
        raise InputError(
            f"expected a net whose logits are Gaussian, with the same noise for all images, with export_random="
            f"{export_random}; received one that draws in its layers"
        )
    return PassSampler(model)


def noise_factor(logit_scale: np.ndarray) -> np.ndarray | None:
    """Return T [C, r], float64, with T Tᵀ = K = A Aᵀ, the covariance of the logits; r = min(C, D).

    T is the triangular factor of A [C, D]. It draws the same noise from fewer numbers. Return `None` without noise.
    """
    scale = logit_scale.astype(np.float64)
    if not np.isfinite(scale).all():
        raise InputError("expected a trained model of finite weights, received NaN or Inf in those of the noise")
    return np.transpose(np.linalg.qr(scale.T, mode="r")) if scale.any() else None
