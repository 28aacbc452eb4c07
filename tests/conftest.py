"""What several test files share: commands in subprocesses, and tiny models trained once a session."""

import dataclasses
import fcntl
import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as the commands do
if "PYTEST_XDIST_WORKER" in os.environ:  # threads of several processes that wait for each other are ten times slower
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

from wca_tf.runs.config import TrainConfig

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Silence what libraries say about libraries."""
    for warning in ("distutils Version classes", "__array__ implementation doesn't accept a copy"):
        config.addinivalue_line("filterwarnings", f"ignore:{warning}:DeprecationWarning")


# Files are shared out whole between pytest's processes: what takes longest must not begin last.
SLOWEST_FIRST = ("checklist", "training", "distribution", "conformance", "examples", "reproduce", "serving", "export")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Mark the tests of slow_tests.txt. The files that take longest first; the order within a file stays."""
    slow, found = slow_tests(), set()
    for item in items:
        name = f"{item.path.name}::{item.name}"
        if lines := slow & {name, name.partition("[")[0]}:
            found |= lines
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.listed)
    if session.config.args == session.config.getini("testpaths") and slow != found:
        raise pytest.UsageError(f"slow_tests.txt has lines of no test: {', '.join(sorted(slow - found))}")
    names = [f"test_{name}" for name in SLOWEST_FIRST]
    items.sort(key=lambda item: names.index(item.path.stem) if item.path.stem in names else len(names))


def slow_tests() -> set[str]:
    """The lines of slow_tests.txt: FILE::TEST for all cases of a test, or FILE::TEST[CASE]."""
    lines = (ROOT / "tests" / "slow_tests.txt").read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


@dataclasses.dataclass(frozen=True)
class Finished:
    """A command that ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, from the peers that bin/test --slow installs; dependencies are .venv's wherever it has them."""
    directory = ROOT / ".peers"
    if not directory.is_dir():
        pytest.skip(f"{directory} is absent: run bin/test --slow, which installs tests/peers.txt")
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
    import torch

    torch.set_num_threads(1)  # threads that wait for each other cost more than they give on so small a net
    return torch


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def command_environment() -> dict[str, str]:
    """A user's environment: nothing of what this file sets."""
    hidden = ("TF_CPP_MIN_LOG_LEVEL", "KERAS_BACKEND", "TF_ENABLE_ONEDNN_OPTS", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in hidden}


@pytest.fixture(scope="session")
def command(command_environment: dict[str, str]) -> Callable[..., Finished]:
    """command("train", "--epochs=1", cwd=DIR) runs bin/train with this interpreter, to its end."""

    def run_command(
        name: str,
        *arguments: str,
        cwd: Path | None = None,
        interpreter: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> Finished:
        done = subprocess.run(
            [*(interpreter or (sys.executable,)), str(ROOT / "bin" / name), *arguments],
            cwd=cwd,
            env=environment or command_environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run_command


@pytest.fixture(scope="session")
def commands_together(command_environment: dict[str, str]) -> Callable[..., dict[Any, Finished]]:
    """commands_together({KEY: ("train", "--epochs=1")}, cwd=DIR): what each has done; they run at the same time."""

    def run_commands(commands: dict[Any, tuple[str, ...]], cwd: Path | None = None) -> dict[Any, Finished]:
        running = {
            key: subprocess.Popen(
                [sys.executable, str(ROOT / "bin" / name), *arguments],
                env=command_environment,
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for key, (name, *arguments) in commands.items()
        }
        ended = {key: (process, *process.communicate(timeout=240)) for key, process in running.items()}
        return {key: Finished(process.returncode, out, err) for key, (process, out, err) in ended.items()}

    return run_commands


@pytest.fixture(scope="session")
def command_without_tensorflow(
    command: Callable[..., Finished],
    command_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Finished]:
    """`command` where an import of TensorFlow or Keras ends the process: what answers at once does not need them."""
    forbidden = tmp_path_factory.mktemp("forbidden")
    for package in ("tensorflow", "keras"):
        (forbidden / f"{package}.py").write_text(f"raise SystemExit('{package} was imported')\n")
    environment = {**command_environment, "PYTHONPATH": str(forbidden)}
    return functools.partial(command, environment=environment)


@pytest.fixture(scope="session")
def fails_in_one_line(command_without_tensorflow: Callable[..., Finished]) -> Callable[..., str]:
    """fails_in_one_line(DIR, "train", ...): the error line of a command that ends at once and leaves nothing in DIR."""

    def error_line(directory: Path, name: str, *arguments: str) -> str:
        done = command_without_tensorflow(name, *arguments, cwd=directory)
        assert done.code == 2, done
        assert done.out == ""
        assert len(done.err.splitlines()) == 1, done.err
        assert done.err.startswith("error: ")
        assert list(directory.iterdir()) == []
        return done.err

    return error_line


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, str]]:
    """contents(DIR): every file's path below DIR and the hash of what is in it; and every directory."""

    def hashes(directory: Path) -> dict[str, str]:
        return {
            str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "dir"
            for path in sorted(directory.rglob("*"))
        }

    return hashes


@pytest.fixture(scope="session")
def tiny_config() -> TrainConfig:
    """The smallest real run: LeNet-5 on 256 digits of 25×25 pixels; 8 steps an epoch."""
    small = {"max_train_examples": 256, "batch_size": 32, "epochs": 5, "image_size": 25}
    return TrainConfig(backbone="lenet5", learning_rate=5e-3, seed=3, **small)


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The directory `name`, made by whichever of pytest's processes first needs it; the others wait."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of all of them
    directory = base / "made_once" / name
    directory.parent.mkdir(exist_ok=True)
    with open(directory.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            making = directory.with_suffix(".making")  # a half made one must not be taken for a whole one
            make(making)
            making.rename(directory)
    return directory


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_config: TrainConfig) -> Path:
    """The directory of an anisotropic net trained without interruption. Tests must not change it."""
    from wca_tf.runs.training import train

    return made_once(tmp_path_factory, "trained", lambda directory: train(tiny_config, directory))


@pytest.fixture(scope="session")
def trained_undefended(tmp_path_factory: pytest.TempPathFactory, tiny_config: TrainConfig) -> Path:
    """The directory of a net without noise, trained for 2 epochs. Tests must not change it."""
    from wca_tf.runs.training import train

    config = dataclasses.replace(tiny_config, defence="none", epochs=2)
    return made_once(tmp_path_factory, "undefended", lambda directory: train(config, directory))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """Version 1 of the net in `trained`, exported. Tests must not change it."""
    from wca_tf.serving.config import ExportConfig
    from wca_tf.serving.export import export_model_dir

    def export(directory: Path) -> None:
        export_model_dir(ExportConfig(model_dir=str(trained), export_dir=str(directory)))

    return made_once(tmp_path_factory, "exported", export) / "1"
