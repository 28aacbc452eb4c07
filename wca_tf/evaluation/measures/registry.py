"""The measures of an evaluation, in order. Measures that a user has registered come last."""

from typing import Any

from wca_tf.core.errors import InputError
from wca_tf.evaluation.measures.certificates import Certificates
from wca_tf.evaluation.measures.checklist import Checklist
from wca_tf.evaluation.measures.criteria import GradientFreeAttacks
from wca_tf.evaluation.measures.known_draws import KnownDraws
from wca_tf.evaluation.measures.measure import Measure
from wca_tf.evaluation.measures.noise import Noise
from wca_tf.evaluation.measures.noise_off import NoiseOff
from wca_tf.evaluation.measures.planted_examples import PlantedExamples
from wca_tf.evaluation.report.attack_table import attack_table
from wca_tf.evaluation.report.sections import convention_lines, gradient_warnings, notes

OF_ATTACKS = ("clean", "attacks", "worst_case", "conventions")  # keys of results.json that no measure may have

_registered: list[Measure] = []


def register_measure(measure: Measure) -> None:
    """Add a measure to every evaluation from now on. It replaces a registered measure of the same name.

    Raises:
        InputError: its name is a key of results.json already.
    """
    if not isinstance(measure, Measure):
        raise InputError(f"expected an object of a class derived from Measure, received {measure!r}")
    if measure.name in (*OF_ATTACKS, *(other.name for other in _of_this_package())):
        raise InputError(f"expected a measure with a name of its own, received one with {measure.name}")
    _registered[:] = [*(other for other in _registered if other.name != measure.name), measure]


def measures(searches: GradientFreeAttacks | None = None) -> list[Measure]:
    """Return the measures of an evaluation.

    Args:
        searches: the checklist's attacks without gradients, which take the longest; `None` for the default.
    """
    return [*_of_this_package(searches), *_registered]


def _of_this_package(searches: GradientFreeAttacks | None = None) -> list[Measure]:
    """Return the measures that every evaluation has."""
    return [NoiseOff(), Certificates(), KnownDraws(), PlantedExamples(), Checklist(searches), Noise()]


def format_results(results: dict[str, Any]) -> str:
    """Return results.json as plain text: the table of attacks, then the lines of each measure."""
    lines = [attack_table(results), *gradient_warnings(results), *notes(results), *convention_lines(results)]
    for measure in measures():
        if measure.name in results:
            lines += measure.lines(results)
    return "\n".join(lines)
