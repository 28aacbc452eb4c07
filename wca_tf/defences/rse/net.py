"""The layers of RSE."""

from collections.abc import Sequence
from typing import Any

import keras

from wca_tf.nets.backbones.layer_factory import LayerFactory
from wca_tf.nets.noise import ActivationNoise
from wca_tf.nets.noisy_net import NoisyNet

__all__ = ["NoiseBeforeConvolutions", "NoisyNet"]


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

    def images(self, images: keras.KerasTensor) -> keras.KerasTensor:
        self.noisy_images = ActivationNoise(self.first)(images)
        return self.noisy_images

    def convolution(
        self, inputs: keras.KerasTensor, filters: int, kernel_size: int, **options: Any
    ) -> keras.KerasTensor:
        noisy = inputs if inputs is self.noisy_images else ActivationNoise(self.others)(inputs)
        return super().convolution(noisy, filters, kernel_size, **options)
