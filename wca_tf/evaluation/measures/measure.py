"""Measures of an evaluation: each has a value in results.json, and may have a section in the report.

To add your own measure, derive a class from `Measure` and call `register_measure`. Every later evaluation has it.
"""

import abc
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.data.examples import Examples
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.report.sections import ReportSection
from wca_tf.evaluation.trials import Settings, Trial
from wca_tf.nets.targets import AnyTarget

MEASURES = "measures"  # the folder of a report directory with a record for each measure


@dataclasses.dataclass(frozen=True)
class Measured:
    """The record of a measure.

    Attributes:
        version: that of the measure that made it.
        key: what the value depends on.
        value: a JSON value.
    """

    version: int
    key: Any
    value: Any


@dataclasses.dataclass(frozen=True)
class Context:
    """The input of a measure.

    Attributes:
        target: the net as it is judged.
        attacked: the net that attacks see.
        model: the Keras model, or the target that was given in its place.
        examples: the clean images.
        config: the options of the evaluation.
        settings: seed and batch size.
        directory: the directory of the report.
        trials: the attacks of the evaluation, those of earlier runs too.
        measured: the records of measures, by name: of earlier runs, then of the measures before this one.
        outcomes: the outcome of the clean images, then of each of `trials`; empty while keys are compared.
    """

    target: AnyTarget
    attacked: AnyTarget
    model: Any
    examples: Examples
    config: EvaluateConfig
    settings: Settings
    directory: Path
    trials: list[Trial]
    measured: dict[str, Measured]
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)

    @property
    def clean_z_margins(self) -> np.ndarray:
        """The z-margin of each clean image [N]; NaN where none is known."""
        return self.outcomes[0].judgement.z_margin

    def attacks_key(self) -> str:
        """Return a text that changes whenever an attack is added, or an option or the code of one changes."""
        described = [[trial.title, trial.config] for trial in self.trials]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    def records(self, name: str) -> Path:
        """Return the folder where the measure of this name keeps records of its own."""
        return self.directory / MEASURES / name


class Measure(abc.ABC):
    """A measure of a net on a set of images.

    Attributes:
        name: the key of its value in results.json.
        version: increase it with every change that gives other values: stored values are made again.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    def key(self, context: Context) -> Any:
        """Return what the value depends on, besides the net, the images and the options that all attacks share.

        A stored value counts where its key is equal. The key is a JSON value; `None` where the configuration does not
        ask for the measure: a stored value stays then. By default it depends on all attacks.
        """
        return context.attacks_key()

    def check(self, context: Context) -> None:  # noqa: B027 most measures can always be made
        """Raise InputError, before any work is done, when the measure cannot be made. It is called where it is due."""

    @abc.abstractmethod
    def measure(self, context: Context) -> Any:
        """Return the value, for JSON. Work that is recorded below `Context.records` is not repeated."""

    def lines(self, results: dict[str, Any]) -> list[str]:
        """Return lines for the terminal, below the table; `results` has the value under `name`."""
        return []

    def section(self, results: dict[str, Any]) -> ReportSection | None:
        """Return the measure's section of the report; `None` for a measure that the page's own template shows."""
        return None


def is_due(measure: Measure, context: Context) -> bool:
    """Return whether a measure has to be made: it is asked for, and no record has its version and its key."""
    key, stored = measure.key(context), context.measured.get(measure.name)
    if key is None:
        return False
    return stored is None or (stored.version, stored.key) != (measure.version, _as_json(key))


def make(measure: Measure, context: Context) -> None:
    """Make a measure, write its record, and add it to the context."""
    try:
        found = Measured(measure.version, _as_json(measure.key(context)), _as_json(measure.measure(context)))
    except TypeError as error:
        raise InputError(f"expected the measure {measure.name} to give a JSON value: {error}") from None
    path = context.directory / MEASURES / f"{measure.name}.json"
    path.parent.mkdir(exist_ok=True)
    files.write_json(path, dataclasses.asdict(found))
    context.measured[measure.name] = found


def read_measured(directory: Path) -> dict[str, Measured]:
    """Return the records of measures in a report directory, by name; print a line for one that is broken."""
    found = {}
    for path in sorted((directory / MEASURES).glob("*.json")):
        try:
            found[path.stem] = Measured(**files.read_json(path))
        except (InputError, TypeError) as error:
            print(f"made again: {path}, which cannot be read: {error}")
    return found


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it, with lists in place of tuples."""
    return json.loads(json.dumps(value))
