"""Transfer: images made on another net, tried on this one (Papernot et al., 2016)."""

import dataclasses

import tensorflow as tf

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.batch import Batch
from wca_tf.attacks.objectives import check_objective
from wca_tf.attacks.projected_gradient import ProjectedGradient
from wca_tf.attacks.target import HeadNoiseTarget, RandomNetTarget, Target
from wca_tf.errors import InputError
from wca_tf.seeds import make_seed


@dataclasses.dataclass(frozen=True)
class Transfer(BallAttack):
    """Projected gradient on another net; parameters as for `ProjectedGradient`.

    Attributes:
        source: the other net; None for the attacked net without its noise.
    """

    source: Target | None = None
    climbs: str = "margin"
    steps: int = 40
    relative_step_size: float = 0.1

    @property
    def passes(self) -> int:
        return self.steps

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        source = self._source(target)
        try:
            source.logits(source.features(images[:1]), make_seed(0), 1)
        except (ValueError, tf.errors.InvalidArgumentError):
            raise InputError(f"expected a source that takes images {tuple(images.shape[1:])}") from None
        check_objective(self.climbs, source, images, self.targeted)
        if None not in (source.num_classes, target.num_classes) and source.num_classes != target.num_classes:
            raise InputError(f"expected a source of {target.num_classes} classes, received {source.num_classes}")

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        attack = ProjectedGradient(
            self.epsilon,
            self.climbs,
            self.steps,
            self.relative_step_size,
            norm=self.norm,
            eot_samples=1 if self.source is None else self.eot_samples,
            targeted=self.targeted,
        )
        return attack.perturb(self._source(target), batch, epsilon, seed)

    def _source(self, target: Target) -> Target:
        if self.source is not None:
            return self.source
        if isinstance(target, HeadNoiseTarget):
            return target.without_noise()
        logits = getattr(target, "noise_free_logits", None)
        if logits is None:
            raise InputError("transfer expects a source: this net has no known form without its noise")
        return RandomNetTarget(lambda images, _: logits(images), noise_free_logits=logits)
