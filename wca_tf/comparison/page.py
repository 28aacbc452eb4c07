"""A comparison as one self-contained page: a table to sort and filter, and a figure for each group and protocol."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from wca_tf.comparison.groups import AUTHORS_OWN, PROTOCOL, QUERIES, Group, Row
from wca_tf.comparison.tables import COLUMNS, finding, title
from wca_tf.evaluation.report import figures
from wca_tf.evaluation.report.page import render
from wca_tf.gaussian.intervals import Number, percent


def as_page(groups: list[Group], directory: Path) -> str:
    """Return the page in HTML. Its links to the nets' reports are relative to `directory`, where it will be."""
    nets = list(dict.fromkeys(row.net for group in groups for row in group.rows))
    columns = (*COLUMNS, "ε", "data")
    protocols = list(dict.fromkeys(name for group in groups for row in group.rows for name in row.one_draw))
    protocols.sort(key=PROTOCOL.__ne__)  # the usual protocol is first
    formatted = [_format_group(group, directory, protocols) for group in groups]
    return render(
        "comparison.html.j2", groups=formatted, nets=nets, columns=columns, queries=QUERIES, protocols=protocols
    )


def _format_group(group: Group, directory: Path, protocols: list[str]) -> dict[str, Any]:
    return {
        "title": title(group),
        "findings": {name: finding(group, name) for name in protocols},
        "notes": group.notes,
        "data": group.data,
        "epsilon": group.radius_text,
        "size": group.radius.epsilon,
        "figures": {name: _figure(group, name) for name in protocols},
        "rows": [
            {
                "net": row.net,
                "link": _link(row, directory),
                "numbers": [
                    *((each, Number.of(each).with_interval()) for each in (row.clean, row.protocol, row.worst_case)),
                    (row.gain, Number.of(row.gain).with_interval(signed=True)),
                    (row.queries, row.queries.with_interval()),
                ],
                "overstated": row.overstated,
                "points": percent(row.overstated),
                "protocols": {name: _format_cell(name, row) for name in row.one_draw},
            }
            for row in group.rows
        ],
    }


def _format_cell(protocol: str, row: Row) -> dict[str, Any]:
    """Return what the page shows of a protocol: its accuracy, and by how much it is above the worst case."""
    number, above = row.one_draw[protocol], row.overstated_by(protocol)
    text, _, interval = number.with_interval().partition(" ")
    attack = row.own if protocol == AUTHORS_OWN else protocol
    return {
        "attack": attack,
        "value": number["value"],
        "text": text,
        "interval": interval,
        "above": above,
        "points": percent(above),
    }


def _link(row: Row, directory: Path) -> str:
    """Return the relative path of the net's report; empty where there is no report."""
    report = row.report / "report.html"
    return quote(os.path.relpath(report.resolve(), directory.resolve())) if report.is_file() else ""


def _figure(group: Group, protocol: str) -> Markup:
    """Draw for each net the accuracy by a protocol and in the worst case, with a line between them."""
    rows = [row for row in group.rows if protocol in row.expected]
    if not rows:
        return Markup()
    with figures.Drawing("overstated", size=(figures.SIZE[0], 0.9 + 0.3 * len(rows)), fitted=True) as drawing:
        worst = [100 * row.worst_case["value"] for row in rows]
        judged = [100 * row.expected[protocol]["value"] for row in rows]
        names = [figures.shorten(row.net) for row in rows]
        label = "usual protocol" if protocol == PROTOCOL else figures.shorten(protocol)
        figures.dumbbells(drawing.axes, names, worst, judged, ("worst case", label))
    return drawing.svg
