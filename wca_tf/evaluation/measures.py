"""The measures of an evaluation, in order. Those of a user's own come last."""

from typing import Any

from wca_tf.evaluation.attacks import Attacks
from wca_tf.evaluation.checklist import Checklist
from wca_tf.evaluation.clean import Clean
from wca_tf.evaluation.criteria import Searches
from wca_tf.evaluation.measure import Measure
from wca_tf.evaluation.planted_examples import PlantedExamples
from wca_tf.evaluation.report.table import attack_table

_registered: list[Measure] = []


def register_measure(measure: Measure) -> None:
    """Add a measure to every evaluation from now on; one of the same keys takes the place of the one before."""
    _registered[:] = [other for other in _registered if other.keys != measure.keys]
    _registered.append(measure)


def measures(searches: Searches | None = None) -> list[Measure]:
    """Return the measures of an evaluation.

    Args:
        searches: the checklist's longest attacks.
    """
    return [Clean(), Attacks(), PlantedExamples(), Checklist(searches), *_registered]


def format_results(results: dict[str, Any]) -> str:
    """Return results.json as plain text: the table of attacks, then what each measure adds."""
    lines = [attack_table(results)]
    for measure in measures():
        if all(key in results for key in measure.keys):
            lines += measure.lines(results)
    return "\n".join(lines)
