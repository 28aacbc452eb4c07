"""SmoothedNet: a net whose only noise is Gaussian noise on its images."""

from typing import Any

import keras
import numpy as np

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import calls_in
from wca_tf.nets.noise import ActivationNoise
from wca_tf.nets.noisy_net import NoisyNet

__all__ = ["ActivationNoise", "SmoothedNet"]


@keras.saving.register_keras_serializable("wca_tf")
class SmoothedNet(NoisyNet):
    """The net h(x) = W f(x + σ ε) + b, ε ~ N(0, I) (Cohen et al., ICML 2019).

    Args:
        backbone: as for `NoisyNet`, with the noise as its first layer.
        deviation: σ, for pixels from 0 to 1.
        *args, **kwargs: those of `NoisyNet`.

    Raises:
        InputError: a backbone with other noise, or with a path from the images around the noise; noise below float32,
            whose rounding depends on the image.
    """

    def __init__(self, backbone: keras.Model, *args: Any, deviation: float = 0.25, **kwargs: Any) -> None:
        super().__init__(backbone, *args, **kwargs)
        self.deviation = deviation
        layer = self.noise_layers[0] if len(self.noise_layers) == 1 else None
        scale = layer.scale if isinstance(layer, ActivationNoise) else 0.0
        [images, *more] = backbone.inputs
        takers = [call.layer for call in calls_in(backbone) if any(given is images for given in call.inputs)]
        # Certificates rely on this: the rest of the net sees x + σ ε alone.
        deviates = np.allclose(scale, [deviation / std for std in self.pixel_std], rtol=1e-6)
        if layer is None or takers != [layer] or more or not deviates:
            raise InputError(f"expected noise of deviation {deviation} on the images as the backbone's only noise")
        if (layer.compute_dtype, images.dtype) != ("float32", "float32"):
            raise InputError(
                f"expected float32 images and noise on them, received {images.dtype}, {layer.compute_dtype}"
            )

    @property
    def input_deviation(self) -> float:
        return self.deviation

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "deviation": self.deviation}
