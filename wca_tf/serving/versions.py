"""Versions of a served model: numbered directories below a base directory, which TF Serving watches.

A version appears there complete or not at all, and is never replaced. Without TensorFlow.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from wca_tf import files
from wca_tf.errors import InputError


def check_version_free(export_dir: Path, version: int) -> None:
    """Raise InputError, naming the next free version, when `export_dir` has this one."""
    names = [path.name for path in export_dir.iterdir()] if export_dir.is_dir() else []
    taken = {int(name) for name in names if name.isascii() and name.isdigit()}
    if version in taken:
        raise InputError(f"{export_dir} has a version {version}, which stays: export --version={max(taken) + 1}")


@contextlib.contextmanager
def new_version(export_dir: Path, version: int) -> Iterator[Path]:
    """Have the caller make a directory and fill it; it becomes `export_dir`/`version` when that is done.

    Until then its name is no number, so that TF Serving passes it over; when the caller fails, it is removed.

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
            for path in temporary.rglob("*"):
                _write_through(path)
            temporary.rename(base / str(version))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_through(path: Path) -> None:
    """Wait until a file or directory is on the disk: the rename must not outlive it in a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
