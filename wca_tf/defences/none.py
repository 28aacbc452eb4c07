"""No defence: the net without noise, as WCA-Net has it."""

from __future__ import annotations

import dataclasses

from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import BACKBONE_DECAY, Defence, NetRequest


@dataclasses.dataclass(frozen=True)
class Undefended(Defence):
    """A backbone, a bottleneck and a linear classifier, without noise: what a defence is compared with."""

    source = "Eustratiadis et al., ICML 2021 (its baseline)"
    protocol = "pgd"
    on_lipschitz = True

    feature_dim: int = option(32, "D, width of the bottleneck: 32, or 256 for 100 classes (paper)")
    weight_decay: float = option(0.0, "l2 on the classifier's weights W, inside the loss", minimum=0)
    backbone_decay: float = option(0.0, BACKBONE_DECAY, minimum=0)
    temperature: float = option(1.0, "the logits are W f(x) + b divided by it, in training and in answers")

    def build(self, request: NetRequest) -> keras.Model:
        return self.load("wca_tf.nets.bottleneck_net").BottleneckNet(
            request.make_backbone(),
            feature_dim=self.feature_dim,
            weight_decay=self.weight_decay,
            backbone_decay=self.backbone_decay,
            temperature=self.temperature,
            **request.bottleneck(),
            **request.arguments(),
        )


DEFENCE = Undefended
