"""Report: the numbers of an evaluation, as an object that shows itself in a terminal and in a notebook."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wca_tf.core import files
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.evaluation.report.sections import gradient_warnings
from wca_tf.evaluation.report.table import header, html_table, table_rows


class Report(Mapping[str, Any]):
    """The contents of results.json as a mapping that cannot be changed.

    The keys are "clean", "attacks", "worst_case" and "checklist", and the keys that other measures add. An accuracy is
    {"value", "low", "high"}: a number with its 95 % interval.
    """

    def __init__(self, results: dict[str, Any]) -> None:
        self._results = results

    def __getitem__(self, key: str) -> Any:
        return self._results[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def worst_case(self) -> list[dict[str, Any]]:
        """The worst case at each radius, as {"norm", "epsilon", "expected_accuracy"}.

        The expected accuracy is the mean P(correct) when each image meets the attack that is worst for it.
        """
        return self._results["worst_case"]

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the contents as JSON. With a `path`, also write them to that file."""
        if path is not None:
            files.write_json(Path(path), self._results)
        return json.dumps(self._results, indent=2, allow_nan=False)

    def __repr__(self) -> str:
        return format_results(self._results)

    def _repr_html_(self) -> str:
        """Return the table as HTML, for a notebook."""
        caption = ". ".join([header(self._results), *gradient_warnings(self._results)])
        return html_table(table_rows(self._results), caption)
