"""Random points of the ball, of which the worst counts: what other attacks must beat (criterion 4 of the paper)."""

import dataclasses

import tensorflow as tf

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.batch import Batch, per_image
from wca_tf.attacks.gradients import survival
from wca_tf.attacks.target import Target
from wca_tf.seeds import fold_in, make_seed


@dataclasses.dataclass(frozen=True)
class RandomSampling(BallAttack):
    """The worst of several uniform points of the ball, judged by P(correct) over draws, then by the margin.

    Attributes:
        points: how many (Carlini et al., 2019: 10,000 or more).
    """

    points: int = 10_000

    @property
    def passes(self) -> int:
        return self.points

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = max(self.eot_samples, target.cheap_draws)
        worst = batch.images
        held = survival(target, target.features(worst), batch, make_seed(0), draws)
        for point in tf.range(self.points):
            start = BALLS[self.norm].random_start(fold_in(seed, point), batch.indices, worst.shape[1:], epsilon)
            images = tf.clip_by_value(batch.images + start, 0.0, 1.0)
            found = survival(target, target.features(images), batch, make_seed(0), draws)
            lower = found.below(held)
            worst, held = tf.where(per_image(lower), images, worst), found.where(lower, held)
        return worst
