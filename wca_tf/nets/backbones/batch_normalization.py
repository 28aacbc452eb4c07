"""Batch normalisation that trains with TensorFlow's fused kernel. Keras's own takes several passes over memory."""

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("wca_tf")
class BatchNormalization(keras.layers.BatchNormalization):
    """Keras's layer (Ioffe & Szegedy, ICML 2015), faster where it takes its statistics from maps [B, H, W, channels].

    It is exactly Keras's layer with statistics of several replicas, with a mask, with renormalisation, without scale or
    centre, or over another axis.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        plain = mask is None and not (self.synchronized or self.renorm) and self.scale and self.center
        if not (training and self.trainable and plain and inputs.shape.rank == 4 and self.axis in (-1, 3)):
            return super().call(inputs, training=training, mask=mask)
        statistics: Any = tf.zeros([0])  # empty: the kernel takes the statistics of the batch
        fused = tf.raw_ops.FusedBatchNormV3(
            x=tf.cast(inputs, self.compute_dtype),
            scale=tf.cast(self.gamma, tf.float32),
            offset=tf.cast(self.beta, tf.float32),
            mean=statistics,
            variance=statistics,
            epsilon=self.epsilon,
            is_training=True,
        )
        count = tf.cast(tf.reduce_prod(tf.shape(inputs)[:3]), tf.float32)
        variance = fused.batch_variance * tf.maximum(count - 1, 1) / count  # the kernel gives the unbiased variance
        for moving, batch in ((self.moving_mean, fused.batch_mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + tf.cast(batch, moving.dtype) * (1 - self.momentum))
        return fused.y
