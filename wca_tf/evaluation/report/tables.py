"""Tables as plain text, Markdown and HTML, for terminals, model cards, notebooks and pages.

A table is a list of rows of texts, the column heads first. The first cell of a row is its label. A row of one cell is
the title of the rows below it. Texts are escaped here, because names of classes and data sets come from users.
"""

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from tabulate import tabulate

Rows = Sequence[Sequence[str]]
# Characters that reorder or hide the characters around them.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Characters with a special meaning in Markdown.
_MARKDOWN = re.compile(r"([\\`*\[\]|#~$]|(?<!\w)_|_(?!\w))")
_INTERVAL = re.compile(r"(.+) (\[[^\[]*\])")  # a value, then its interval
STRONG = "worst case"  # the label of rows in bold


def as_text(rows: Rows) -> str:
    """Return a table for a terminal; the rows below a title are indented."""
    indented, below = [], False
    for row in rows:
        below = below or len(row) == 1
        indented.append([f"  {row[0]}" if below and len(row) > 1 else row[0], *row[1:]])
    return _rendered(indented, (), "plain")  # the heads of a plain table would be padded


def as_markdown(rows: Rows) -> Markup:
    """Return a table in Markdown."""
    head, *body = [[escape_markdown(cell) for cell in row] for row in rows]
    return Markup(_rendered(body, head, "pipe"))


def as_html(rows: Rows, caption: str = "", **attributes: str) -> Markup:
    """Return a table in HTML. An interval is small; an empty cell has a dash.

    On a narrow screen the style sheet shows a row as a list, with the column's head beside each cell.

    Args:
        rows: the table; Markup in it is not escaped.
        caption: a text above the table.
        attributes: of the element, such as `id`; an underscore at the end of a name is left out.
    """
    head, *body = rows
    given = Markup("").join(Markup(' {}="{}"').format(name.rstrip("_"), text) for name, text in attributes.items())
    heads = Markup("").join(Markup('<th scope="col">{}</th>').format(_with_small(cell)) for cell in head)
    parts = [Markup("<table{}>").format(given), Markup("<caption>{}</caption>").format(caption) if caption else ""]
    parts += [Markup("<thead><tr>{}</tr></thead>\n<tbody>").format(heads)]
    for row in body:
        if len(row) == 1:
            title = Markup('</tbody>\n<tbody>\n<tr class="title"><th scope="rowgroup" colspan="{}">{}</th></tr>')
            parts.append(title.format(len(head), plain(row[0])))
        else:
            parts.append(_row(head, row))
    return Markup("\n").join([*parts, Markup("</tbody></table>")])


def _row(head: Sequence[str], row: Sequence[str]) -> Markup:
    known = Markup('<td data-label="{}">{}</td>').format
    pairs = zip(head[1:], row[1:], strict=True)
    cells = [known(name, _with_small(cell)) if cell else Markup('<td class="none">–</td>') for name, cell in pairs]
    strong = Markup(' class="strong"') if row[0] == STRONG else ""
    label = Markup('<th scope="row">{}</th>').format(breakable(row[0]))
    return Markup("<tr{}>{}{}</tr>").format(strong, label, Markup("").join(cells))


def _with_small(cell: str) -> Any:
    """Return a cell in HTML, the interval at its end in small letters."""
    found = None if isinstance(cell, Markup) else _INTERVAL.fullmatch(cell)
    return Markup("{}<small>{}</small>").format(*found.groups()) if found else plain(cell)


def _rendered(body: Rows, head: Sequence[str], form: str) -> str:
    text = tabulate(body, head, form, disable_numparse=True, preserve_whitespace=True)
    return "\n".join(line.rstrip() for line in text.splitlines())


def plain(value: Any) -> Any:
    """Return a text without characters that change how other characters are shown.

    U+FFFD, a question mark in a diamond, replaces them. Markup, and a value that is no text, is returned unchanged.
    """
    return _INVISIBLE.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def breakable(text: str) -> Markup:
    """Return an attack as written; a browser may break the line between its parameters."""
    return text if isinstance(text, Markup) else Markup(":<wbr>").join(plain(text).split(":"))


def escape_markdown(value: Any) -> str:
    """Return text that Markdown shows as it is, on one line; Markup is not changed."""
    if isinstance(value, Markup):
        return str(value)
    text = re.sub(r"\s", " ", plain(str(value))).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", text)
