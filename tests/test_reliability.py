"""What a run survives: kills at any moment, a full disk, another process, a closed home, a clock that jumps.

docs/reliability.md has a line for each. Real processes, so that most are slow.
"""

import dataclasses
import itertools
import json
import random
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from wca_tf.core.files import TEMPORARY_PREFIX
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import evaluate
from wca_tf.nets.model_files import load_model
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.training import train

KILLS = 50
EVALUATION = EvaluateConfig(
    attacks="fgsm,pgd:steps=200,square:queries=200", epsilons="0.1", num_examples=40, batch_size=4
)
SMALL_DISK = 1_500_000  # bytes: less than the models of a run


def start(root, environment, command, *arguments, before=(), **options):
    """A process of bin/COMMAND; `before` goes in front of it."""
    line = [*before, sys.executable, str(root / "bin" / command), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, env=environment, **pipes, **options)


def finish(process):
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def flags_of(config):
    return [f"--{name}={value}" for name, value in dataclasses.asdict(config).items() if value != ""]


def arrays(report):
    with np.load(report / "examples.npz") as stored:
        return {name: stored[name] for name in stored.files}


def same_weights(path, other):
    pairs = zip(load_model(path).variables, load_model(other).variables, strict=True)
    return all(np.array_equal(mine, its) for mine, its in pairs)


def check_finished_run(path, expected):
    assert same_weights(path / "last.keras", expected / "last.keras")
    assert same_weights(path / "model.keras", expected / "model.keras")
    mine, theirs = (ModelDirectory(one).read_metrics() for one in (path, expected))
    untimed = {"seconds": 0, "cpu_seconds": 0}
    assert [line | untimed for line in mine] == [line | untimed for line in theirs]


def check_finished_evaluation(path, expected):
    mine, theirs = arrays(path), arrays(expected)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


def check_whole_files(path):
    """Whatever a killed process left under its own name can be read."""
    for file in path.rglob("*"):
        if file.name.startswith(TEMPORARY_PREFIX):
            continue
        if file.suffix == ".keras":
            load_model(file)
        if file.suffix == ".json":
            json.loads(file.read_text())
        if file.suffix == ".npz":
            with np.load(file) as stored:
                assert all(stored[name] is not None for name in stored.files)


def kill_again_and_again(begin, paths, check_finished):
    """Kill runs KILLS times, each after a random part of the time that a whole one takes; then let the last one end.

    A run that ends between two kills is checked, and the next begins in the next of `paths`.
    """
    path = next(paths)
    started = time.monotonic()
    code, _, err = finish(begin(path))
    assert code == 0, err
    check_finished(path)
    whole = time.monotonic() - started
    path, kills, finished = next(paths), 0, 0
    randomly = random.Random(0)
    while kills < KILLS:
        process = begin(path)
        try:
            process.communicate(timeout=randomly.uniform(0, whole))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            check_whole_files(path)
            kills += 1
            continue
        assert process.returncode == 0
        check_finished(path)
        path, finished = next(paths), finished + 1
    code, _, err = finish(begin(path))
    assert code == 0, err
    check_finished(path)
    print(f"{kills} kills, a whole run takes {whole:.1f} s, {finished + 1} runs ended")


@pytest.mark.slow
def test_training_killed_at_50_random_moments(root, command_environment, tmp_path, trained, tiny_config):
    paths = (tmp_path / str(number) for number in itertools.count())

    def begin(path):
        return start(root, command_environment, "train", *flags_of(tiny_config), f"--model_dir={path}")

    kill_again_and_again(begin, paths, lambda path: check_finished_run(path, trained))


@pytest.mark.slow
def test_an_evaluation_killed_at_50_random_moments(root, command_environment, tmp_path, trained):
    evaluate(EVALUATION, trained, tmp_path / "expected")
    paths = (tmp_path / str(number) for number in itertools.count())

    def begin(path):
        arguments = [*flags_of(EVALUATION), f"--model_dir={trained}", f"--report_dir={path}"]
        return start(root, command_environment, "evaluate", *arguments)

    kill_again_and_again(begin, paths, lambda path: check_finished_evaluation(path, tmp_path / "expected"))


# A disk of its own


def on_own_disk(options, directory):
    """What runs a command with a small disk mounted at `directory`, in a namespace of its own; or skips."""
    mount = f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"'
    before = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(directory)]
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a disk")
    return before


def keep(directory, kept, command):
    """A command, then a copy of what it left in `directory`, which goes with its namespace."""
    script = f'"$@"; code=$?; cp -r "{directory}/." "{kept}"; exit $code'
    return ["sh", "-c", script, "keep", *command]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "evaluate", "export"])
def test_a_full_disk_is_one_line_and_what_is_there_is_whole(
    root, command_environment, tmp_path, trained, tiny_config, command
):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir(), kept.mkdir()
    arguments = {
        "train": [*flags_of(tiny_config), f"--model_dir={disk}/run"],
        "evaluate": [*flags_of(EVALUATION), f"--model_dir={trained}", f"--report_dir={disk}/run"],
        "export": [f"--model_dir={trained}", f"--export_dir={disk}/run"],
    }[command]
    size = SMALL_DISK if command != "evaluate" else 20_000
    before = on_own_disk(f"size={size}", disk) + keep(disk, kept, [])
    code, _, err = finish(start(root, command_environment, command, *arguments, before=before))
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and "Traceback" not in err, err
    assert len(lines) == 1 and f"no space left to write: '{disk}/run/" in lines[0], err
    check_whole_files(kept)
    if command == "export":
        assert not list((kept / "run").glob("[0-9]*"))
        return
    # With room, the same command goes on from there.
    arguments = [argument.replace(str(disk), str(kept)) for argument in arguments]
    code, _, err = finish(start(root, command_environment, command, *arguments))
    assert code == 0, err
    if command == "train":
        check_finished_run(kept / "run", trained)
    else:
        evaluate(EVALUATION, trained, tmp_path / "expected")
        check_finished_evaluation(kept / "run", tmp_path / "expected")


@pytest.mark.slow
def test_a_home_that_cannot_be_written_does_not_matter(root, command_environment, tmp_path, trained, tiny_config):
    home = tmp_path / "home"
    home.mkdir()
    environment = {**command_environment, "HOME": str(home)}
    before = on_own_disk("ro,size=4096", home)
    arguments = [*flags_of(dataclasses.replace(tiny_config, epochs=1)), f"--model_dir={tmp_path}/run"]
    for command, given in {
        "train": arguments,
        "evaluate": [f"--model_dir={tmp_path}/run", "--attacks=fgsm", "--num_examples=4"],
        "export": [f"--model_dir={tmp_path}/run", f"--export_dir={tmp_path}/served"],
    }.items():
        code, _, err = finish(start(root, environment, command, *given, before=before))
        assert code == 0 and "Traceback" not in err, err
    assert list(home.iterdir()) == []


# Two at once, and time


@pytest.mark.slow
def test_of_two_processes_on_one_directory_one_works_and_the_other_says_so(
    root, command_environment, tmp_path, trained, tiny_config
):
    arguments = [*flags_of(tiny_config), f"--model_dir={tmp_path}/run"]
    both = [start(root, command_environment, "train", *arguments) for _ in range(2)]
    ended = [finish(process) for process in both]
    assert sorted(code for code, _, _ in ended) in ([0, 2], [0, 0])  # 0 twice: one came when the other was done
    for code, out, err in ended:
        assert "in use by another process" in err if code else "best epoch" in out
    check_finished_run(tmp_path / "run", trained)


@pytest.mark.slow
def test_a_clock_that_jumps_changes_no_number(monkeypatch, tmp_path, trained, tiny_config):
    randomly = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: randomly.uniform(0, 4e9))
    monkeypatch.setattr(time, "time_ns", lambda: randomly.randrange(4 * 10**18))
    config = dataclasses.replace(EVALUATION, attacks="pgd:steps=2", num_examples=8)
    results = evaluate(config, trained, tmp_path / "jumping")
    assert results["seconds"] >= 0
    train(dataclasses.replace(tiny_config, epochs=1), tmp_path / "run")
    monkeypatch.undo()
    evaluate(config, trained, tmp_path / "steady")
    check_finished_evaluation(tmp_path / "jumping", tmp_path / "steady")
    train(dataclasses.replace(tiny_config, epochs=1), tmp_path / "steady_run")
    assert same_weights(tmp_path / "run" / "last.keras", tmp_path / "steady_run" / "last.keras")
    [seconds] = [line["seconds"] for line in ModelDirectory(tmp_path / "run").read_metrics()]
    assert 0 <= seconds < 600


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "evaluate", "export"])
def test_a_directory_that_cannot_be_written_is_one_line(root, command_environment, tmp_path, trained, command):
    disk = tmp_path / "disk"
    disk.mkdir()
    given = {
        "train": [f"--model_dir={disk}/run"],
        "evaluate": [f"--model_dir={trained}", "--attacks=fgsm", "--num_examples=4", f"--report_dir={disk}/run"],
        "export": [f"--model_dir={trained}", f"--export_dir={disk}/run"],
    }[command]
    before = on_own_disk("ro,size=4096", disk)
    code, _, err = finish(start(root, command_environment, command, *given, before=before))
    assert code == 2 and "Traceback" not in err, err
    assert err.splitlines()[-1].startswith("error: expected a directory that can be written"), err
