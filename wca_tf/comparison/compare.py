"""compare_evaluations: set evaluations side by side, and write the table and the page."""

from collections.abc import Sequence
from pathlib import Path

from wca_tf.comparison.groups import Group, compare, read_evaluation
from wca_tf.comparison.page import as_page
from wca_tf.comparison.tables import as_json, as_markdown
from wca_tf.core import files


def compare_evaluations(evaluations: Sequence[str | Path], report_dir: str | Path | None = None) -> list[Group]:
    """Compare the nets of several report directories.

    Nets are in one group only if they met the same images, at the same radius. The worst case of a group is over the
    attacks that all its nets met with the same options; the group's notes name the other attacks.

    Args:
        evaluations: report directories, as `bin/evaluate --report_dir` or `wca_tf.evaluate` leaves them.
        report_dir: directory for comparison.html, comparison.md and comparison.json; `None` to write no files.

    Raises:
        InputError: a directory without a finished evaluation of this version, or given twice; nets that met no attack
            in common; a `report_dir` that cannot be written.
    """
    groups = compare([read_evaluation(Path(path)) for path in evaluations])
    if report_dir is not None:
        with files.exclusive_directory(report_dir) as directory:
            files.write_text(directory / "comparison.html", as_page(groups, directory))
            files.write_text(directory / "comparison.md", as_markdown(groups))
            files.write_json(directory / "comparison.json", as_json(groups))
    return groups
