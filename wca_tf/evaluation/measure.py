"""What an evaluation measures: a list of measures, each with numbers of results.json and a section of the report.

One of your own derives from `Measure` and is added by `register_measure`; every evaluation from then on has it.
"""

import abc
import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from wca_tf.config import EvaluateConfig
from wca_tf.data.examples import Examples
from wca_tf.evaluation.attacking import Settings, Trial
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report.sections import ReportSection
from wca_tf.nets.targets import AnyTarget


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a measure is given.

    Attributes:
        target: the net as it is judged.
        attacked: what attacks see of the net.
        model: the Keras model, or what was given in its place.
        examples: the clean images.
        config: what was asked for.
        settings: seed and batch size.
        directory: of the report; a measure keeps its records below it.
        stored: the contents of results.json so far; empty for a new evaluation.
        results: what the measures before this one have given.
        outcomes: of the clean images, then of every attack that has been run.
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
        keys: the keys of results.json that it gives.
        gives_outcomes: whether it adds to `Evaluation.outcomes`, and is therefore run each time, from its records.
    """

    keys: ClassVar[tuple[str, ...]]
    gives_outcomes: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return a JSON value for each of `keys`; what is recorded below the directory is not done again."""

    def is_asked(self, config: EvaluateConfig) -> bool:
        """Whether the configuration asks for it."""
        return True

    def is_complete(self, stored: dict[str, Any], config: EvaluateConfig) -> bool:
        """Whether stored results have all that is asked for."""
        return all(key in stored for key in self.keys)

    def is_valid(self, stored: dict[str, Any]) -> bool:
        """Whether the stored values of its keys are such as it gives."""
        return True

    def absent(self) -> dict[str, Any]:
        """Return what stands in results.json where it was never asked for."""
        return {}

    def check(self, evaluation: Evaluation) -> None:  # noqa: B027 most measures can always be made
        """Raise InputError, before anything is done, when it cannot be made."""

    def lines(self, results: dict[str, Any]) -> list[str]:
        """Return lines for the terminal, below the table."""
        return []

    def section(self, results: dict[str, Any]) -> ReportSection | None:
        """Return its section of the report; None for a measure that the page's own template shows."""
        return None
