"""WCAOfficialNet: WCANet with the noise and the penalty of the authors' code."""

import keras
import tensorflow as tf

from wca_tf.defences.wca.net import WCANet
from wca_tf.defences.wca_official.noise import OfficialAnisotropicNoise, OfficialIsotropicNoise


@keras.saving.register_keras_serializable("wca_tf")
class WCAOfficialNet(WCANet):
    """As `WCANet`, with the authors' noise and alignment term, and the bias in the penalty too."""

    noise_layers = {"isotropic": OfficialIsotropicNoise, "anisotropic": OfficialAnisotropicNoise}

    def squared_norm(self) -> tf.Tensor:
        """‖W‖² + ‖b‖² + ‖L‖²."""
        kernel, bias = (tf.reduce_sum(tf.square(each)) for each in (self.classifier.kernel, self.classifier.bias))
        return kernel + bias + self.noise.squared_norm()
