"""The measures of an evaluation, in order. Measures that a user has registered come last."""

from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.evaluation.measures.attacks import Attacks
from wca_tf.evaluation.measures.certificates import Certificates
from wca_tf.evaluation.measures.checklist import Checklist
from wca_tf.evaluation.measures.clean import Clean
from wca_tf.evaluation.measures.criteria import GradientFreeAttacks
from wca_tf.evaluation.measures.measure import Measure
from wca_tf.evaluation.measures.planted_examples import PlantedExamples
from wca_tf.evaluation.report.table import attack_table

_registered: list[Measure] = []


def register_measure(measure: Measure) -> None:
    """Add a measure to every evaluation from now on. It replaces a registered measure with the same keys.

    Raises:
        InputError: one of its keys is a key of results.json already.
    """
    if not isinstance(measure, Measure):
        raise InputError(f"expected an object of a class derived from Measure, received {measure!r}")
    others = [other for other in _registered if other.keys != measure.keys]
    taken = {key for other in (*_of_this_package(), *others) for key in other.keys}
    if clash := sorted(taken & set(measure.keys)):
        raise InputError(f"expected a measure with keys of its own, received one with {', '.join(clash)}")
    _registered[:] = [*others, measure]


def measures(searches: GradientFreeAttacks | None = None) -> list[Measure]:
    """Return the measures of an evaluation.

    Args:
        searches: the checklist's attacks without gradients, which take the longest; `None` for the default.
    """
    return [*_of_this_package(searches), *_registered]


def _of_this_package(searches: GradientFreeAttacks | None = None) -> list[Measure]:
    """Return the measures that every evaluation has."""
    return [Clean(), Attacks(), Certificates(), PlantedExamples(), Checklist(searches)]


def format_results(results: dict[str, Any]) -> str:
    """Return results.json as plain text: the table of attacks, then the lines of each measure."""
    lines = [attack_table(results)]
    for measure in measures():
        if all(key in results for key in measure.keys):
            lines += measure.lines(results)
    return "\n".join(lines)
