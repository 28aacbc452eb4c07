"""The text of --help, which fits on a screen, and of --helpfull, which has every flag."""

import textwrap
from typing import Any

from absl import flags

WIDTH, LEFT = 110, 34
FLAGFILE = ("--flagfile=FILE", "reads flags from a file, a line each")


def help_text(usage: str, details: str, names: list[str], common: tuple[str, ...], full: bool) -> str:
    """Return the help of a command.

    Args:
        usage: a description of the command.
        details: the text that stands in --helpfull alone, such as every attack with its options.
        names: the command's flags.
        common: the flags that --help lists; empty for all.
        full: whether this is --helpfull.
    """
    shown = names if full or not common else [name for name in common if name in names]
    lines = [usage.strip(), *([details.strip("\n")] if full and details else []), "", "flags:"]
    lines += [_line(*_described(flags.FLAGS[name])) for name in shown]
    lines.append(_line(*FLAGFILE))
    if not full and (details or len(shown) < len(names)):
        lines.append("\nEverything else: --helpfull")
    return "\n".join(lines)


def _described(flag: Any) -> tuple[str, str]:
    """Return a flag with its default, and its help; absl has put the values that it may have before the help."""
    if flag.boolean:
        return f"--[no]{flag.name}", f"{flag.help} (default: {'yes' if flag.default else 'no'})"
    return f"--{flag.name}={'' if flag.default is None else flag.default}", flag.help


def _line(left: str, right: str) -> str:
    """Return a flag on the left, and its help on the right, in as many lines as it needs."""
    first, *others = textwrap.wrap(right, WIDTH - LEFT)
    head = f"  {left}"
    start = f"{head:<{LEFT}}{first}" if len(head) < LEFT else f"{head}\n{'':{LEFT}}{first}"
    return "\n".join([start, *(f"{'':{LEFT}}{line}" for line in others)])
