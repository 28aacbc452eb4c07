"""What attacks see of a Keras model, or of a model on disk: the one place where targets meet models."""

import dataclasses
import functools
import weakref
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.attacks import Attack
from wca_tf.attacks.declarations import Transfer
from wca_tf.config import expand
from wca_tf.errors import InputError
from wca_tf.model_dir import ModelDirectory, load_model
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.targets import AnyTarget, HeadNoiseTarget, RandomNetTarget
from wca_tf.seeds import fold_in


def target_of(model: keras.Model, image_shape: tuple[int, ...] | None = None) -> AnyTarget:
    """The target of a net trained here, or of any Keras classifier that returns logits [B, C].

    A net that answers the same image differently gets a `RandomNetTarget`. Noise that layers draw from a
    `keras.random.SeedGenerator` follows the seed of each call, which sets the generators' states. Other noise, as of
    tf.random, follows no seed: numbers of such a net cannot be repeated, and searches compare luck. Wrap such a net
    yourself to decide its noise by a seed.

    Args:
        model: the net.
        image_shape: (H, W, channels); needed for a net that takes images of any size.

    Raises:
        InputError: the model returns probabilities, whose logarithms saturate, and no logits; it takes other images.
    """
    image_shape = _image_shape(model.backbone if isinstance(model, StochasticClassifier) else model, image_shape)

    streams = [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]

    def logits(images: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        if seed is not None:
            for number, stream in enumerate(streams):
                stream.assign(tf.bitcast(fold_in(seed, number), tf.uint32))
        return tf.cast(model(images, training=False), tf.float32)

    if isinstance(model, StochasticClassifier):
        target = model.target()
    else:
        scale = tf.zeros([logits(tf.zeros([1, *image_shape])).shape[-1], 1])
        target = HeadNoiseTarget(logits, tf.identity, scale)
    probe = tf.random.stateless_uniform([4, *image_shape], [0, 0])
    features = target.features(probe)
    if not isinstance(model, StochasticClassifier):
        _check_logits(features.numpy())
    deterministic = np.allclose(features, target.features(probe), rtol=1e-4, atol=1e-5)
    return target if deterministic else RandomNetTarget(logits)


def as_target(model: Any, image_shape: tuple[int, ...]) -> AnyTarget:
    """Return a target as it is, or that of a Keras classifier: the same one at every call, so that attacks trace once.

    Raises:
        InputError: as `target_of`; something that is neither.
    """
    if not isinstance(model, keras.Model):
        if not hasattr(model, "logits"):
            raise InputError(f"expected a Keras model or a target, received {type(model).__name__}")
        return model
    targets: dict[tuple[int, ...], AnyTarget]
    owner, targets = getattr(model, "_wca_tf_targets", (None, {}))
    if owner is None or owner() is not model:  # none yet, or those of the model that this one is a copy of
        targets = {}
        object.__setattr__(model, "_wca_tf_targets", (weakref.ref(model), targets))  # which Keras would track
    if image_shape not in targets:
        targets[image_shape] = target_of(model, image_shape)
    return targets[image_shape]


def _image_shape(model: keras.Model, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """(H, W, channels) of the images that a net takes, `given` where it takes any."""
    known = tuple(getattr(model, "input_shape", None) or (None,) * 4)[1:]
    shape = known if given is None else tuple(given)
    if len(shape) != 3 or None in shape or any(k not in (None, s) for k, s in zip(known, shape, strict=True)):
        raise InputError(
            f"expected a net that takes images [B, H, W, channels], {shape}; received one that takes {known}"
        )
    return shape


def target_in(model_dir: str | Path) -> AnyTarget:
    """The target of the model that `bin/train` left in `model_dir`; raises InputError when there is none."""
    return target_of(load_model(ModelDirectory(expand(str(model_dir))).best))


def with_source(attack: Attack) -> Attack:
    """Return the attack with the net that it transfers from, where it names the directory of one.

    Raises:
        InputError: there is no model.
    """
    if not isinstance(attack, Transfer) or not isinstance(attack.source, str) or not attack.source:
        return attack
    best = ModelDirectory(expand(attack.source)).best
    changed = best.stat().st_mtime_ns if best.exists() else 0
    return dataclasses.replace(attack, source=_target_in(attack.source, changed))


@functools.lru_cache(maxsize=4)
def _target_in(model_dir: str, changed: int) -> AnyTarget:
    """The target of a directory, the same one as long as its file is, so that attacks trace once."""
    return target_in(model_dir)


def _check_logits(outputs: np.ndarray) -> None:
    if (outputs >= 0).all() and np.allclose(outputs.sum(axis=1), 1, atol=1e-3):
        raise InputError(
            "expected a net that returns logits, received one that returns probabilities: remove its softmax "
            "(model.layers[-1].activation = None, before it is first called)"
        )
