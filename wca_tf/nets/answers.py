"""The check of a net's answers, which every net meets before it is attacked, Keras or not."""

from __future__ import annotations

import weakref

from wca_tf.core.errors import InputError, NonFiniteError, error_itself
from wca_tf.core.lazily import np, tf
from wca_tf.core.seeds import make_seed
from wca_tf.nets.targets import Target, has_noise, is_reproducible

PROBE_TOLERANCE = 1e-5, 1e-6  # relative, absolute: for the rounding of float32; tight, because noise may be small
SUM_OF_PROBABILITIES = 2e-2  # the largest error of a sum of probabilities that were rounded to bfloat16

_checked: weakref.WeakKeyDictionary[Target, set[tuple[int, ...]]] = weakref.WeakKeyDictionary()


def probe_images(image_shape: tuple[int, ...]) -> tf.Tensor:
    """Return [6, H, W, channels]: random images, a black one and a white one, as noise may act on such images alone.

    Raises:
        InputError: the shape is not (H, W, channels).
    """
    if len(image_shape) != 3:
        raise InputError(f"expected images [B, H, W, channels], received images of shape {tuple(image_shape)}")
    grey = tf.stack([tf.zeros(image_shape), tf.ones(image_shape)])
    return tf.concat([tf.random.stateless_uniform([4, *image_shape], [0, 0]), grey], axis=0)


def check_target(target: Target, image_shape: tuple[int, ...]) -> None:
    """Raise InputError as `check_answers` does, at the first call for a target and a shape."""
    if image_shape not in _checked.get(target, ()):
        check_answers(target, probe_images(image_shape))
        mark_checked(target, image_shape)


def mark_checked(target: Target, image_shape: tuple[int, ...]) -> None:
    """Note that a target was checked on images of this shape."""
    _checked.setdefault(target, set()).add(image_shape)


def check_answers(target: Target, images: tf.Tensor, ends_linear: bool = False) -> bool:
    """Return whether the same seed gives the same logits in every call, as `is_reproducible`.

    Args:
        target: the net.
        images: [B, H, W, channels], float, in [0, 1].
        ends_linear: whether the net is known to end without an activation. Its logits may then all be from 0 to 1.

    Raises:
        InputError: the net, or the net without its noise, returns something else than logits [B, C] of two classes or
            more, such as probabilities; the two have different classes; Python or NumPy draws the noise.
        NonFiniteError: the logits are NaN or Inf.
    """
    features, classes = target.features(images), target.num_classes
    noise_free = getattr(target, "noise_free_logits", None)
    try:
        if noise_free and has_noise(target):
            classes = _check_logits(
                noise_free(features)[tf.newaxis], ends_linear, classes, "the net without its noise: "
            )
        _check_logits(target.logits(features, make_seed(0), 1), ends_linear, classes)
    except Exception as error:
        raise error_itself(error) from None
    return is_reproducible(target, images, *PROBE_TOLERANCE)


def _check_logits(outputs: tf.Tensor, ends_linear: bool, classes: int | None, whose: str = "") -> int:
    """Return C; raise InputError unless the outputs are logits [1, B, C] of one draw, of `classes` classes if known."""
    if len(outputs.shape) != 3:
        received = f"shape {tuple(outputs.shape[1:])}"
        raise InputError(f"{whose}expected a net that returns logits [B, C] in one tensor, received {received}")
    if outputs.shape[2] < 2:
        raise InputError(
            f"{whose}expected logits of 2 classes or more, received a net with one output: "
            "return -z/2 and z/2 of the logit z"
        )
    if classes not in (None, outputs.shape[2]):
        raise InputError(f"{whose}expected logits of {classes} classes, received {outputs.shape[2]}")
    if outputs.dtype != tf.float32:
        raise InputError(f"{whose}expected logits in float32, received {outputs.dtype.name}")
    values = outputs.numpy()
    if not np.isfinite(values).all():
        raise NonFiniteError(f"{whose}expected finite logits, received NaN or Inf on a random, black or white image")
    if (values >= 0).all() and np.allclose(values.sum(axis=2), 1, atol=SUM_OF_PROBABILITIES):
        raise InputError(
            f"{whose}expected a net that returns logits, received one that returns probabilities: "
            "return what its softmax gets"
        )
    if not ends_linear and (values >= 0).all() and (values <= 1).all():
        raise InputError(
            f"{whose}expected a net that returns logits, received one whose numbers are from 0 to 1: a sigmoid? "
            "If they are logits, give outputs='logits', or subtract 1 from each, which changes no answer"
        )
    return outputs.shape[2]
