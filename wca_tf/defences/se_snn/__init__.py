"""SE-SNN, simple and effective stochastic neural networks: features with noise whose size depends on the image."""

from __future__ import annotations

import dataclasses
import math

from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest


@dataclasses.dataclass(frozen=True)
class SESNN(Defence):
    """Features z = μ(x) + σ(x) ∘ ξ, with ω mean (b − ln σ)₊ in the loss, which keeps σ large (SE-SNN)."""

    source = "Yu et al., AAAI 2021"
    protocol = "fgsm"

    feature_dim: int = option(256, "the number of features with noise")
    entropy_weight: float = option(0.1, "ω, the weight of the entropy's loss", minimum=0)
    target_deviation: float = option(16.0, "e^b: the loss is 0 where σ is at least this")
    shift: float = option(5.0, "σ = softplus(output − shift): how small σ starts", minimum=0)

    def build(self, request: NetRequest) -> keras.Model:
        return self.load(".net").SESNNNet(
            request.make_backbone(),
            feature_dim=self.feature_dim,
            entropy_weight=self.entropy_weight,
            log_deviation=math.log(self.target_deviation),
            shift=self.shift,
            **request.arguments(),
        )


DEFENCE = SESNN
