"""The targets that attacks use, made from Keras models."""

import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.noise import noise_layers_of
from wca_tf.nets.random_net_target import RandomNetTarget
from wca_tf.nets.targets import AnyTarget, HeadNoiseTarget


def target_of(model: keras.Model, image_shape: tuple[int, ...] | None = None) -> AnyTarget:
    """Return the target of a net trained here, or of any Keras classifier that returns logits [B, C].

    A Keras model that gives different answers to the same image gets a `RandomNetTarget`. Noise that layers draw from a
    `keras.random.SeedGenerator` follows the seed of each call, which sets the generators' states. Other noise, such as
    tf.random's, follows no seed. Results for such a net cannot be repeated, and a search cannot tell a better image
    from a lucky draw. Wrap such a net yourself, so that a seed decides its noise.

    Args:
        model: the net.
        image_shape: (H, W, channels); needed for a net that takes images of any size.

    Raises:
        InputError: the model returns probabilities, whose logarithms saturate, in place of logits; it ends in a
            sigmoid; or it takes images of another shape.
    """
    image_shape = _image_shape(model.backbone if isinstance(model, StochasticClassifier) else model, image_shape)

    probe = tf.concat([tf.random.stateless_uniform([4, *image_shape], [0, 0]), *_grey(image_shape)], axis=0)
    is_ours = isinstance(model, StochasticClassifier)  # whose random stream a call without a seed would move
    if not is_ours and noise_layers_of(model):
        raise InputError("expected layers of noise in a NoisyNet, which draws for them; received them in another model")
    # The first call makes the generators of a net that is not built.
    _check_outputs(model.logits(probe, make_seed(0)) if is_ours else model(probe, training=False))
    if not is_ours and _last_activation(model) is keras.activations.sigmoid:
        raise InputError("expected a net that returns logits, received one that ends in a sigmoid: remove the sigmoid")
    streams = [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]

    def logits(images: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        if seed is not None:
            for number, stream in enumerate(streams):
                stream.assign(tf.bitcast(fold_in(seed, number), tf.uint32))
        if isinstance(model, StochasticClassifier):
            return model.logits(images, seed)
        return tf.cast(model(images, training=False), tf.float32)

    if isinstance(model, StochasticClassifier):
        target = model.target()
    else:
        scale = tf.zeros([logits(probe[:1]).shape[-1], 1])
        target = HeadNoiseTarget(logits, tf.identity, scale)
    first, again = (target.logits(target.features(probe), make_seed(0), 1) for _ in range(2))
    return target if _same(first, again) else RandomNetTarget(logits)


def _grey(image_shape: tuple[int, ...]) -> list[tf.Tensor]:
    """Return a black image and a white one: noise may act on such images alone."""
    return [tf.zeros([1, *image_shape]), tf.ones([1, *image_shape])]


def _same(first: tf.Tensor, again: tf.Tensor) -> bool:
    """Return whether two answers are the same up to the rounding of float32.

    A deterministic net that rounds more, in bfloat16 on a GPU, may be taken for a random one: slower, not wrong.
    """
    return bool(np.allclose(first, again, rtol=1e-5, atol=1e-6, equal_nan=True))


def as_target(model: Any, image_shape: tuple[int, ...]) -> AnyTarget:
    """Return a target as it is, or the target of a Keras classifier.

    A classifier has the same target object at every call, so that attacks trace once.

    Raises:
        InputError: as `target_of`; or `model` is neither a target nor a Keras model.
    """
    if not isinstance(model, keras.Model):
        if not hasattr(model, "logits"):
            raise InputError(f"expected a Keras model or a target, received {type(model).__name__}")
        return model
    targets: dict[tuple[int, ...], AnyTarget]
    owner, targets = getattr(model, "_wca_tf_targets", (None, {}))
    if owner is None or owner() is not model:  # no targets yet, or targets of the model that this one is a copy of
        targets = {}
        object.__setattr__(model, "_wca_tf_targets", (weakref.ref(model), targets))  # Keras would track the usual one
    if image_shape not in targets:
        targets[image_shape] = target_of(model, image_shape)
    return targets[image_shape]


def _image_shape(model: keras.Model, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return (H, W, channels) of the images that a net takes; `given` where it takes any size."""
    known = tuple(getattr(model, "input_shape", None) or (None,) * 4)[1:]
    shape = known if given is None else tuple(given)
    if len(shape) != 3 or None in shape or any(k not in (None, s) for k, s in zip(known, shape, strict=True)):
        raise InputError(
            f"expected a net that takes images [B, H, W, channels], {shape}; received one that takes {known}"
        )
    return shape


def _last_activation(model: keras.Model) -> Any:
    """Return the activation of a model's last layer; `None` where it has no such layer."""
    layers = getattr(model, "layers", None)
    return getattr(layers[-1], "activation", None) if layers else None


def _check_outputs(outputs: Any) -> None:
    """Raise InputError unless the outputs are logits [B, C] in one tensor."""
    if not hasattr(outputs, "shape") or len(outputs.shape) != 2:
        received = f"shape {tuple(outputs.shape)}" if hasattr(outputs, "shape") else type(outputs).__name__
        raise InputError(f"expected a net that returns logits [B, C] in one tensor, received {received}")
    outputs = np.asarray(outputs, np.float32)
    if (outputs >= 0).all() and np.allclose(outputs.sum(axis=1), 1, atol=1e-3):
        raise InputError(
            "expected a net that returns logits, received one that returns probabilities: remove its softmax "
            "(model.layers[-1].activation = None)"
        )
