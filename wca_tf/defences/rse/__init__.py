"""Random self-ensemble: Gaussian noise of fixed size before every convolution."""

from __future__ import annotations

import dataclasses

from wca_tf.core.lazily import keras
from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest


@dataclasses.dataclass(frozen=True)
class RandomSelfEnsemble(Defence):
    """Gaussian noise of fixed size before every convolution: random self-ensemble (RSE)."""

    source = "Liu et al., ECCV 2018"
    # That of Adv-BNN's code, with the 10 steps of its training; RSE's own code has C&W.
    protocol = "pgd:relative_step_size=0.223:random_start=false:eot_samples=1"

    first_deviation: float = option(
        0.2, "standard deviation of the noise on the images, for pixels from 0 to 1", minimum=0
    )
    deviation: float = option(0.1, "standard deviation of the noise before the other convolutions", minimum=0)
    weight_decay: float = option(5e-4, "l2 on all kernels, inside the loss", minimum=0)

    def build(self, request: NetRequest) -> keras.Model:
        net = self.load(".net")
        first = request.normalised(self.first_deviation)
        backbone = request.make_backbone(
            lambda precision: net.NoiseBeforeConvolutions(precision, first, self.deviation)
        )
        return net.NoisyNet(backbone, weight_decay=self.weight_decay, **request.arguments())


DEFENCE = RandomSelfEnsemble
