"""Charts of experiments, the paper's numbers and ours side by side, as PNG and SVG."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from wca_tf.core import files
from wca_tf.evaluation.report.figures import COLOURS, dumbbells
from wca_tf.experiments.tables import Cell, Table
from wca_tf.gaussian.intervals import Number

STYLE: Any = {
    "text.parse_math": False,
    "svg.hashsalt": "wca_tf",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}
HATCHES = ("", "///", "...")
MARKERS = "osD^vP*X"
DODGE = 0.2  # of the distance between lines of a dot chart, so that equal numbers do not hide each other
BAR = 0.13  # inches
POWERS = [2**n for n in range(8)]  # radii times 255
Series = dict[str, list[tuple[float, float]]]  # name -> points (epsilon, accuracy)


def save(figure: Figure, directory: Path, name: str) -> None:
    """Write NAME.png and NAME.svg."""
    with matplotlib.rc_context(STYLE):
        files.write_atomically(directory / f"{name}.png", lambda path: figure.savefig(path, dpi=110))
        files.write_atomically(directory / f"{name}.svg", lambda path: figure.savefig(path, metadata={"Date": None}))


def panels(
    count: int,
    width: float = 4.6,
    height: float = 3.6,
    label: str = "accuracy, %",
    shared: bool = True,
    columns: int | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` axes side by side, or in rows of `columns`; `width` and `height` are of one.

    Axes that share a scale have 0 to 100 if `label` ends in %.
    """
    across = columns or count
    rows = -(-count // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * across, height * rows), layout="constrained")
        every = figure.subplots(rows, across, sharey=shared, squeeze=False).ravel()
        axes, rest = every[:count], every[count:]
        for axis in rest:
            axis.remove()
    if label.endswith("%"):
        axes[0].set_ylim(0, 100)
    axes[0].set_ylabel(label)
    return figure, list(axes)


def bar_chart(
    table: Table, directory: Path, name: str, titles: tuple[str, str], shown: Sequence[str] | None = None
) -> None:
    """Write a bar chart of a table: the paper's numbers on the left, and ours with intervals on the right.

    A row is a group of bars, and a column is a colour. `titles` are the titles of the two panels. A panel shows only
    rows and columns that have numbers, and of these the columns `shown`, if these are given. Without any number of the
    paper there is one panel.
    """
    columns = [column for column in table.columns if shown is None or column in shown]
    ours, papers = ([column for column in columns if _rows_with_numbers(table, [column], p)] for p in (False, True))
    papers = [column for column in papers if column in ours]
    drawn = [
        (title, part, paper, _rows_with_numbers(table, part, paper))
        for title, part, paper in zip(titles, (papers, ours), (True, False), strict=True)
        if part or not paper
    ]
    widths = [max(4.6, BAR * len(part) * len(rows)) for _, part, _, rows in drawn]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(sum(widths), 4.2), layout="constrained")
        axes = figure.subplots(1, len(drawn), sharey=True, width_ratios=widths, squeeze=False)[0]
        axes[0].set(ylim=(0, 100), ylabel="accuracy, %")
        for axis, (title, part, paper, rows) in zip(axes, drawn, strict=True):
            axis.set_title(title)
            for place, column in enumerate(part):
                number = ours.index(column)
                colour, hatch = COLOURS[number % len(COLOURS)], HATCHES[number // len(COLOURS) % len(HATCHES)]
                style = {"color": colour, "hatch": hatch, "label": column}
                cells = [row.get(column, Cell()) for row in rows.values()]
                bars(axis, cells, place, len(part), paper, style)
            axis.set_xticks(range(len(rows)), list(rows), rotation=30, ha="right")
        legend(axes[-1])
        save(figure, directory, name)


def _rows_with_numbers(table: Table, columns: Sequence[str], paper: bool) -> dict[str, dict[str, Cell]]:
    """Return the rows that have a number in one of the columns: one of the paper's, or one of ours."""

    def has_number(row: dict[str, Cell]) -> bool:
        cells = [row[column] for column in columns if column in row]
        return any((cell.paper if paper else cell.measured) is not None for cell in cells)

    return {label: row for label, row in table.rows.items() if has_number(row)}


def dumbbell_chart(table: Table, directory: Path, name: str, high: str, low: str, title: str) -> None:
    """Write a chart with a line for each row of a table, from its number in column `low` to that in column `high`."""
    ends = {column: [row.get(column, Cell()).measured for row in table.rows.values()] for column in (low, high)}
    values = {column: [100 * n["value"] if n else math.nan for n in numbers] for column, numbers in ends.items()}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.5, 1.2 + 0.24 * len(table.rows)), layout="constrained")
        axis = figure.subplots()
        dumbbells(axis, list(table.rows), values[low], values[high], (low, high))
        axis.set_title(title)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        save(figure, directory, name)


def dot_chart(table: Table, directory: Path, name: str, columns: dict[str, str], label: str) -> None:
    """Write a chart with a line for each row of a table, and on it a point for each of some columns.

    `columns` has a name for the legend for each column. A row without a number in any of them has no line.
    """
    rows = {row: cells for row, cells in table.rows.items() if any(column in cells for column in columns)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 1 + 0.24 * len(rows)), layout="constrained")
        axis = figure.subplots()
        for place, (column, series) in enumerate(columns.items()):
            numbers = [cells.get(column, Cell()).measured for cells in rows.values()]
            values = [100 * number["value"] if number else math.nan for number in numbers]
            heights = [row + (place - (len(columns) - 1) / 2) * DODGE for row in range(len(rows))]
            axis.plot(values, heights, MARKERS[place], markersize=4.5, color=COLOURS[place], label=series)
        axis.set(xlim=(-2, 102), xlabel=label)
        axis.set_yticks(range(len(rows)), list(rows))
        axis.invert_yaxis()
        axis.grid(axis="y", alpha=0.3)
        legend(axis)
        save(figure, directory, name)


def legend(axis: Axes) -> None:
    """Draw the names of the series to the right of the panel, where they cover nothing."""
    if axis.get_legend_handles_labels()[0]:  # there are no series where every run failed
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def plain_numbers(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis as plain text: matplotlib's are formulas, which `STYLE` leaves unread.

    Call it after the data are drawn: an axis that spans less than a factor of two has other numbers.
    """
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if high > 2 * low else ticker.MaxNLocator(4))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def bars(axis: Axes, cells: list[Cell], place: int, count: int, paper: bool, style: dict[str, Any]) -> BarContainer:
    """Draw a column's bars, and return them: in each row's group, the bar at `place` of `count`.

    They show the numbers of the paper, or ours with intervals.
    """
    width = 0.8 / count
    places = [i + (place - (count - 1) / 2) * width for i in range(len(cells))]
    ours = [cell.measured or Number() for cell in cells]
    heights = [cell.paper for cell in cells] if paper else [n.get("value") for n in ours]
    known = [100 * h if h is not None else math.nan for h in heights]  # an unknown number gets no bar
    drawn = axis.bar(places, known, width, **style)
    if not paper:
        for middle, interval in zip(places, ours, strict=True):
            if "low" in interval:
                axis.vlines(middle, 100 * interval["low"], 100 * interval["high"], colors="black", linewidth=0.8)
    return drawn


def curves(
    axis: Axes, series: Series, title: str, label: str, logarithmic: bool = True, steps: Collection[str] = ()
) -> None:
    """Draw accuracy against the quantity `label`, such as epsilon, with a line for each series.

    A series in `steps` has the value of a point up to the next point, as an attack's at a radius, which is an upper
    bound at larger radii too.
    """
    axis.set_title(title)
    axis.set_xlabel(label)
    for number, (name, points) in enumerate(series.items()):
        if points:
            x, y = zip(*points, strict=True)
            style = "steps-post" if name in steps else "default"
            values = [100 * v for v in y]
            axis.plot(x, values, marker="o", markersize=3, color=COLOURS[number], label=name, drawstyle=style)
    if logarithmic:
        axis.set_xscale("log", base=2)
        axis.set_xticks(POWERS, [str(power) for power in POWERS])
