"""The net under attacks: `attacks` and `worst_case` of results.json. Attacks of earlier evaluations are kept."""

import dataclasses
from typing import Any

from wca_tf.attacks import parse_attack
from wca_tf.core.errors import InputError
from wca_tf.core.own_modules import check_imported, module_of
from wca_tf.core.paths import expand_user
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.measure import Evaluation, Measure
from wca_tf.evaluation.report.sections import gradient_warnings, notes
from wca_tf.evaluation.summary import summarise
from wca_tf.evaluation.trials import Trial, check_attacks, run_attacks
from wca_tf.evaluation.worst_case import WORST_CASE_ALGORITHM
from wca_tf.runs.model_dir import ModelDirectory


class Attacks(Measure):
    """The four numbers under every attack at every radius, and the worst case per image at each radius."""

    keys = ("attacks", "worst_case")
    gives_outcomes = True

    def check(self, evaluation: Evaluation) -> None:
        check_attacks(evaluation.attacked, trials_of(evaluation.config), evaluation.examples)

    def measure(self, evaluation: Evaluation) -> dict[str, Any]:
        kept = [row for row in evaluation.stored.get("attacks", []) if _is_kept(row, evaluation.config)]
        evaluation.trials.extend(_merge(kept, evaluation.config))
        evaluation.outcomes.extend(
            run_attacks(
                evaluation.target,
                evaluation.trials,
                evaluation.examples,
                evaluation.settings,
                evaluation.directory / "records",
                evaluation.attacked,
            )
        )
        return summarise(evaluation.outcomes)

    def is_complete(self, stored: dict[str, Any], config: EvaluateConfig) -> bool:
        """Return whether nothing is left to do.

        Attacks of earlier evaluations count too: they are made again where their algorithm has changed.
        """
        if not all(_is_known(row, config) for row in stored["attacks"]):
            return False
        if any(worst.get("algorithm") != WORST_CASE_ALGORITHM for worst in stored.get("worst_case", [])):
            return False
        if not all("parts" in row for row in stored["attacks"]):  # of older code, with other blocks of images
            return False
        done = {(row["name"], row["epsilon"]): row["config"] for row in stored["attacks"]}
        return all(trial.matches(done.get((trial.name, trial.epsilon))) for trial in _merge(stored["attacks"], config))

    def is_valid(self, stored: dict[str, Any]) -> bool:
        """Return whether the stored attacks have the form that is needed to make them again."""
        rows, worst = stored.get("attacks"), stored.get("worst_case", [])
        return (
            isinstance(rows, list)
            and isinstance(worst, list)
            and all(isinstance(row, dict) for row in [*rows, *worst])
            and all(
                isinstance(row.get("name"), str)
                and type(row.get("epsilon", "")) in (int, float, type(None))
                and isinstance(row.get("config"), dict)
                for row in rows
            )
        )

    def lines(self, results: dict[str, Any]) -> list[str]:
        return [*gradient_warnings(results), *notes(results)]


def trials_of(config: EvaluateConfig) -> list[Trial]:
    """Return each attack at each radius of its norm, then the attacks without a radius, in the order given."""
    trials = [Trial(attack, epsilon) for attack, epsilon in config.attacks_with_radii()]
    return trials + [Trial(attack, None) for attack in config.parsed_attacks if not attack.has_radius]


def trial_of(row: dict[str, Any], config: EvaluateConfig) -> Trial:
    """Return the trial of a row of results.json.

    Raises:
        InputError: an attack that is not known here, or whose module is not imported.
    """
    asked = {attack.name: attack for attack in config.parsed_attacks}  # an attack object may not be importable
    asked |= {attack.name: attack for attack, _ in config.attacks_with_radii()}
    attack = asked.get(row["name"])
    if attack is None:
        check_imported([module_of(row["name"])], "results.json")
        attack = parse_attack(row["name"], eot_samples=config.eot_samples)
        stored = {name: row["config"][name] for name in attack.options() if name in row["config"]}
        attack = dataclasses.replace(attack, **stored)  # an attack object may have had other draws
    return Trial(attack, row["epsilon"])


def _merge(stored: list[dict[str, Any]], config: EvaluateConfig) -> list[Trial]:
    """Return the stored attacks and the attacks asked for, once each.

    The attacks of a radius are together, and the attacks without a radius are last.
    """
    unique = list(dict.fromkeys([*(trial_of(row, config) for row in stored), *trials_of(config)]))
    radii = dict.fromkeys((trial.norm, trial.epsilon) for trial in unique if trial.epsilon is not None)
    with_radius = [trial for radius in radii for trial in unique if (trial.norm, trial.epsilon) == radius]
    return with_radius + [trial for trial in unique if trial.epsilon is None]


def _is_kept(row: dict[str, Any], config: EvaluateConfig) -> bool:
    """Return whether a stored attack is up to date or can be made again; print a line for one that is left out."""
    source = row["config"].get("source")
    try:
        trial = trial_of(row, config)
    except InputError as error:
        raise InputError(
            f"expected the attack {row['name']} of this report, for the worst case: {error}; or give it among the "
            "attacks, or name another --report_dir"
        ) from None
    if trial.matches(row["config"]) or not source or ModelDirectory(expand_user(source)).best.exists():
        return True
    print(f"left out: {row['name']}, which is of an older algorithm, and whose source is no longer there")
    return False


def _is_known(row: dict[str, Any], config: EvaluateConfig) -> bool:
    """Return whether the attack of a row is known here: an attack object may be of another program."""
    try:
        trial_of(row, config)
    except InputError:
        return False
    return True
