"""Measures of an evaluation: each has numbers in results.json, and may have a section in the report.

To add your own measure, derive a class from `Measure` and call `register_measure`. Every later evaluation has it.
"""

import abc
import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from wca_tf.data.examples import Examples
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report.sections import ReportSection
from wca_tf.evaluation.trials import Settings, Trial
from wca_tf.nets.targets import AnyTarget


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The input of a measure.

    Attributes:
        target: the net as it is judged.
        attacked: the net that attacks see.
        model: the Keras model, or the target that was given in its place.
        examples: the clean images.
        config: the options of the evaluation.
        settings: seed and batch size.
        directory: the directory of the report; a measure keeps its records below it.
        stored: the contents of results.json so far; empty for a new evaluation.
        results: the results of the measures before this one.
        outcomes: the outcome of the clean images, then of every attack that has been run.
        trials: the attacks that have been run.
    """

    target: AnyTarget
    attacked: AnyTarget
    model: Any
    examples: Examples
    config: EvaluateConfig
    settings: Settings
    directory: Path
    stored: dict[str, Any]
    results: dict[str, Any] = dataclasses.field(default_factory=dict)
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    trials: list[Trial] = dataclasses.field(default_factory=list)

    @property
    def clean_z_margins(self) -> np.ndarray:
        """The z-margin of each clean image [N]; NaN where none is known."""
        return self.outcomes[0].judgement.z_margin


class Measure(abc.ABC):
    """A measure of a net on a set of images.

    Attributes:
        keys: the keys that the measure adds to results.json.
        gives_outcomes: whether it adds to `Evaluation.outcomes`. If so, it runs each time, and continues from its
            records.
        follows_attacks: whether it is measured again when attacks are added.
    """

    keys: ClassVar[tuple[str, ...]]
    gives_outcomes: ClassVar[bool] = False
    follows_attacks: ClassVar[bool] = True

    @abc.abstractmethod
    def measure(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return a JSON value for each of `keys`. Work that is recorded below the directory is not repeated."""

    def is_asked(self, config: EvaluateConfig) -> bool:
        """Return whether the configuration asks for this measure."""
        return True

    def is_complete(self, stored: dict[str, Any], config: EvaluateConfig) -> bool:
        """Return whether stored results have everything that is asked for."""
        return all(key in stored for key in self.keys)

    def is_valid(self, stored: dict[str, Any]) -> bool:
        """Return whether the stored values of `keys` have the form that this measure returns."""
        return True

    def absent(self) -> dict[str, Any]:
        """Return the values for results.json when the measure was never asked for."""
        return {}

    def check(self, evaluation: Evaluation) -> None:  # noqa: B027 most measures can always be made
        """Raise InputError, before any work is done, when the measure cannot be made."""

    def lines(self, results: dict[str, Any]) -> list[str]:
        """Return lines for the terminal, below the table."""
        return []

    def section(self, results: dict[str, Any]) -> ReportSection | None:
        """Return the measure's section of the report; `None` for a measure that the page's own template shows."""
        return None
