"""The attacker who knows the draw: `known_draws` of results.json, "one sampled net" in the literature.

Under a fixed draw the net is deterministic, and the same draw judges. An attacker who knows the draw can do no worse
than one who does not, unless gradients are bad even without randomness (Carlini et al., 2019).
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks import Attack
from wca_tf.attacks.radii import Radius
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.evaluation.measures.criteria import STANDARD
from wca_tf.evaluation.measures.measure import Context, Measure
from wca_tf.evaluation.measures.planted_examples import checked_radius, in_norm
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.trials import Settings, run_attacks, trial_of
from wca_tf.gaussian.intervals import Number, design_effect_over_draws, mean_with_interval
from wca_tf.nets.targets import AnyTarget, has_noise, is_reproducible

IMAGES = 100
DRAWS = 8  # with a single draw, the mean over images deviates by about two points


class KnownDraws(Measure):
    """The accuracy of the net under each of 8 draws that the attack knows, on the first 100 images."""

    name = "known_draws"

    def key(self, context: Context) -> Any:
        asked = context.config.known_draws or context.config.checklist
        if not asked or not has_noise(context.target):
            return None
        trial_versions = in_norm(STANDARD, _radius(context).norm or "linf", 1).version
        return {"attack": STANDARD, "radius": _radius(context).text, "version": trial_versions}

    def measure(self, context: Context) -> Any:
        found, radius = known_draws(context), _radius(context)
        row: dict[str, Any] = {"attack": STANDARD, "norm": radius.norm, "epsilon": radius.epsilon, "accuracy": None}
        if found:  # a draw can be known
            hits = np.stack([outcome.judgement.probability_correct > 0.5 for outcome in found], axis=1)
            row["accuracy"] = mean_with_interval(hits.mean(axis=1), design_effect_over_draws(hits, 1, True))
            row |= {"images": len(hits), "draws": DRAWS}
        return row

    def lines(self, results: dict[str, Any]) -> list[str]:
        row = results[self.name]
        if row["accuracy"] is None:
            return []
        left = Number.of(row["accuracy"]).with_interval()
        return [
            f"{row['attack']} at epsilon {row['epsilon']:.4g} leaves {left} when it knows the draw: mean over "
            f"{row['draws']} draws and {row['images']} images"
        ]


def known_draws(context: Context) -> list[Outcome]:
    """Return the outcome of the checklist's standard attack under each known draw; empty where none can be known."""
    radius, examples = _radius(context), context.examples.take(slice(0, IMAGES))
    attack = in_norm(STANDARD, radius.norm or "linf", context.config.eot_samples)
    records = context.records(KnownDraws.name)
    return attack_fixed_draws(context.target, attack, radius.epsilon, examples, context.settings, records)


def _radius(context: Context) -> Radius:
    return checked_radius(context.config)


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
