"""From one process to two: images per second of training and of attacks, and what a step sends.

    .venv/bin/python benchmarks/scaling.py [--out FILE.json] [--smoke]

A worker has one core and one thread. Contenders, in alternating rounds: one process with the whole batch; two workers
that share it through MultiWorkerMirroredStrategy on loopback; and two processes with half of it each that know nothing
of each other, which is the best that the machine could do. Two workers against one is the scaling; against two apart it
is what synchronising costs a step. Bytes are what the loopback device counted over the timed steps. The attack is
PGD-10 with EoT-50, shared out row by row. Needs 2 idle cores.
"""

import argparse
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.suite.timing import machine_load  # noqa: E402

IMAGE_SHAPES = {"lenet_plus_plus": (28, 28, 1), "resnet18": (32, 32, 3)}
ONE, WORKERS, APART = CONTENDERS = ("one process", "two workers", "two apart")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is timed."""

    backbone: str
    batch_size: int
    steps: int
    attacked: int


SETTINGS = (Settings("lenet_plus_plus", 128, 20, 64), Settings("resnet18", 64, 5, 16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    parser.add_argument("--smoke", action="store_true", help="2 steps of 8 images: shows only that it runs")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(Settings(**json.loads(arguments.worker)))
        return
    load = machine_load()
    rounds = 1 if arguments.smoke else arguments.rounds
    results = [compare(smoke(each) if arguments.smoke else each, rounds) for each in SETTINGS]
    if arguments.out:
        from wca_tf.core.files import write_json

        versions = {package: metadata.version(package) for package in ("tensorflow", "keras", "numpy")}
        write_json(
            arguments.out, {"smoke": arguments.smoke, "load_at_start": load, "versions": versions, "results": results}
        )


def smoke(settings: Settings) -> Settings:
    return dataclasses.replace(settings, batch_size=8, steps=2, attacked=4)


def compare(settings: Settings, rounds: int) -> dict[str, Any]:
    """Every contender in every round; prints medians and ratios and returns them."""
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    half = dataclasses.replace(settings, batch_size=settings.batch_size // 2, attacked=settings.attacked // 2)
    for number in range(rounds):
        for name in CONTENDERS[:: 1 if number % 2 == 0 else -1]:
            measured[name].append(launch(half if name == APART else settings, name))
    medians = {
        name: {key: statistics.median(each[key] for each in runs) for key in runs[0]} for name, runs in measured.items()
    }
    one, two, apart = (medians[name] for name in CONTENDERS)
    summary = {
        "training_speed_up": one["step_seconds"] / two["step_seconds"],
        "training_speed_up_apart": one["step_seconds"] / apart["step_seconds"],
        "synchronising_seconds_a_step": two["step_seconds"] - apart["step_seconds"],
        "bytes_a_step": two["bytes_a_step"],
        "gradient_bytes": two["gradient_bytes"],
        "attack_speed_up": one["attack_seconds"] / two["attack_seconds"],
        "attack_speed_up_apart": one["attack_seconds"] / apart["attack_seconds"],
        "images_per_second": {name: settings.batch_size / each["step_seconds"] for name, each in medians.items()},
        "attacked_images_per_second": {
            name: settings.attacked / each["attack_seconds"] for name, each in medians.items()
        },
    }
    print(f"{settings.backbone}: " + ", ".join(f"{key} {value}" for key, value in summary.items()))
    return {"settings": dataclasses.asdict(settings), "runs": measured, **summary}


def launch(settings: Settings, contender: str) -> dict[str, float]:
    """Start a contender's processes, a core each, and return what the first measured."""
    workers = 1 if contender == ONE else 2
    hosts = [f"localhost:{port}" for port in free_ports(workers)]
    processes = []
    for index in range(workers):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "TF_ENABLE_ONEDNN_OPTS": "1"}
        if contender == WORKERS:
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": hosts}, "task": task})
        command = ["taskset", "-c", str(index), sys.executable, __file__, "--worker"]
        command.append(json.dumps(dataclasses.asdict(settings)))
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    ended = [process.communicate(timeout=900) for process in processes]
    for process, (_, err) in zip(processes, ended, strict=True):
        if process.returncode != 0:
            raise SystemExit(err.decode()[-3000:])
    return json.loads(ended[0][0].decode().splitlines()[-1])


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def work(settings: Settings) -> None:
    """One worker: train and attack, and print what it took as JSON."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from wca_tf.data.examples import Examples
    from wca_tf.distribution.strategy import make_strategy, synchronise_batch_normalisation
    from wca_tf.runs.training import new_model

    strategy = make_strategy("auto")
    random = np.random.default_rng(0)
    count = settings.batch_size * (settings.steps + 1)
    images = random.integers(0, 256, (count, *IMAGE_SHAPES[settings.backbone]), np.uint8)
    examples = Examples(images, random.integers(0, 10, count), tuple("0123456789"))
    with strategy.scope():
        model = new_model(train_config(settings), examples)
        synchronise_batch_normalisation(model, strategy)
        measured = time_training(model, examples, settings, strategy)
        measured["attack_seconds"] = time_attack(model, examples, settings)
    measured["gradient_bytes"] = 4 * sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)
    print(json.dumps(measured))


def train_config(settings: Settings) -> Any:
    from wca_tf.runs.config import TrainConfig

    return TrainConfig(backbone=settings.backbone, batch_size=settings.batch_size, epochs=1)


def time_training(model: Any, examples: Any, settings: Settings, strategy: Any) -> dict[str, float]:
    """Seconds and loopback bytes of a step, without the first, which traces."""
    import functools

    import keras

    from wca_tf.data.batches import training_batches
    from wca_tf.distribution.strategy import distribute_batches

    marks: list[tuple[float, int]] = []
    stopwatch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: marks.append((time.perf_counter(), loopback_bytes()))
    )
    batches = functools.partial(training_batches, examples, settings.batch_size, 1, 0, 0, "none")
    model.fit(
        distribute_batches(strategy, batches, settings.batch_size),
        steps_per_epoch=settings.steps + 1,
        callbacks=[stopwatch],
        shuffle=False,
        verbose=0,
    )
    (first, sent), (last, sent_last) = marks[0], marks[-1]
    return {"step_seconds": (last - first) / settings.steps, "bytes_a_step": (sent_last - sent) / settings.steps}


def time_attack(model: Any, examples: Any, settings: Settings) -> float:
    """Seconds of PGD on `attacked` images, without the first call, which traces."""
    import numpy as np

    from wca_tf.attacks import parse_attack
    from wca_tf.nets.adapter import adapt

    attack = parse_attack("pgd")
    images = (examples.images[: settings.attacked] / 255).astype(np.float32)
    labels, indices = examples.labels[: settings.attacked], np.arange(settings.attacked)
    arguments = (adapt(model), images, labels, 8 / 255, indices, 0)
    attack.run(*arguments)
    started = time.perf_counter()
    for _ in range(3):
        attack.run(*arguments)
    return (time.perf_counter() - started) / 3


def loopback_bytes() -> int:
    """What the loopback device has sent since the machine started."""
    [line] = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split()[9])


if __name__ == "__main__":
    main()
