"""What weight-covariance alignment adds to a training step: `fit` of a WCA-Net over `fit` of the undefended net.

    .venv/bin/python benchmarks/train_step.py [--backbone resnet18] [--precision] [--adversarial] [--out FILE.json]
        [--smoke]

Both nets train as `bin/train` has them: on random images, through `training_batches`, batch 128, in alternating rounds
of 20 steps on 2 threads; LeNet++ on 28x28x1 images, ResNet-18 on 32x32x3. Prints milliseconds per step, and the median
of the rounds' ratios with its bound, met or missed. --precision also times the WCA-Net in mixed_bfloat16, in the same
rounds, and prints images per second. --adversarial has both nets trained on images attacked by PGD, 10 steps, EoT over
50 draws for the WCA-Net. Minutes on 2 idle cores for LeNet++; --smoke's figures mean nothing.
"""

import argparse
import dataclasses
import os
import statistics
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.suite.nets import IMAGE_SHAPES
from benchmarks.suite.training import Stopwatch
from wca_tf.adversarial import adversary
from wca_tf.config import TrainConfig
from wca_tf.data.batches import training_batches
from wca_tf.data.examples import Examples
from wca_tf.files import write_json
from wca_tf.model import WCANet
from wca_tf.training import new_model

THREADS = 2
BUSY = 0.7  # load average before the run
BOUND = 1.05
DEFENDED, UNDEFENDED, BFLOAT16 = "wca", "undefended", "wca mixed_bfloat16"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is measured."""

    backbone: str
    batch_size: int = 128
    steps: int = 20
    rounds: int = 9
    adversarial: str = "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=tuple(IMAGE_SHAPES), default="lenet_plus_plus")
    parser.add_argument("--precision", action="store_true", help="time the WCA-Net in mixed_bfloat16 too")
    parser.add_argument("--adversarial", action="store_true", help="time adversarial training, of both nets")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="steps a round")
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="rounds, after one that is dropped")
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    parser.add_argument("--smoke", action="store_true", help="8 images a step, 2 steps: shows only that it runs")
    arguments = parser.parse_args()
    kind = "at" if arguments.adversarial else "none"
    settings = Settings(arguments.backbone, steps=arguments.steps, rounds=arguments.rounds, adversarial=kind)
    if arguments.smoke:
        settings = dataclasses.replace(settings, batch_size=8, steps=2, rounds=3)
        print("smoke: these figures mean nothing")
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"warning: the machine is busy (load {load:.1f}); the figures are not to be quoted")
    result = measure(settings, arguments.precision)
    if arguments.out:
        write_json(arguments.out, {"smoke": arguments.smoke, "load_at_start": load, **result})


def measure(settings: Settings, precision: bool) -> dict[str, Any]:
    """Time the models round by round and print what came out; returns what goes into the JSON file."""
    examples = random_examples(settings)
    configs = {
        DEFENDED: config(settings, "anisotropic", "float32"),
        UNDEFENDED: config(settings, "none", "float32"),
        **({BFLOAT16: config(settings, "anisotropic", "mixed_bfloat16")} if precision else {}),
    }
    models = {name: new_model(value, examples) for name, value in configs.items()}
    for model in models.values():
        model.adversary = adversary(settings.adversarial, 8 / 255, "paper")
    seconds = time_rounds(models, examples, settings)
    medians = {name: statistics.median(times) / settings.steps for name, times in seconds.items()}
    rates = {name: settings.batch_size / median for name, median in medians.items()}
    for name, median in medians.items():
        print(f"{name:18} {1000 * median:9.2f} ms a step, {rates[name]:8.1f} images/s   median of {settings.rounds}")
    if precision:
        print(f"mixed_bfloat16 over float32: {rates[BFLOAT16] / rates[DEFENDED]:.3f} times the images per second")
    ratio = statistics.median(a / b for a, b in zip(seconds[DEFENDED], seconds[UNDEFENDED], strict=True))
    print(f"{DEFENDED} / {UNDEFENDED}: {ratio:.3f}, bound {BOUND}: {'met' if ratio <= BOUND else 'missed'}")
    return {
        "settings": dataclasses.asdict(settings),
        "threads": THREADS,
        "versions": {package: metadata.version(package) for package in ("tensorflow", "keras", "numpy")},
        "seconds": seconds,
        "median_step_seconds": medians,
        "images_per_second": rates,
        "ratio": {"value": ratio, "bound": BOUND, "met": ratio <= BOUND},
    }


def random_examples(settings: Settings) -> Examples:
    """An epoch of `steps` + 1 batches: the first step is not timed."""
    random = np.random.default_rng(0)
    count = settings.batch_size * (settings.steps + 1)
    images = random.integers(0, 256, (count, *IMAGE_SHAPES[settings.backbone]), np.uint8)
    return Examples(images, random.integers(0, 10, count), tuple("0123456789"))


def config(settings: Settings, covariance: str, precision: str) -> TrainConfig:
    return TrainConfig(
        backbone=settings.backbone,
        covariance=covariance,
        precision=precision,
        batch_size=settings.batch_size,
        epochs=settings.rounds + 1,
    )


def time_rounds(models: dict[str, WCANet], examples: Examples, settings: Settings) -> dict[str, list[float]]:
    """Seconds of `steps` steps in each round; round 0 traces and is dropped, the order turns every other round."""
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(settings.rounds + 1):
        for name in list(models)[:: 1 if number % 2 == 0 else -1]:
            stopwatch = Stopwatch()
            models[name].fit(
                training_batches(examples, settings.batch_size, number + 1, number, 0, "none"),
                steps_per_epoch=settings.steps + 1,
                epochs=number + 1,
                initial_epoch=number,
                callbacks=[stopwatch],
                shuffle=False,
                verbose=0,
            )
            if number > 0:
                seconds[name].append(stopwatch.seconds)
    return seconds


if __name__ == "__main__":
    main()
