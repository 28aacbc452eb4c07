"""WCAOfficialNet: WCANet with the noise and the penalty of the authors' code."""

import keras
import tensorflow as tf

from wca_tf.defences.wca.head import WCAHead
from wca_tf.defences.wca.net import WCANet
from wca_tf.defences.wca_official.noise import OfficialAnisotropicNoise, OfficialIsotropicNoise


@keras.saving.register_keras_serializable("wca_tf")
class WCAOfficialHead(WCAHead):
    """A `WCAHead` with the authors' noise and alignment term. The penalty includes the bias."""

    noise_layers = {"isotropic": OfficialIsotropicNoise, "anisotropic": OfficialAnisotropicNoise}

    def squared_norm(self) -> tf.Tensor:
        """Return ‖W‖² + ‖b‖² + ‖L‖²; for isotropic noise, the raw σ takes the place of L."""
        kernel, bias = (tf.reduce_sum(tf.square(each)) for each in (self.classifier.kernel, self.classifier.bias))
        return kernel + bias + self.noise.squared_norm()


@keras.saving.register_keras_serializable("wca_tf")
class WCAOfficialNet(WCANet):
    """A `WCANet` that ends in a `WCAOfficialHead`."""

    head_class = WCAOfficialHead
