"""The net on clean images: `clean` of results.json."""

from typing import Any

from wca_tf.evaluation.measures.measure import Evaluation, Measure
from wca_tf.evaluation.trials import CLEAN_TRIAL, run_attacks


class Clean(Measure):
    """The four numbers of the clean images."""

    keys = ("clean",)
    gives_outcomes = True

    def measure(self, evaluation: Evaluation) -> dict[str, Any]:
        target, records = evaluation.target, evaluation.directory / "records"
        [outcome] = run_attacks(target, [CLEAN_TRIAL], evaluation.examples, evaluation.settings, records)
        evaluation.outcomes.append(outcome)
        error = float(outcome.judgement.probability_error.max())
        return {"clean": {**outcome.judgement.numbers(), "probability_error": error}}
