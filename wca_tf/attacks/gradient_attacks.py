"""Attacks that follow the gradient: their options, each declared once. This module is free of TensorFlow.

The attacks of the paper have the paper's parameters (section 4.1), and Auto-PGD those of its authors. The method
`perturb` imports the module of the algorithm.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from wca_tf.attacks.attack import OBJECTIVES, SHARPNESS, Attack, BallAttack
from wca_tf.core.options import option

if TYPE_CHECKING:
    import tensorflow as tf

    from wca_tf.attacks.batch import Batch
    from wca_tf.nets.targets import Target

EACH_STEP = "a step's length over epsilon"
HALVED = "a step size is halved when at most this share of its steps increased the objective"


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

    def schedule(self, step: "tf.Tensor") -> "tuple[float | tf.Tensor, float | tf.Tensor]":
        """Return the length of a step over epsilon, and the sharpness of the bounded margin."""
        return self.relative_step_size, SHARPNESS

    def direction(self, previous: "tf.Tensor", gradient: "tf.Tensor") -> "tf.Tensor":
        """Return the direction of a step [B, H, W, channels], from the previous direction and the gradient."""
        return gradient

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
class AutoPGD(BallAttack):
    """Auto-PGD: momentum, and a step size that halves itself; returns the iterate at which the net fails most."""

    algorithm = 4

    objective: str = option("ce", "the loss that the steps increase", choices=OBJECTIVES)
    steps: int = option(100, "number of gradient steps", quick=20)
    rho: float = option(0.75, HALVED, maximum=1)

    @property
    def passes(self) -> int:
        return self.steps + 1

    def perturb(self, target: "Target", batch: "Batch", epsilon: "tf.Tensor", seed: "tf.Tensor") -> "tf.Tensor":
        from wca_tf.attacks.auto_pgd import auto_pgd

        return auto_pgd(self, target, batch, epsilon, seed)


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
