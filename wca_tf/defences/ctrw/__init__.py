"""CTRW: the normalised image is multiplied by random weights, of learned mean and deviation for each pixel."""

import dataclasses
import functools
from typing import TYPE_CHECKING

from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest
from wca_tf.nets.backbones.layer_factory import LayersWith

if TYPE_CHECKING:
    from wca_tf.attacks import BallAttack
    from wca_tf.defences.ctrw.net import FixedDrawAdversarialTraining, RandomWeightsNet


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

    def build(self, request: NetRequest) -> "RandomWeightsNet":
        from wca_tf.defences.ctrw.net import RandomPixelWeights, RandomWeightsNet

        weights = functools.partial(RandomPixelWeights, self.min_deviation, self.scope)
        backbone = request.make_backbone(functools.partial(LayersWith, images=weights))
        return RandomWeightsNet(backbone, weight_decay=self.weight_decay, **request.arguments())

    def adversary(self, attack: "BallAttack", epsilon: float, mixed: bool) -> "FixedDrawAdversarialTraining":
        from wca_tf.defences.ctrw.net import FixedDrawAdversarialTraining

        return FixedDrawAdversarialTraining(attack, epsilon, mixed)


DEFENCE = ConstrainedRandomWeights
