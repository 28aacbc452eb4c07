"""The commands from outside: time to a full report, start-up, memory, P(correct), input. Each run is a process."""

import dataclasses
import functools
import json
import math
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS = ("train", "evaluate", "export", "reproduce")
ATTACKS = "fgsm,pgd,z_margin:steps=10"
FIRST_BATCH = "bin/evaluate to its first batch"
TRAIN_HELP = "bin/train --help"
TRAINING_IMAGES = 128
PROGRESS = re.compile(rb"\b([1-9]\d*)%\|")  # a bar that has moved
LINEAR = 1.3  # the largest power of x that counts as linear
MAX_SECONDS = 3600.0  # seconds of a process


@dataclasses.dataclass(frozen=True)
class EvaluationSizes:
    """How much is measured.

    Attributes:
        report_images: of the full report.
        starts: processes of each command.
        examples, draws, classes: along which memory is measured.
        probabilities: (classes, images) of P(correct).
        pipeline_images: of the training's input pipeline, for each net.
    """

    report_images: int = 10_000
    starts: int = 5
    examples: tuple[int, ...] = (100, 1_000, 10_000)
    draws: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    classes: tuple[int, ...] = (10, 100, 1_000)
    probabilities: tuple[tuple[int, int], ...] = ((10, 100), (100, 20), (1_000, 2))
    pipeline_images: int = 50_000


FULL = EvaluationSizes()
SMOKE = EvaluationSizes(20, 1, (10, 20), (1, 2), (10, 20), ((3, 2), (10, 2)), 1_000)
Parts = dict[str, Callable[[], dict[str, Any]]]


def evaluation_parts(sizes: EvaluationSizes, environment: dict[str, str]) -> Parts:
    """Name -> what measures it."""
    once = {"examples": 100, "draws": 50, "classes": 10, "evaluates": False}
    curves = {
        "examples": [{**once, "examples": count, "evaluates": True} for count in sizes.examples],
        "draws": [{**once, "draws": count} for count in sizes.draws],
        "classes": [{**once, "classes": count} for count in sizes.classes],
    }
    parts: Parts = {
        "start-up": lambda: start_up(sizes.starts, environment),
        "report": lambda: report(sizes.report_images, environment),
    }
    for name, jobs in curves.items():
        parts[f"memory by {name}"] = functools.partial(memory_curve, name, jobs, environment)
    parts["input pipeline"] = lambda: pipelines(sizes.pipeline_images, environment)
    parts["P(correct)"] = lambda: probabilities(sizes.probabilities, environment)
    return parts


def run(arguments: list[str], environment: dict[str, str]) -> tuple[str, float]:
    """What a process of this interpreter printed, and its seconds; raises when it fails."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-300:]}")
    return done.stdout, time.perf_counter() - started


def start_up(count: int, environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of `--help` of each command, of the import, and until `bin/evaluate` is done with its first batch."""
    timed: dict[str, Callable[[], float]] = {
        f"bin/{name} --help": functools.partial(_seconds, [f"bin/{name}", "--help"], environment) for name in COMMANDS
    }
    timed["import wca_tf"] = functools.partial(_seconds, ["-c", "import wca_tf"], environment)
    with tempfile.TemporaryDirectory() as directory:
        model_dir = make_model_dir(Path(directory) / "model", "digits", environment)
        timed[FIRST_BATCH] = lambda: first_batch(model_dir, environment)
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(count + 1):  # the first fills the disk's cache
            for name, measure in timed.items():
                seconds[name].append(measure())
    return {name: {"seconds": values[1:], "median": statistics.median(values[1:])} for name, values in seconds.items()}


def _seconds(arguments: list[str], environment: dict[str, str]) -> float:
    return run(arguments, environment)[1]


def first_batch(model_dir: Path, environment: dict[str, str]) -> float:
    """Seconds until a new evaluation's bar, drawn as on a terminal, has moved."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 100))  # a bar fits into it
    with tempfile.TemporaryDirectory() as report_dir:
        arguments = [f"--model_dir={model_dir}", f"--report_dir={report_dir}/report", "--attacks=pgd"]
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "bin/evaluate", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=follower,
        )
        os.close(follower)
        try:
            _read_until(leader, PROGRESS)
            return time.perf_counter() - started
        finally:
            process.kill()
            process.wait()
            os.close(leader)


def _read_until(descriptor: int, pattern: re.Pattern[bytes]) -> None:
    """Read from a terminal until the pattern appears; raises when it ends without."""
    shown = b""
    while not pattern.search(shown):
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # how a terminal ends
            part = b""
        if not part:
            raise RuntimeError(f"no progress was shown: {shown[-300:]!r}")
        shown += part


def report(count: int, environment: dict[str, str]) -> dict[str, Any]:
    """Seconds from the command to its report, on `count` random images that it reads from a folder."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "images"
        write_images(data, {"train": TRAINING_IMAGES, "test": count})
        model_dir = make_model_dir(Path(directory) / "model", f"folder:{data}", environment)
        told = [f"--model_dir={model_dir}", f"--report_dir={directory}/report", f"--attacks={ATTACKS}"]
        _, seconds = run(["bin/evaluate", *told, "--num_examples=0"], environment)
        attacked = json.loads((Path(directory) / "report" / "results.json").read_text())["num_examples"]
    return {"images": attacked, "attacks": ATTACKS, "net": "lenet_plus_plus", "seconds": seconds}


def write_images(data: Path, counts: dict[str, int]) -> None:
    """Folders of random 28×28 images of ten classes."""
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for number in range(count):
            path = data / split / str(number % 10) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (28, 28), np.uint8)).save(path)


def make_model_dir(path: Path, dataset: str, environment: dict[str, str]) -> Path:
    """A LeNet++ after one training step."""
    flags = {"dataset": dataset, "max_train_examples": TRAINING_IMAGES, "validation_split": 0, "epochs": 1}
    run(["bin/train", f"--model_dir={path}", *(f"--{name}={value}" for name, value in flags.items())], environment)
    return path


def memory_curve(name: str, jobs: list[dict[str, Any]], environment: dict[str, str]) -> dict[str, Any]:
    """Peak bytes of a process along `name`, and how they grow."""
    points = []
    for job in jobs:
        measured = alone({"kind": "memory", **job}, environment)
        points.append({name: job[name], **measured})
    return {"points": points, "growth": growth([(point[name], point["peak_bytes"]) for point in points])}


def growth(points: list[tuple[float, float]]) -> str:
    """Flat: within a tenth. Linear: from the last point but one, the rise over the first grew as its x, or little more.

    A rise below a hundredth counts as that: it drowns in what a process takes anyway.
    """
    (_, first), (x_before, before), (x_last, last) = points[0], points[-2], points[-1]
    if last <= 1.1 * first:
        return "flat"
    power = math.log((last - first) / max(before - first, first / 100)) / math.log(x_last / x_before)
    return "linear" if power <= LINEAR else "steeper than linear"


def probabilities(sizes: tuple[tuple[int, int], ...], environment: dict[str, str]) -> dict[str, Any]:
    """P(correct) by the number of classes."""
    jobs = [{"kind": "probability", "classes": classes, "examples": count} for classes, count in sizes]
    return {str(job["classes"]): alone(job, environment) for job in jobs}


def pipelines(count: int, environment: dict[str, str]) -> dict[str, Any]:
    """The training's input pipeline by net, with the augmentation of the paper's data set for it."""
    nets = {"lenet_plus_plus": "none", "resnet18": "crop_flip"}
    return {
        net: alone({"kind": "pipeline", "net": net, "augmentation": augmentation, "examples": count}, environment)
        for net, augmentation in nets.items()
    }


def alone(job: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    """What alone.py prints of a job."""
    printed, _ = run(["-m", "benchmarks.suite.alone", json.dumps(job)], environment)
    return json.loads(printed.splitlines()[-1])
