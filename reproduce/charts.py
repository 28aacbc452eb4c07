"""Charts of filled tables, ours beside the paper's. Each is a function (filled) -> figure, with a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from reproduce.tables import Cell, Filled

STYLE: Any = {
    "text.parse_math": False,
    "svg.hashsalt": "wca_tf",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}
# Okabe and Ito's colours, which readers without red or green can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
POWERS = [2**n for n in range(8)]  # radii times 255
BAR = 0.13  # inches
Series = Mapping[str, Sequence[tuple[float, float]]]  # name -> points (x, share)


def panels(
    count: int, width: float = 4.6, height: float = 3.6, label: str = "accuracy, %", columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure of axes side by side, or in rows of `columns`, with one scale, from 0 to 100 for a label in %."""
    across = columns or count
    rows = -(-count // across)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * across, height * rows), layout="constrained")
        every = figure.subplots(rows, across, sharey=label.endswith("%"), squeeze=False).ravel()
    for axis in every[count:]:
        axis.remove()
    axes = list(every[:count])
    if label.endswith("%"):
        axes[0].set_ylim(0, 100)
    axes[0].set_ylabel(label)
    return figure, axes


def bars(*columns: str, by_row: Callable[[str], str] | None = None) -> Callable[[Filled], Figure]:
    """Return the chart with a group of bars for each row, a colour for each column; the paper's numbers beside ours.

    `by_row` gives the panel of a row by its label, for charts of several panels of our numbers.
    """

    def draw(filled: Filled) -> Figure:
        shown = columns or tuple(column.name for column in filled.table.columns)
        ours = {label: {c: cells[c] for c in shown} for label, cells in filled.cells.items()}
        papers = {label: {c: _papers(filled, label, c) for c in shown} for label in ours}
        names = list(dict.fromkeys(by_row(label) for label in ours)) if by_row else ["here"]
        grouped = [(name, {k: v for k, v in ours.items() if not by_row or by_row(k) == name}) for name in names]
        drawn = [(name, rows) for name, rows in [("the paper", papers), *grouped] if _has_numbers(rows)]
        widths = [
            max(4.0 if len(drawn) > 1 else 5.4, BAR * len(shown) * len(_has_numbers(rows)) + 1) for _, rows in drawn
        ]
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(sum(widths), 4.2), layout="constrained")
            axes = figure.subplots(1, len(drawn), sharey=True, width_ratios=widths, squeeze=False)[0]
            axes[0].set(ylim=(0, 100), ylabel="accuracy, %")
            for axis, (name, rows) in zip(axes, drawn, strict=True):
                axis.set_title(name if len(drawn) > 1 else "")
                numbers = _has_numbers(rows)
                _bars(axis, {label.removesuffix(f", {name}"): cells for label, cells in numbers.items()}, shown)
            figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        return figure

    return draw


def _papers(filled: Filled, label: str, column: str) -> Cell:
    return Cell(filled.table.paper.get((label, column)))


def _has_numbers(rows: Mapping[str, Mapping[str, Cell]]) -> dict[str, Mapping[str, Cell]]:
    """Return the rows that have a number."""
    return {label: cells for label, cells in rows.items() if any(c.value is not None for c in cells.values())}


def _bars(axis: Axes, rows: Mapping[str, Mapping[str, Cell]], shown: Sequence[str]) -> None:
    """Draw the bars of a panel, with the intervals of our numbers."""
    width = 0.8 / len(shown)
    for place, column in enumerate(shown):
        cells = [cells[column] for cells in rows.values()]
        heights = [math.nan if cell.value is None else 100 * cell.value for cell in cells]
        places = [i + (place - (len(shown) - 1) / 2) * width for i in range(len(cells))]
        drawn = axis.bar(places, heights, width, color=COLOURS[place % len(COLOURS)], label=column)
        if len(shown) <= 4:
            axis.bar_label(drawn, fmt="%.0f", padding=9, fontsize=8)  # above the intervals
        for middle, cell in zip(places, cells, strict=True):
            if cell.low is not None and cell.high is not None:
                axis.vlines(middle, 100 * cell.low, 100 * cell.high, colors="black", linewidth=0.8)
    axis.set_xticks(range(len(rows)), [label.replace(", ", "\n").replace(" ", "\n", 1) for label in rows], fontsize=8)


def dots(*columns: str) -> Callable[[Filled], Figure]:
    """Return the chart with a line for each row, and on it a point for each of some columns."""

    def draw(filled: Filled) -> Figure:
        rows = _has_numbers({label: {c: cells[c] for c in columns} for label, cells in filled.cells.items()})
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(7.5, 1.2 + 0.26 * len(rows)), layout="constrained")
            axis = figure.subplots()
            for place, column in enumerate(columns):
                values = [math.nan if (v := cells[column].value) is None else 100 * v for cells in rows.values()]
                heights = [row + 0.2 * (place - (len(columns) - 1) / 2) for row in range(len(rows))]
                axis.plot(values, heights, "osD^vP*X"[place], markersize=4.5, color=COLOURS[place], label=column)
            axis.set(xlim=(-2, 102), xlabel="accuracy, %")
            axis.set_yticks(range(len(rows)), list(rows))
            axis.invert_yaxis()
            axis.grid(axis="y", alpha=0.3)
            figure.legend(loc="outside lower center", ncols=3, frameon=False)
        return figure

    return draw


def lines(
    label: str, series: Callable[[Filled], Mapping[str, Series]], logarithmic: bool = False
) -> Callable[[Filled], Figure]:
    """Return the chart with a panel for each title of `series`, and a line for each name in it; `label` is of the x."""

    def draw(filled: Filled) -> Figure:
        drawn = {title: points for title, points in series(filled).items() if any(points.values())}
        figure, axes = panels(max(len(drawn), 1), 3.6, 3.4, columns=min(max(len(drawn), 1), 4))
        for axis, (title, points) in zip(axes, drawn.items(), strict=False):
            curves(axis, points, title, label)
            if logarithmic:
                axis.set_xscale("log", base=2)
                axis.set_xticks(POWERS, [str(power) for power in POWERS])
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        return figure

    return draw


def curves(axis: Axes, series: Series, title: str, label: str, steps: Collection[str] = ()) -> None:
    """Draw a line for each series, of shares over x.

    A series in `steps` has the value of a point up to the next point, as an attack's at a radius, which is an upper
    bound at larger radii too.
    """
    axis.set(title=title, xlabel=label)
    for number, (name, points) in enumerate(series.items()):
        if points:
            x, y = zip(*points, strict=True)
            style = "steps-post" if name in steps else "default"
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(x, [100 * v for v in y], marker="o", markersize=3, color=colour, label=name, drawstyle=style)


def plain_numbers(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis as plain text, after the data are drawn."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)) if high > 2 * low else ticker.MaxNLocator(4))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
