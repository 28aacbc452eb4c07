"""WCA-Net as in the authors' code (github.com/peustr/WCA-net, 97bf252), where it differs from the paper.

It helps to understand published numbers. docs/paper.md lists the differences and their effects.
"""

import dataclasses
from typing import TYPE_CHECKING

from wca_tf.core.errors import InputError
from wca_tf.defences.defence import NetRequest
from wca_tf.defences.wca import LearnedNoise

if TYPE_CHECKING:
    import keras

    from wca_tf.attacks import BallAttack
    from wca_tf.defences.wca_official.net import WCAOfficialNet
    from wca_tf.nets.classifier import Adversary
    from wca_tf.runs.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class WCAOfficial(LearnedNoise):
    """WCA-Net as in the authors' code: one draw for a batch, ln Σ in place of Σ ln, its own constraint and attack.

    Weight decay also applies to the classifier's bias, and to the noise as it is stored.
    """

    source = "the authors' code, github.com/peustr/WCA-net"
    protocol = "pgd"

    def build(self, request: NetRequest) -> "WCAOfficialNet":
        from wca_tf.defences.wca_official.net import WCAOfficialNet

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

    def callbacks(self) -> "list[keras.callbacks.Callback]":
        """Return the authors' projections, for the constraint; no callbacks for the penalty."""
        if self.regularizer == "penalty":
            return []
        from wca_tf.defences.wca.constraints import CovarianceConstraint
        from wca_tf.defences.wca_official.constraints import OFFICIAL_VARIANCES, ClippedRawVariance, UnitNormWeights

        smallest, largest = OFFICIAL_VARIANCES
        isotropic = self.covariance == "isotropic"
        return [UnitNormWeights(), ClippedRawVariance() if isotropic else CovarianceConstraint(largest, smallest)]

    def adversary(self, attack: "BallAttack", epsilon: float, mixed: bool) -> "Adversary":
        """Return the authors' adversary, whatever `attack` and `epsilon` are."""
        from wca_tf.defences.wca_official.adversarial import official_adversary

        return official_adversary(mixed)

    def adversary_text(self, config: "TrainConfig") -> str:
        return "the PGD of the authors' code at ε = 0.03"

    def check(self, config: "TrainConfig") -> None:
        for name in ("adversarial_attack", "adversarial_epsilon"):
            if getattr(config, name) != getattr(type(config), name):
                raise InputError(f"expected no --{name} with --defence=wca_official, which has its own; received one")


DEFENCE = WCAOfficial
