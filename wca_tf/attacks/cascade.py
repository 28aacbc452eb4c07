"""Several attacks on the same image; the worst result counts: restarts of PGD, AutoAttack's rand, and `adaptive`."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from wca_tf.attacks.attack import BOUND, BallAttack
from wca_tf.attacks.auto_pgd import HALVED, AutoPGD
from wca_tf.attacks.gradients import Score, num_scoring_draws, score_images
from wca_tf.attacks.objectives import OBJECTIVES, check_objective, num_classes_of
from wca_tf.attacks.pgd import EACH_STEP, MomentumPGD, ProjectedGradient
from wca_tf.attacks.square import Square
from wca_tf.attacks.transfer import Transfer
from wca_tf.core.lazily import tf
from wca_tf.core.options import option
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.batch import Batch, per_image, replace_rows
from wca_tf.nets.mixture_target import mean_of_draws
from wca_tf.nets.passes import announce
from wca_tf.nets.targets import Target, active_rows, has_noise, is_gaussian

RANKING_DRAWS = 8  # that decide the order of classes to aim at
TARGETED_OBJECTIVES = tuple(objective for objective in OBJECTIVES if objective != "log_error")
FREE_DRAWS = 50  # the least number of draws of a gradient where draws cost no pass
OTHER_CLASSES = "number of other classes to aim at, at most"


class Stage(NamedTuple):
    """A member of a worst case.

    Attributes:
        attack: the attack.
        restarts: how many times it runs, with other random numbers each time.
        target_classes: 0 to move away from the label; k to run `restarts` times towards each of k other classes, the
            class of the largest logit first.
    """

    attack: BallAttack
    restarts: int = 1
    target_classes: int = 0

    @property
    def passes(self) -> int:
        """The number of passes of an image that survives: of the attack, one to judge, and one to rank the classes."""
        return (self.attack.passes + 1 + (self.target_classes > 0)) * self.restarts * max(self.target_classes, 1)


class WorstCase(BallAttack):
    """Several rounds of attacks: each image keeps its worst result, and an image that is lost gets no more rounds."""

    version = 4

    stop_at: float

    @abc.abstractmethod
    def stages(self, target: Target | None = None) -> Sequence[Stage]:
        """Return the attacks to run on a target, in this order; without a target, in general."""

    @property
    def passes(self) -> int:
        return sum(each.passes for each in self.stages())

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the worst of the results of all rounds and the image itself, for each image."""
        draws = num_scoring_draws(target, self.eot_samples)

        def score(images: tf.Tensor, part: Batch) -> Score:
            return score_images(target, target.features(images), part, make_seed(0), draws)

        worst = batch.images
        best = score(worst, batch)
        first = 0  # the number of the run, one for each target class
        # One ranking for all: under new draws a class could be aimed at twice, and another never.
        ranking = fold_in(seed, 0)
        turn, in_play = 0, tf.constant(0)  # for the progress bar
        for member, restarts, other_classes in self.stages(target):
            for time in tf.range(restarts * max(other_classes, 1)):
                in_play_before, in_play = in_play, tf.math.count_nonzero(best.p_correct > self.stop_at, dtype=tf.int32)
                with tf.control_dependencies(announce(turn + time, in_play - in_play_before)):
                    rows = active_rows(target, best.p_correct > self.stop_at)
                if tf.size(rows) > 0:
                    part, part_seed = batch.take(rows), fold_in(seed, first + time // restarts, time % restarts)
                    aimed = part
                    if other_classes:
                        ranked = likeliest_other_classes(target, part, ranking)
                        aimed = part._replace(targets=ranked[:, time // restarts])
                    found = member.perturb(target, aimed, epsilon, part_seed)
                    new, previous = score(found, part), best.take(rows)
                    lower = new.better_for_attacker(previous) & (previous.p_correct > self.stop_at)
                    kept = tf.where(per_image(lower), found, tf.gather(worst, rows))
                    worst = replace_rows(worst, rows, kept)
                    best = best.replace(rows, new.where(lower, previous))
            first += max(other_classes, 1)
            turn += restarts * max(other_classes, 1)
        with tf.control_dependencies([best.p_correct]):  # the number in play is known before the last attack begins
            announce(turn, -in_play)
        return worst

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        for each in self.stages(target):
            each.attack.check_target(target, images)


@dataclasses.dataclass(frozen=True)
class RestartedPGD(WorstCase):
    """Projected gradient from several random starts, of which the worst counts for each image.

    With one start the attack is `ProjectedGradient`: every image is attacked, and no results are compared.
    """

    objective: str = option("ce", "the loss that the steps increase", choices=tuple(OBJECTIVES))
    steps: int = option(10, "number of gradient steps of each start")
    relative_step_size: float = option(0.1, EACH_STEP)
    random_start: bool = option(True, "begin at random in the ball, not at the image")
    restarts: int = option(100, "number of starts; the worst image counts", quick=2)
    stop_at: float = option(0.01, BOUND, minimum=0, maximum=1)

    @property
    def once(self) -> ProjectedGradient:
        """The attack from a single start."""
        shared = {name: value for name, value in self.options().items() if name not in ("restarts", "stop_at")}
        return ProjectedGradient(**shared)

    @property
    def passes(self) -> int:
        return self.steps if self.restarts == 1 else super().passes

    def stages(self, target: Target | None = None) -> Sequence[Stage]:
        return [Stage(self.once, self.restarts)]

    def perturb(
        self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]:
        if self.restarts == 1:
            # The seed of the first of several starts, so that more starts never make the attack weaker.
            return self.once.perturb(target, batch, epsilon, fold_in(seed, 0, 0))
        return super().perturb(target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class AutoAttackRand(WorstCase):
    """AutoAttack's `rand`: Auto-PGD on cross-entropy, then on DLR."""

    steps: int = option(100, "number of gradient steps of each Auto-PGD", quick=20)
    rho: float = option(0.75, HALVED, maximum=1)
    stop_at: float = option(0.01, BOUND, minimum=0, maximum=1)

    def stages(self, target: Target | None = None) -> Sequence[Stage]:
        shared = {name: value for name, value in self.options().items() if name != "stop_at"}
        return [Stage(AutoPGD(objective=objective, **shared)) for objective in ("ce", "dlr")]

    @property
    def gradient_objective(self) -> str:
        return "ce"  # the objective of its first attack


@dataclasses.dataclass(frozen=True)
class Bounded(WorstCase):
    """Projected gradient on the bounded margin: from the image, from random starts, and towards each other class."""

    version = 1

    steps: int = option(80, "number of gradient steps away from the label, from each start", quick=5)
    class_steps: int = option(40, "number of gradient steps towards each other class", quick=3)
    classes: int = option(9, "number of other classes to aim at, at most", quick=2)
    restarts: int = option(5, "number of starts; the first is the image", quick=2)
    stop_at: float = option(0.01, BOUND, minimum=0, maximum=1)

    @property
    def gradient_objective(self) -> str:
        return "bounded"

    def stages(self, target: Target | None = None) -> Sequence[Stage]:
        shared: dict[str, Any] = {"norm": self.norm, "eot_samples": self.eot_samples, "targeted": self.targeted}
        ascent = MomentumPGD(steps=self.steps, **shared)
        stages = [Stage(ascent)]
        if self.restarts > 1:
            stages.append(Stage(dataclasses.replace(ascent, random_start=True), self.restarts - 1))
        other_classes = number_of_other_classes(self.classes, target)
        if other_classes > 1 and not self.targeted:
            stages.append(Stage(dataclasses.replace(ascent, steps=self.class_steps), target_classes=other_classes))
        return stages


@dataclasses.dataclass(frozen=True)
class Adaptive(WorstCase):
    """The attack to quote: a cascade of attacks that know the defence, and one without gradients.

    The attacks run in this order, each on the images that the attacks before it did not break:

    1. z_margin; for a net whose logits are not Gaussian, the attacks of `bounded`, from several starts and towards each
       of the likeliest other classes, and one on the margin averaged over draws;
    2. Auto-PGD on DLR; for fewer than three classes (four when targeted), on the margin averaged over draws, or on the
       bounded margin for a net whose logits are not Gaussian;
    3. projected gradient on the margin of the net without its noise;
    4. the same towards each of the likeliest other classes, the likeliest first; not when targeted;
    5. transfer from the net without its noise, by projected gradient on its DLR, or on its margin as in 2;
    6. Square.

    Where no net without noise is known, 3, 4 and 5 are left out. For a net that has no noise, 5 is left out.
    """

    version = 9  # 8 had no mean margin over draws where noise is anywhere

    steps: int = option(40, "number of steps of each attack by projected gradient", quick=10)
    apgd_steps: int = option(100, "number of steps of Auto-PGD", quick=10)
    class_steps: int = option(20, "number of steps towards each other class", quick=3)
    classes: int = option(9, OTHER_CLASSES, quick=2)
    bounded_steps: int = option(80, "number of steps of `bounded`; half as many towards each class", minimum=2, quick=4)
    restarts: int = option(3, "number of starts of `bounded`")
    queries: int = option(1000, "number of queries of Square", quick=30)
    stop_at: float = option(0.01, BOUND, minimum=0, maximum=1)

    def stages(self, target: Target | None = None) -> Sequence[Stage]:
        gaussian = target is None or is_gaussian(target)
        draws = max(self.eot_samples, FREE_DRAWS) if gaussian else self.eot_samples
        shared: dict[str, Any] = {"norm": self.norm, "eot_samples": draws, "targeted": self.targeted}
        fewest = 4 if self.targeted else 3
        enough = target is None or (target.num_classes or fewest) >= fewest
        dlr = "dlr" if enough else "expected_margin" if gaussian else "bounded"
        if gaussian:
            members = [Stage(ProjectedGradient(objective="z_margin", steps=self.steps, **shared))]
        else:
            own: dict[str, Any] = {
                "steps": self.bounded_steps,
                "class_steps": self.bounded_steps // 2,
                "restarts": self.restarts,
            }
            mean_margin = MomentumPGD(objective="expected_margin", steps=self.bounded_steps, **shared)
            members = [*Bounded(classes=self.classes, **own, **shared).stages(target), Stage(mean_margin)]
        members.append(Stage(AutoPGD(objective=dlr, steps=self.apgd_steps, **shared)))
        other_classes = 0 if self.targeted else number_of_other_classes(self.classes, target)
        known = gaussian or getattr(target, "noise_free_logits", None) is not None
        if known:
            on_margin = Transfer(source_objective="margin", steps=self.steps, **shared)
            members.append(Stage(on_margin))
            if other_classes:
                shorter = dataclasses.replace(on_margin, steps=self.class_steps)
                members.append(Stage(shorter, target_classes=other_classes))
        if known and (target is None or has_noise(target)):
            on_dlr = "dlr" if enough else "margin"
            members.append(Stage(Transfer(source_objective=on_dlr, steps=self.steps, **shared)))
        members.append(Stage(Square(queries=self.queries, stop_at=self.stop_at, **shared)))
        return members

    @property
    def gradient_objective(self) -> str:
        return "margin"  # it never saturates, and every net has it

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        num_classes_of(target, images)
        for each in self.stages(target):
            if not each.target_classes:  # the same attack away from the label is checked
                each.attack.check_target(target, images)


@dataclasses.dataclass(frozen=True)
class MultiTargeted(WorstCase):
    """Projected gradient towards each of the other classes, the likeliest first; the worst counts for each image.

    With `targeted`, towards the wanted class alone.
    """

    version = 5  # 4 ranked the classes by new draws for each attack

    objective: str = option("margin", "the loss that the steps lower at the wanted class", choices=TARGETED_OBJECTIVES)
    steps: int = option(40, "number of gradient steps towards each class")
    relative_step_size: float = option(0.1, EACH_STEP)
    random_start: bool = option(True, "begin at random in the ball, not at the image")
    classes: int = option(9, OTHER_CLASSES, quick=2)
    restarts: int = option(1, "number of starts for each class")
    stop_at: float = option(0.01, BOUND, minimum=0, maximum=1)

    def stages(self, target: Target | None = None) -> Sequence[Stage]:
        own = ("classes", "restarts", "stop_at")
        shared = {name: value for name, value in self.options().items() if name not in own}
        if self.targeted:
            return [Stage(ProjectedGradient(**shared), self.restarts)]
        return [Stage(ProjectedGradient(**shared), self.restarts, number_of_other_classes(self.classes, target))]

    @property
    def gradient_objective(self) -> str:
        # Towards another class, cross-entropy loses a term only where that class leads already.
        of_label = self.objective in ("ce", "ce_exact") and not self.targeted
        return "expected_margin" if of_label else self.objective

    def check_target(self, target: Target, images: tf.Tensor) -> None:
        check_objective(self.objective, target, images, targeted=True)
        num_classes_of(target, images)


def number_of_other_classes(classes: int, target: Target | None) -> int:
    """Return the number of other classes to aim at: all of the target, `classes` at most."""
    return min(classes, target.num_classes - 1) if target and target.num_classes else classes


def likeliest_other_classes(target: Target, batch: Batch, seed: tf.Tensor) -> tf.Tensor:
    """Return the classes other than the label of each image, int64 [B, C − 1], the largest logit first.

    The logits are those of the unperturbed images without noise; of a net with noise anywhere, the mean of a few draws.
    """
    features = target.features(batch.images)
    if is_gaussian(target):
        logits = target.noise_free_logits(features)
    else:
        logits = mean_of_draws(target, target.logits(features, seed, RANKING_DRAWS, batch.indices))
    is_label = tf.one_hot(batch.labels, logits.shape[-1], on_value=True, off_value=False, dtype=tf.bool)
    order = tf.argsort(tf.where(is_label, -tf.constant(math.inf, logits.dtype), logits), direction="DESCENDING")
    return tf.cast(order[:, :-1], tf.int64)
