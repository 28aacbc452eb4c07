"""A run of an attack on a target: it checks the inputs, runs one graph for all radii, and checks the result."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from wca_tf.attacks.attack import Attack, BallAttack
from wca_tf.attacks.batch import Batch
from wca_tf.attacks.checks import check_inputs, check_targets
from wca_tf.attacks.gradients import expected_gradient
from wca_tf.attacks.objectives import check_objective, num_classes_of
from wca_tf.attacks.radii import single_radius
from wca_tf.attacks.sharding import passes_per_image, sharded_graph
from wca_tf.core.errors import NonFiniteError
from wca_tf.core.seeds import make_seed
from wca_tf.data.examples import check_labels
from wca_tf.nets.passes import Passes, passes_so_far
from wca_tf.nets.random_net_target import RandomNetTarget
from wca_tf.nets.targets import HeadNoiseTarget, Target


class Perturbed(NamedTuple):
    """The result of `perturb`.

    Attributes:
        images: float32 [B, H, W, channels].
        told: whole numbers [B] for some attributes of `AttackResult`, by name: found, generations.
        passes: the mean passes of an image; NaN for a target of another class, which does not count them.
    """

    images: tf.Tensor
    told: dict[str, np.ndarray]
    passes: Passes = Passes(0, 0)


def perturbed(
    attack: Attack,
    target: Target,
    images: tf.Tensor,
    labels: Any,
    epsilon: Any,
    indices: Any,
    seed: int | tf.Tensor,
    targets: Any = None,
) -> Perturbed:
    """Return an attack's images, which are not judged.

    Arguments and errors are those of `Attack.__call__`, with a target in place of a model, and images float32.
    """
    images, labels, indices = tf.convert_to_tensor(images), np.asarray(labels), np.asarray(indices)
    check_inputs(images, labels, indices)
    radius = single_radius(epsilon, attack.norm) if isinstance(attack, BallAttack) else 0.0
    if len(images) == 0:
        return Perturbed(images, {})
    classes = num_classes_of(target, images)
    check_labels(labels, classes)
    wanted = check_targets(attack.targeted, targets, labels, classes)
    attack.check_target(target, images)
    batch = Batch(images, *(None if v is None else tf.constant(v, tf.int64) for v in (labels, indices, wanted)))
    before = passes_so_far()
    try:
        adversarial, told = _graph(attack)(target, batch, tf.constant(radius, tf.float32), make_seed(seed))
    except tf.errors.InvalidArgumentError as error:
        if "the attack's" not in str(error):  # the message of `check_numerics` is TensorFlow's only sign
            raise
        raise NonFiniteError("expected finite gradients and logits, received NaN or Inf: the net overflows") from None
    attack.check_reach(adversarial, images, radius)
    passes = Passes(math.nan, math.nan)
    if isinstance(target, HeadNoiseTarget | RandomNetTarget):
        passes = passes_per_image(target, len(images), passes_so_far().since(before))
    return Perturbed(adversarial, {name: values.numpy() for name, values in told.items()}, passes)


class GradientFound(NamedTuple):
    """What is known of an attack's gradient at the clean images.

    Attributes:
        zero: bool [B], whether it is zero in every pixel.
        useless: bool [B], whether it is zero, or is that of cross-entropy without the term of the label (of the wanted
            class when targeted): float32 rounds 1 − P(class) to 0 in every draw, where P is within 6e-8 of 1.
    """

    zero: np.ndarray
    useless: np.ndarray


def check_gradient(
    attack: Attack,
    target: Target,
    images: tf.Tensor,
    labels: tf.Tensor,
    seed: int | tf.Tensor,
    targets: tf.Tensor | None = None,
) -> GradientFound | None:
    """Return what is known of the attack's gradient at `images`, by the draws of `seed`.

    Return `None` for an attack without gradients.
    """
    objective = attack.gradient_objective
    if not objective:
        return None
    check_objective(objective, target, images, attack.targeted)
    labels = tf.cast(labels, tf.int64)
    wanted = None if targets is None else tf.cast(targets, tf.int64)
    batch = Batch(images, labels, tf.zeros_like(labels), wanted)
    found = _gradient_at(target, batch, make_seed(seed), objective, attack.eot_samples)
    return GradientFound(*(each.numpy().astype(bool) for each in found))


@functools.lru_cache(maxsize=64)
def _graph(attack: Attack) -> Any:
    """Return the attack as a graph, which all radii share."""

    def perturb(
        target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        made = attack.perturb(target, batch, epsilon, seed)
        return made if isinstance(made, tuple) else (made, {})

    return sharded_graph(perturb)


@sharded_graph
def _gradient_at(target: Target, batch: Batch, seed: tf.Tensor, objective: str, draws: int) -> GradientFound:
    ascent = expected_gradient(target, batch.images, batch, seed, objective=objective, draws=draws)
    zero = tf.reduce_all(ascent.gradient == 0, axis=[1, 2, 3])
    # Cross-entropy is ln Σ_j exp(h_j − h_y): 0 where float32's sum is 1, and then softmax_y − 1 is 0 too.
    lost = ascent.values == 0 if objective == "ce" else tf.zeros_like(zero)
    return GradientFound(*(tf.cast(each, tf.int32) for each in (zero, zero | lost)))  # workers cannot gather bools
