"""The attacks' options, each declared once, and their names in `--attacks`. This module is free of TensorFlow.

The attacks of the paper have the paper's parameters (section 4.1), other attacks those of their authors. The method
`perturb` imports the module of the algorithm.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wca_tf.attacks.attack import OBJECTIVES, Attack, BallAttack, WorstCase
from wca_tf.core.options import option

if TYPE_CHECKING:
    import tensorflow as tf

    from wca_tf.attacks.batch import Batch
    from wca_tf.nets.targets import Target

BOUND = "an image is lost when its P(correct) is at most this"
EACH_STEP = "a step's length over epsilon"
TARGETED_OBJECTIVES = tuple(objective for objective in OBJECTIVES if objective != "log_error")


@dataclasses.dataclass(frozen=True)
class ProjectedGradient(BallAttack):
    """Steps of steepest ascent of an objective, projected to a ball and to [0, 1]."""

    objective: str = option("ce", "the loss that the steps increase", choices=OBJECTIVES)
    steps: int = option(10, "number of gradient steps")
    relative_step_size: float = option(0.1, EACH_STEP)
    random_start: bool = option(True, "begin at random in the ball, not at the image")

    @property
    def passes(self) -> int:
        return self.steps

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.attacks.projected_gradient import projected_gradient

        return projected_gradient(self, target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class SingleDraw(ProjectedGradient):
    """Projected gradient on the net that one draw gives; other draws judge. It overstates robustness: do not quote it.

    The draw of an image is the same in all steps. This is the protocol of CTRW, RPF and RNA, among others.
    """

    steps: int = option(20, "number of gradient steps")
    relative_step_size: float = option(0.25, EACH_STEP)

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.core.seeds import fold_in

        fixed = target.with_fixed_draw(fold_in(seed, 2), batch.indices)
        return super().perturb(fixed, batch, epsilon, seed)


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

    def rounds(self, target: "Target | None" = None) -> Sequence[tuple[BallAttack, int]]:
        return [(self.once, self.restarts)]

    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]":
        from wca_tf.core.seeds import fold_in

        if self.restarts == 1:
            # The seed of the first of several starts, so that more starts never make the attack weaker.
            return self.once.perturb(target, batch, epsilon, fold_in(seed, 0, 0))
        return super().perturb(target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class AutoPGD(BallAttack):
    """Auto-PGD: momentum, and a step size that halves itself; returns the iterate at which the net fails most."""

    objective: str = option("ce", "the loss that the steps increase", choices=OBJECTIVES)
    steps: int = option(100, "number of gradient steps", quick=20)
    rho: float = option(
        0.75, "a step size is halved when less than this share of its steps increased the objective", maximum=1
    )

    @property
    def passes(self) -> int:
        return self.steps + 1

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.attacks.auto_pgd import auto_pgd

        return auto_pgd(self, target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class AutoAttackRand(WorstCase):
    """AutoAttack's `rand`: Auto-PGD on cross-entropy, then on DLR."""

    steps: int = option(100, "number of gradient steps of each Auto-PGD", quick=20)
    rho: float = option(
        0.75, "a step size is halved when less than this share of its steps increased the objective", maximum=1
    )
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    def rounds(self, target: "Target | None" = None) -> Sequence[tuple[BallAttack, int]]:
        shared = {name: value for name, value in self.options().items() if name != "bound"}
        return [(AutoPGD(objective=objective, **shared), 1) for objective in ("ce", "dlr")]

    @property
    def gradient_objective(self) -> str:
        return "ce"  # the objective of its first attack


@dataclasses.dataclass(frozen=True)
class Adaptive(WorstCase):
    """The attack to quote: a cascade of attacks that know the defence, and one without gradients.

    The attacks run in this order, each on the images that the attacks before it did not break:

    1. z_margin; for a net whose logits are not Gaussian, the margin averaged over draws;
    2. Auto-PGD on DLR; for fewer than three classes (four when targeted), on the margin averaged over draws;
    3. projected gradient on the margin of the net without its noise;
    4. transfer from the net without its noise, by projected gradient on its DLR, or on its margin as in 2;
    5. Square.

    Where no net without noise is known, 3 and 4 are left out. For a net that has no noise, 4 is left out.
    """

    steps: int = option(40, "number of steps of each attack by projected gradient", quick=10)
    apgd_steps: int = option(100, "number of steps of Auto-PGD", quick=10)
    queries: int = option(1000, "number of queries of Square", quick=30)
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    def rounds(self, target: "Target | None" = None) -> Sequence[tuple[BallAttack, int]]:
        from wca_tf.nets.targets import has_noise, is_gaussian

        shared: dict[str, Any] = {"norm": self.norm, "eot_samples": self.eot_samples, "targeted": self.targeted}
        gaussian = target is None or is_gaussian(target)
        fewest = 4 if self.targeted else 3
        enough = target is None or (target.num_classes or fewest) >= fewest
        dlr = "dlr" if enough else "expected_margin"
        first = "z_margin" if gaussian else "expected_margin"
        members: list[BallAttack] = [
            ProjectedGradient(objective=first, steps=self.steps, **shared),
            AutoPGD(objective=dlr, steps=self.apgd_steps, **shared),
        ]
        if gaussian or getattr(target, "noise_free_logits", None):
            members.append(Transfer(source_objective="margin", steps=self.steps, **shared))
            if target is None or has_noise(target):
                members.append(Transfer(source_objective=dlr, steps=self.steps, **shared))
        members.append(Square(queries=self.queries, bound=self.bound, **shared))
        return [(member, 1) for member in members]

    @property
    def gradient_objective(self) -> str:
        return "margin"  # it never saturates, and every net has it


@dataclasses.dataclass(frozen=True)
class TowardsRival(ProjectedGradient):
    """Projected gradient towards one rival of the label: the class with the k-th largest logit, for each image."""

    rank: int = option(1, "k; 1 is the class with the largest logit, the label aside")

    @property
    def passes(self) -> int:
        return self.steps + 1  # one finds the class

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.attacks.projected_gradient import towards_rival

        return super().perturb(target, towards_rival(target, batch, self.rank, seed), epsilon, seed)


@dataclasses.dataclass(frozen=True)
class MultiTargeted(WorstCase):
    """Projected gradient towards each of the other classes, the likeliest first; the worst counts for each image.

    With `targeted`, towards the wanted class alone.
    """

    objective: str = option("margin", "the loss that the steps lower at the wanted class", choices=TARGETED_OBJECTIVES)
    steps: int = option(40, "number of gradient steps towards each class")
    relative_step_size: float = option(0.1, EACH_STEP)
    random_start: bool = option(True, "begin at random in the ball, not at the image")
    classes: int = option(9, "number of other classes to aim at, at most", quick=2)
    restarts: int = option(1, "number of starts for each class")
    bound: float = option(0.01, BOUND, minimum=0, maximum=1)

    def rounds(self, target: "Target | None" = None) -> Sequence[tuple[BallAttack, int]]:
        own = ("classes", "restarts", "bound")
        shared = {name: value for name, value in self.options().items() if name not in own}
        if self.targeted:
            return [(ProjectedGradient(**shared), self.restarts)]
        others = (target.num_classes if target and target.num_classes else self.classes + 1) - 1
        ranks = range(1, min(self.classes, others) + 1)
        return [(TowardsRival(rank=rank, **shared), self.restarts) for rank in ranks]

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        from wca_tf.attacks.objectives import check_objective, num_classes_of

        check_objective(self.objective, target, images, targeted=True)
        num_classes_of(target, images)


@dataclasses.dataclass(frozen=True)
class CarliniWagner(Attack):
    """The nearest image in l2 on which the net errs with confidence: ‖δ‖² + c max(margin + confidence, 0) is minimised.

    The margin is the negative of the objective: by default the mean over draws of h_y − max_j≠y h_j. An image counts as
    found when its margin is below −confidence. An image that is not found is returned unchanged. The draws are the same
    in every step, so that the test for success does not pick a step with lucky draws.
    """

    confidence: float = option(0.0, "κ, in logits (in standard deviations for objective z_margin)", minimum=0)
    objective: str = option(
        "expected_margin",
        "the margin to lower; `margin` is noise-free",
        choices=("expected_margin", "margin", "z_margin"),
    )
    steps: int = option(1000, "number of gradient steps of a search, at most", quick=100)
    learning_rate: float = option(5e-4, "learning rate of Adam, in tanh space", quick=0.03)
    initial_constant: float = option(1e-3, "the first weight c of the margin", quick=0.1)
    searches: int = option(9, "number of weights c that are tried", quick=5)

    @property
    def passes(self) -> int:
        return self.searches * self.steps

    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tuple[tf.Tensor, dict[str, tf.Tensor]]":
        from wca_tf.attacks.carlini_wagner import carlini_wagner

        return carlini_wagner(self, target, batch, seed)


@dataclasses.dataclass(frozen=True)
class NPixel(Attack):
    """At most `pixels` pixels in any colour, by differential evolution: a black box.

    Objective "probability" is the paper's protocol (section 4.1): the label's softmax probability, averaged over draws.
    The search for an image ends when its P(correct), over the same draws, is at most `bound`, or when its population
    has converged. On a net whose softmax saturates, the population converges at once. Objective "margin" is the margin
    of logits, averaged over draws; every image gets all generations.
    """

    pixels: int = option(1, "n, the largest number of pixels that change")
    objective: str = option("probability", "the quantity to minimise", choices=("probability", "margin"))
    population: int = option(400, "number of candidates for each image", minimum=4, quick=20)
    generations: int = option(1000, "largest number of generations of the evolution", quick=10)
    crossover: float = option(0.7, "the probability that a coordinate is the mutant's", minimum=0, maximum=1)
    mutation: float = option(0.5, "the weight of the difference of two candidates")
    bound: float = option(0.01, BOUND + "; not used by objective=margin", minimum=0, maximum=1)

    @property
    def gradient_objective(self) -> None:
        return None  # it has an objective, and no gradient

    @property
    def passes(self) -> int:
        return self.population * (self.generations + 1)

    def check_reach(self, adversarial: "tf.Tensor", images: "tf.Tensor", epsilon: float) -> None:
        from wca_tf.attacks.checks import check_result

        check_result(adversarial, images, "l0", self.pixels)

    def perturb(
        self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor"
    ) -> "tuple[tf.Tensor, dict[str, tf.Tensor]]":
        from wca_tf.attacks.n_pixel import n_pixel

        return n_pixel(self, target, batch, seed)


@dataclasses.dataclass(frozen=True)
class Square(BallAttack):
    """Random search over squares on the margin of logits, averaged over draws: a black box."""

    queries: int = option(5000, "number of proposals for each image", quick=60)
    initial_share: float = option(0.8, "p, the share of pixels that the first squares cover", maximum=1)
    bound: float = option(
        0.01,
        "an image is lost, and its search ends, when at most this share of `eot_samples` draws gives its label; other "
        "draws (1,000 where draws are cheap) must confirm it",
        minimum=0,
        maximum=1,
    )
    fresh: bool = option(False, "new draws for every proposal, as for the client of a server")

    @property
    def passes(self) -> int:
        return self.queries

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.attacks.square import square

        return square(self, target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class RandomSampling(BallAttack):
    """The worst of many uniform points of the ball: what other attacks must beat (criterion 4 of the paper)."""

    points: int = option(10_000, "number of random points", quick=60)

    @property
    def passes(self) -> int:
        return self.points

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.attacks.random_sampling import random_sampling

        return random_sampling(self, target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class Transfer(BallAttack):
    """Projected gradient on another net, tried on this one."""

    source: Any = option(
        "", "directory of the other net, in Python a target; empty: the attacked net without its noise"
    )
    source_objective: str = option("margin", "the loss that the steps increase on the source", choices=OBJECTIVES)
    steps: int = option(40, "number of gradient steps")
    relative_step_size: float = option(0.1, EACH_STEP)

    @property
    def passes(self) -> int:
        return self.steps

    def check_target(self, target: "Target", images: "tf.Tensor") -> None:
        from wca_tf.attacks.transfer import check_source

        check_source(self, target, images)

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.attacks.transfer import transfer

        return transfer(self, target, batch, epsilon, seed)


@dataclasses.dataclass(frozen=True)
class NamedAttack:
    """A name in `--attacks`.

    Attributes:
        kind: the class of the attack, which declares its options.
        description: the attack in a line.
        source: the publication.
        group: the group of the attack in tables.
        defaults: the options whose values differ from the defaults of the class.
    """

    kind: type[Attack]
    description: str
    source: str
    group: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def in_paper(self) -> bool:
        """Return whether the paper has this attack, with these defaults."""
        return self.group in (WHITE_BOX, BLACK_BOX) and self.kind is not RandomSampling


WHITE_BOX, BLACK_BOX, AUTO, ADAPTIVE, OTHER = "white box", "black box", "Auto-PGD", "strong", "other"
_MARGIN = {"steps": 40, "restarts": 1}
ATTACKS: dict[str, NamedAttack] = {
    "fgsm": NamedAttack(
        ProjectedGradient,
        "one step along the signs of the gradient",
        "Goodfellow et al., ICLR 2015",
        WHITE_BOX,
        {"steps": 1, "relative_step_size": 1.0, "random_start": False},
    ),
    "bim": NamedAttack(
        ProjectedGradient, "steps from the image", "Kurakin et al., ICLR 2017", WHITE_BOX, {"random_start": False}
    ),
    "pgd": NamedAttack(ProjectedGradient, "steps from a random start", "Madry et al., ICLR 2018", WHITE_BOX),
    "pgd_restarts": NamedAttack(RestartedPGD, "the worst of 100 PGDs: the paper's PGD_100", "the paper", WHITE_BOX),
    "cw": NamedAttack(CarliniWagner, "the nearest error in l2", "Carlini & Wagner, S&P 2017", WHITE_BOX),
    "n_pixel": NamedAttack(NPixel, "a few pixels, by differential evolution", "Su et al., IEEE TEC 2019", BLACK_BOX),
    "square": NamedAttack(Square, "random squares", "Andriushchenko et al., ECCV 2020", BLACK_BOX),
    "random_sampling": NamedAttack(
        RandomSampling, "10,000 random points of the ball", "Carlini et al., 2019", BLACK_BOX
    ),
    "apgd_ce": NamedAttack(AutoPGD, "Auto-PGD on cross-entropy", "Croce & Hein, ICML 2020", AUTO),
    "apgd_dlr": NamedAttack(AutoPGD, "Auto-PGD on DLR", "Croce & Hein, ICML 2020", AUTO, {"objective": "dlr"}),
    "auto_rand": NamedAttack(
        AutoAttackRand, "both Auto-PGDs: AutoAttack's rand", "Croce & Hein, ICML 2020", AUTO, {"eot_samples": 20}
    ),
    "margin": NamedAttack(
        RestartedPGD, "PGD on the margin without noise", "this project", ADAPTIVE, {"objective": "margin", **_MARGIN}
    ),
    "z_margin": NamedAttack(
        RestartedPGD,
        "PGD on the margin in standard deviations of the noise",
        "this project, after the paper's Theorem 1",
        ADAPTIVE,
        {"objective": "z_margin", **_MARGIN},
    ),
    "multi_targeted": NamedAttack(
        MultiTargeted, "PGD on the margin towards each other class", "Gowal et al., 2019", ADAPTIVE
    ),
    "transfer": NamedAttack(Transfer, "images made on another net", "Papernot et al., 2016", ADAPTIVE),
    "adaptive": NamedAttack(Adaptive, "the cascade to quote", "this project, after Tramèr et al., 2020", ADAPTIVE),
    "single_draw": NamedAttack(
        SingleDraw, "PGD on one draw; other draws judge: shows what that overstates", "Ma et al., NeurIPS 2023", OTHER
    ),
    "fgsm_rs": NamedAttack(
        ProjectedGradient,
        "one step of 1.25 ε from a random start: for fast adversarial training",
        "Wong et al., ICLR 2020",
        OTHER,
        {"steps": 1, "relative_step_size": 1.25},
    ),
}
