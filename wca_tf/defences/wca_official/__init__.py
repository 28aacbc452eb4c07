"""WCA-Net as in the authors' code (github.com/peustr/WCA-net, 97bf252), where it differs from the paper.

For published numbers to be understood; docs/paper.md lists what differs, and what it does.
"""

import dataclasses
from typing import TYPE_CHECKING

from wca_tf.defences.defence import NetRequest
from wca_tf.defences.wca import LearnedNoise
from wca_tf.errors import InputError

if TYPE_CHECKING:
    import keras

    from wca_tf.attacks import BallAttack
    from wca_tf.config import TrainConfig
    from wca_tf.defences.wca_official.net import WCAOfficialNet
    from wca_tf.nets.classifier import Adversary


@dataclasses.dataclass(frozen=True)
class WCAOfficial(LearnedNoise):
    """WCA-Net as in the authors' code: one draw for a batch, ln Σ in place of Σ ln, its own constraint and attack.

    Weight decay is also on the biases, and on the noise as it is stored.
    """

    source = "the authors' code, github.com/peustr/WCA-net"

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
        """Return the authors' projections."""
        if self.regularizer == "penalty":
            return []
        from wca_tf.defences.wca.constraints import CovarianceConstraint
        from wca_tf.defences.wca_official.constraints import OFFICIAL_VARIANCES, ClippedRawVariance, UnitNormWeights

        smallest, largest = OFFICIAL_VARIANCES
        isotropic = self.covariance == "isotropic"
        return [UnitNormWeights(), ClippedRawVariance() if isotropic else CovarianceConstraint(largest, smallest)]

    def adversary(self, attack: "BallAttack", epsilon: float, mixed: bool) -> "Adversary":
        """Return the authors' own, whatever was asked for."""
        from wca_tf.defences.wca_official.adversarial import official_adversary

        return official_adversary(mixed)

    def adversary_text(self, config: "TrainConfig") -> str:
        return "the PGD of the authors' code at ε = 0.03"

    def check(self, config: "TrainConfig") -> None:
        for name in ("adversarial_attack", "adversarial_epsilon"):
            if getattr(config, name) != getattr(type(config), name):
                raise InputError(f"expected no --{name} with --defence=wca_official, which has its own; received one")


DEFENCE = WCAOfficial
