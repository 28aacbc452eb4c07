"""The commands from outside, and memory, P(correct) and the input pipeline: each measured in a process of its own."""

import json
import math
import multiprocessing
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
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.suite.plan import ADVERSARIAL_EPSILON, FEATURE_DIM, ROOT
from benchmarks.suite.process import resident

TRAIN_HELP, FIRST_BATCH = "bin/train --help", "bin/evaluate to its first batch"
ATTACKS = "fgsm,pgd,z_margin:steps=10"
TRAINING_IMAGES = 128
PIPELINES = {"lenet_plus_plus": "none", "resnet18": "crop_flip"}  # with the augmentation of the paper's data set
PROGRESS = re.compile(rb"\b([1-9]\d*)%\|")  # a bar that has moved
LINEAR = 1.3  # the largest power of x that counts as linear
MAX_SECONDS = 3600.0  # seconds of a process
Part = Callable[[], dict[str, Any]]


def parts(smoke: bool) -> dict[str, Part]:
    """Return name -> what measures it."""
    curves: dict[str, tuple[int, ...]] = {
        "examples": (10, 20) if smoke else (100, 1_000, 10_000),
        "draws": (1, 2) if smoke else (1, 10, 100, 1_000, 10_000),
        "classes": (10, 20) if smoke else (10, 100, 1_000),
    }
    return {
        "start-up": partial(start_up, 1 if smoke else 5),
        "report": partial(report, 20 if smoke else 10_000),
        **{f"memory by {name}": partial(memory_curve, name, values) for name, values in curves.items()},
        "input pipeline": partial(pipelines, 1_000 if smoke else 50_000),
        "P(correct)": partial(probabilities, {3: 2, 10: 2} if smoke else {10: 100, 100: 20, 1_000: 2}),
    }


def run(*arguments: str) -> float:
    """Return the seconds of a process of this interpreter; raise when it fails."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=MAX_SECONDS, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-300:]}")
    return time.perf_counter() - started


def alone(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return what a function gives in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def start_up(count: int) -> dict[str, Any]:
    """Time `bin/train --help`, and `bin/evaluate` until it is done with its first batch."""
    with tempfile.TemporaryDirectory() as directory:
        model_dir = make_model_dir(f"{directory}/model", "digits")
        timed = {TRAIN_HELP: partial(run, "bin/train", "--help"), FIRST_BATCH: partial(first_batch, model_dir)}
        rounds = [{name: measure() for name, measure in timed.items()} for _ in range(count + 1)]
    seconds = {name: [each[name] for each in rounds[1:]] for name in timed}  # the first fills the disk's cache
    return {name: {"seconds": values, "median": statistics.median(values)} for name, values in seconds.items()}


def first_batch(model_dir: str) -> float:
    """Return the seconds until a new evaluation's bar, drawn as on a terminal, has moved."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 100))  # a bar fits into it
    shown = b""
    with tempfile.TemporaryDirectory() as directory:
        told = [f"--model_dir={model_dir}", f"--report_dir={directory}/report", "--attacks=pgd"]
        started = time.perf_counter()
        command = [sys.executable, "bin/evaluate", *told]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=follower)
        os.close(follower)
        try:
            while not PROGRESS.search(shown):
                shown += os.read(leader, 4096)
            return time.perf_counter() - started
        except OSError as error:  # how a terminal ends
            raise RuntimeError(f"no progress was shown: {shown[-300:]!r}") from error
        finally:
            process.kill()
            process.wait()
            os.close(leader)


def report(count: int) -> dict[str, Any]:
    """Time the command to its report, on `count` random images that it reads from a folder."""
    with tempfile.TemporaryDirectory() as directory:
        write_images(Path(directory) / "images", {"train": TRAINING_IMAGES, "test": count})
        model_dir = make_model_dir(f"{directory}/model", f"folder:{directory}/images")
        told = (f"--model_dir={model_dir}", f"--report_dir={directory}/report", f"--attacks={ATTACKS}")
        seconds = run("bin/evaluate", *told, "--num_examples=0")
        attacked = json.loads((Path(directory) / "report" / "results.json").read_text())["num_examples"]
    return {"images": attacked, "attacks": ATTACKS, "net": "lenet_plus_plus", "seconds": seconds}


def write_images(data: Path, counts: dict[str, int]) -> None:
    """Write folders of random 28×28 images of ten classes."""
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for number in range(count):
            path = data / split / str(number % 10) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (28, 28), np.uint8)).save(path)


def make_model_dir(path: str, dataset: str) -> str:
    """Train a LeNet++ for one step."""
    flags = {"dataset": dataset, "max_train_examples": TRAINING_IMAGES, "validation_split": 0, "epochs": 1}
    run("bin/train", f"--model_dir={path}", *(f"--{name}={value}" for name, value in flags.items()))
    return path


def memory_curve(name: str, values: tuple[int, ...]) -> dict[str, Any]:
    """Measure peak bytes of a process along `name`, and how they grow."""
    once = {"examples": 100, "draws": 50, "classes": 10}
    points = [{name: value, **alone(memory, {**once, name: value}, name == "examples")} for value in values]
    return {"points": points, "growth": growth([(point[name], point["peak_bytes"]) for point in points])}


def growth(points: list[tuple[float, float]]) -> str:
    """Name the growth. Flat: within a tenth. Linear: the rise over the first grew from the last but one as its x.

    A rise below a hundredth counts as that: it drowns in what a process takes anyway.
    """
    (_, first), (x_before, before), (x_last, last) = points[0], points[-2], points[-1]
    if last <= 1.1 * first:
        return "flat"
    power = math.log((last - first) / max(before - first, first / 100)) / math.log(x_last / x_before)
    return "linear" if power <= LINEAR else "steeper than linear"


def memory(sizes: dict[str, int], evaluates: bool) -> dict[str, Any]:
    """Measure peak bytes of an evaluation (FGSM), or of two steps of PGD alone."""
    import wca_tf
    from benchmarks.suite import nets

    random, classes, draws = np.random.default_rng(0), sizes["classes"], sizes["draws"]
    model = nets.random_model("lenet_plus_plus", classes, max(FEATURE_DIM, classes))
    images = random.integers(0, 256, (sizes["examples"], 28, 28, 1), np.uint8)
    labels = random.integers(0, classes, len(images))
    started = time.perf_counter()
    if evaluates:
        wca_tf.evaluate(
            model, images, labels, attacks="fgsm", epsilons=ADVERSARIAL_EPSILON, eot_samples=draws, batch_size=100
        )
    else:
        attack = wca_tf.parse_attack("pgd:steps=2", eot_samples=draws)
        floats = (images / 255).astype(np.float32)
        attack.run(wca_tf.adapt(model), floats, labels, ADVERSARIAL_EPSILON, np.arange(len(labels)), 0)
    return {"peak_bytes": resident("VmHWM"), "seconds": time.perf_counter() - started}


def probabilities(sizes: dict[int, int]) -> dict[str, Any]:
    """Time P(correct) by the number of classes, of so many images each."""
    return {str(classes): alone(probability, classes, count) for classes, count in sizes.items()}


def probability(classes: int, count: int) -> dict[str, Any]:
    """Time P(correct) for random logits under correlated noise; labels lead by 0 to 4 deviations."""
    from wca_tf.gaussian.probability import probability_correct

    random = np.random.default_rng(classes)
    dimensions = max(FEATURE_DIM, classes)
    scale = random.normal(size=(classes, dimensions)) * np.geomspace(1, 0.01, dimensions)
    deviation = np.linalg.norm(scale, axis=1).mean()
    labels = random.integers(0, classes, count)
    mean = random.normal(size=(count, classes)) * deviation
    mean[np.arange(count), labels] = mean.max(axis=1) + random.uniform(0, 4, count) * deviation
    started = time.perf_counter()
    value, error = probability_correct(mean, labels, scale)
    seconds = time.perf_counter() - started
    found = {"mean": float(value.mean()), "largest_error": float(error.max())}
    return {"classes": classes, "examples": count, "seconds_per_image": seconds / count, **found}


def pipelines(count: int) -> dict[str, Any]:
    """Time the training's input pipeline by net."""
    return {net: alone(pipeline, net, augmentation, count) for net, augmentation in PIPELINES.items()}


def pipeline(net: str, augmentation: str, count: int) -> dict[str, Any]:
    """Count the images a second that the training's input pipeline makes when nothing takes them but a loop."""
    from benchmarks.suite import training
    from wca_tf.data.batches import training_batches

    batches = iter(training_batches(training.random_examples(net, count), TRAINING_IMAGES, 1, 0, 0, augmentation))
    next(batches)  # which starts it
    started = time.perf_counter()
    made = sum(len(images) for images, *_ in batches)
    seconds = time.perf_counter() - started
    return {"augmentation": augmentation, "images": made, "images_per_second": made / seconds}
