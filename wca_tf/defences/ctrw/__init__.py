"""CTRW: the normalised image is multiplied by random weights, of learned mean and deviation for each pixel."""

from __future__ import annotations

import dataclasses
import functools

from wca_tf.attacks import BallAttack
from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.defences.defence import Defence, NetRequest
from wca_tf.nets.backbones.layer_factory import LayersWith


@dataclasses.dataclass(frozen=True)
class ConstrainedRandomWeights(Defence):
    """Images times random weights M + S ∘ ξ, with M and S learned for each pixel, S bounded from below (CTRW)."""

    source = "Ma et al., NeurIPS 2023"
    protocol = "single_draw"

    min_deviation: float = option(2 / 3, "the least S; the authors' bound for 32×32×3 images, 2048/3072", minimum=0)
    scope: str = option(
        "image", "weights for each image, or one draw for all images (the authors' code)", choices=("image", "batch")
    )
    weight_decay: float = option(5e-4, "l2 on all kernels, M and S, inside the loss", minimum=0)

    def build(self, request: NetRequest) -> keras.Model:
        net = self.load(".net")
        weights = functools.partial(net.RandomPixelWeights, self.min_deviation, self.scope)
        backbone = request.make_backbone(functools.partial(LayersWith, images=weights))
        return net.RandomWeightsNet(backbone, weight_decay=self.weight_decay, **request.arguments())

    def adversary(self, attack: BallAttack, epsilon: float, mixed: bool) -> AdversarialTraining:
        return self.load(".net").FixedDrawAdversarialTraining(attack, epsilon, mixed)


DEFENCE = ConstrainedRandomWeights
