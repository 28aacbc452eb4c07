"""Report: the numbers of an evaluation, as an object that shows itself in a terminal and in a notebook."""

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wca_tf import files
from wca_tf.evaluation.measures import format_results
from wca_tf.evaluation.report.table import header, table_rows


class Report(Mapping[str, Any]):
    """The contents of results.json, by key: "clean", "attacks", "worst_case", "checklist" and what measures add.

    Every number has its 95 % interval: {"value", "low", "high"}.
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
        """For each radius: its norm, its epsilon, and the mean P(correct) when each image meets its worst attack."""
        return self._results["worst_case"]

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the contents as JSON; write them to a file too, where one is named."""
        if path is not None:
            files.write_json(Path(path), self._results)
        return json.dumps(self._results, indent=2, allow_nan=False)

    def __repr__(self) -> str:
        return format_results(self._results)

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        first, *rows = ([html.escape(cell) for cell in row] for row in table_rows(self._results))
        head = "".join(f"<th>{cell}</th>" for cell in first)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        caption = html.escape(header(self._results))
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
