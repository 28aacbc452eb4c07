"""Models as their owners know them, as targets for attacks.

The rule: a model, with the images and labels that `model.evaluate` takes, has the accuracy that its owner knows, or one
line says what is missing.
"""

import json
import weakref
from typing import Any

import keras
import numpy as np

from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.core.errors import InputError
from wca_tf.data.examples import Images, in_unit_range
from wca_tf.nets.answers import check_target
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.foreign_net import ForeignNet
from wca_tf.nets.function_net import FunctionNet
from wca_tf.nets.jax_net import JaxNet, is_jax
from wca_tf.nets.keras_net import KerasNet
from wca_tf.nets.mixture_net import MixtureNet
from wca_tf.nets.pixel_range import PixelRange
from wca_tf.nets.targets import AnyTarget
from wca_tf.nets.torch_net import TorchNet, is_torch


def adapt(
    model: Any,
    image_shape: tuple[int, ...] | None = None,
    *,
    pixel_range: PixelRange | None = None,
    outputs: str | None = None,
    output: int | str | None = None,
    training: bool | None = None,
    independent_noise: bool = False,
) -> AnyTarget:
    """Return the target of a classifier of Keras, TensorFlow, PyTorch or JAX, or of functions of NumPy arrays.

    The net is that of `model.predict`, with the layers on that the owner calls with `training=True` (Monte Carlo
    dropout). Layers that are random by Keras's default alone, such as random augmentations, are off. A model gets a
    `SampledTarget` if it draws random numbers from a `keras.random.SeedGenerator` in a call, or if 16 calls do not give
    the same answers. Noise from a `SeedGenerator` follows the seed of each call, which sets the generators' states.
    Other noise, such as tf.random's, follows no seed: results cannot be repeated, and a search cannot tell a better
    image from a lucky draw.

    Args:
        model: a Keras classifier; a function of TensorFlow: float32 images [B, H, W, channels] -> logits [B, C]; a
            PyTorch module, as `TorchNet` says; a JAX function of images, or of images and a key, as `JaxNet` says; or a
            `FunctionNet`; or a `MixtureNet`, whose nets get these options. A target is returned as it is, once it is
            checked.
        image_shape: (H, W, channels); needed for all but a Keras model that takes images of one size.
        pixel_range: (low, high), the pixels that the model wants, where they are not from 0 to 1. Images for attacks
            are in [0, 1] all the same.
        outputs: "logits" or "probabilities", where the outputs of a probe do not tell.
        output: the number or the name of the output to take, of a model with several.
        training: the argument `training` of each call, in place of the rule above; for PyTorch, the mode of all layers.
        independent_noise: of a net of PyTorch or JAX: whether each image of a batch has noise of its own, as
            `FunctionNet` says. Several draws of an image are then one batch.

    Raises:
        InputError: the model takes other images, or several inputs; it has several outputs, and `output` chooses none;
            batch normalisation learns from the images that it answers; images share noise that should be independent;
            options beside a target; or as `check_answers`.
    """
    options = {"pixel_range": pixel_range, "outputs": outputs, "output": output, "training": training}
    options["independent_noise"] = independent_noise or None
    options = {name: value for name, value in options.items() if value is not None}
    if _is_target(model):
        if options:
            raise InputError(f"expected no {', '.join(options)} beside a target, which has its own: give its net")
        check_target(model, tuple(image_shape or ()))
        return model
    if isinstance(model, MixtureNet):
        return _adapt_mixture(model, image_shape, options)
    if (foreign := _as_functions(model, image_shape, output, training)) is not None:
        if independent_noise and foreign is model:
            raise InputError("expected FunctionNet(..., independent_noise=True), received it beside the net")
        foreign.independent_noise |= independent_noise
        return ForeignNet(foreign, tuple(image_shape or ()), pixel_range, outputs).target
    if independent_noise:
        raise InputError(f"expected independent_noise for a net of PyTorch or JAX, received {type(model).__name__}")
    return KerasNet(model, image_shape, pixel_range, outputs, output, training).target


def _adapt_mixture(mixture: MixtureNet, image_shape: tuple[int, ...] | None, options: dict[str, Any]) -> AnyTarget:
    """Return the target of a mixture. Nets that know their pixels, such as targets, get no options."""
    knows = [_knows_its_pixels(net) for net in mixture.nets]
    if options and all(knows):
        raise InputError(
            f"expected no {', '.join(options)} for nets that know their pixels, received a mixture of such"
        )
    pairs = zip(mixture.nets, knows, strict=True)
    targets = [adapted(net, image_shape, **({} if known else options)) for net, known in pairs]
    return targets[0] if len(targets) == 1 else mixture.target_of(targets)


def _as_functions(
    model: Any, image_shape: tuple[int, ...] | None, output: int | str | None, training: bool | None
) -> FunctionNet | None:
    """Return a net of another framework as functions of NumPy arrays; `None` for a net of Keras or TensorFlow."""
    shape, torch = tuple(image_shape or ()), is_torch(model)
    if isinstance(model, keras.Model) or not (
        torch or isinstance(model, FunctionNet) or (shape and is_jax(model, shape))
    ):
        return None
    if not shape:
        raise InputError("expected image_shape=(H, W, channels) for this net, which does not tell it")
    if output is not None or (training is not None and not torch):
        raise InputError("expected no output= or training= for a net of another framework, which decides them itself")
    if torch:
        return TorchNet(model, shape, training)
    return model if isinstance(model, FunctionNet) else JaxNet(model, shape)


def adapted(model: Any, image_shape: tuple[int, ...] | None, **options: Any) -> AnyTarget:
    """Return the target of `adapt`, the same object at every call for a Keras model, so that attacks trace once.

    A model whose layers have changed since is adapted anew. A Python attribute of a layer that is not in its config is
    not seen: call `keras.models.clone_model`, or give `adapt(model)`.
    """
    if not isinstance(model, keras.Model):
        return adapt(model, image_shape, **options)
    targets: dict[Any, AnyTarget]
    owner, targets = getattr(model, "_wca_tf_targets", (None, {}))
    if owner is None or owner() is not model:  # no targets yet, or targets of the model that this one is a copy of
        targets = {}
        object.__setattr__(model, "_wca_tf_targets", (weakref.ref(model), targets))  # Keras would track the usual one
    key = _structure_of(model), image_shape, *sorted(options.items())
    if key not in targets:
        targets[key] = adapt(model, image_shape, **options)
    return targets[key]


def _structure_of(model: keras.Model) -> tuple[Any, ...]:
    """Return what stays as long as a model has the same layers with the same options, whatever it learns."""
    try:
        described = keras.saving.serialize_keras_object(model)
        described.pop("compile_config", None)
    except (NotImplementedError, TypeError, ValueError):  # a model that cannot describe itself
        described = {}
    return json.dumps(described, sort_keys=True, default=str), *map(id, model.weights)


def in_its_range(model: Any, images: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Return images [N, H, W, channels] up to 1, and the options of `adapt` that follow from them.

    Float images up to 255 are those that a Keras model or a function takes. A target and a net of this package take
    pixels from 0 to 1.
    """
    if _knows_its_pixels(model) or (isinstance(model, MixtureNet) and all(map(_knows_its_pixels, model.nets))):
        return images, {}
    images, pixel_range = in_unit_range(images)
    return images, {"pixel_range": pixel_range} if pixel_range else {}


@tensor_float_32(on=False)
def check_pixels(target: AnyTarget, images: Images, labels: np.ndarray) -> str:
    """Raise InputError where a Keras model answers better with pixels of another range than the one that is assumed.

    Args:
        target: the target; only those of Keras models whose range was not given are measured, until the answer is sure.
        images: [N, H, W, channels], uint8, or float32 in [0, 1].
        labels: whole numbers [N].

    Returns:
        A line that says what could not be measured; empty where nothing is missing.
    """
    net = getattr(target, "net", None)
    return net.check_pixels(images, labels) if net else ""


def _knows_its_pixels(model: Any) -> bool:
    """Return whether a net takes pixels from 0 to 1, whatever its owner gives others."""
    return _is_target(model) or isinstance(model, StochasticClassifier)


def _is_target(model: Any) -> bool:
    return not isinstance(model, keras.Model) and hasattr(model, "logits") and hasattr(model, "features")
