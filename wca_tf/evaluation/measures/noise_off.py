"""The effect of the noise at test time: `noise_off` of results.json, the net without it under its own worst case."""

import dataclasses
from typing import Any

import tensorflow as tf

from wca_tf.attacks.radii import Radius
from wca_tf.core.errors import InputError
from wca_tf.data.batches import to_float
from wca_tf.evaluation.measures.measure import Context, Measure
from wca_tf.evaluation.trials import CLEAN_TRIAL, Trial, run_attacks, stored_outcome
from wca_tf.evaluation.worst_case import worst_case
from wca_tf.gaussian.intervals import Number
from wca_tf.nets.targets import AnyTarget, GaussianLogitsTarget, has_noise


class NoiseOff(Measure):
    """The attacks of the evaluation on the net without its noise, and the paired difference of the worst cases.

    Each net meets the worst case of its own: the attacks see the net that they attack. A difference of zero says that
    what is left is due to training, and that the noise at test time adds nothing.
    """

    name = "noise_off"

    def key(self, context: Context) -> Any:
        asked = context.config.noise_off or self.name in context.measured
        return context.attacks_key() if asked and _trials(context) and twin_of(context.target) else None

    def measure(self, context: Context) -> Any:
        twin, attacked, trials = twin_of(context.target), twin_of(context.attacked), _trials(context)
        assert twin is not None  # noqa: S101 the key says so
        suited = [trial for trial in trials if _is_suited(trial, twin, context)]
        records, examples, settings = context.records(self.name), context.examples, context.settings
        clean, *outcomes = run_attacks(twin, [CLEAN_TRIAL, *suited], examples, settings, records, attacked)
        rows = []
        for radius in dict.fromkeys(trial.radius for trial in suited if trial.radius):
            left = worst_case([clean, *(outcome for outcome in outcomes if outcome.radius == radius)])
            noisy = [outcome for outcome in context.outcomes[1:] if outcome.radius == radius]
            adds = worst_case([context.outcomes[0], *noisy]).less(left)
            row = {"norm": radius.norm, "epsilon": radius.epsilon, "worst_case": left.n_query_accuracy(1)}
            rows.append({**row, "noise_adds": adds})
        return {"clean": clean.judgement.n_query_accuracy(1), "radii": rows}

    def lines(self, results: dict[str, Any]) -> list[str]:
        lines = []
        for row in results[self.name]["radii"]:
            left, adds = Number.of(row["worst_case"]), Number.of(row["noise_adds"])
            lines.append(
                f"noise off at {Radius(row['epsilon'], row['norm']).text}: {left.with_interval()} in the worst case of "
                f"that net; the noise adds {adds.with_interval(signed=True)} points at test time"
            )
        return lines


def twin_of(target: AnyTarget) -> AnyTarget | None:
    """Return the net without its noise; `None` where no such net is known, or where the net has no noise."""
    if isinstance(target, GaussianLogitsTarget):
        return target.without_noise() if target.has_noise else None
    if target.noise_free_logits is None or target.num_classes is None or not has_noise(target):
        return None
    scale = tf.zeros([target.num_classes, 1])
    return GaussianLogitsTarget(tf.identity, target.noise_free_logits, scale, has_noise=False)


def _trials(context: Context) -> list[Trial]:
    """Return the attacks with a radius; one draw is enough for a net without noise."""
    in_balls = [(trial.attack, trial.radius) for trial in context.trials if trial.attack and trial.radius]
    return [Trial(dataclasses.replace(attack, eot_samples=1), radius) for attack, radius in in_balls]


def _is_suited(trial: Trial, twin: AnyTarget, context: Context) -> bool:
    """Return whether an attack of a noisy net can attack its twin too, or has done so."""
    if stored_outcome(context.records(NoiseOff.name), trial, None) is not None:
        return True
    image = to_float(tf.constant(context.examples.images[:1]))
    try:
        if trial.attack:
            trial.attack.loaded().check_target(twin, image)
    except InputError:
        return False
    return True
