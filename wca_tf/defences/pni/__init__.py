"""Parametric noise injection: Gaussian noise on all weights, in learned proportion to their standard deviation."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest
from wca_tf.nets.backbones.layer_factory import LayersWith


@dataclasses.dataclass(frozen=True)
class ParametricNoise(Defence):
    """Noise α η on all kernels W, η ~ N(0, std(W)²), with α learned (PNI-W)."""

    source = "He et al., CVPR 2019"
    protocol = "pgd:steps=7:relative_step_size=0.32:eot_samples=1"

    amplitude: float = option(0.25, "α at the start of training", minimum=0)
    shared_by: str = option(
        "layer", "an α for each layer, output channel, or element", choices=("layer", "channel", "element")
    )
    scope: str = option(
        "image", "weights for each image, or one draw for all images (the authors' code)", choices=("image", "batch")
    )
    weight_decay: float = option(3e-4, "l2 on all kernels, inside the loss; not on α", minimum=0)

    def build(self, request: NetRequest) -> keras.Model:
        layers = self.load(".layers")
        noise: dict[str, Any] = {"amplitude": self.amplitude, "shared_by": self.shared_by, "scope": self.scope}
        convolution = functools.partial(layers.ProportionalConvolution, **noise)
        backbone = request.make_backbone(functools.partial(LayersWith, convolution=convolution))
        classifier = layers.ProportionalDense(request.num_classes, dtype="float32", name="classifier", **noise)
        return layers.NoisyNet(backbone, classifier=classifier, weight_decay=self.weight_decay, **request.arguments())


DEFENCE = ParametricNoise
