"""What a pass over data on disk found, kept for the next command."""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from wca_tf.core.errors import InputError
from wca_tf.core.files import write_atomically
from wca_tf.core.lazily import np
from wca_tf.core.paths import expand_user

Found = dict[str, "np.ndarray"]
SLOW = 1.0  # seconds; what takes less is found again


def directory() -> Path:
    """Return where findings are kept: $XDG_CACHE_HOME/wca_tf, else ~/.cache/wca_tf."""
    return expand_user(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "wca_tf"


def cached(key: str, find: Callable[[], Found]) -> Found:
    """Return the arrays that `find` returned for this key, in this or an earlier process.

    Args:
        key: a digest of all that the arrays depend on. It names the file.
        find: called where nothing is kept, or where it cannot be read.
    """
    try:
        file = directory() / f"{key}.npz"
    except InputError:  # a user id without a home
        return find()
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile), np.load(file) as kept:
        return dict(kept)
    started = time.monotonic()
    found = find()
    if time.monotonic() - started > SLOW:
        with contextlib.suppress(OSError):  # no space, or no right to write: found again next time
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, lambda temporary: np.savez(temporary, allow_pickle=False, **found))
    return found
