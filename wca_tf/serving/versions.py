"""Versions of a served model: numbered directories below a base directory, which TF Serving watches.

A version appears there complete or not at all, and is never replaced. This module is free of TensorFlow.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from wca_tf.core import files
from wca_tf.core.errors import InputError


def check_version_free(export_dir: Path, version: int) -> None:
    """Raise InputError when `export_dir` has this version; the message names the next free version."""
    names = [path.name for path in export_dir.iterdir()] if export_dir.is_dir() else []
    taken = {int(name) for name in names if name.isascii() and name.isdigit()}
    if version in taken:
        raise InputError(f"{export_dir} has a version {version}, which stays: export --version={max(taken) + 1}")


@contextlib.contextmanager
def new_version(export_dir: Path, version: int) -> Iterator[Path]:
    """Yield the path of a directory for the caller to make and fill, then rename it to `export_dir`/`version`.

    Until then the name is not a number, so that TF Serving ignores the directory. When the caller fails, the directory
    is removed.

    Yields:
        the path of the directory to make.

    Raises:
        InputError: the version exists, or another process is exporting to `export_dir`.
    """
    check_version_free(export_dir, version)
    with files.exclusive_directory(export_dir) as base:
        check_version_free(base, version)  # another process may have been first
        for leftover in base.glob(files.TEMPORARY_PREFIX + "*"):
            shutil.rmtree(leftover)
        temporary = base / f"{files.TEMPORARY_PREFIX}{version}"
        try:
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                _write_through(path)
            temporary.rename(base / str(version))
            _write_through(base)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_through(path: Path) -> None:
    """Wait until a file or directory is on the disk: a loss of power must not keep the rename and lose the contents."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
