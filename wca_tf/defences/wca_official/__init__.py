"""WCA-Net as in the authors' code (github.com/peustr/WCA-net, 97bf252), where it differs from the paper.

It helps to understand published numbers. docs/paper.md lists the differences and their effects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from wca_tf.attacks import BallAttack
from wca_tf.core.errors import InputError
from wca_tf.core.lazily import keras
from wca_tf.defences.defence import NetRequest
from wca_tf.defences.wca import LearnedNoise


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
        return self.load(".net").WCAOfficialNet(
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
        constraints = self.load(".constraints")
        smallest, largest = constraints.OFFICIAL_VARIANCES
        if self.covariance == "isotropic":
            noise = constraints.ClippedRawVariance()
        else:
            noise = constraints.CovarianceConstraint(largest, smallest)
        return [constraints.UnitNormWeights(), noise]

    def adversary(self, attack: BallAttack, epsilon: float, mixed: bool) -> Callable[..., Any]:
        """Return the authors' adversary, whatever `attack` and `epsilon` are."""
        return self.load(".adversarial").official_adversary(mixed)

    def adversary_text(self, attack: str, epsilon: str) -> str:
        return "the PGD of the authors' code at ε = 0.03"

    def check(self, initial_weights: str, adversarial: Sequence[str]) -> None:
        for name in adversarial:
            raise InputError(f"expected no --{name} with --defence=wca_official, which has its own; received one")


DEFENCE = WCAOfficial
