"""Attacks on a net whose noise draw is known. Under a fixed draw the net is deterministic. The same draw judges.

An attacker who knows the draw can do no worse than one who does not, unless gradients are bad even without randomness
(Carlini et al., 2019).
"""

import dataclasses
from pathlib import Path

import tensorflow as tf

from wca_tf.attacks import Attack
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.trials import Settings, run_attacks, trial_of
from wca_tf.nets.targets import AnyTarget, has_noise, is_reproducible

DRAWS = 8  # with a single draw, the mean over images deviates by about two points


def attack_fixed_draws(
    target: AnyTarget, attack: Attack, epsilon: float, examples: Examples, settings: Settings, records: Path
) -> list[Outcome]:
    """Return the attack's outcome on the net under each of 8 draws; an empty list when no draw can be known.

    All draws share a graph. Each draw has a directory of records, `records`/NUMBER, from which it continues.
    """
    seeds = draw_seeds(settings)
    seed = tf.Variable(seeds[0], trainable=False)
    fixed = target.with_fixed_draw(seed)
    if not has_noise(target) or not is_reproducible(fixed, to_float(tf.constant(examples.images[:4]))):
        return []
    once = trial_of(dataclasses.replace(attack, eot_samples=1), epsilon)  # all draws of a deterministic net are alike
    outcomes = []
    for number, drawn in enumerate(seeds):
        seed.assign(drawn)
        outcomes += run_attacks(fixed, [once], examples, settings, records / str(number))
    return outcomes


def draw_seeds(settings: Settings) -> list[tf.Tensor]:
    """Return the seed of each draw that `attack_fixed_draws` knows, for `with_fixed_draw`."""
    return [fold_in(make_seed(settings.seed), Purpose.KNOWN_DRAW, number) for number in range(DRAWS)]
