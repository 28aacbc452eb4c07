"""PReLU whose gradient is one product. Keras's own takes several passes over memory."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("wca_tf")
class PReLU(keras.layers.PReLU):
    """The layer max(x, 0) + alpha min(x, 0) (He et al., ICCV 2015), equal to Keras's to the bit.

    Only the slope at 0 differs: it is alpha, not 0 as in Keras.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return _prelu(inputs, tf.convert_to_tensor(self.alpha))


@tf.custom_gradient
def _prelu(inputs: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Return the PReLU [B, ...] of `inputs` [B, ...].

    `alpha` has the shape of an example, with 1 for axes that share it.
    """
    slope = tf.where(inputs > 0, tf.ones([], inputs.dtype), alpha)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shared = [0, *(axis + 1 for axis, size in enumerate(alpha.shape) if size == 1)]
        to_alpha = tf.reduce_sum(upstream * tf.minimum(inputs, 0), axis=shared)
        return upstream * slope, tf.reshape(to_alpha, alpha.shape)

    return inputs * slope, gradient
