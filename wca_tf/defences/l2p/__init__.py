"""Learn2Perturb: noise on the output of each block, with a learned size for each feature."""

from __future__ import annotations

import dataclasses
import functools

from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest
from wca_tf.nets.backbones.layer_factory import LayersWith


@dataclasses.dataclass(frozen=True)
class Learn2Perturb(Defence):
    """Noise after each block, of a learned size σ for each feature, with reward γ Σ √σ in the loss (Learn2Perturb)."""

    source = "Jeddi et al., CVPR 2020"
    protocol = "pgd:steps=7:relative_step_size=0.32:eot_samples=1"

    deviation: float = option(0.25, "σ at the start of training", minimum=0)
    min_deviation: float = option(0.01, "the smallest σ, after each step", minimum=0)
    reward: float = option(1e-4, "γ, the weight of Σ √σ; in epoch e it is divided by 1 + 1/2 + ... + 1/e", minimum=0)
    scope: str = option(
        "image", "noise of each image, or one draw for all images (the authors' code)", choices=("image", "batch")
    )
    weight_decay: float = option(3e-4, "l2 on all kernels, inside the loss; not on σ", minimum=0)

    def build(self, request: NetRequest) -> keras.Model:
        net = self.load(".net")
        noise = functools.partial(net.LearnedActivationNoise, self.deviation, self.min_deviation, self.scope)
        backbone = request.make_backbone(functools.partial(LayersWith, block=noise))
        return net.Learn2PerturbNet(backbone, reward=self.reward, weight_decay=self.weight_decay, **request.arguments())

    def callbacks(self) -> list[keras.callbacks.Callback]:
        return [self.load(".net").CountEpochs()]


DEFENCE = Learn2Perturb
