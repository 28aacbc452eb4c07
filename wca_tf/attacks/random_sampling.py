"""Random points of the ball. The worst one counts, and other attacks must beat it (criterion 4 of the paper)."""

import tensorflow as tf

from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.batch import Batch, per_image
from wca_tf.attacks.gradients import survival
from wca_tf.attacks.query_attacks import RandomSampling
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.targets import Target


def random_sampling(
    attack: RandomSampling, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Return the worst of uniform points and the image itself, for each image.

    The worst has the least P(correct) over draws; the margin decides between equal probabilities. Runs inside a graph,
    like `Attack.perturb`.
    """
    draws = max(attack.eot_samples, target.cheap_draws)
    worst = batch.images
    held = survival(target, target.features(worst), batch, make_seed(0), draws)
    for point in tf.range(attack.points):
        start = BALLS[attack.norm].random_start(fold_in(seed, point), batch.indices, worst.shape[1:], epsilon)
        images = tf.clip_by_value(batch.images + start, 0.0, 1.0)
        found = survival(target, target.features(images), batch, make_seed(0), draws)
        lower = found.below(held)
        worst, held = tf.where(per_image(lower), images, worst), found.where(lower, held)
    return worst
