"""A table of an experiment, our numbers beside the paper's, as table.json and table.md."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.evaluation.report.tables import as_markdown, escape_markdown
from wca_tf.gaussian.intervals import Number, percent

NO_PAPER = "In %, ± the 95 % half-width."  # the legend of a table without numbers of the paper


@dataclasses.dataclass(frozen=True)
class Cell:
    """Our number and the paper's number, or a text in place of both. Numbers are shares, from 0 to 1.

    Attributes:
        measured: our number, with its 95 % interval if there is one; or `None`.
        paper: the paper's number, or `None` where the paper has no number.
        text: a text that is shown in place of the numbers; empty to show them.
    """

    measured: Number | None = None
    paper: float | None = None
    text: str = ""

    def shown(self) -> str:
        """Return the cell as a reader sees it: 50.0 ± 4.4 (71.4), numbers in %."""
        if self.text:
            return self.text
        parts = [] if self.measured is None else [percent(self.measured) + self._half_width()]
        return " ".join(parts + ([] if self.paper is None else [f"({100 * self.paper:.1f})"])) or "–"

    def _half_width(self) -> str:
        number = self.measured or Number()
        return f" ± {50 * (number['high'] - number['low']):.1f}" if "low" in number else ""


@dataclasses.dataclass
class Table:
    """A table: rows by label, and cells by column.

    Attributes:
        title: the title, which names the table or figure of the paper.
        columns: the columns, in order.
        rows: label -> column -> cell; a missing cell is shown as a dash.
        notes: the differences from the paper, and help to read the table.
        legend: the meaning of the numbers in a cell.
    """

    title: str
    columns: list[str]
    rows: dict[str, dict[str, Cell]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    legend: str = "Ours in %, ± the 95 % half-width; the paper's in brackets."

    def add(
        self, row: str, column: str, measured: Number | None = None, paper: float | None = None, text: str = ""
    ) -> None:
        """Fill a cell. A new column is added as the last one."""
        if column not in self.columns:
            self.columns.append(column)
        self.rows.setdefault(row, {})[column] = Cell(measured, paper, text)

    def take(self, other: "Table") -> None:
        """Add the rows of another table."""
        for row, cells in other.rows.items():
            for column, cell in cells.items():
                self.add(row, column, cell.measured, cell.paper, cell.text)

    def markdown(self) -> str:
        """Return the table in Markdown, then its notes."""
        lines = [f"# {self.title}", "", self.legend, "", as_markdown(self.texts())]
        return "\n".join([*lines, "", *(f"- {escape_markdown(note)}" for note in self.notes)]) + "\n"

    def texts(self) -> list[list[str]]:
        """Return the column heads, then each row's label and the texts of its cells."""
        rows = [[label, *(cells.get(c, Cell()).shown() for c in self.columns)] for label, cells in self.rows.items()]
        return [["", *self.columns], *rows]

    def as_json(self) -> dict[str, Any]:
        rows = {
            label: {
                column: {k: v for k, v in dataclasses.asdict(cell).items() if v not in (None, "")}
                for column, cell in cells.items()
            }
            for label, cells in self.rows.items()
        }
        return {"title": self.title, "legend": self.legend, "columns": self.columns, "rows": rows, "notes": self.notes}


def in_points(gain: Number) -> str:
    """Return a difference of accuracies in points, with its sign and its 95 % half-width."""
    return f"{100 * gain['value']:+.1f} ± {50 * (gain['high'] - gain['low']):.1f}"


def by_seed(numbers: Sequence[Number]) -> str:
    """Return the mean of accuracies in %, and each of them: of nets that differ in their seed alone.

    Examples:
        >>> by_seed([{"value": 0.5}, {"value": 0.52}, {"value": 0.48}])
        'mean 50.0, each 50.0, 52.0, 48.0'
    """
    shares = [100 * number["value"] for number in numbers]
    return f"mean {sum(shares) / len(shares):.1f}, each {', '.join(f'{share:.1f}' for share in shares)}"


def add_all_seeds(table: Table, label: str, of_seeds: Sequence[str], columns: Sequence[str]) -> None:
    """Fill a row for all seeds of a net, in the columns that the rows `of_seeds` all have a number in."""
    for column in columns:
        cells = [table.rows.get(row, {}).get(column, Cell()) for row in of_seeds]
        numbers = [cell.measured for cell in cells if cell.measured]
        if len(numbers) == len(of_seeds):  # no net diverged
            table.add(f"{label}, {len(of_seeds)} seeds", column, text=by_seed(numbers))


def load_table(directory: Path) -> Table | None:
    """Return the table of a directory's table.json; `None` where there is no such file.

    Raises:
        InputError: a file that `write_table` did not write.
    """
    path = directory / "table.json"
    if not path.exists():
        return None
    return as_table(files.read_json(path), path)


def as_table(stored: Any, path: Path) -> Table:
    """Return the table that `Table.as_json` describes; raise InputError, which names the file, for anything else."""
    try:
        rows = {row: {column: Cell(**cell) for column, cell in cells.items()} for row, cells in stored["rows"].items()}
        return Table(stored["title"], stored["columns"], rows, stored["notes"], stored["legend"])
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"expected a table of bin/reproduce in {path}: remove it, and it is made again") from None


def write_table(table: Table, directory: Path, about: dict[str, Any]) -> None:
    """Write table.md and table.json into a directory; table.json also has the items of `about`."""
    files.write_json(directory / "table.json", {**about, **table.as_json()})  # first: it says whose the other is
    files.write_text(directory / "table.md", table.markdown())
