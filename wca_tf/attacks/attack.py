"""The base of every attack: a frozen declaration of its options, and a pure call.

The call checks its arguments, runs `perturb` as one graph for all radii, and checks that the result is within reach.
TensorFlow loads at the first call.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from wca_tf.attacks.checks import as_attackable, check_inputs, check_result, check_targets
from wca_tf.attacks.gradients import CleanGradient, clean_gradient
from wca_tf.attacks.objectives import check_objective, num_classes_of
from wca_tf.attacks.radii import NORMS, single_radius
from wca_tf.core.arithmetic import tensor_float_32
from wca_tf.core.errors import InputError, NonFiniteError, error_itself
from wca_tf.core.lazily import np, tf
from wca_tf.core.options import check_declared, check_options, option, options_of, parse_options, spell
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import check_labels
from wca_tf.nets.batch import Batch
from wca_tf.nets.graphs import passes_per_image, sharded_graph
from wca_tf.nets.judge import judge
from wca_tf.nets.passes import Passes, passes_so_far
from wca_tf.nets.targets import AnyTarget, Target

EPSILON = 8 / 255
BOUND = "an image is lost when its P(correct) is at most this"  # the meaning of an option of several attacks


class AttackResult(NamedTuple):
    """Adversarial images, and their effect on the net.

    Attributes:
        images: float32 [B, H, W, channels] in [0, 1].
        probability_correct: [B], P(the label | image). It is exact where the noise enters in the head, else a share of
            draws. The attack did not see these draws.
        success: bool [B], whether P(the label | image) is below ½; for a targeted attack, whether P(the target | image)
            is above ½.
        found: bool [B], whether an attack that searches for the nearest adversarial image found one; `None` for any
            other attack.
        generations: whole numbers [B], the number of generations that n_pixel spent on each image; `None` for any other
            attack.
    """

    images: np.ndarray
    probability_correct: np.ndarray
    success: np.ndarray
    found: np.ndarray | None = None
    generations: np.ndarray | None = None


class Perturbed(NamedTuple):
    """The images of an attack that are not judged.

    Attributes:
        images: float32 [B, H, W, channels].
        extras: whole numbers [B] for some attributes of `AttackResult`, by name: found, generations.
        passes: the mean passes of an image; NaN for a target of another class, which does not count them.
    """

    images: tf.Tensor
    extras: dict[str, np.ndarray]
    passes: Passes = Passes(0, 0)


@dataclasses.dataclass(frozen=True)
class Attack(abc.ABC):
    """An attack without a radius; `BallAttack` has one.

    To write an attack, derive from one of these two classes, declare the options with `wca_tf.core.options.option`, and
    define `perturb`. `--attacks=module:Class:option=value` runs it.

    Attributes:
        eot_samples: number of draws of the noise that a gradient or a loss is averaged over.
        targeted: whether images move towards the `targets` of the call, instead of away from the labels.
        text: the attack as written in `--attacks`; empty for an attack made in Python.
    """

    version: ClassVar[int] = 3  # raise it whenever a change makes the same options give other images
    has_radius: ClassVar[bool] = False
    names: ClassVar[dict[str, Mapping[str, Any]]] = {}  # of this class in names.py, with the defaults of each

    eot_samples: int = option(50, "number of draws that a gradient or a loss averages over")
    targeted: bool = option(False, "attack towards a class other than the label, instead of away from the label")
    text: str = dataclasses.field(default="", repr=False, kw_only=True)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.names = {}

    def __post_init__(self) -> None:
        check_declared(self)
        check_options(self)

    def __call__(
        self,
        model: Any,
        images: Any,
        labels: Any = None,
        epsilon: float | str = EPSILON,
        *,
        indices: Any = None,
        seed: Any = 0,
        targets: Any = None,
    ) -> AttackResult:
        """Attack a net, and judge the images by draws that the attack did not see.

        Args:
            model: a Keras classifier, a function of images, or a target; or as `adapt` says. Repeated calls on the same
                model trace the attack once.
            images: [B, H, W, channels], uint8, or floats in [0, 1].
            labels: whole numbers [B], or as `as_arrays` says.
            epsilon: the ball's radius, one number in the images' [0, 1] units, 0 or more, at most 1 in linf; a text
                such as "8/255" or "linf:8/255" too. An attack without a radius ignores it.
            indices: whole numbers [B], the number of each example in its split; it decides the example's random
                numbers. 0 to B − 1 when absent.
            seed: whole number of int32, or int32[2].
            targets: whole numbers [B], the wanted classes. A targeted attack needs them; no other attack takes them.

        Raises:
            InputError: images are NaN, Inf or out of [0, 1]; labels or targets are not classes; this net does not have
                the objective; the model returns probabilities, or fails another check of `check_answers`.
            NonFiniteError: a gradient or the logits are NaN or Inf.
            RuntimeError: the result is out of reach, which would be a bug.
        """
        from wca_tf.nets import adapter  # its classes derive from Keras's: it loads TensorFlow

        images, labels = as_attackable(images, labels)
        images, options = adapter.in_its_range(model, images)
        target = adapter.adapted(model, tuple(images.shape[1:]), **options)
        images = to_float(tf.constant(images))
        indices = np.arange(len(images)) if indices is None else indices
        check_inputs(images, labels, np.asarray(indices))
        if note := adapter.check_pixels(target, images.numpy(), labels):
            warnings.warn(note, stacklevel=2)
        with tensor_float_32(on=False):
            made = self.loaded().run(target, images, labels, epsilon, indices, seed, targets)
        found, generations = made.extras.get("found"), made.extras.get("generations")
        if len(images) == 0:
            return AttackResult(made.images.numpy(), np.zeros(0), np.zeros(0, bool), found, generations)

        own = fold_in(make_seed(seed), Purpose.JUDGEMENT_OF_CALL)

        def probability(classes: Any) -> np.ndarray:
            return judge(target, made.images, tf.constant(classes), tf.constant(indices), own).probability_correct

        correct = probability(labels)
        success = correct < 0.5 if targets is None else probability(np.asarray(targets)) > 0.5
        found = None if found is None else found.astype(bool)
        return AttackResult(made.images.numpy(), correct, success, found, generations)

    def run(
        self,
        target: Target,
        images: tf.Tensor,
        labels: Any,
        epsilon: Any,
        indices: Any,
        seed: int | tf.Tensor,
        targets: Any = None,
    ) -> Perturbed:
        """Return the attack's images, which are not judged.

        Arguments and errors are those of a call, with a target in place of a model, and images float32.
        """
        images, labels, indices = tf.convert_to_tensor(images), np.asarray(labels), np.asarray(indices)
        check_inputs(images, labels, indices)
        radius = self.radius(epsilon)
        if len(images) == 0:
            return Perturbed(images, {})
        classes = num_classes_of(target, images)
        check_labels(labels, classes)
        wanted = check_targets(self.targeted, targets, labels, classes)
        self.check_target(target, images)
        batch = Batch(images, *(None if v is None else tf.constant(v, tf.int64) for v in (labels, indices, wanted)))
        before = passes_so_far()
        try:
            adversarial, extras = _graph(self)(target, batch, tf.constant(radius, tf.float32), make_seed(seed))
        except tf.errors.InvalidArgumentError as error:
            if "the attack's" not in str(error):  # the message of `check_numerics` is TensorFlow's only sign
                raise
            message = "expected finite gradients and logits, received NaN or Inf: the net overflows"
            raise NonFiniteError(message) from None
        except Exception as error:  # AutoGraph raises others, such as for a net without a gradient, made of another net
            if isinstance(first := error_itself(error), InputError):
                raise first from None
            raise
        self.check_reach(adversarial, images, radius)
        passes = Passes(math.nan, math.nan)
        if isinstance(target, AnyTarget):
            passes = passes_per_image(target, len(images), passes_so_far().since(before))
        return Perturbed(adversarial, {name: values.numpy() for name, values in extras.items()}, passes)

    @abc.abstractmethod
    def perturb(
        self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the adversarial images, alone or with further whole numbers [B] by name. Runs inside a graph.

        Args:
            target: the net.
            batch: the images under attack.
            epsilon: the radius, a scalar; attacks without a radius ignore it.
            seed: int32[2].
        """

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """The number of passes of an image: forward, and backward too where there is a gradient.

        It is an estimate. It does not count passes that compare candidates. It counts one pass for all draws, also
        where each draw needs a pass of its own.
        """

    @property
    def gradient_objective(self) -> str | None:
        """The objective whose gradient tells whether the attack can move; `None` without a gradient of the net."""
        return getattr(self, "objective", None)

    def loaded(self) -> Attack:
        """Return the attack with the nets that its options name, in place of their directories."""
        return self

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        """Raise InputError when the attack cannot run on this target."""
        if self.gradient_objective:
            check_objective(self.gradient_objective, target, images, self.targeted)

    def check_gradient(
        self,
        target: Target,
        images: tf.Tensor,
        labels: tf.Tensor,
        seed: int | tf.Tensor,
        targets: tf.Tensor | None = None,
    ) -> CleanGradient | None:
        """Return what is known of the attack's gradient at `images`, by the draws of `seed`; `None` without gradients.

        The arguments are those of `run`.
        """
        objective = self.gradient_objective
        if not objective:
            return None
        check_objective(objective, target, images, self.targeted)
        labels = tf.cast(labels, tf.int64)
        wanted = None if targets is None else tf.cast(targets, tf.int64)
        batch = Batch(images, labels, tf.zeros_like(labels), wanted)
        return clean_gradient(target, batch, make_seed(seed), objective, self.eot_samples)

    def radius(self, epsilon: Any) -> float:
        """Return the radius of a call; raise InputError for one that the attack cannot have."""
        return 0.0

    def check_reach(self, adversarial: tf.Tensor, images: tf.Tensor, epsilon: float) -> None:
        """Raise RuntimeError when a result is out of [0, 1], or out of the attack's reach."""
        check_result(adversarial, images)

    def options(self) -> dict[str, Any]:
        """Return the attack's options by name."""
        return {name: getattr(self, name) for name in options_of(type(self))}

    @property
    def name(self) -> str:
        """The text of the attack in `--attacks`: as it was written, or as it could be written."""
        return self.text if self.text and self._gives_these_options(self.text) else self.spelled

    @property
    def spelled(self) -> str:
        """The text with the fewest options from which `parse_attack` makes this attack.

        Examples:
            >>> from wca_tf.attacks import parse_attack
            >>> parse_attack("pgd:steps=10:norm=l2").spelled
            'pgd:norm=l2'
        """
        names = [spell(name, self, defaults) for name, defaults in self.names.items()]
        outside = f"{type(self).__module__}:{type(self).__qualname__}"
        return min(names, key=lambda text: text.count(":")) if names else spell(outside, self, {})

    def _gives_these_options(self, text: str) -> bool:
        """Return whether a text gives this attack's options; it does not after a change by `dataclasses.replace`."""
        name, *assignments = text.split(":")
        assignments = assignments[name not in self.names :]  # after module:Class
        defaults = {"eot_samples": self.eot_samples, **self.names.get(name, {})}
        written = {key: field.default for key, field in options_of(type(self)).items()}
        written |= parse_options(type(self), name, assignments, defaults)
        # The source is a net in place of its directory, once it is read.
        return all(value == written[key] for key, value in self.options().items() if key != "source")


@dataclasses.dataclass(frozen=True)
class BallAttack(Attack):
    """An attack within a ball.

    Attributes:
        norm: the norm of the ball.
    """

    has_radius: ClassVar[bool] = True

    norm: str = option("linf", "the norm of the ball, whose radius is epsilon", choices=NORMS)

    def in_norm(self, norm: str) -> BallAttack | None:
        """Return the attack in a norm; `None` for an attack that names another norm, or that was made in Python."""
        if norm == self.norm:
            return self
        return None if not self.text or ":norm=" in self.text else dataclasses.replace(self, norm=norm)

    def radius(self, epsilon: Any) -> float:
        return single_radius(epsilon, self.norm)

    def check_reach(self, adversarial: tf.Tensor, images: tf.Tensor, epsilon: float) -> None:
        check_result(adversarial, images, self.norm, epsilon)


@functools.lru_cache(maxsize=64)
def _graph(attack: Attack) -> Any:
    """Return the attack as a graph, which all radii share."""

    def perturb(
        target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        made = attack.perturb(target, batch, epsilon, seed)
        return made if isinstance(made, tuple) else (made, {})

    return sharded_graph(perturb)
