"""Several attacks on the same image; the worst result counts: restarts of PGD, AutoAttack's rand, and `adaptive`."""

import tensorflow as tf

from wca_tf.attacks.attack import WorstCase
from wca_tf.attacks.batch import Batch, per_image, replace_rows
from wca_tf.attacks.gradients import Survival, deciding_draws, survival
from wca_tf.attacks.projected_gradient import likeliest_rivals
from wca_tf.core.seeds import fold_in, make_seed
from wca_tf.nets.passes import announce
from wca_tf.nets.targets import Target, open_rows


def worst_of_rounds(attack: WorstCase, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return the worst of the results of all rounds and the image itself, for each image.

    Runs inside a graph, like `Attack.perturb`.
    """
    draws = deciding_draws(target, attack.eot_samples)

    def survive(images: tf.Tensor, part: Batch) -> Survival:
        return survival(target, target.features(images), part, make_seed(0), draws)

    worst = batch.images
    held = survive(worst, batch)
    first = 0  # the number of the member, each rival counted
    # One ranking for all: under new draws a class could be aimed at twice, and another never.
    ranking = fold_in(seed, 0)
    turn, in_play = 0, tf.constant(0)  # for the progress bar
    for member, times, rivals in attack.rounds(target):
        for time in tf.range(times * max(rivals, 1)):
            before, in_play = in_play, tf.math.count_nonzero(held.probability > attack.bound, dtype=tf.int32)
            announce(turn + time, in_play - before)
            rows = open_rows(target, held.probability > attack.bound)
            if tf.size(rows) > 0:
                part, part_seed = batch.take(rows), fold_in(seed, first + time // times, time % times)
                aimed = part
                if rivals:
                    aimed = part._replace(targets=likeliest_rivals(target, part, ranking)[:, time // times])
                found = member.perturb(target, aimed, epsilon, part_seed)
                now, earlier = survive(found, part), held.take(rows)
                lower = now.below(earlier) & (earlier.probability > attack.bound)
                kept = tf.where(per_image(lower), found, tf.gather(worst, rows))
                worst = replace_rows(worst, rows, kept)
                held = held.replace(rows, now.where(lower, earlier))
        first += max(rivals, 1)
        turn += times * max(rivals, 1)
    announce(turn, -in_play)
    return worst
