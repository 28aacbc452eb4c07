"""Random self-ensemble: Gaussian noise of fixed size before every convolution."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wca_tf.core.options import option
from wca_tf.defences.defence import Defence, NetRequest
from wca_tf.nets.backbones.layer_factory import LayerFactory

if TYPE_CHECKING:
    import keras

    from wca_tf.nets.noisy_net import NoisyNet


class NoiseBeforeConvolutions(LayerFactory):
    """The layers of a backbone, with Gaussian noise on the images and before each other convolution.

    Args:
        precision: as for `LayerFactory`.
        first: the standard deviation of the noise on the normalised images, for each channel.
        others: the standard deviation of the noise before the convolutions that do not take the images.
    """

    def __init__(self, precision: str, first: Sequence[float], others: float) -> None:
        super().__init__(precision)
        self.first = first
        self.others = others
        self.noisy_images: keras.KerasTensor | None = None

    def images(self, images: "keras.KerasTensor") -> "keras.KerasTensor":
        from wca_tf.nets.noise import ActivationNoise

        self.noisy_images = ActivationNoise(self.first)(images)
        return self.noisy_images

    def convolution(
        self, inputs: "keras.KerasTensor", filters: int, kernel_size: int, **options: Any
    ) -> "keras.KerasTensor":
        from wca_tf.nets.noise import ActivationNoise

        noisy = inputs if inputs is self.noisy_images else ActivationNoise(self.others)(inputs)
        return super().convolution(noisy, filters, kernel_size, **options)


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

    def build(self, request: NetRequest) -> "NoisyNet":
        from wca_tf.nets.noisy_net import NoisyNet

        first = request.normalised(self.first_deviation)
        backbone = request.make_backbone(lambda precision: NoiseBeforeConvolutions(precision, first, self.deviation))
        return NoisyNet(backbone, weight_decay=self.weight_decay, **request.arguments())


DEFENCE = RandomSelfEnsemble
