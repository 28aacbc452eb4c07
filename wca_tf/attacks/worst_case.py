"""Several attacks on the same image, of which the worst counts: restarts of PGD, AutoAttack's rand, and `adaptive`."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.auto_pgd import AutoPGD
from wca_tf.attacks.batch import Batch, per_image, replace_rows
from wca_tf.attacks.gradients import Survival, survival
from wca_tf.attacks.projected_gradient import ProjectedGradient
from wca_tf.attacks.square import SquareAttack
from wca_tf.attacks.target import HeadNoiseTarget, Target, has_noise, open_rows
from wca_tf.attacks.transfer import Transfer
from wca_tf.seeds import fold_in, make_seed


@dataclasses.dataclass(frozen=True)
class WorstCase(BallAttack):
    """Per image, the worst of several rounds; rounds are not spent on images that are lost already.

    Attributes:
        bound: an image is lost when its P(correct) is at most this.
    """

    bound: float = dataclasses.field(default=0.01, metadata={"zero": True, "largest": 1.0})

    @abc.abstractmethod
    def rounds(self, target: Target | None = None) -> Sequence[tuple[BallAttack, int]]:
        """Return the attacks on a target, and how often each is run; without a target, on any."""

    @property
    def passes(self) -> int:
        return sum((attack.passes + 1) * times for attack, times in self.rounds())

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = max(self.eot_samples, target.cheap_draws)

        def survive(images: tf.Tensor, part: Batch) -> Survival:
            return survival(target, target.features(images), part, make_seed(0), draws)

        worst = batch.images
        held = survive(worst, batch)
        for number, (attack, times) in enumerate(self.rounds(target)):
            for time in tf.range(times):
                rows = open_rows(target, held.probability > self.bound)
                if tf.size(rows) > 0:
                    part = batch.take(rows)
                    found = attack.perturb(target, part, epsilon, fold_in(seed, number, time))
                    now, before = survive(found, part), held.take(rows)
                    lower = now.below(before) & (before.probability > self.bound)
                    kept = tf.where(per_image(lower), found, tf.gather(worst, rows))
                    worst = replace_rows(worst, rows, kept)
                    held = held.replace(rows, now.where(lower, before))
        return worst


@dataclasses.dataclass(frozen=True)
class RestartedPGD(WorstCase):
    """Projected gradient from several random starts; parameters as for `ProjectedGradient`.

    `pgd_restarts` is the paper's PGD_100; `margin` and `z_margin` start once unless asked for more. One start alone is
    `ProjectedGradient`: every image is attacked, and nothing is compared.
    """

    objective: str = "ce"
    steps: int = 10
    relative_step_size: float = 0.1
    random_start: bool = True
    restarts: int = 100

    @property
    def passes(self) -> int:
        return self.steps if self.restarts == 1 else super().passes

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if self.restarts == 1:
            # The seed of the first of several, so that more starts leave no image better.
            return self._once().perturb(target, batch, epsilon, fold_in(seed, 0, 0))
        return super().perturb(target, batch, epsilon, seed)

    def rounds(self, target: Target | None = None) -> Sequence[tuple[BallAttack, int]]:
        return [(self._once(), self.restarts)]

    def _once(self) -> ProjectedGradient:
        return ProjectedGradient(
            self.epsilon,
            self.objective,
            self.steps,
            self.relative_step_size,
            self.random_start,
            norm=self.norm,
            eot_samples=self.eot_samples,
            targeted=self.targeted,
        )


@dataclasses.dataclass(frozen=True)
class AutoAttackRand(WorstCase):
    """AutoAttack's `rand` (Croce & Hein, ICML 2020): Auto-PGD on cross-entropy, then on DLR, with EoT over 20 draws."""

    eot_samples: int = dataclasses.field(default=20, kw_only=True)
    steps: int = 100
    rho: float = dataclasses.field(default=0.75, metadata={"largest": 1.0})

    def rounds(self, target: Target | None = None) -> Sequence[tuple[BallAttack, int]]:
        return [(self._auto_pgd(objective), 1) for objective in ("ce", "dlr")]

    def _auto_pgd(self, objective: str) -> AutoPGD:
        return AutoPGD(
            self.epsilon,
            objective,
            self.steps,
            self.rho,
            norm=self.norm,
            eot_samples=self.eot_samples,
            targeted=self.targeted,
        )

    @property
    def climbed(self) -> str | None:
        return "ce"  # what it climbs first

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        for attack, _ in self.rounds(target):
            attack.check_target(target, images)


@dataclasses.dataclass(frozen=True)
class Adaptive(WorstCase):
    """The attack to quote: a cascade of attacks that know the defence, and one without gradients.

    In this order, each on the images that the ones before left: z_margin (the margin averaged over draws, of a net
    whose logits are not Gaussian); Auto-PGD on DLR (on the margin, of fewer than three classes); projected gradient on
    the margin of the net without its noise; transfer from that net, by projected gradient on its DLR; Square. Where no
    net without noise is known, both in the middle are left out; of a net that has no noise, transfer is.

    Attributes:
        steps: of each attack by projected gradient.
        apgd_steps: of Auto-PGD.
        queries: of Square.
    """

    steps: int = 40
    apgd_steps: int = 100
    queries: int = 1000

    def rounds(self, target: Target | None = None) -> Sequence[tuple[BallAttack, int]]:
        gaussian = target is None or isinstance(target, HeadNoiseTarget)
        fewest = 4 if self.targeted else 3
        dlr = "dlr" if target is None or (target.num_classes or fewest) >= fewest else "expected_margin"
        first = "z_margin" if gaussian else "expected_margin"
        members: list[BallAttack] = [
            self._member(ProjectedGradient, objective=first, steps=self.steps),
            self._member(AutoPGD, objective=dlr, steps=self.apgd_steps),
        ]
        if gaussian or getattr(target, "noise_free_logits", None):
            members.append(self._member(Transfer, climbs="margin", steps=self.steps))
            if target is None or has_noise(target):
                members.append(self._member(Transfer, climbs=dlr, steps=self.steps))
        members.append(self._member(SquareAttack, queries=self.queries, bound=self.bound))
        return [(member, 1) for member in members]

    @property
    def climbed(self) -> str | None:
        return "margin"  # what never saturates, and every net has

    def _member(self, kind: type[BallAttack], **parameters: Any) -> BallAttack:
        return kind(self.epsilon, norm=self.norm, eot_samples=self.eot_samples, targeted=self.targeted, **parameters)

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        for attack, _ in self.rounds(target):
            attack.check_target(target, images)
