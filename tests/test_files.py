import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wca_tf.core.errors import InputError
from wca_tf.core.files import exclusive_directory, read_json, use_locks, write_atomically, write_json

HOLD = """
import sys
from wca_tf.core.files import exclusive_directory
with exclusive_directory(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path, root):
    """Another process that holds tmp_path/held."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "held")],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_write_atomically_replaces_the_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "name.txt"
    for text in ("old", "new"):
        write_atomically(path, lambda temporary, text=text: Path(temporary).write_text(text))
        assert path.read_text() == text
    assert os.listdir(tmp_path) == ["name.txt"]


def test_write_atomically_gives_a_temporary_file_beside_the_path_with_its_suffix(tmp_path):
    seen = []
    write_atomically(tmp_path / "model.keras", lambda temporary: seen.append(Path(temporary)))
    assert seen[0].parent == tmp_path
    assert seen[0].name.endswith(".keras")


def test_write_atomically_makes_a_file_that_others_can_read(tmp_path):
    write_atomically(tmp_path / "a", lambda temporary: None)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("old", ["old", None])
def test_a_writer_that_raises_leaves_the_old_file_and_no_temporary(tmp_path, old):
    path = tmp_path / "file.txt"
    if old:
        path.write_text(old)

    def write_half(temporary):
        Path(temporary).write_text("hal")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_atomically(path, write_half)
    assert [p.read_text() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_json_is_written_and_read_back(tmp_path):
    value = {"a": [1, 2.5, None, "é"], "b": {"c": True}}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_no_json_are_refused_and_the_old_file_stays(tmp_path, number):
    write_json(tmp_path / "a.json", [1])
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"value": number})
    assert read_json(tmp_path / "a.json") == [1]
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("text", [b"", b'{"a": 1', b"\xff\xfe\x00", b"\x00", b"[NaN]", b"[1e999]"])
def test_broken_json_is_an_input_error_that_names_the_file(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"broken\.json") as raised:
        read_json(path)
    assert "\n" not in str(raised.value)


def test_absent_json_is_an_input_error_that_names_the_file(tmp_path):
    with pytest.raises(InputError, match=r"absent\.json"):
        read_json(tmp_path / "absent.json")
    with pytest.raises(InputError, match=tmp_path.name):
        read_json(tmp_path)


def test_exclusive_directory_makes_the_directory_and_gives_its_path(tmp_path):
    with exclusive_directory(tmp_path / "a" / "b") as path:
        assert path == tmp_path / "a" / "b"
        assert path.is_dir()


def test_a_second_holder_in_this_process_is_refused_until_the_first_is_done(tmp_path):
    with exclusive_directory(tmp_path):
        with pytest.raises(InputError, match="in use"):
            with exclusive_directory(tmp_path):
                raise AssertionError("held twice")
    with exclusive_directory(tmp_path):
        pass


def test_a_directory_is_free_again_after_an_error_inside(tmp_path):
    with pytest.raises(RuntimeError):
        with exclusive_directory(tmp_path):
            raise RuntimeError
    with exclusive_directory(tmp_path):
        pass


def test_a_directory_that_another_process_holds_is_refused_and_its_files_stay(tmp_path, holder):
    (tmp_path / "held" / ".tmpmodel.keras").write_text("being written")
    with pytest.raises(InputError, match="in use"):
        with exclusive_directory(tmp_path / "held"):
            raise AssertionError("held twice")
    assert (tmp_path / "held" / ".tmpmodel.keras").exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_the_lock_ends_with_the_process_however_that_ends(tmp_path, holder, how):
    if how:
        holder.send_signal(how)
    holder.communicate(timeout=30)
    assert holder.returncode == (-how if how else 0)
    with exclusive_directory(tmp_path / "held"):
        pass


@pytest.fixture
def without_locks(monkeypatch):
    """A file system without locks, as some network file systems are mounted."""

    def refuse(*arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    yield
    use_locks(True)


def test_a_file_system_without_locks_is_told_as_such(tmp_path, without_locks):
    with pytest.raises(InputError, match="with locks, received .*No locks available.*--nolock") as raised:
        with exclusive_directory(tmp_path):
            raise AssertionError("held without a lock")
    assert "in use" not in str(raised.value) and "\n" not in str(raised.value)


def test_without_locks_the_directory_is_used_when_the_user_says_so(tmp_path, without_locks):
    (tmp_path / ".wca_tf-abcmodel.keras").write_text("x")
    use_locks(False)
    with exclusive_directory(tmp_path) as path:
        assert path == tmp_path and os.listdir(tmp_path) == [".lock"]


def test_files_that_a_killed_process_was_writing_are_removed_and_no_others(tmp_path):
    (tmp_path / "backup").mkdir()
    leftovers = [tmp_path / ".wca_tf-abcmodel.keras"]
    kept = [
        tmp_path / "model.keras",
        tmp_path / "backup" / "latest.keras",
        tmp_path / ".tmp_mine",
        tmp_path / "backup" / ".wca_tf-x",
    ]
    for path in [*leftovers, *kept]:
        path.write_text("x")
    with exclusive_directory(tmp_path):
        assert not any(path.exists() for path in leftovers)
        assert all(path.exists() for path in kept)


def test_the_lock_file_stays_so_that_two_waiting_processes_lock_the_same_one(tmp_path):
    with exclusive_directory(tmp_path):
        pass
    with open(tmp_path / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("below", [".", "new"])
def test_a_directory_that_cannot_be_written_is_an_input_error(below):
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        os.chmod(name, 0o555)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)  # root may write everywhere
            with pytest.raises(InputError, match="can be written") as raised:
                with exclusive_directory(Path(name) / below):
                    raise AssertionError("held")
        finally:
            os.seteuid(user)
        assert name in str(raised.value)
        assert os.listdir(name) == []
        os.chmod(name, 0o755)


def test_a_file_in_the_place_of_the_directory_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="can be written"):
            with exclusive_directory(path):
                raise AssertionError("held")
    assert (tmp_path / "file").read_text() == "x"
