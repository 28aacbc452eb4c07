"""The attacks as a table, for `--help` and for the documentation, from their declarations. Free of TensorFlow."""

from wca_tf.attacks.attack import Attack
from wca_tf.attacks.names import ATTACKS, NamedAttack
from wca_tf.core.options import assignment, options_of, with_tables


def names_by_group() -> str:
    """Return a line for each group of attacks, with their names."""
    groups: dict[str, list[str]] = {}
    for name, named in ATTACKS.items():
        groups.setdefault(named.group, []).append(name)
    return "\n".join(f"    {group + ':':12}{', '.join(names)}" for group, names in groups.items())


def help_text() -> str:
    """Return a line for each attack, by group, and a line of its options with their defaults."""
    lines, group = [], ""
    for name, named in ATTACKS.items():
        if named.group != group:
            group = named.group
            lines.append(f"  {group}:")
        lines.append(f"    {name:16}{named.description} ({named.source})")
        lines.append(f"    {'':16}{' '.join(_assignments(named))}")
    return "\n".join(lines)


def markdown_table() -> str:
    """Return a row for each attack: its name, its description, its options with their defaults, its source."""
    lines = ["| attack | what it is | options and defaults | source |", "|---|---|---|---|"]
    for name, named in ATTACKS.items():
        options = ", ".join(f"`{assignment}`" for assignment in _assignments(named))
        lines.append(f"| `{name}` | {named.description} | {options} | {named.source} |")
    return "\n".join(lines)


def markdown_options() -> str:
    """Return a row for each option: its meaning, and the attacks that have it."""
    meanings: dict[tuple[str, str], list[str]] = {}
    for name, named in ATTACKS.items():
        for option, field in options_of(named.kind).items():
            choices = field.metadata["bounds"].choices
            meaning = field.metadata["help"] + (f" ({', '.join(choices)})" if choices else "")
            meanings.setdefault((option, meaning), []).append(name)
    lines = ["| option | what it is | attacks |", "|---|---|---|"]
    for (option, meaning), names in meanings.items():
        whose = "all" if len(names) == len(ATTACKS) else ", ".join(names)
        lines.append(f"| `{option}` | {meaning} | {whose} |")
    return "\n".join(lines)


def _assignments(named: NamedAttack) -> list[str]:
    """Return option=default for the options that are not the same for every attack."""
    shared = options_of(Attack)
    assignments = []
    for option, field in options_of(named.kind).items():
        value = named.defaults.get(option, field.default)
        if option not in shared or value != field.default:
            assignments.append(assignment(option, value))
    return assignments


def with_tables_of_attacks(text: str) -> str:
    """Return a Markdown page in which the tables of attacks and of their options are made anew."""
    return with_tables(text, {"attacks": markdown_table(), "options": markdown_options()})
