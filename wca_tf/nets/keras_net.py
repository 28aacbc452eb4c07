"""KerasNet: a Keras classifier probed once, for what it takes, what it returns, and what in it is random."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.core.errors import InputError
from wca_tf.core.keras_graph import all_layers, answer, called_with_training, symbolic_outputs
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.nets.answers import PROBE_TOLERANCE, check_answers, mark_checked, probe_images
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.gaussian_head import recorded_calls
from wca_tf.nets.headed_net import HeadedNet, headed_net
from wca_tf.nets.keras_checks import check_model, image_shape_of
from wca_tf.nets.noise import noise_layers_of
from wca_tf.nets.outputs import Outputs
from wca_tf.nets.pixel_range import UNIT, PixelRange, better_range, check_range
from wca_tf.nets.random_stream import STREAMS, RandomStream
from wca_tf.nets.sampled_target import SampledTarget, in_float32
from wca_tf.nets.targets import AnyTarget, GaussianLogitsTarget, calls_agree, is_gaussian

Answer = Callable[[tf.Tensor], tf.Tensor]


class KerasNet:
    """A Keras classifier, or a function of images, probed once.

    Attributes:
        target: the net for attacks.
        headed: the model as a net that ends in a head, if it does so and its features are not random.
        pixel_range: the pixels that the net gets.
        random_on, random_off: the names of its layers that are random, as far as Keras tells.
        options: those of `adapt` that decide its answers, for the identity of a report.
    """

    def __init__(
        self,
        model: Any,
        image_shape: tuple[int, ...] | None,
        pixel_range: PixelRange | None,
        outputs: str | None,
        output: int | str | None,
        training: bool | None,
    ) -> None:
        check_model(model)
        self.model, self.own, self.training = model, isinstance(model, StochasticClassifier), training
        self.headed: HeadedNet | None = None
        self.output = output
        if self.own and pixel_range is not None:
            raise InputError("expected no pixel_range for a net of this package: it has pixel_mean and pixel_std")
        self.pixel_range = UNIT if pixel_range is None else check_range(pixel_range)
        self._range_note, self._range_is_known = "", pixel_range is not None
        self._sums_when_sure: list[float] | None = None  # of the weights
        self.options = (self.pixel_range, outputs, output, training)
        self.image_shape = image_shape_of(model.backbone if self.own else model, image_shape)
        self.images = probe_images(self.image_shape)
        explicit = [layer.name for layer in called_with_training(model)] if isinstance(model, keras.Model) else []
        random = {layer.name: isinstance(layer, RandomStream) for layer in _random_layers(model)}
        self.random_on = [
            name for name, always in random.items() if always or training or (training is None and name in explicit)
        ]
        self.random_off = [name for name in random if name not in self.random_on]
        before = [(stream, stream.numpy()) for stream in self._streams()]
        self.target: AnyTarget = self._probed(outputs)
        for stream, state in before:  # training goes on as if nobody had asked
            stream.assign(state)
        mark_checked(self.target, self.image_shape)
        self.target.net = self

    def _probed(self, outputs: str | None) -> AnyTarget:
        """Return the target, after 16 calls and more on the probe."""
        target: AnyTarget
        if self.own:
            self.outputs = "logits"
            logits, target = self._following_seeds(self.model.logits), self.model.target()
            known, self.random_on, self.random_off = True, [], []
        else:
            if noise_layers_of(self.model) if isinstance(self.model, keras.Model) else ():
                raise InputError("expected layers of noise in a NoisyNet, which draws for them; found in another model")
            symbolic = symbolic_outputs(self.model)
            chosen = None if symbolic is None else _chosen(symbolic, self)
            found = Outputs(self.model, self._first_answer(), self._seeded_answer, outputs, chosen)
            self.outputs, known, self._logits = found.text, found.known, found.logits
            net = in_float32(lambda images: self._logits(lambda: self.answer(images)))
            logits = self._following_seeds(lambda images, _: net(images))
            target = GaussianLogitsTarget(net, tf.identity, tf.zeros([found.num_classes, 1]))
            if headed := headed_net(self.model, net, self.images, self.pixel_range):
                target, known, self.headed = headed.target(), True, headed
        draws = self._moves_a_stream(lambda: target.logits(target.features(self.images), make_seed(0), 1))
        # A call without a seed would move the streams of the net: the check is of calls that follow seeds.
        alike = check_answers(SampledTarget(logits) if draws else target, self.images, known)
        if draws or not alike:
            self.headed = None
            target = SampledTarget(logits, noise_free_logits=None if self.own else self._without_noise())
        if self.own and not is_gaussian(target):  # beside larger pixels its noise would vanish
            self._range_is_known = True
        if isinstance(target, SampledTarget) and not self.own and not self.random_on:
            self.random_on, self.random_off = ["some, in its own call"], []  # which ones cannot be known
        return target

    def answer(self, images: tf.Tensor, pixel_range: PixelRange | None = None, training: bool | None = None) -> Any:
        """Return the chosen output of the model for images in [0, 1], as the model has it."""
        images = self._as_taken(images, pixel_range or self.pixel_range)
        if not isinstance(self.model, keras.Model):
            return _chosen(self.model(images), self)
        return _chosen(answer(self.model, images, self.training if training is None else training), self)

    def model_input_shape(self) -> tuple[Any, ...]:
        """Return the shape that the model takes, (B, H, W) or (B, H, W, channels); 4 unknown sizes where it is open."""
        return tuple(getattr(self.model, "input_shape", None) or (None,) * 4)

    def describe(self) -> dict[str, Any]:
        """Return what was decided, for results.json."""
        return {
            "class": type(self.model).__name__ if isinstance(self.model, keras.Model) else "a function",
            "framework": "Keras" if isinstance(self.model, keras.Model) else "TensorFlow",
            "pixel_range": list(self.pixel_range),
            "outputs": self.outputs + (f", Gaussian by {self.headed.head.name!r}" if self.headed else ""),
            "random_layers": {"on": self.random_on, "off": self.random_off},
            "note": "; ".join(filter(None, (self._own_steps(), self._range_note))),
        }

    def _own_steps(self) -> str:
        """Return a note where `evaluate` or `predict` of the model may do more than `model(images)`; else ""."""
        steps = ("test_step", "predict_step")
        own = [name for name in steps if getattr(type(self.model), name, None) is not getattr(keras.Model, name)]
        if self.own or not isinstance(self.model, keras.Model) or not own:
            return ""
        return f"the net is model(images): {' and '.join(own)} of the model are not called"

    def check_pixels(self, images: np.ndarray, labels: np.ndarray) -> str:
        """Do what `check_pixels` of adapter.py says; the answer is kept once it is sure, until the net learns more."""
        if not self._range_is_known and (sums := self._sums_of_weights()) != self._sums_when_sure:
            noisy = isinstance(self.target, SampledTarget) and self.target.noise_free_logits is None
            self._range_note, sure = better_range(self._predict, self._advice, images, labels, noisy)
            self._sums_when_sure = sums if sure else None
        return self._range_note

    def _sums_of_weights(self) -> list[float]:
        weights = [each for each in getattr(self.model, "weights", ()) if keras.backend.is_float_dtype(each.dtype)]
        return [float(keras.ops.sum(keras.ops.cast(each, "float32"))) for each in weights]  # no random stream

    def _advice(self, low: float, high: float) -> str:
        """Return what to do where pixels from `low` to `high` are those that the net wants."""
        if self.own:
            scale = "1 / 255" if high == 255 else f"{1 / (high - low):g}"
            return f"build it with pixel_mean=({0 - low / (high - low):g},), pixel_std=({scale},)"
        option = f"pixel_range=({low:g}, {high:g})"
        return f"give {option}, for one attack wca_tf.adapt(model, {option}); pixel_range=(0, 1) keeps the range"

    def _predict(self, images: np.ndarray, pixel_range: PixelRange) -> np.ndarray:
        """Return the classes [N] of images by the net without its noise, else under the same draws for every range."""
        if self.own:
            pixels = self._as_taken(to_float(tf.constant(images)), pixel_range)
            return np.argmax(self.model.noise_free_logits(pixels), axis=1)
        without = isinstance(self.target, SampledTarget) and self.target.noise_free_logits is not None
        self._set_streams(make_seed(0))
        with recorded_calls() if self.headed else contextlib.nullcontext():
            outputs = self._logits(
                lambda: self.answer(to_float(tf.constant(images)), pixel_range, False if without else None)
            )
        return np.argmax(outputs, axis=1)

    def _first_answer(self) -> Any:
        """Return the outputs for the probe, float32.

        Raises:
            InputError: a call changes weights, such as the statistics of batch normalisation. They are restored.
        """
        if not isinstance(self.model, keras.Model):
            return self._seeded_answer()
        # Makes the weights and generators of a net that is not built yet.
        self.model(self._as_taken(self.images, self.pixel_range), training=False)
        weights = [each for each in self.model.non_trainable_weights if keras.backend.is_float_dtype(each.dtype)]
        before = [weight.numpy() for weight in weights]
        outputs = self._seeded_answer()
        both = zip(weights, before, strict=True)
        changed = [(weight, old) for weight, old in both if not np.array_equal(weight.numpy(), old, equal_nan=True)]
        for weight, old in changed:
            weight.assign(old)
        if changed:
            raise InputError(
                "expected a net that does not learn from the images it answers, received one whose calls change "
                f"{changed[0][0].path!r}: is batch normalisation called with training=True?"
            )
        return outputs

    def _as_taken(self, images: tf.Tensor, pixel_range: PixelRange) -> tf.Tensor:
        """Return images in [0, 1] with pixels of another range, and as many axes as the model takes."""
        low, high = pixel_range
        if pixel_range != UNIT:
            images = images * (high - low) + low
        return tf.squeeze(images, axis=-1) if len(self.model_input_shape()) == 3 else images

    def _seeded_answer(self) -> Any:
        """Return the outputs for the probe, under the same draws of the model's random generators at every call."""
        self._set_streams(make_seed(0))
        return self.answer(self.images)

    def _without_noise(self) -> Answer | None:
        """Return images -> logits [B, C] of the model without its noise; `None` where that is not known."""
        if not isinstance(self.model, keras.Model):
            return None
        without = in_float32(lambda images: self._logits(lambda: self.answer(images, training=False)))
        call = functools.partial(without, self.images)
        return without if not self._moves_a_stream(call) and calls_agree(call, *PROBE_TOLERANCE) else None

    def _streams(self) -> list[Any]:
        """Return the states of the model's random generators; a net of this package gets seeds in place of its own."""
        ends = STREAMS[-1:] if self.own else STREAMS
        return [each for each in getattr(self.model, "variables", ()) if each.path.endswith(ends)]

    def _states(self, seed: tf.Tensor) -> list[tuple[Any, tf.Tensor]]:
        """Return the model's random generators with states that follow from the seed, each with other numbers."""
        states = [(stream, fold_in(seed, number)) for number, stream in enumerate(self._streams())]
        return [
            (stream, state if stream.dtype == "int32" else tf.bitcast(state, tf.uint32)) for stream, state in states
        ]

    def _set_streams(self, seed: tf.Tensor) -> None:
        for stream, state in self._states(seed):
            stream.assign(state)

    def stateless_logits(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return logits [B, C] under one draw, without setting the states of the model's random generators."""
        with keras.StatelessScope(state_mapping=self._states(seed)):
            return self._logits(lambda: self.answer(images))

    def _following_seeds(
        self, logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    ) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Return (images, seed) -> logits whose seed also sets the states of the model's random generators."""

        def seeded(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            self._set_streams(seed)
            return logits(images, seed)

        return seeded

    def _moves_a_stream(self, call: Callable[[], Any]) -> bool:
        """Return whether a call draws from the model's random generators."""
        before = [stream.numpy() for stream in self._streams()]
        call()
        return any((stream.numpy() != old).any() for stream, old in zip(self._streams(), before, strict=True))


def _chosen(outputs: Any, net: KerasNet) -> Any:
    """Return the output that the user has chosen, or the only one."""
    named = outputs if isinstance(outputs, dict) else None
    several = list(named.values()) if named else outputs if isinstance(outputs, list | tuple) else None
    if several is None:
        return outputs
    names = list(named) if named else list(getattr(net.model, "output_names", ()) or range(len(several)))
    if net.output is None:
        if len(several) == 1:
            return several[0]
        raise InputError(
            f"expected a net with one output, received one with {len(several)}: choose by output=, of "
            + ", ".join(f"{number} ({name!r})" for number, name in enumerate(names))
        )
    place = names.index(net.output) if net.output in names else net.output
    if not isinstance(place, int) or not 0 <= place < len(several):
        raise InputError(f"expected an output among {', '.join(map(str, names))}, received {net.output!r}")
    return several[place]


def _random_layers(model: Any) -> list[Any]:
    """Return the layers of a Keras model that have a random generator of Keras's, or a stream of this package."""
    layers = all_layers(model) if isinstance(model, keras.Model) else []
    return [
        layer
        for layer in layers
        if isinstance(layer, RandomStream)
        or any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())
        and not isinstance(layer, keras.Model)
        and getattr(layer, "rate", 1) != 0
    ]
