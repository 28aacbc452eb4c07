"""The signatures of an export, each a graph of TensorFlow's own kernels.

Shapes: n images, [H, W, channels] each, C classes, S draws. Every signature returns

    logits         float32 [n, C]
    probabilities  float32 [n, C]
    class_id       int64 [n]: the class with the largest probability; among equals, the one with the largest logit
    class_name     string [n]: its name

A sampler (samplers.py) makes new draws for every request. Every image of the request gets its own, unless all images of
a draw share its noise, as with noise on weights.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError, one_line
from wca_tf.data.image_files import decode
from wca_tf.data.resizing import Size, resize
from wca_tf.serving.config import ExportConfig
from wca_tf.serving.samplers import Exportable, GaussianSampler, sampler_of

MAX_SAMPLES = 10_000  # of `averaged`: in 95 of 100 answers the share of so many draws is within 0.01 of P

Answer = dict[str, tf.Tensor]


class Signatures:
    """The graphs of a trained net.

    Args:
        model: a built net.
        image_shape: (H, W, channels), channels 1 or 3.
        class_names: one for each class.
        max_image_pixels: the largest number of pixels of a file in `image_bytes`.
        export_random: as for `sampler_of`.
        shorter_side: what the shorter side of such a file gets before the centre is cut out; 0 stretches files.

    Raises:
        InputError: weights are NaN or Inf; the net does not take images of this shape; or as `sampler_of`.
    """

    def __init__(
        self,
        model: Exportable,
        image_shape: tuple[int, int, int],
        class_names: tuple[str, ...],
        max_image_pixels: int = ExportConfig.max_image_pixels,
        export_random: str = ExportConfig.export_random,
        shorter_side: int = 0,
    ) -> None:
        self.model = model
        self.max_image_pixels = max_image_pixels
        self.shorter_side = shorter_side
        self.image_shape = image_shape
        self.class_names = tf.constant([name.encode("utf-8", "replace") for name in class_names])
        try:
            self._noise_free_logits(tf.zeros([1, *image_shape], tf.uint8))
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            shape = list(image_shape)
            raise InputError(f"expected a model of finite weights for images {shape}: {one_line(error)}") from None
        self.sampler = sampler_of(model, image_shape, export_random)

    @property
    def endpoints(self) -> dict[str, tuple[Callable[..., Answer], list[tf.TensorSpec]]]:
        """The function of each signature and the types of its inputs, by name."""
        images = tf.TensorSpec([None, *self.image_shape], tf.uint8, name="images")
        contents = tf.TensorSpec([None], tf.string, name="image_bytes")
        samples = tf.TensorSpec([], tf.int32, name="n_samples")
        exact: dict[str, Any] = {"exact": (self.exact, [images])} if self.has_exact else {}
        return {
            "serving_default": (self.serving_default, [images]),
            "averaged": (self.averaged, [images, samples]),
            **exact,
            "noise_free": (self.noise_free, [images]),
            "image_bytes": (self.image_bytes, [contents]),
        }

    def archive(self) -> keras.export.ExportArchive:
        """Return an archive of all signatures, ready to be written out."""
        archive = keras.export.ExportArchive()
        for layer in self.model.deterministic_layers.values():
            archive.track(layer)  # but no random state, which has no place in the file
        for name, (function, signature) in self.endpoints.items():
            archive.add_endpoint(name, function, input_signature=signature)
        return archive

    @property
    def has_exact(self) -> bool:
        """Return whether P(class) can be computed: the logits are Gaussian, with one covariance for all images."""
        return isinstance(self.sampler, GaussianSampler)

    def serving_default(self, images: tf.Tensor) -> Answer:
        """Return one fresh draw; the probabilities are the softmax of its logits."""
        logits = self.sampler.draws(self._prepared(images), 1)[0]
        return self._answer(logits, tf.nn.softmax(logits))

    def averaged(self, images: tf.Tensor, n_samples: tf.Tensor) -> Answer:
        """Return the share of `n_samples` fresh draws that each class wins, and the mean logits of the draws."""
        n_samples = tf.ensure_shape(n_samples, [])
        expected = f"expected n_samples from 1 to {MAX_SAMPLES}, received"
        in_range = tf.debugging.Assert((n_samples >= 1) & (n_samples <= MAX_SAMPLES), [expected, n_samples])
        with tf.control_dependencies([in_range]):
            total = tf.identity(n_samples) if self.sampler.has_noise else tf.constant(1)
        votes, logits = self._tally(self._prepared(images), total)
        return self._answer(logits / tf.cast(total, tf.float32), votes / tf.cast(total, tf.float32))

    def exact(self, images: tf.Tensor) -> Answer:
        """Return P(class) over the noise, to which `averaged` converges, and the noise-free logits."""
        assert isinstance(self.sampler, GaussianSampler)  # noqa: S101 else there is no such signature
        logits = self._noise_free_logits(images)
        return self._answer(logits, tf.cast(self.sampler.class_probabilities(logits), tf.float32))

    def noise_free(self, images: tf.Tensor) -> Answer:
        """Return the answer of the net without its noise; the probabilities are the softmax of its logits."""
        logits = self._noise_free_logits(images)
        return self._answer(logits, tf.nn.softmax(logits))

    def image_bytes(self, image_bytes: tf.Tensor) -> Answer:
        """Return `serving_default` of PNG, JPEG, BMP or GIF files (the first frame), decoded as in bin/train."""
        contents = tf.ensure_shape(image_bytes, [None])
        spec = tf.TensorSpec(self.image_shape, tf.uint8)
        return self.serving_default(tf.map_fn(self._decode, contents, fn_output_signature=spec))

    def _noise_free_logits(self, images: tf.Tensor) -> tf.Tensor:
        """Return mu [n, C] of uint8 images; raise InvalidArgumentError for another shape, and when mu is NaN or Inf.

        A Session does not check its inputs against the signature's shape, and a net that averages over positions would
        take any height and width: hence `ensure_shape`. An empty batch gets an image, whose logits are dropped, because
        oneDNN's convolutions of no images fail.
        """
        images = tf.ensure_shape(images, [None, *self.image_shape])
        count = tf.shape(images)[0]
        some = tf.pad(images, [[0, tf.maximum(0, 1 - count)], [0, 0], [0, 0], [0, 0]])
        logits = self.model.noise_free_logits(tf.image.convert_image_dtype(some, tf.float32))
        return tf.debugging.check_numerics(logits, "the noise-free logits")[:count]

    def _prepared(self, images: tf.Tensor) -> tf.Tensor:
        """Return the input of the draws: the noise-free logits, or the images where draws are made by passes."""
        if self.has_exact:
            return self._noise_free_logits(images)
        return tf.image.convert_image_dtype(tf.ensure_shape(images, [None, *self.image_shape]), tf.float32)

    def _tally(self, prepared: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return how many of `total` draws each class wins, and the sum of their logits, [n, C] each; in chunks."""
        largest, zeros = self.sampler.at_once(prepared), tf.zeros([tf.shape(prepared)[0], self.model.num_classes])

        def step(done: tf.Tensor, votes: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            count = tf.minimum(largest, total - done)
            draws = self.sampler.draws(prepared, count)
            won = tf.one_hot(tf.argmax(draws, axis=2), self.model.num_classes)
            return done + count, votes + tf.reduce_sum(won, axis=0), logits + tf.reduce_sum(draws, axis=0)

        start = (tf.constant(0), zeros, zeros)
        _, votes, logits = tf.while_loop(lambda done, *_: done < total, step, start, parallel_iterations=1)
        return votes, logits

    def _decode(self, contents: tf.Tensor) -> tf.Tensor:
        """Return a file's pixels, uint8 [H, W, channels]: alpha dropped, grey made RGB or RGB grey, and resized."""
        height, width, channels = self.image_shape
        image = decode(contents, self.max_image_pixels)
        image.set_shape([None, None, None])
        is_grey = tf.shape(image)[2] < 3  # grey, or grey and alpha
        if channels == 1:
            image = tf.cond(is_grey, lambda: image[..., :1], lambda: tf.image.rgb_to_grayscale(image[..., :3]))
        else:
            image = tf.cond(is_grey, lambda: tf.repeat(image[..., :1], 3, axis=2), lambda: image[..., :3])
        if self.shorter_side:
            resized = Size(height, self.shorter_side).of(self._checked(image))
        else:
            resized = resize(image, (height, width))
        return tf.ensure_shape(resized, self.image_shape)

    def _checked(self, image: tf.Tensor) -> tf.Tensor:
        """Return an image; raise InvalidArgumentError if it has too many pixels once its shorter side is resized.

        A small file of one row would else take gigabytes.
        """
        sides = tf.cast(tf.shape(image)[:2], tf.int64)
        pixels = self.shorter_side**2 * tf.reduce_max(sides) // tf.reduce_min(sides)
        expected = (
            f"expected at most {self.max_image_pixels} pixels with a shorter side of {self.shorter_side}, received"
        )
        with tf.control_dependencies([tf.debugging.Assert(pixels <= self.max_image_pixels, [expected, pixels])]):
            return tf.identity(image)

    def _answer(self, logits: tf.Tensor, probabilities: tf.Tensor) -> Answer:
        likeliest = probabilities == tf.reduce_max(probabilities, axis=1, keepdims=True)
        class_id = tf.argmax(tf.where(likeliest, logits, -np.inf), axis=1)
        class_name = tf.gather(self.class_names, class_id)
        return {"logits": logits, "probabilities": probabilities, "class_id": class_id, "class_name": class_name}
