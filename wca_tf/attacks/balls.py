"""The geometry of an attack: l-infinity and l2 balls around images, each in five methods."""

from __future__ import annotations

from typing import Protocol

from wca_tf.core.lazily import tf
from wca_tf.core.seeds import fold_in, normal_by_index, uniform_by_index


class Ball(Protocol):
    """A norm's ball around each image; epsilon is its radius in the images' [0, 1] units."""

    def project(self, perturbation: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
        """Return the nearest perturbation [B, H, W, channels] of norm at most epsilon."""

    def steepest_step(self, gradient: tf.Tensor) -> tf.Tensor:
        """Return the perturbation of norm 1 along which a function with this gradient grows most.

        It is zero where the gradient is zero.
        """

    def random_start(
        self, seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor
    ) -> tf.Tensor:
        """Return perturbations [B, *shape], uniform in the ball; row b depends on `seed` and `indices[b]` alone."""

    def random_direction(
        self, seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor
    ) -> tf.Tensor:
        """Return perturbations [B, *shape] of norm epsilon, from which Auto-PGD starts.

        Row b depends on `seed` and `indices[b]` alone.
        """

    def distance(self, perturbation: tf.Tensor) -> tf.Tensor:
        """Return the norm of each perturbation, [B]."""


class LinfBall:
    """The ball max |δ| ≤ epsilon."""

    def project(self, perturbation: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(perturbation, -epsilon, epsilon)

    def steepest_step(self, gradient: tf.Tensor) -> tf.Tensor:
        return tf.sign(gradient)

    def random_start(
        self, seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor
    ) -> tf.Tensor:
        return epsilon * (2 * uniform_by_index(seed, indices, shape) - 1)

    def random_direction(
        self, seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor
    ) -> tf.Tensor:
        direction = 2 * uniform_by_index(seed, indices, shape) - 1
        return epsilon * direction / tf.reduce_max(tf.abs(direction), axis=[1, 2, 3], keepdims=True)

    def distance(self, perturbation: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(tf.abs(perturbation), axis=[1, 2, 3])


class L2Ball:
    """The ball √Σδ² ≤ epsilon."""

    def project(self, perturbation: tf.Tensor, epsilon: tf.Tensor) -> tf.Tensor:
        return perturbation * tf.minimum(1.0, tf.math.divide_no_nan(epsilon, self._norms(perturbation)))

    def steepest_step(self, gradient: tf.Tensor) -> tf.Tensor:
        # Scaled first: squares of gradients below 1e-19 vanish in float32.
        largest = tf.reduce_max(tf.abs(gradient), axis=[1, 2, 3], keepdims=True)
        scaled = tf.math.divide_no_nan(gradient, largest)
        return tf.math.divide_no_nan(scaled, self._norms(scaled))

    def random_start(
        self, seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor
    ) -> tf.Tensor:
        direction = normal_by_index(fold_in(seed, 0), indices, shape)
        dimensions = tf.cast(tf.reduce_prod(shape), tf.float32)
        radius = uniform_by_index(fold_in(seed, 1), indices, (1, 1, 1)) ** (1 / dimensions)
        return epsilon * radius * direction / self._norms(direction)

    def random_direction(
        self, seed: tf.Tensor, indices: tf.Tensor, shape: tuple[int, ...], epsilon: tf.Tensor
    ) -> tf.Tensor:
        direction = normal_by_index(seed, indices, shape)
        return epsilon * direction / self._norms(direction)

    def distance(self, perturbation: tf.Tensor) -> tf.Tensor:
        return self._norms(perturbation)[:, 0, 0, 0]

    def _norms(self, perturbation: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(tf.reduce_sum(tf.square(perturbation), axis=[1, 2, 3], keepdims=True))


BALLS: dict[str, Ball] = {"linf": LinfBall(), "l2": L2Ball()}
