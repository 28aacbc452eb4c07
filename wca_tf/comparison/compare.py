"""compare_evaluations: set evaluations side by side, and write the table and the page."""

import html
from collections.abc import Sequence
from pathlib import Path

from wca_tf.comparison.groups import Group, compare, read_evaluation
from wca_tf.comparison.page import as_page
from wca_tf.comparison.tables import as_json, as_markdown, as_text, finding, table_rows, title
from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.evaluation.report.tables import as_html


class Comparison(list[Group]):
    """Groups of nets that can be compared. It shows itself as a table for each group, in a notebook too."""

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for a notebook."""
        return "".join(_html(group) for group in self)


def compare_evaluations(evaluations: Sequence[str | Path], report_dir: str | Path | None = None) -> Comparison:
    """Compare the nets of several evaluations.

    Nets are in one group only if they met the same images, at the same radius. The worst case of a group is over the
    attacks that all its nets met with the same options; the group's notes name the other attacks.

    Args:
        evaluations: report directories, as `bin/evaluate --report_dir` or `wca_tf.evaluate` leaves them, or files of
            `Evaluation.save`.
        report_dir: directory for comparison.html, comparison.md and comparison.json; `None` to write no files.

    Raises:
        InputError: a directory without a finished evaluation of this version, or given twice; nets that met no attack
            in common; a `report_dir` that cannot be written.
    """
    if isinstance(evaluations, str | Path) or not evaluations:
        raise InputError(f"expected a list of report directories, received {evaluations!r}")
    groups = Comparison(compare([read_evaluation(Path(path)) for path in evaluations]))
    if report_dir is not None:
        files.check_nothing_foreign(Path(report_dir), "comparison.json", ("comparison.html", "comparison.md"))
        with files.exclusive_directory(report_dir) as directory:
            files.write_json(directory / "comparison.json", as_json(groups))
            files.write_text(directory / "comparison.html", as_page(groups, directory))
            files.write_text(directory / "comparison.md", as_markdown(groups))
    return groups


def _html(group: Group) -> str:
    below = "".join(f"<p>{html.escape(text)}</p>" for text in (finding(group), *group.notes))
    return as_html(table_rows(group), title(group)) + below
