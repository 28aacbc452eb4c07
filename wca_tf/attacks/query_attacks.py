"""Attacks that see answers alone, no gradient: their options, each declared once. This module is free of TensorFlow."""

import dataclasses
from typing import TYPE_CHECKING

from wca_tf.attacks.attack import Attack, BallAttack
from wca_tf.core.options import option

if TYPE_CHECKING:
    import tensorflow as tf

    from wca_tf.attacks.batch import Batch
    from wca_tf.nets.targets import Target

BOUND = "an image is lost when its P(correct) is at most this"


@dataclasses.dataclass(frozen=True)
class NPixel(Attack):
    """At most `pixels` pixels in any colour, by differential evolution: a black box.

    Objective "probability" is the paper's protocol (section 4.1): the label's softmax probability, averaged over draws.
    The search for an image ends when its P(correct), over the same draws and over others, is at most `bound`, or when
    its population has converged. On a net whose softmax saturates, the population converges at once. Objective "margin"
    is the margin of logits, averaged over draws; every image gets all generations.
    """

    algorithm = 4  # 3 did not confirm by other draws that an image is lost

    pixels: int = option(1, "n, the largest number of pixels that change", maximum=100)
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
    """Random search over squares: first on the share of draws in which the net errs, then on the bounded margin."""

    algorithm = 4  # 3 compared proposals by the mean margin over draws

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
