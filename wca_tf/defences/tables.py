"""The defences as a table, for `--help` and for the documentation, from their declarations. Free of TensorFlow.

`python -m wca_tf.defences.tables` writes the table into docs/defences.md.
"""

from pathlib import Path

from wca_tf.core.options import assignment, options_of, with_tables
from wca_tf.defences import declaration_of, defence_names
from wca_tf.defences.defence import Defence


def help_text() -> str:
    """Return a line for each defence, and a line for each of its options."""
    lines = []
    for name in defence_names():
        declaration = declaration_of(name)
        lines.append(f"    {name:16}{_summary(declaration)} ({declaration.source})")
        if declaration.protocol:
            lines.append(f"    {'':16}the authors' attack: --attacks={declaration.protocol}")
        for option, field in options_of(declaration).items():
            lines.append(f"    {'':16}{assignment(option, field.default)}: {field.metadata['help']}")
    return "\n".join(lines)


def markdown_table() -> str:
    """Return a row for each defence: its name, its description, its options with their defaults, source and attack."""
    lines = ["| defence | what it is | options and defaults | source | the authors' attack |", "|---" * 5 + "|"]
    for name in defence_names():
        declaration = declaration_of(name)
        options = [f"`{assignment(key, field.default)}`" for key, field in options_of(declaration).items()]
        attack = f"`{declaration.protocol}`" if declaration.protocol else "–"
        cells = (f"`{name}`", _summary(declaration), ", ".join(options), declaration.source, attack)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _summary(declaration: type[Defence]) -> str:
    """Return the first line of a declaration's docstring, without its full stop."""
    return (declaration.__doc__ or "").strip().splitlines()[0].rstrip(".")


if __name__ == "__main__":
    page = Path("docs/defences.md")
    page.write_text(with_tables(page.read_text(), {"defences": markdown_table()}))
