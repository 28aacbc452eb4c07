"""What every attack is: a frozen configuration, and a pure call that runs as one graph and is checked from outside."""

import abc
import dataclasses
import functools
import math
import sys
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.batch import Batch
from wca_tf.attacks.checks import check_inputs, check_result, check_targets
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.attacks.objectives import check_objective, num_classes_of
from wca_tf.attacks.sharding import sharded_graph
from wca_tf.attacks.target import Target
from wca_tf.data.examples import check_labels
from wca_tf.errors import InputError
from wca_tf.seeds import make_seed

MOST = 1_000_000  # steps or draws; more is a slip of the pen


class AttackResult(NamedTuple):
    """What an attack made.

    Attributes:
        images: float32 [B, H, W, channels].
        found: bool [B], whether the attack found what it looked for: of an attack that searches the nearest image;
            else None.
        generations: whole numbers [B], how many generations each image was searched for, of n_pixel; else None.
    """

    images: tf.Tensor
    found: np.ndarray | None = None
    generations: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Attack(abc.ABC):
    """An attack without a radius; `BallAttack` has one.

    Attributes:
        eot_samples: draws of the noise that a gradient or a loss averages over.
        targeted: towards the `targets` of the call, in place of away from the labels.
    """

    eot_samples: int = dataclasses.field(default=50, kw_only=True)
    targeted: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_fields(self)

    def __call__(
        self,
        target: Target,
        images: tf.Tensor,
        labels: tf.Tensor,
        indices: tf.Tensor,
        seed: int | tf.Tensor,
        targets: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return adversarial images [B, H, W, channels] within the attack's reach of `images` and in [0, 1].

        It takes the arguments of `run`, and raises the same errors.
        """
        return self.run(target, images, labels, indices, seed, targets).images

    def run(
        self,
        target: Target,
        images: tf.Tensor,
        labels: tf.Tensor,
        indices: tf.Tensor,
        seed: int | tf.Tensor,
        targets: tf.Tensor | None = None,
    ) -> AttackResult:
        """Return adversarial images within the attack's reach of `images` and in [0, 1], and what the search tells.

        Args:
            target: the net.
            images: float32 [B, H, W, channels] in [0, 1].
            labels: whole numbers [B].
            indices: whole numbers [B], each example's number in its split; they decide its random numbers.
            seed: whole number or int32[2].
            targets: whole numbers [B], the classes wanted; for a targeted attack, and for it alone.

        Raises:
            InputError: images that are NaN, Inf or out of [0, 1]; labels or targets that are no class; an objective
                that this net does not have; a gradient that is NaN or Inf.
            RuntimeError: the result is out of reach, which would be a bug.
        """
        images, labels, indices = tf.convert_to_tensor(images), np.asarray(labels), np.asarray(indices)
        check_inputs(images, labels, indices)
        if len(images) == 0:
            return AttackResult(images)
        classes = num_classes_of(target, images)
        check_labels(labels, classes)
        wanted = check_targets(self.targeted, targets, labels, classes)
        self.check_target(target, images)
        batch = Batch(images, *(None if v is None else tf.constant(v, tf.int64) for v in (labels, indices, wanted)))
        try:
            adversarial, told = _graph(self.without_radius())(target, batch, self.radius, make_seed(seed))
        except tf.errors.InvalidArgumentError as error:
            if "the attack's" not in str(error):
                raise
            raise InputError("expected finite gradients and logits, received NaN or Inf: the net overflows") from None
        self.check_reach(adversarial, images)
        found, generations = (told[name].numpy() if name in told else None for name in ("found", "generations"))
        return AttackResult(adversarial, None if found is None else found.astype(bool), generations)

    @abc.abstractmethod
    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the adversarial images, inside a graph; attacks without a radius ignore the scalar `epsilon`."""

    def search(
        self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return `perturb`'s images, and int32 [B] numbers by the name of an attribute of `AttackResult`."""
        return self.perturb(target, batch, epsilon, seed), {}

    @property
    @abc.abstractmethod
    def passes(self) -> int:
        """Forward passes, with a backward one where there is a gradient, that an image costs at most."""

    @property
    def climbed(self) -> str | None:
        """The objective whose gradient the attack follows on the net itself, if any."""
        return getattr(self, "objective", None)

    @property
    def radius(self) -> tf.Tensor:
        return tf.constant(0.0)

    def without_radius(self) -> "Attack":
        """What a graph is traced for: radii share it."""
        return self

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        """Raise InputError when the target cannot give what the attack needs."""
        if self.climbed:
            check_objective(self.climbed, target, images, self.targeted)

    def check_reach(self, adversarial: tf.Tensor, images: tf.Tensor) -> None:
        """Raise RuntimeError when a result is out of [0, 1]."""
        check_result(adversarial, images)

    def zero_gradients(
        self,
        target: Target,
        images: tf.Tensor,
        labels: tf.Tensor,
        seed: int | tf.Tensor,
        targets: tf.Tensor | None = None,
    ) -> np.ndarray | None:
        """bool [B]: where this attack's gradient at `images` is exactly zero in every pixel, so that it cannot move.

        None for an attack without gradients.
        """
        if not self.climbed:
            return None
        check_objective(self.climbed, target, images, self.targeted)
        labels = tf.cast(labels, tf.int64)
        wanted = None if targets is None else tf.cast(targets, tf.int64)
        batch = Batch(images, labels, tf.zeros_like(labels), wanted)
        zero = _zero_gradients(target, batch, make_seed(seed), self.climbed, self.eot_samples)
        return zero.numpy().astype(bool)


@dataclasses.dataclass(frozen=True)
class BallAttack(Attack):
    """An attack within a ball.

    Attributes:
        epsilon: the ball's radius, in the images' [0, 1] units; 0 returns the images.
        norm: "linf" or "l2".
    """

    epsilon: float
    norm: str = dataclasses.field(default="linf", kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise InputError(f"expected epsilon of 0 or more, received {self.epsilon}")
        if self.norm not in BALLS:
            raise InputError(f"expected norm among {', '.join(BALLS)}; received {self.norm!r}")
        super().__post_init__()

    @property
    def radius(self) -> tf.Tensor:
        return tf.constant(self.epsilon, tf.float32)

    def without_radius(self) -> "BallAttack":
        return dataclasses.replace(self, epsilon=0.0)

    def check_reach(self, adversarial: tf.Tensor, images: tf.Tensor) -> None:
        check_result(adversarial, images, self.norm, self.epsilon)


def _check_fields(attack: Any) -> None:
    """Whole numbers from 1 to a million, and other numbers above 0: what every attack's parameters are.

    A field's metadata say otherwise: "zero" allows 0, "largest" is the largest that is allowed.
    """
    for field in dataclasses.fields(attack):
        value = getattr(attack, field.name)
        if field.name == "epsilon":
            continue
        if field.type is int and not 1 <= value <= MOST:
            raise InputError(f"expected {field.name} from 1 to {MOST}, received {value}")
        zero, largest = field.metadata.get("zero", False), field.metadata.get("largest", sys.float_info.max)
        if field.type is float and not (0 < value <= largest or (zero and value == 0)):
            bounds = ("0 or more" if zero else "above 0") + f", at most {largest:g}" * ("largest" in field.metadata)
            raise InputError(f"expected {field.name} {bounds}; received {value}")


@functools.lru_cache(maxsize=64)
def _graph(attack: Attack) -> Any:
    """The attack as a graph."""
    return sharded_graph(attack.search)


def _gradient_is_zero(target: Target, batch: Batch, seed: tf.Tensor, objective: str, draws: int) -> tf.Tensor:
    ascent = expected_gradient(target, batch.images, batch, seed, objective=objective, draws=draws)
    return tf.cast(tf.reduce_all(ascent.gradient == 0, axis=[1, 2, 3]), tf.int32)  # workers cannot gather bools


_zero_gradients = sharded_graph(_gradient_is_zero)
