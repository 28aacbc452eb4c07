"""Transfer: images made on another net, tried on this one (Papernot et al., 2016)."""

import tensorflow as tf

from wca_tf.attacks.batch import Batch
from wca_tf.attacks.gradient_attacks import ProjectedGradient, Transfer
from wca_tf.attacks.objectives import check_objective
from wca_tf.attacks.projected_gradient import projected_gradient
from wca_tf.core.errors import InputError, one_line
from wca_tf.nets.answers import check_target
from wca_tf.nets.random_net_target import RandomNetTarget
from wca_tf.nets.targets import Target, is_gaussian


def transfer(attack: Transfer, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return images after projected gradient on the source. Runs inside a graph, like `Attack.perturb`."""
    on_source = ProjectedGradient(
        objective=attack.source_objective,
        steps=attack.steps,
        relative_step_size=attack.relative_step_size,
        norm=attack.norm,
        eot_samples=attack.eot_samples if attack.source else 1,
        targeted=attack.targeted,
    )
    return projected_gradient(on_source, _source(attack, target), batch, epsilon, seed)


def check_source(attack: Transfer, target: Target, images: tf.Tensor) -> None:
    """Raise InputError unless the source takes these images, and has the target's classes and the objective."""
    source = _source(attack, target)
    if attack.source:
        try:
            check_target(source, tuple(images.shape[1:]))
        except InputError as error:
            raise InputError(f"the source of transfer: {error}") from None
        except (ValueError, tf.errors.InvalidArgumentError) as error:  # of a net that gets images of another shape
            received = f"{tuple(images.shape[1:])}, received an error: {one_line(error)}"
            raise InputError(f"expected a source that takes images {received}") from None
    check_objective(attack.source_objective, source, images, attack.targeted)
    if None not in (source.num_classes, target.num_classes) and source.num_classes != target.num_classes:
        raise InputError(f"expected a source of {target.num_classes} classes, received {source.num_classes}")


def _source(attack: Transfer, target: Target) -> Target:
    """Return the other net, or the attacked net without its noise."""
    if attack.source:
        return attack.source
    if is_gaussian(target):
        return target.without_noise()
    logits = getattr(target, "noise_free_logits", None)
    if logits is None:
        raise InputError("transfer expects a source: this net has no known form without its noise")
    return RandomNetTarget(lambda images, _: logits(images), noise_free_logits=logits)
