"""The constraint variant: weights and covariance are projected after every step (paper, appendix D).

w_i ← w_i / max(1, ‖w_i‖/γ). The singular values of Sigma are clipped, Sigma is rebuilt, and L is its Cholesky factor.
The formulas of the appendix differ from this (docs/paper.md, Equations).
The projections are callbacks of Keras's `fit`, for any model with one `WCAHead`, whose weight_decay is 0 then. They
work under tf.distribute: every replica gets the assigned values.
"""

import math
from typing import Any

import keras
import numpy as np

from wca_tf.core.errors import DivergedError, InputError
from wca_tf.nets.gaussian_head import GaussianHead, heads_of

# The paper bounds Sigma only from above. Below this floor, float32 loses the Cholesky factor of Sigma.
MIN_VARIANCE = 1e-4


def project_to_ball(class_weights: np.ndarray, radius: float) -> np.ndarray:
    """Project each column w_i of [D, C] to the l2 ball of this radius γ: the nearest point of norm at most γ.

    Examples:
        >>> project_to_ball(np.array([[3.0, 0.1], [4.0, 0.0]]), radius=1.0).tolist()
        [[0.6, 0.1], [0.8, 0.0]]
    """
    norms = np.linalg.norm(class_weights, axis=0)
    return class_weights / np.maximum(1, norms / radius)


def clip_singular_values(covariance: np.ndarray, smallest: float, largest: float) -> np.ndarray:
    """Return the symmetric [D, D] matrix with singular values clipped to [smallest, largest]: U diag(clipped) Uᵀ.

    U diag(clipped) Vᵀ would be wrong: for singular values near zero u may be −v, which makes a negative eigenvalue.

    Examples:
        >>> clip_singular_values(np.diag([4.0, 0.0]), smallest=0.5, largest=1.0).tolist()
        [[1.0, 0.0], [0.0, 0.5]]
    """
    left, values, _ = np.linalg.svd(covariance, hermitian=True)
    return (left * np.clip(values, smallest, largest)) @ left.T


class HeadConstraint(keras.callbacks.Callback):
    """A callback for a model with one head, its attribute `head`.

    Raises:
        InputError: in `set_model`, a model without a `WCAHead`, or with several.
    """

    head: GaussianHead

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        if len(heads := heads_of(model)) != 1:
            raise InputError(f"expected a model with one WCAHead, to project its weights; received {len(heads)} heads")
        [self.head] = heads


class WeightNormConstraint(HeadConstraint):
    """A callback that sets w_i ← w_i / max(1, ‖w_i‖/γ) after every batch, in a model with one `WCAHead`.

    Args:
        max_norm: γ, above 0.
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        if not 0 < max_norm < math.inf:
            raise InputError(f"expected a max_norm above 0, received {max_norm}")
        self.max_norm = max_norm

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        kernel = self.head.classifier.kernel
        kernel.assign(project_to_ball(kernel.numpy().astype(np.float64), self.max_norm))


class CovarianceConstraint(HeadConstraint):
    """A callback that clips the singular values of Sigma to [smallest, largest] after every batch.

    It is for a model with one `WCAHead`. L becomes the Cholesky factor of Sigma. `DivergedError` is raised when L has
    NaN or Inf.

    Args:
        largest: the largest variance of the noise in any direction, above `smallest`.
        smallest: the smallest variance of the noise in any direction, above 0.
    """

    def __init__(self, largest: float, smallest: float = MIN_VARIANCE) -> None:
        super().__init__()
        if not 0 < smallest < largest < math.inf:
            raise InputError(f"expected 0 < smallest < largest, received {smallest} and {largest}")
        self.smallest, self.largest = smallest, largest

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        scale_tril = self.head.noise.scale_tril.numpy().astype(np.float64)
        if not np.isfinite(scale_tril).all():  # before the loss of the next step shows it
            raise DivergedError("training diverged: the noise has NaN or Inf; try a smaller --learning_rate")
        clipped = clip_singular_values(scale_tril @ scale_tril.T, self.smallest, self.largest)
        self.head.noise.assign_scale_tril(np.linalg.cholesky(clipped))
