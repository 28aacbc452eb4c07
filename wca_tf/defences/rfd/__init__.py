"""Randomised features: noise on the last features of a net at test time alone."""

from __future__ import annotations

import dataclasses

from wca_tf.attacks import BallAttack
from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.defences.defence import Defence, NetRequest


@dataclasses.dataclass(frozen=True)
class RandomFeatures(Defence):
    """Gaussian noise on the last features at test time; training has no noise (RFD)."""

    source = "Nguyen et al., ICLR 2024"
    protocol = "square:queries=10000:initial_share=0.05:eot_samples=1:resample_noise=true"

    deviation: float = option(1.0, "ν, the standard deviation of the noise on each feature", minimum=0)
    feature_dim: int = option(32, "D, width of the bottleneck, as of defence none")

    def build(self, request: NetRequest) -> keras.Model:
        return self.load(".net").RandomFeatureNet(
            request.make_backbone(),
            deviation=self.deviation,
            feature_dim=self.feature_dim,
            bottleneck_activation=request.bottleneck_activation,
            **request.arguments(),
        )

    def adversary(self, attack: BallAttack, epsilon: float, mixed: bool) -> AdversarialTraining:
        return self.load(".net").NoiseFreeAdversarialTraining(attack, epsilon, mixed)


DEFENCE = RandomFeatures
