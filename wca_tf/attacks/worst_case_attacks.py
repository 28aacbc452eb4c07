"""Attacks that are the worst case of several: their options, each declared once. This module is free of TensorFlow."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wca_tf.attacks.attack import OBJECTIVES, Round, WorstCase
from wca_tf.attacks.bounded import Bounded, number_of_rivals
from wca_tf.attacks.gradient_attacks import EACH_STEP, HALVED, AutoPGD, ProjectedGradient, Transfer
from wca_tf.attacks.query_attacks import BOUND, Square
from wca_tf.core.options import option

if TYPE_CHECKING:
    import tensorflow as tf

    from wca_tf.attacks.batch import Batch
    from wca_tf.nets.targets import Target

TARGETED_OBJECTIVES = tuple(objective for objective in OBJECTIVES if objective != "log_error")
FREE_DRAWS = 50  # the least number of draws of a gradient where draws cost no pass
OTHER_CLASSES = "number of other classes to aim at, at most"


@dataclasses.dataclass(frozen=True)
class RestartedPGD(WorstCase):
    """Projected gradient from several random starts, of which the worst counts for each image.

    With one start the attack is `ProjectedGradient`: every image is attacked, and no results are compared.
    """

    objective: str = option("ce", "the loss that the steps increase", choices=OBJECTIVES)
    steps: int = option(10, "number of gradient steps of each start")
    relative_step_size: float = option(0.1, EACH_STEP)
    random_start: bool = option(True, "begin at random in the ball, not at the image")
    restarts: int = option(100, "number of starts; the worst image counts", quick=2)
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    @property
    def once(self) -> ProjectedGradient:
        """The attack from a single start."""
        shared = {name: value for name, value in self.options().items() if name not in ("restarts", "bound")}
        return ProjectedGradient(**shared)

    @property
    def passes(self) -> int:
        return self.steps if self.restarts == 1 else super().passes

    def rounds(self, target: "Target | None" = None) -> Sequence[Round]:
        return [Round(self.once, self.restarts)]

    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]":
        from wca_tf.core.seeds import fold_in

        if self.restarts == 1:
            # The seed of the first of several starts, so that more starts never make the attack weaker.
            return self.once.perturb(target, batch, epsilon, fold_in(seed, 0, 0))
        return super().perturb(target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class AutoAttackRand(WorstCase):
    """AutoAttack's `rand`: Auto-PGD on cross-entropy, then on DLR."""

    steps: int = option(100, "number of gradient steps of each Auto-PGD", quick=20)
    rho: float = option(0.75, HALVED, maximum=1)
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    def rounds(self, target: "Target | None" = None) -> Sequence[Round]:
        shared = {name: value for name, value in self.options().items() if name != "bound"}
        return [Round(AutoPGD(objective=objective, **shared)) for objective in ("ce", "dlr")]

    @property
    def gradient_objective(self) -> str:
        return "ce"  # the objective of its first attack


@dataclasses.dataclass(frozen=True)
class Adaptive(WorstCase):
    """The attack to quote: a cascade of attacks that know the defence, and one without gradients.

    The attacks run in this order, each on the images that the attacks before it did not break:

    1. z_margin; for a net whose logits are not Gaussian, the attacks of `bounded`: from several starts, and towards
       each of the likeliest other classes;
    2. Auto-PGD on DLR; for fewer than three classes (four when targeted), on the margin averaged over draws, or on the
       bounded margin for a net whose logits are not Gaussian;
    3. projected gradient on the margin of the net without its noise;
    4. the same towards each of the likeliest other classes, the likeliest first; not when targeted;
    5. transfer from the net without its noise, by projected gradient on its DLR, or on its margin as in 2;
    6. Square.

    Where no net without noise is known, 3, 4 and 5 are left out. For a net that has no noise, 5 is left out.
    """

    algorithm = 8  # 7 followed the mean margin over draws where noise is anywhere

    steps: int = option(40, "number of steps of each attack by projected gradient", quick=10)
    apgd_steps: int = option(100, "number of steps of Auto-PGD", quick=10)
    class_steps: int = option(20, "number of steps towards each other class", quick=3)
    classes: int = option(9, OTHER_CLASSES, quick=2)
    bounded_steps: int = option(80, "number of steps of `bounded`; half as many towards each class", minimum=2, quick=4)
    restarts: int = option(3, "number of starts of `bounded`")
    queries: int = option(1000, "number of queries of Square", quick=30)
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    def rounds(self, target: "Target | None" = None) -> Sequence[Round]:
        from wca_tf.nets.targets import has_noise, is_gaussian

        gaussian = target is None or is_gaussian(target)
        draws = max(self.eot_samples, FREE_DRAWS) if gaussian else self.eot_samples
        shared: dict[str, Any] = {"norm": self.norm, "eot_samples": draws, "targeted": self.targeted}
        fewest = 4 if self.targeted else 3
        enough = target is None or (target.num_classes or fewest) >= fewest
        dlr = "dlr" if enough else "expected_margin" if gaussian else "bounded"
        if gaussian:
            members = [Round(ProjectedGradient(objective="z_margin", steps=self.steps, **shared))]
        else:
            own: dict[str, Any] = {
                "steps": self.bounded_steps,
                "class_steps": self.bounded_steps // 2,
                "restarts": self.restarts,
            }
            members = list(Bounded(classes=self.classes, **own, **shared).rounds(target))
        members.append(Round(AutoPGD(objective=dlr, steps=self.apgd_steps, **shared)))
        rivals = 0 if self.targeted else number_of_rivals(self.classes, target)
        known = gaussian or getattr(target, "noise_free_logits", None) is not None
        if known:
            on_margin = Transfer(source_objective="margin", steps=self.steps, **shared)
            members.append(Round(on_margin))
            if rivals:
                members.append(Round(dataclasses.replace(on_margin, steps=self.class_steps), rivals=rivals))
        if known and (target is None or has_noise(target)):
            on_dlr = "dlr" if enough else "margin"
            members.append(Round(Transfer(source_objective=on_dlr, steps=self.steps, **shared)))
        members.append(Round(Square(queries=self.queries, bound=self.bound, **shared)))
        return members

    @property
    def gradient_objective(self) -> str:
        return "margin"  # it never saturates, and every net has it

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        from wca_tf.attacks.objectives import num_classes_of

        num_classes_of(target, images)
        for each in self.rounds(target):
            if not each.rivals:  # the same attack away from the label is checked
                each.attack.check_target(target, images)


@dataclasses.dataclass(frozen=True)
class MultiTargeted(WorstCase):
    """Projected gradient towards each of the other classes, the likeliest first; the worst counts for each image.

    With `targeted`, towards the wanted class alone.
    """

    algorithm = 5  # 4 ranked the classes by new draws for each attack

    objective: str = option("margin", "the loss that the steps lower at the wanted class", choices=TARGETED_OBJECTIVES)
    steps: int = option(40, "number of gradient steps towards each class")
    relative_step_size: float = option(0.1, EACH_STEP)
    random_start: bool = option(True, "begin at random in the ball, not at the image")
    classes: int = option(9, OTHER_CLASSES, quick=2)
    restarts: int = option(1, "number of starts for each class")
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    def rounds(self, target: "Target | None" = None) -> Sequence[Round]:
        own = ("classes", "restarts", "bound")
        shared = {name: value for name, value in self.options().items() if name not in own}
        if self.targeted:
            return [Round(ProjectedGradient(**shared), self.restarts)]
        return [Round(ProjectedGradient(**shared), self.restarts, number_of_rivals(self.classes, target))]

    @property
    def gradient_objective(self) -> str:
        # Towards another class, cross-entropy loses a term only where that class leads already.
        of_label = self.objective in ("ce", "ce_exact") and not self.targeted
        return "expected_margin" if of_label else self.objective

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        from wca_tf.attacks.objectives import check_objective, num_classes_of

        check_objective(self.objective, target, images, targeted=True)
        num_classes_of(target, images)
