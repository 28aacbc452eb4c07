"""WCA-Net: learned noise before the classifier, trained to align with the classifier's weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import BACKBONE_DECAY, Defence, NetRequest

MIN_BOUND = 1e-3  # the least bound of a constraint


@dataclasses.dataclass(frozen=True)
class LearnedNoise(Defence):
    """The options that the paper's defence and the authors' code share."""

    covariance: str = option(
        "anisotropic", "covariance of the noise: any matrix, or a diagonal one", choices=("anisotropic", "isotropic")
    )
    feature_dim: int = option(32, "D, the width of the bottleneck; paper: 32, or 256 for 100 classes")
    regularizer: str = option(
        "penalty",
        "limit on weights and noise: weight decay, or projections after every step (paper, appendix D)",
        choices=("penalty", "constraint"),
    )
    weight_decay: float = option(1e-4, "weight of the l2 penalty on the classifier's weights and the noise", minimum=0)


@dataclasses.dataclass(frozen=True)
class WCA(LearnedNoise):
    """Weight-covariance alignment: h(x) = W (f(x) + z) + b, z ~ N(0, Σ), with −Σ ln wᵢᵀΣwᵢ in the loss."""

    source = "Eustratiadis et al., ICML 2021"
    protocol = "pgd"
    on_lipschitz = True

    max_weight_norm: float = option(
        1.0, "with regularizer=constraint: γ, the largest norm of a class's weights", minimum=MIN_BOUND
    )
    max_variance: float = option(
        1.0, "with regularizer=constraint: the largest singular value of the noise's covariance", minimum=MIN_BOUND
    )
    backbone_decay: float = option(0.0, BACKBONE_DECAY, minimum=0)
    alignment: str = option(
        "per_class",
        "what the noise is rewarded along: the weights of each class (the paper), the same less their mean, or their "
        "differences, also over their squared length",
        choices=("per_class", "centred", "pairwise", "pairwise_normalised"),
    )
    alignment_weight: float = option(1.0, "weight of the alignment term in the loss (paper: 1)", minimum=0)
    features: str = option("free", "normalised: features are scaled to length 10", choices=("free", "normalised"))
    noise_alone: bool = option(False, "train the noise alone, on the net of --initial_weights (paper, E3)")

    def build(self, request: NetRequest) -> keras.Model:
        return self.load(".net").WCANet(
            request.make_backbone(),
            feature_dim=self.feature_dim,
            covariance=self.covariance,
            weight_decay=self.weight_decay if self.regularizer == "penalty" else 0.0,
            noise_alone=self.noise_alone,
            backbone_decay=self.backbone_decay,
            alignment=self.alignment,
            alignment_weight=self.alignment_weight,
            features=self.features,
            **request.bottleneck(),
            **request.arguments(),
        )

    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Return the projections of the constraint: of the noise, and of W unless the noise trains alone."""
        if self.regularizer == "penalty":
            return []
        constraints = self.load(".constraints")
        noise = constraints.CovarianceConstraint(self.max_variance)
        return [noise] if self.noise_alone else [constraints.WeightNormConstraint(self.max_weight_norm), noise]

    def check(self, initial_weights: str, adversarial: Sequence[str]) -> None:
        if self.noise_alone and not initial_weights:
            raise InputError(
                "expected --initial_weights=DIR with the trained net that gets the noise; received no directory"
            )


DEFENCE = WCA
