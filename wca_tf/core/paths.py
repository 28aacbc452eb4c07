"""Paths as users write them."""

from pathlib import Path

from wca_tf.core.errors import InputError


def expand_user(path: str) -> Path:
    """Return a path with ~ expanded; raise InputError when there is no such user."""
    if "\0" in path:
        raise InputError(f"expected a path, received {path!r}")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"expected a path, received {path}: there is no such user") from None
