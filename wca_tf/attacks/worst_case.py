"""Several attacks on the same image, of which the one counts that succeeds: restarts of PGD, and AutoAttack's rand."""

import abc
import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.auto_pgd import AutoPGD
from wca_tf.attacks.batch import Batch, per_image, replace_rows
from wca_tf.attacks.gradients import Survival, survival
from wca_tf.attacks.projected_gradient import ProjectedGradient
from wca_tf.attacks.target import Target
from wca_tf.seeds import fold_in, make_seed


@dataclasses.dataclass(frozen=True)
class WorstCase(BallAttack):
    """Per image, the worst of several rounds; rounds are not spent on images that are lost already.

    Attributes:
        bound: an image is lost when its P(correct) is at most this.
    """

    bound: float = dataclasses.field(default=0.01, metadata={"zero": True, "largest": 1.0})

    @abc.abstractmethod
    def rounds(self) -> Sequence[tuple[BallAttack, int]]:
        """The attacks, and how often each is run."""

    @property
    def passes(self) -> int:
        return sum((attack.passes + 1) * times for attack, times in self.rounds())

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = max(self.eot_samples, target.cheap_draws)

        def survive(images: tf.Tensor, part: Batch) -> Survival:
            return survival(target, target.features(images), part, make_seed(0), draws)

        worst = batch.images
        held = survive(worst, batch)
        for number, (attack, times) in enumerate(self.rounds()):
            for time in tf.range(times):
                rows = tf.where(held.probability > self.bound)[:, 0]
                if tf.size(rows) > 0:
                    part = batch.take(rows)
                    found = attack.perturb(target, part, epsilon, fold_in(seed, number, time))
                    now, before = survive(found, part), held.take(rows)
                    lower = now.below(before)
                    kept = tf.where(per_image(lower), found, tf.gather(worst, rows))
                    worst = replace_rows(worst, rows, kept)
                    held = held.replace(rows, now.where(lower, before))
        return worst


@dataclasses.dataclass(frozen=True)
class RestartedPGD(WorstCase):
    """PGD from several random starts (paper: PGD_100, 100 restarts); parameters as for `ProjectedGradient`."""

    objective: str = "ce"
    steps: int = 10
    relative_step_size: float = 0.1
    restarts: int = 100

    def rounds(self) -> Sequence[tuple[BallAttack, int]]:
        once = ProjectedGradient(
            self.epsilon,
            self.objective,
            self.steps,
            self.relative_step_size,
            norm=self.norm,
            eot_samples=self.eot_samples,
            targeted=self.targeted,
        )
        return [(once, self.restarts)]


@dataclasses.dataclass(frozen=True)
class AutoAttackRand(WorstCase):
    """AutoAttack's `rand` (Croce & Hein, ICML 2020): Auto-PGD on cross-entropy, then on DLR, with EoT over 20 draws."""

    eot_samples: int = dataclasses.field(default=20, kw_only=True)
    steps: int = 100
    rho: float = dataclasses.field(default=0.75, metadata={"largest": 1.0})

    def rounds(self) -> Sequence[tuple[BallAttack, int]]:
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
        for attack, _ in self.rounds():
            attack.check_target(target, images)
