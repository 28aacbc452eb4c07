"""Randomised smoothing: Gaussian noise on the images, in training and at test time."""

from __future__ import annotations

import dataclasses
import functools

from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest
from wca_tf.nets.backbones.layer_factory import LayersWith


@dataclasses.dataclass(frozen=True)
class Smoothing(Defence):
    """Gaussian noise on the images, in training and at test time: randomised smoothing."""

    source = "Cohen et al., ICML 2019"

    deviation: float = option(0.25, "standard deviation of the noise, for pixels from 0 to 1", minimum=0)
    weight_decay: float = option(1e-4, "l2 on all kernels, inside the loss", minimum=0)

    def build(self, request: NetRequest) -> keras.Model:
        net = self.load(".net")
        noise = functools.partial(net.ActivationNoise, request.normalised(self.deviation))
        backbone = request.make_backbone(functools.partial(LayersWith, images=noise))
        return net.SmoothedNet(
            backbone, deviation=self.deviation, weight_decay=self.weight_decay, **request.arguments()
        )


DEFENCE = Smoothing
