"""The plan of an evaluation: the attacks that its directory lists, those that are asked for, and what is done."""

import contextlib
import dataclasses
import io
from pathlib import Path
from typing import Any

from wca_tf.attacks import Attack, parse_attack
from wca_tf.core.errors import InputError
from wca_tf.core.own_modules import check_imported, module_of
from wca_tf.core.paths import expand_user
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.derive import DERIVED
from wca_tf.evaluation.identity import entry_key
from wca_tf.evaluation.measures.measure import Context, Measure, is_due, read_measured
from wca_tf.evaluation.outcomes import RECORDS, load_outcome, record_path
from wca_tf.evaluation.trials import CLEAN_TRIAL, Trial, stored_outcome, trial_of
from wca_tf.runs.model_dir import ModelDirectory


def trials_of(config: EvaluateConfig) -> list[Trial]:
    """Return each attack at each radius of its norm, then the attacks without a radius, in the order given."""
    trials = [trial_of(attack, epsilon) for attack, epsilon in config.attacks_with_radii()]
    return trials + [Trial(attack, None) for attack in config.parsed_attacks if not attack.has_radius]


def planned(report: Path, stored: dict[str, Any] | None, config: EvaluateConfig) -> list[Trial]:
    """Return the attacks of the directory and the attacks asked for, once each.

    The attacks of a radius are together, and the attacks without a radius are last. An attack that was not finished is
    left out where it is not asked for.
    """
    described: dict[str, Any] = stored or {"attacks": [], "num_examples": 0}
    kept = [_kept(report, entry, config, described["num_examples"]) for entry in described["attacks"]]
    unique = list(dict.fromkeys([*filter(None, kept), *trials_of(config)]))
    radii = dict.fromkeys(trial.radius for trial in unique if trial.radius)
    return [trial for radius in (*radii, None) for trial in unique if trial.radius == radius]


def _kept(report: Path, entry: dict[str, Any], config: EvaluateConfig, num_examples: int) -> Trial | None:
    """Return a listed attack; `None` where it was not finished, or is old and cannot be made again."""
    name, radius = entry_key(entry)
    trial = known_trial(entry, config)
    if trial in trials_of(config):
        return trial
    path = record_path(report / RECORDS, name, radius)
    with contextlib.redirect_stdout(io.StringIO()):  # `run_attacks` says what is made again
        outcome = load_outcome(report / RECORDS, name, radius)
    if outcome is None or len(outcome) < num_examples:
        return trial if path.exists() and outcome is None else None
    source = entry["options"].get("source")
    if trial.matches(outcome.config) or not source or ModelDirectory(expand_user(source)).best.exists():
        return trial
    print(f"left out: {name}, which is of an older version, and whose source is no longer there")
    return None


def known_trial(entry: dict[str, Any], config: EvaluateConfig) -> Trial:
    """Return the trial of a listed attack.

    Raises:
        InputError: an attack that is not known here, or whose module is not imported.
    """
    name, radius = entry_key(entry)
    asked: dict[str, Attack] = {attack.name: attack for attack in config.parsed_attacks}
    asked |= {attack.name: attack for attack, _ in config.attacks_with_radii()}  # an object may not be importable
    try:
        if name in asked:
            return Trial(asked[name], radius)
        check_imported([module_of(name)], "evaluation.json")
        attack = parse_attack(name, eot_samples=config.eot_samples)
        options = {option: value for option, value in entry["options"].items() if option in attack.options()}
        return Trial(dataclasses.replace(attack, **options), radius)  # an attack object may have had other draws
    except InputError as error:
        raise InputError(
            f"expected the attack {name} of this report, for the worst case: {error}; or give it among the attacks, or "
            "name another --report_dir"
        ) from None


def listed(trials: list[Trial]) -> list[dict[str, Any]]:
    """Return the list of attacks of evaluation.json; the net of a transfer from memory is left out."""
    return [
        {
            "name": trial.name,
            "radius": trial.radius and trial.radius.text,
            "options": {
                name: value
                for name, value in (trial.attack.options() if trial.attack else {}).items()
                if isinstance(value, bool | int | float | str)
            },
        }
        for trial in trials
    ]


def due_measures(context: Context, every: list[Measure]) -> list[Measure]:
    """Return the measures that have to be made."""
    return [measure for measure in every if is_due(measure, context)]


def with_measured(context: Context, every: list[Measure]) -> Context:
    """Return the context with the records of measures, but for those of older versions that nobody asks for."""
    measured = read_measured(context.directory)
    for measure in every:
        stored = measured.get(measure.name)
        if stored and stored.version != measure.version:
            print(f"left out or made again: {measure.name}, which is of an older version")
            del measured[measure.name]
    return dataclasses.replace(context, measured=measured)


def is_finished(context: Context, every: list[Measure]) -> bool:
    """Return whether nothing is left to do: all attacks are done, no measure is due, and all files are there."""
    shared = None if context.target.per_image_noise else context.settings
    with contextlib.redirect_stdout(io.StringIO()):  # it is said when it is made again
        records, count = context.directory / RECORDS, len(context.examples)
        outcomes = [stored_outcome(records, trial, shared) for trial in (CLEAN_TRIAL, *context.trials)]
        done = all(outcome is not None and len(outcome) == count for outcome in outcomes)
        there = all((context.directory / name).exists() for name in DERIVED)
        return done and there and not due_measures(with_measured(context, every), every)
