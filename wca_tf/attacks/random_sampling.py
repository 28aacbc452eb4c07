"""Random points of the ball. The worst one counts, and other attacks must beat it (criterion 4 of the paper)."""

from __future__ import annotations

import dataclasses

from wca_tf.attacks.attack import BallAttack
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.gradients import score_images
from wca_tf.core.lazily import tf
from wca_tf.core.options import option
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.batch import Batch, per_image
from wca_tf.nets.targets import Target


@dataclasses.dataclass(frozen=True)
class RandomSampling(BallAttack):
    """The worst of many uniform points of the ball: what other attacks must beat (criterion 4 of the paper).

    The worst has the least P(correct) over draws; the margin decides between equal probabilities.
    """

    points: int = option(10_000, "number of random points", quick=60)

    @property
    def passes(self) -> int:
        return self.points

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        draws = max(self.eot_samples, target.cheap_draws)
        worst = batch.images
        best = score_images(target, target.features(worst), batch, make_seed(0), draws)
        for point in tf.range(self.points):
            start = BALLS[self.norm].random_start(fold_in(seed, point), batch.indices, worst.shape[1:], epsilon)
            images = tf.clip_by_value(batch.images + start, 0.0, 1.0)
            found = score_images(target, target.features(images), batch, make_seed(0), draws)
            lower = found.better_for_attacker(best)
            worst, best = tf.where(per_image(lower), images, worst), found.where(lower, best)
        return worst
