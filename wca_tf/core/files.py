"""Files that are never half-written, and directories that only one process uses at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.lazily import np

TEMPORARY_PREFIX = ".wca_tf-"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a full disk, or the limit of a user or of a process
_locks = True  # see use_locks


def write_atomically(path: str | Path, write: Callable[[str], object]) -> None:
    """Let `write` fill a temporary file in the same directory, then rename it to `path`.

    A process killed at any moment leaves the old file or the new one, never a part of one.

    Args:
        path: the file to make or replace.
        write: called with the temporary file's path, which ends with the name of `path`.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY_PREFIX, suffix=path.name)
    os.close(handle)
    try:
        write(temporary)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())  # else a loss of power can keep the rename and lose the contents
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise OSError(error.errno, "no space left to write", str(path)) from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write text as UTF-8, atomically; characters that UTF-8 does not have become question marks."""
    contents = text.encode("utf-8", "replace")  # names of folders may not be valid Unicode
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(contents))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; raise ValueError for NaN and Inf, which JSON does not have."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; raise InputError, in one line, when it is absent or broken."""
    [value] = _parse_json(path, lambda text: [text])
    return value


def read_json_lines(path: str | Path) -> list[Any]:
    """Read a file with a JSON value on each line; raise InputError as `read_json` does."""
    return _parse_json(path, str.splitlines)


def _parse_json(path: str | Path, parts: Callable[[str], list[str]]) -> list[Any]:
    try:
        texts = parts(Path(path).read_text())
        return [json.loads(text, parse_float=_finite, parse_constant=_finite) for text in texts]
    except FileNotFoundError:
        raise InputError(f"expected a file {path}: there is none") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not JSON
        raise InputError(f"expected JSON in {path}, which cannot be read: {one_line(error)}") from None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"NaN or Inf, {text}")
    return number


def check_broken(error: Exception, record: Path) -> None:
    """Print a line where an error in reading a record says that it is broken, since it is then made again.

    Raises:
        InputError: the disk does not give the file, which may be whole.
    """
    if isinstance(error, OSError):
        raise InputError(f"expected a record in {record}, which cannot be read: {one_line(error)}") from None
    print(f"made again: {record}, which cannot be read: {one_line(error)}")


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal; raise InputError when it is absent or cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except FileNotFoundError:
        raise InputError(f"expected a file {path}: there is none") from None
    except OSError as error:
        raise InputError(f"expected a file {path}, which cannot be read: {one_line(error)}") from None


def sha256_of_arrays(*arrays: np.ndarray) -> str:
    """Return the SHA-256 of the arrays' types, shapes and values, in hexadecimal."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(f"{array.dtype}{array.shape}".encode())
        hashed.update(bytes_of(array))
    return hashed.hexdigest()


def bytes_of(array: np.ndarray) -> memoryview:
    """Return the bytes of an array's values; no copy where they are contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def use_locks(use: bool) -> None:
    """Say whether `exclusive_directory` keeps other processes out. Without locks, the user must."""
    global _locks
    _locks = use


@contextlib.contextmanager
def exclusive_directory(path: str | Path) -> Iterator[Path]:
    """Make the directory `path` and hold it for this process.

    The kernel keeps the lock, so the lock ends with the process, even when the process is killed. Files that a killed
    process was writing there are removed.

    Raises:
        InputError: the directory is in use or not writable, or its file system has no locks (see `use_locks`).
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / ".lock", "a")  # a file of this name that is not ours stays as it is
    except OSError as error:
        raise InputError(f"expected a directory that can be written, received {path}: {one_line(error)}") from None
    with lock:
        try:
            if _locks:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{path} is in use by another process: wait for it, or name another directory") from None
        except OSError as error:
            raise InputError(
                f"expected a directory on a file system with locks, received {path}: {one_line(error)}; name another, "
                "or add --nolock (in Python: wca_tf.core.files.use_locks(False)) if no other process uses it"
            ) from None
        remove_leftovers(path)
        yield path


def check_nothing_foreign(directory: Path, marker: str, names: Iterable[str]) -> None:
    """Raise InputError when a directory without the file `marker` has one of the files `names`: they are not ours."""
    if (directory / marker).exists():
        return
    for name in names:
        if (directory / name).exists():
            raise InputError(
                f"{directory / name} is of something else, and would be replaced: name another --report_dir"
            )


def remove_leftovers(directory: Path) -> None:
    """Remove the files that a killed process was writing to `directory`; the caller must hold the directory."""
    for leftover in directory.glob(TEMPORARY_PREFIX + "*"):
        if leftover.is_file():
            leftover.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
