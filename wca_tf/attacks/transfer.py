"""Transfer: images made on another net, tried on this one (Papernot et al., 2016)."""

from __future__ import annotations

import dataclasses
from typing import Any

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.objectives import OBJECTIVES, check_objective
from wca_tf.attacks.pgd import EACH_STEP, ProjectedGradient
from wca_tf.core.errors import InputError, one_line
from wca_tf.core.lazily import keras, tf
from wca_tf.core.options import option
from wca_tf.nets.answers import check_target
from wca_tf.nets.batch import Batch
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import Target, is_gaussian


@dataclasses.dataclass(frozen=True)
class Transfer(BallAttack):
    """Projected gradient on another net, tried on this one."""

    source: Any = option(
        "", "directory of the other net, in Python a target; empty: the attacked net without its noise"
    )
    source_objective: str = option(
        "margin", "the loss that the steps increase on the source", choices=tuple(OBJECTIVES)
    )
    steps: int = option(40, "number of gradient steps")
    relative_step_size: float = option(0.1, EACH_STEP)

    @property
    def passes(self) -> int:
        return self.steps

    def loaded(self) -> Transfer:
        """Return the attack with a target as its source, in place of a directory or a Keras model.

        Raises:
            InputError: there is no model in the directory.
        """
        if not self.source or not isinstance(self.source, str | keras.Model):
            return self
        from wca_tf.nets import adapter, model_files  # their classes derive from Keras's: they load TensorFlow

        if isinstance(self.source, str):
            return dataclasses.replace(self, source=model_files.target_in(self.source))
        return dataclasses.replace(self, source=adapter.adapted(self.source, self.source.input_shape[1:]))

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        """Raise InputError unless the source takes these images, and has the target's classes and the objective."""
        source = self.source_net(target)
        if self.source:
            try:
                check_target(source, tuple(images.shape[1:]))
            except InputError as error:
                raise InputError(f"the source of transfer: {error}") from None
            except (ValueError, tf.errors.InvalidArgumentError) as error:  # of a net that gets images of another shape
                received = f"{tuple(images.shape[1:])}, received an error: {one_line(error)}"
                raise InputError(f"expected a source that takes images {received}") from None
        check_objective(self.source_objective, source, images, self.targeted)
        if None not in (source.num_classes, target.num_classes) and source.num_classes != target.num_classes:
            raise InputError(f"expected a source of {target.num_classes} classes, received {source.num_classes}")

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        on_source = ProjectedGradient(
            objective=self.source_objective,
            steps=self.steps,
            relative_step_size=self.relative_step_size,
            norm=self.norm,
            eot_samples=self.eot_samples if self.source else 1,
            targeted=self.targeted,
        )
        return on_source.perturb(self.source_net(target), batch, epsilon, seed)

    def source_net(self, target: Target) -> Target:
        """Return the other net, or the attacked net without its noise; raise InputError where it has no such form."""
        if self.source:
            return self.source
        if is_gaussian(target):
            return target.without_noise()
        logits = getattr(target, "noise_free_logits", None)
        if logits is None:
            raise InputError("transfer expects a source: this net has no known form without its noise")
        return SampledTarget(lambda images, _: logits(images), noise_free_logits=logits)
