"""Evaluation: the record of an evaluation, in memory and on disk. Everything else is made from it.

report_dir/
    evaluation.json   the net, the images, the options, and the list of attacks
    records/          a file for each attack and radius, with the numbers of each image
    measures/         a file for each measure, and a folder for the records of its own
"""

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wca_tf.attacks.radii import Radius, as_radius
from wca_tf.core import files
from wca_tf.core.errors import InputError, one_line
from wca_tf.evaluation.conventions import conventions
from wca_tf.evaluation.identity import INTERNAL, entry_key, read_described
from wca_tf.evaluation.measures.measure import Measured, read_measured
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.evaluation.outcomes import CLEAN, RECORDS, Outcome, load_outcome
from wca_tf.evaluation.packing import pack, unpacked
from wca_tf.evaluation.report.attack_table import header, terminal_rows
from wca_tf.evaluation.report.sections import gradient_warnings
from wca_tf.evaluation.report.tables import as_html
from wca_tf.evaluation.worst_case import WORST_CASE_ALGORITHM, worst_case
from wca_tf.gaussian.intervals import Number
from wca_tf.nets.judge import Judgement


class Evaluation(Mapping[str, Any]):
    """A net under attacks on a set of images: what each attack left of each image.

    As a mapping it has the contents of results.json: "clean", "attacks", "worst_case", a key for each measure, and what
    was evaluated. An accuracy is {"value", "low", "high"}: a number with its 95 % interval.

    Args:
        described: the contents of evaluation.json.
        outcomes: the outcome of the clean images, then of each attack at each radius.
        measured: the records of measures, by name.
        directory: the report directory, or the file, that it was read from; `None` for an evaluation in memory alone.
    """

    def __init__(
        self,
        described: dict[str, Any],
        outcomes: Sequence[Outcome],
        measured: Mapping[str, Measured],
        directory: Path | None = None,
    ) -> None:
        self.described, self.directory = described, directory
        self.clean, *self.attacks = outcomes
        self.measured = dict(measured)

    @classmethod
    def read(cls, directory: str | Path) -> "Evaluation":
        """Read a report directory, or a file of `save`.

        Raises:
            InputError: there is no evaluation of this version, it is not finished, or a record is broken.
        """
        path = Path(directory)
        if path.is_file():
            return cls._read_packed(path)
        described = read_described(path)
        listed: list[tuple[str, Radius | None]] = [(CLEAN, None), *map(entry_key, described["attacks"])]
        outcomes = []
        for name, radius in listed:
            outcome = load_outcome(path / RECORDS, name, radius)
            if outcome is None or len(outcome) != described["num_examples"]:
                raise InputError(
                    f"expected a finished evaluation in {path}, received one without all images of {name}: run it again"
                )
            outcomes.append(outcome)
        return cls(described, outcomes, read_measured(path), path)

    @classmethod
    def _read_packed(cls, path: Path) -> "Evaluation":
        """Read a file of `save`; every number is made once, so that broken contents are found here."""
        try:
            with unpacked(path) as folder:
                found = cls.read(folder)
            found.directory = path
            repr(found)
        except Exception as error:  # broken contents raise anything
            raise InputError(f"expected an evaluation in one file, {path}: {one_line(error)}") from None
        return found

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __getitem__(self, key: str) -> Any:
        return self.results[key]

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """The contents of results.json, made from the records."""
        of_all = [self.clean, *self.attacks]
        head = {name: value for name, value in self.described.items() if name not in INTERNAL}
        if head.get("net"):
            raised = sum(outcome.raised for outcome in of_all)
            head["net"] = {**head["net"], "raised_probabilities": raised, "ties": self._ties()}
        error = float(self.clean.judgement.probability_error.max())
        return {
            **head,
            "seconds": round(sum(outcome.seconds for outcome in of_all), 1),
            "clean": {**self.clean.judgement.numbers(), "probability_error": error},
            "attacks": [outcome.numbers() for outcome in self.attacks],
            "worst_case": [self._worst_numbers(radius) for radius in self.radii],
            **({"conventions": self._convention_rows()} if self.described["has_noise"] and self.radii else {}),
            **{name: record.value for name, record in self.measured.items()},
        }

    def _ties(self) -> int:
        """Return how many clean images have equal largest logits, in a net without noise: they count as wrong."""
        return 0 if self.described["has_noise"] else int((self.clean.judgement.z_margin == 0).sum())

    def _convention_rows(self) -> list[dict[str, Any]]:
        return [
            {"norm": radius.norm, "epsilon": radius.epsilon, "rows": self.conventions(radius)} for radius in self.radii
        ]

    @property
    def radii(self) -> list[Radius]:
        """The radii at which there are attacks, in order."""
        return list(dict.fromkeys(outcome.radius for outcome in self.attacks if outcome.radius))

    def attack(self, name: str, radius: Any = None) -> Outcome:
        """Return the outcome of an attack as written, or of the clean images by "clean".

        Args:
            name: the attack.
            radius: a number, a text such as "8/255" or "l2:0.5", or a `Radius`; `None` for an attack without a radius,
                or where it was run at one radius alone.

        Raises:
            InputError: there is no such attack, or it was run at several radii.
        """
        if name == CLEAN:
            return self.clean
        found = [outcome for outcome in self.attacks if outcome.name == name]
        if radius is not None:
            wanted = as_radius(radius)
            found = [outcome for outcome in found if outcome.radius and wanted.matches(outcome.radius)]
        if len(found) != 1:
            known = ", ".join(dict.fromkeys(_title(outcome) for outcome in self.attacks))
            raise InputError(f"expected one attack of this evaluation, {known}; received {name} at {radius}")
        return found[0]

    def worst_case(self, attacks: Sequence[str] | None = None, radius: Any = None) -> Judgement:
        """Return the judgement of each image in the worst case over the clean image and attacks at a radius.

        Attacks without a radius are left out, because they have no epsilon.

        Args:
            attacks: names of attacks; all at this radius where absent.
            radius: as for `attack`; the first radius where absent.

        Raises:
            InputError: there is no attack with a radius, or not at this one.
        """
        if radius is None and not self.radii:
            raise InputError("expected an attack with a radius in this evaluation, received none")
        wanted = self.radii[0] if radius is None else as_radius(radius)
        at = [each for each in self.attacks if each.radius and wanted.matches(each.radius)]
        missing = [name for name in attacks or () if all(each.name != name for each in at)]
        if missing or not at:
            raise InputError(f"expected attacks at {wanted.text} of this evaluation, received {missing or 'none'}")
        return worst_case([self.clean, *(each for each in at if attacks is None or each.name in attacks)])

    def less(self, other: "Evaluation", attacks: Sequence[str] | None = None, radius: Any = None) -> Number:
        """Return by how much this net's worst case is above that of another net, in pairs of the same image.

        Args:
            other: an evaluation on the same images.
            attacks, radius: as for `worst_case`.

        Raises:
            InputError: the images are others.
        """
        if self.described["images_sha256"] != other.described["images_sha256"] or len(self.clean) != len(other.clean):
            raise InputError("expected two evaluations on the same images, received other images")
        return self.worst_case(attacks, radius).less(other.worst_case(attacks, radius))

    def conventions(self, radius: Any = None) -> list[dict[str, Any]]:
        """Return what others would count at a radius, a row for each convention; none for a net without noise.

        Args:
            radius: as for `worst_case`.
        """
        if not self.described["has_noise"] or not self.radii:
            return []
        wanted = self.radii[0] if radius is None else as_radius(radius)
        [found] = [each for each in self.radii if wanted.matches(each)][:1] or [wanted]
        at = [outcome for outcome in self.attacks if outcome.radius == found]
        known = self.measured.get("known_draws")
        same = known is not None and Radius(known.value["epsilon"], known.value["norm"]) == found
        return conventions(self.clean, at, known.value["accuracy"] if known and same else None)

    @classmethod
    def merge(cls, parts: Sequence["Evaluation"]) -> "Evaluation":
        """Return the evaluation of which `parts` are all the parts, made with `--shard=i/n`.

        Measures are left out: they are of the images of a part.

        Raises:
            InputError: a part is missing, or parts have different attacks.
        """
        parts = sorted(parts, key=lambda part: part.described["shard"]["number"])
        first, count = parts[0], parts[0].described["shard"]["parts"]
        given = [part.described["shard"]["number"] for part in parts]
        if given != list(range(1, count + 1)):
            received = ", ".join(f"{number}/{count}" for number in given)
            raise InputError(f"expected all {count} parts of an evaluation, each once; received {received}")
        outcomes, seen = [first.clean, *first.attacks], len(first.clean)
        for part in parts[1:]:
            if _attacks(part) != _attacks(first):
                raise InputError(
                    f"expected the same attacks, by the same code, in {part.directory} as in {first.directory}"
                )
            if part.described["first"] != seen:
                raise InputError(f"expected the parts of one evaluation, received others in {part.directory}")
            pairs = zip(outcomes, [part.clean, *part.attacks], strict=True)
            outcomes, seen = [one.extended(other) for one, other in pairs], seen + len(part.clean)
        described = {name: value for name, value in first.described.items() if name != "shard"}
        described |= {"num_examples": seen, "config": {**described["config"], "shard": ""}}
        return cls(described, outcomes, {}, first.directory)

    def save(self, path: str | Path) -> None:
        """Write the evaluation into one compressed file: the numbers of each image, without images and without paths.

        Equal evaluations give equal files. `read` reads it.

        Raises:
            InputError: the path is no file in a folder that there is.
        """
        if not Path(path).parent.is_dir() or (Path(path).exists() and not Path(path).is_file()):
            raise InputError(f"expected a file in a folder that there is, received {path}")
        training = self.described["training"] and {**self.described["training"], "tfds_data_dir": ""}
        described = {**self.described, "model_dir": None, "modules": [], "training": training}
        measured = {name: dataclasses.asdict(record) for name, record in self.measured.items()}
        pack(Path(path), described, [self.clean, *self.attacks], measured)

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the contents of results.json as text. With a `path`, also write them to that file."""
        if path is not None:
            files.write_json(Path(path), self.results)
        return json.dumps(self.results, indent=2, allow_nan=False)

    def __repr__(self) -> str:
        return format_results(self.results)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for a notebook."""
        caption = ". ".join([header(self.results), *gradient_warnings(self.results)])
        return as_html(terminal_rows(self.results), caption)

    def _worst_numbers(self, radius: Radius) -> dict[str, Any]:
        numbers = self.worst_case(radius=radius).numbers()
        chosen = {name: numbers[name] for name in ("expected_accuracy", "n_query_accuracy")}
        return {"norm": radius.norm, "epsilon": radius.epsilon, **chosen, "algorithm": WORST_CASE_ALGORITHM}


def _attacks(part: Evaluation) -> list[Any]:
    """Return the attacks of a part with their options and versions."""
    return [(outcome.name, outcome.radius, outcome.config) for outcome in part.attacks]


def _title(outcome: Outcome) -> str:
    return outcome.name + (f" at {outcome.radius.text}" if outcome.radius else "")
