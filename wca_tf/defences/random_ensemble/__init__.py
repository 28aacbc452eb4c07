"""Random ensembles: several nets without noise, one of which answers at random."""

from __future__ import annotations

import dataclasses

from wca_tf.attacks import BallAttack
from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.defences.defence import BACKBONE_DECAY, Defence, NetRequest
from wca_tf.defences.none import Undefended


@dataclasses.dataclass(frozen=True)
class RandomEnsemble(Defence):
    """Several nets without noise, trained side by side; one of them, picked at random, answers each image."""

    source = "Dbouk & Shanbhag, ICML 2022, who attack such nets"
    protocol = "arc"

    members: int = option(4, "K, the number of nets; each begins from weights of its own", minimum=2, maximum=32)
    feature_dim: int = option(32, "D, width of each net's bottleneck, as of defence none")
    weight_decay: float = option(0.0, "l2 on each classifier's weights W, inside the loss", minimum=0)
    backbone_decay: float = option(0.0, BACKBONE_DECAY, minimum=0)

    def build(self, request: NetRequest) -> keras.Model:
        each = Undefended(
            feature_dim=self.feature_dim, weight_decay=self.weight_decay, backbone_decay=self.backbone_decay
        )
        return self.load(".net").RandomEnsembleNet([each.build(request) for _ in range(self.members)], request.seed)

    def adversary(self, attack: BallAttack, epsilon: float, mixed: bool) -> AdversarialTraining:
        return self.load(".net").TrainingOfEachNet(attack, epsilon, mixed)


DEFENCE = RandomEnsemble
