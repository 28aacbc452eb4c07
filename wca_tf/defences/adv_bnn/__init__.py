"""Adv-BNN: a Bayesian net, whose weights are Gaussian, trained by variational inference on attacked images."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest


@dataclasses.dataclass(frozen=True)
class AdvBNN(Defence):
    """Gaussian weights N(μ, e^{2s}), μ and s learned, with α/N KL to a Gaussian prior in the loss (Adv-BNN)."""

    source = "Liu et al., ICLR 2019"
    # With the 10 steps of its training; its evaluation takes 3 to 1,000.
    protocol = "pgd:relative_step_size=0.223:random_start=false:eot_samples=1"

    deviation: float = option(0.05, "e^s, the standard deviation of each weight, at the start of training")
    prior_deviation: float = option(0.05, "σ0, the standard deviation of the prior of each weight")
    kl_weight: float = option(0.02, "α; the KL divergence of all weights counts α/N, for N training images", minimum=0)
    scope: str = option(
        "image", "weights for each image, or one draw for all images (the authors' code)", choices=("image", "batch")
    )

    def build(self, request: NetRequest) -> keras.Model:
        net = self.load(".net")
        if request.num_train_examples < 1:
            raise InputError("expected num_train_examples in the NetRequest of adv_bnn, received 0")
        noise: dict[str, Any] = {"log_deviation": math.log(self.deviation), "scope": self.scope}
        backbone = request.make_backbone(functools.partial(net.BayesianLayers, noise=noise))
        classifier = net.BayesianDense(
            request.num_classes,
            kernel_initializer=net.kernel_initializer(),
            dtype="float32",
            name="classifier",
            **noise,
        )
        return net.BayesianNet(
            backbone,
            classifier=classifier,
            prior_deviation=self.prior_deviation,
            kl_weight=self.kl_weight / request.num_train_examples,
            **request.arguments(),
        )


DEFENCE = AdvBNN
