"""Warm-up requests, which TF Serving replays when it loads a version, before the first client comes.

The file is a TFRecord of `PredictionLog` messages: a request of each signature for each of a few batch sizes.
"""

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

FILE = "tf_serving_warmup_requests"  # TF Serving looks for this name, in a version's assets.extra
BATCH_SIZES = (1, 32)
N_SAMPLES = 10
GREY = 128


def write_warm_up(path: Path, image_shape: tuple[int, int, int], has_exact: bool = True) -> None:
    """Write the file; images are all grey, so that the file is small whatever their size."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in requests(image_shape, has_exact):
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())


def requests(image_shape: tuple[int, int, int], has_exact: bool = True) -> Iterator[predict_pb2.PredictRequest]:
    """Yield a request of each signature, for each batch size."""
    file = tf.io.encode_png(tf.fill(image_shape, tf.constant(GREY, tf.uint8))).numpy()
    for size in BATCH_SIZES:
        shape = tf.TensorShape([size, *image_shape]).as_proto()
        # One value stands for all: the last value of a TensorProto fills the rest of its shape.
        images = tf.make_tensor_proto(GREY, tf.uint8, shape=[])
        images.tensor_shape.CopyFrom(shape)
        n_samples = tf.make_tensor_proto(N_SAMPLES, tf.int32)
        for signature in ("serving_default", *(["exact"] * has_exact), "noise_free"):
            yield _request(signature, images=images)
        yield _request("averaged", images=images, n_samples=n_samples)
        yield _request("image_bytes", image_bytes=tf.make_tensor_proto([file] * size))


def _request(signature: str, **inputs: TensorProto) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(value)
    return request
