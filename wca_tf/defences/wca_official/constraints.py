"""The constraint variant of the authors' code, where it differs from the paper's."""

from typing import Any

import numpy as np

from wca_tf.defences.wca.constraints import CovarianceConstraint, HeadConstraint

__all__ = ["OFFICIAL_VARIANCES", "ClippedRawVariance", "CovarianceConstraint", "UnitNormWeights"]

OFFICIAL_VARIANCES = (0.1, 1.0)  # the least and the largest in the authors' code (peustr/A2SNN, commit cc1f920)


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
