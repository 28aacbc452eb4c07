"""LayerFactory, which makes the layers of a backbone, and LayersWith, which puts layers of a defence among them.

TensorFlow loads when a layer is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wca_tf.core.lazily import keras


class LayerFactory:
    """A factory of the layers of a backbone.

    A defence that puts noise on activations or weights derives a class from it, overrides the methods to change, and
    gives the class to `build_backbone`. All methods take and return Keras tensors [B, H, W, channels].

    Args:
        precision: the layers' Keras dtype policy, such as "float32" or "mixed_bfloat16".
    """

    def __init__(self, precision: str = "float32") -> None:
        self.precision = precision

    def images(self, images: keras.KerasTensor) -> keras.KerasTensor:
        """Return the input of the first layer, made from the normalised images."""
        return images

    def convolution(
        self, inputs: keras.KerasTensor, filters: int, kernel_size: int, **options: Any
    ) -> keras.KerasTensor:
        """Return the output of a convolution; `options` are those of `keras.layers.Conv2D`."""
        return keras.layers.Conv2D(filters, kernel_size, dtype=self.precision, **options)(inputs)

    def batch_normalisation(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return the output of a batch normalisation with PyTorch's constants."""
        from wca_tf.nets.backbones.batch_normalization import BatchNormalization  # it derives from Keras's

        return BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=self.precision)(inputs)

    def block(self, features: keras.KerasTensor) -> keras.KerasTensor:
        """Return the output of a block before its activation. The block is a residual sum or a plain convolution."""
        return features


class LayersWith(LayerFactory):
    """A factory that puts layers of a defence into a backbone.

    Args:
        precision: as for `LayerFactory`.
        images: makes a layer for the normalised images; `None` for no layer.
        convolution: a class, or a function, that takes the place of `keras.layers.Conv2D`.
        block: makes a layer for the output of each block; `None` for no layer.
    """

    def __init__(
        self,
        precision: str,
        images: Callable[[], keras.layers.Layer] | None = None,
        convolution: Callable[..., keras.layers.Layer] | None = None,
        block: Callable[[], keras.layers.Layer] | None = None,
    ) -> None:
        super().__init__(precision)
        self._images, self._convolution, self._block = images, convolution, block

    def images(self, images: keras.KerasTensor) -> keras.KerasTensor:
        return self._images()(images) if self._images else images

    def convolution(
        self, inputs: keras.KerasTensor, filters: int, kernel_size: int, **options: Any
    ) -> keras.KerasTensor:
        if not self._convolution:
            return super().convolution(inputs, filters, kernel_size, **options)
        return self._convolution(filters, kernel_size, dtype=self.precision, **options)(inputs)

    def block(self, features: keras.KerasTensor) -> keras.KerasTensor:
        return self._block()(features) if self._block else features
