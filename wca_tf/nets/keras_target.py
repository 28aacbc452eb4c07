"""The targets that attacks use, made from Keras models."""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import last_operation
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.answers import PROBE_TOLERANCE, check_answers, check_target, mark_checked, probe_images
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.noise import noise_layers_of
from wca_tf.nets.sampled_target import SampledTarget, in_float32
from wca_tf.nets.targets import AnyTarget, GaussianLogitsTarget, calls_agree

# Of a first Rescaling: smaller scales are for images in [0, 255].
SMALLEST_SCALE = 0.1
# Activations whose gradients vanish. Names of functions, layers and operations of Keras, without underscores.
SATURATING = ("softmax", "sigmoid", "hardsigmoid", "tanh", "hardtanh", "softsign")
Answer = Callable[[tf.Tensor], tf.Tensor]


def target_of(model: keras.Model, image_shape: tuple[int, ...] | None = None) -> AnyTarget:
    """Return the target of a net trained here, or of any Keras classifier that returns logits [B, C].

    A Keras model gets a `SampledTarget` if its layers draw random numbers from a `keras.random.SeedGenerator` in a
    call, or if 16 calls do not give the same answers. A call is `model(images)`: dropout that a functional model calls
    with `training=True` stays on, although `model.predict` switches it off. The net without its noise is then
    `model(images, training=False)`, where that answers alike. Noise that layers draw from a
    `keras.random.SeedGenerator` follows the seed of each call, which sets the generators' states. Other noise, such as
    tf.random's, follows no seed. Results for such a net cannot be repeated, and a search cannot tell a better image
    from a lucky draw. Wrap such a net yourself, so that a seed decides its noise.

    Args:
        model: the net.
        image_shape: (H, W, channels); needed for a net that takes images of any size.

    Raises:
        InputError: the model ends in an activation that saturates; it takes images of another shape; its batch
            normalisation learns from the images that it answers; or as `check_takes_images` and `check_answers`.
    """
    check_takes_images(model)
    own = isinstance(model, StochasticClassifier)
    image_shape = _image_shape(model.backbone if own else model, image_shape)
    images, ends_linear = probe_images(image_shape), own or _ends_linear(model)
    target: AnyTarget
    if own:
        logits, target = _following_seeds(model, model.logits), model.target()
    else:
        answer, classes = _answer_function(model, images)
        logits = _following_seeds(model, lambda images, _: answer(images))
        target = GaussianLogitsTarget(answer, tf.identity, tf.zeros([classes, 1]))
    draws = _moves_a_stream(model, lambda: target.logits(target.features(images), make_seed(0), 1))
    # A call without a seed would move the streams of the net: the check is of calls that follow seeds.
    alike = check_answers(SampledTarget(logits) if draws else target, images, ends_linear)
    if draws or not alike:
        target = SampledTarget(logits, noise_free_logits=None if own else _without_noise(model, images))
    mark_checked(target, image_shape)
    return target


def _answer_function(model: keras.Model, images: tf.Tensor) -> tuple[Answer, int]:
    """Return images -> logits [B, C] of a Keras classifier, and C."""
    if noise_layers_of(model):
        raise InputError("expected layers of noise in a NoisyNet, which draws for them; received them in another model")
    outputs = in_float32(lambda: _answer_without_learning(model, images))()
    return in_float32(lambda images: model(images)), (outputs.shape[-1:] or [1])[0]


def _without_noise(model: keras.Model, probe: tf.Tensor) -> Answer | None:
    """Return images -> logits [B, C] of a Keras classifier without its noise; `None` where that is not known."""

    without_noise = in_float32(lambda images: model(images, training=False))
    call = functools.partial(without_noise, probe)
    return without_noise if not _moves_a_stream(model, call) and calls_agree(call, *PROBE_TOLERANCE) else None


def _answer_without_learning(model: keras.Model, images: tf.Tensor) -> tf.Tensor:
    """Return the answer of a model.

    Raises:
        InputError: a call changes weights, such as the statistics of batch normalisation. They are restored.
    """
    model(images, training=False)  # makes the weights and the random generators of a net that is not built
    weights = [weight for weight in model.non_trainable_weights if keras.backend.is_float_dtype(weight.dtype)]
    before = [weight.numpy() for weight in weights]
    outputs = model(images)
    changed = [
        (weight, old)
        for weight, old in zip(weights, before, strict=True)
        if not np.array_equal(weight.numpy(), old, equal_nan=True)
    ]
    for weight, old in changed:
        weight.assign(old)
    if changed:
        raise InputError(
            "expected a net that does not learn from the images it answers, received one whose calls change "
            f"{changed[0][0].path!r}: is batch normalisation called with training=True?"
        )
    return outputs


def _streams(model: keras.Model) -> list[Any]:
    """Return the states of a model's random generators."""
    return [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]


def _following_seeds(
    model: keras.Model, logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return (images, seed) -> logits whose seed also sets the states of the model's random generators."""
    streams = _streams(model)

    def seeded(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        for number, stream in enumerate(streams):
            stream.assign(tf.bitcast(fold_in(seed, number), tf.uint32))
        return logits(images, seed)

    return seeded


def _moves_a_stream(model: keras.Model, call: Callable[[], Any]) -> bool:
    """Return whether a call draws from the model's random generators."""
    before = [stream.numpy() for stream in _streams(model)]
    call()
    return any((stream.numpy() != old).any() for stream, old in zip(_streams(model), before, strict=True))


def check_takes_images(model: keras.Model) -> None:
    """Raise InputError unless a model has one output, and one input of images in [0, 1] as far as its layers tell.

    Keras rounds images in [0, 1] for an input of whole numbers: nearly all pixels would be black.
    """
    for what in ("input", "output"):
        if (count := len(getattr(model, f"{what}s", None) or [None])) != 1:
            raise InputError(f"expected a net with one {what}, received one with {count}")
    inputs = getattr(model, "inputs", None)
    if inputs and not keras.backend.is_float_dtype(inputs[0].dtype):
        raise InputError(f"expected a net of float images in [0, 1], received one that takes {inputs[0].dtype}")
    first = next((layer for layer in _layers_in_order(model) if not _keeps_range(layer)), None)
    largest, begins = _largest_number(model), ""
    if isinstance(first, keras.layers.Rescaling) and np.max(first.scale) * largest < SMALLEST_SCALE:
        begins = f"Rescaling({np.max(first.scale):.3g})"
    if isinstance(first, keras.layers.Normalization) and np.max(first.mean) > largest:
        begins = f"Normalization of images with a mean of {np.max(first.mean):.3g}"
    if begins:
        raise InputError(
            f"expected a net of images in [0, 1], received one that begins with {begins}: "
            "attack wca_tf.harden(net, covariance='none', pixel_std=(1 / 255,))"
        )


def _largest_number(model: keras.Model) -> float:
    """Return the largest number that the first layer gets: a net of this package normalises its images in [0, 1]."""
    if not isinstance(model, StochasticClassifier):
        return 1.0
    mean, std = np.asarray(model.pixel_mean), np.asarray(model.pixel_std)
    return float(np.max(np.maximum(np.abs(mean), np.abs(1 - mean)) / std))


def _layers_in_order(model: keras.Model) -> Iterator[Any]:
    """Yield the layers of a functional or sequential model, also those inside inner models."""
    for layer in getattr(model, "layers", []):
        yield from _layers_in_order(layer) if isinstance(layer, keras.Model) else [layer]


def _keeps_range(layer: Any) -> bool:
    """Return whether a layer at the beginning leaves pixels in their range: augmentation, resizing, and the like."""
    kept = ("InputLayer", "Identity", "Resizing", "CenterCrop", "Cropping2D", "ZeroPadding2D", "Reshape", "Permute")
    return type(layer).__name__ in kept or type(layer).__name__.startswith("Random")


def as_target(model: Any, image_shape: tuple[int, ...]) -> AnyTarget:
    """Return a target as it is, checked at its first use, or the target of a Keras classifier.

    A classifier has the same target object at every call, so that attacks trace once. A Python attribute of a layer
    that changes after the first attack is not seen: call `keras.models.clone_model`, or give `target_of(model)`.

    Raises:
        InputError: as `target_of` or `check_answers`; or `model` is neither a target nor a Keras model.
    """
    if not isinstance(model, keras.Model):
        if not hasattr(model, "logits"):
            raise InputError(f"expected a Keras model or a target, received {type(model).__name__}")
        check_target(model, image_shape)
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
    fits = len(known) == len(shape) == 3 and all(k in (None, s) for k, s in zip(known, shape, strict=True))
    if not fits or None in shape:
        raise InputError(
            f"expected a net that takes images [B, H, W, channels], {shape}; received one that takes {known}"
        )
    return shape


def _ends_linear(model: keras.Model) -> bool:
    """Return whether a net is known to end in a layer without an activation.

    Raises:
        InputError: it is known to end in an activation that saturates.
    """
    last = last_operation(model)
    activation = getattr(last, "activation", None)
    name = getattr(activation, "__name__", "") if activation else type(last).__name__.lower()
    if name.replace("_", "") in SATURATING:
        raise InputError(f"expected a net that returns logits, received one that ends in a {name}: remove the {name}")
    return activation is keras.activations.linear
