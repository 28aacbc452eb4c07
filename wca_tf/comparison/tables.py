"""A comparison as a table: plain text for a terminal, Markdown, and JSON."""

import dataclasses
from typing import Any

from wca_tf.comparison.groups import AUTHORS_OWN, PROTOCOL, QUERIES, Group, Row
from wca_tf.evaluation.report import tables
from wca_tf.evaluation.report.tables import escape_markdown
from wca_tf.gaussian.intervals import Number, percent

COLUMNS = ("net", "clean", "PGD, one draw", "worst case", "more than the first", f"{QUERIES} queries", "overstated by")


def as_text(groups: list[Group]) -> str:
    """Return a table for each group in plain text, with the finding and the notes below it."""
    return "\n\n".join(
        "\n".join([table_text(group), finding(group), *(f"note: {note}" for note in group.notes)]) for group in groups
    )


def table_text(group: Group) -> str:
    """Return the table of a group in plain text, below its title."""
    return f"{title(group)}\n{tables.as_text(table_rows(group))}"


def as_markdown(groups: list[Group]) -> str:
    """Return a table for each group in Markdown, with the finding and the notes below it."""
    blocks = []
    for group in groups:
        lines = [f"## {escape_markdown(title(group))}", "", tables.as_markdown(table_rows(group))]
        lines += ["", escape_markdown(finding(group)), *(f"\n- {escape_markdown(note)}" for note in group.notes)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def as_json(groups: list[Group]) -> list[dict[str, Any]]:
    """Return the groups as values for JSON. Accuracies are shares from 0 to 1, with 95 % intervals."""
    return [
        {
            "data": group.data,
            "norm": group.radius.norm,
            "epsilon": group.radius.epsilon,
            "rows": [_row_as_json(row) for row in group.rows],
            "notes": group.notes,
        }
        for group in groups
    ]


def _row_as_json(row: Row) -> dict[str, Any]:
    return {**dataclasses.asdict(row), "report": str(row.report), "protocol": row.protocol}


def title(group: Group) -> str:
    """Return a line that says which images, which radius and which unit the table has."""
    return f"{group.data}, ε = {group.radius_text}, accuracy in % and differences in points [95 % interval]"


def finding(group: Group, protocol: str = PROTOCOL) -> str:
    """Return a sentence that says which net's accuracy a protocol overstates most, and by how much.

    Args:
        group: the nets.
        protocol: the attack; PGD with its default options is the usual protocol.
    """
    names = {PROTOCOL: "The usual protocol", AUTHORS_OWN: "The authors' own attack"}
    name = names.get(protocol, protocol)
    overstated = {row.net: row.overstated_by(protocol) or 0.0 for row in group.rows if protocol in row.expected}
    if not overstated:  # a protocol is an attack that every net met
        attack = "the usual protocol, PGD with its default options" if protocol == PROTOCOL else protocol
        return f"Not every net was attacked by {attack}."
    most = max((row for row in group.rows if row.net in overstated), key=lambda row: overstated[row.net])
    if overstated[most.net] <= 0:
        return f"{name} overstates no net: it leaves no more than the worst case."
    return (
        f"{name} overstates {most.net} most: in the mean over draws it says {percent(most.expected[protocol])} %, "
        f"where the worst case leaves {percent(most.worst_case)} %."
    )


def table_rows(group: Group) -> list[tuple[str, ...]]:
    """Return the column heads, then a row for each net."""
    return [
        COLUMNS,
        *(
            (
                row.net,
                *(Number.of(number).with_interval() for number in (row.clean, row.protocol, row.worst_case)),
                Number.of(row.gain).with_interval(signed=True),
                row.queries.with_interval(),
                percent(row.overstated),
            )
            for row in group.rows
        ),
    ]
