"""How much of the machine's peak the training of each backbone reaches, in float32 and bfloat16.

    .venv/bin/python benchmarks/training_speed.py [--backbones=resnet18,airbench93_relu] [--batch=128] [--out FILE.json]

Prints for each backbone and precision: training images a second of `fit` on random 32×32 images (28×28 for LeNet++),
operations a second, and their share of the peak. Operations are two for each multiplication of the convolutions and
dense layers (airbench's whitened patches do not count), three passes a step. The peak is the best product of two 4096²
matrices in the same precision. --rounds epochs of --steps steps are timed in turns; the median counts.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.suite import nets, training
from benchmarks.suite.timing import machine_load, turned
from wca_tf.core.files import write_json
from wca_tf.runs.model_dir import versions

MATMUL = 4096
DTYPES = {"float32": tf.float32, "mixed_bfloat16": tf.bfloat16}
OPERATIONS, PASSES = 2, 3  # of a multiplication and addition; of a step: forward, by the features, by the weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", default="lenet_plus_plus,resnet18,airbench93_relu,airbench94_relu,airbench93")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.backbones.split(",")) - set(nets.IMAGE_SHAPES)):
        parser.error(f"expected --backbones among {', '.join(nets.IMAGE_SHAPES)}; received {', '.join(unknown)}")
    load = machine_load()
    peaks = {precision: peak(dtype) for precision, dtype in DTYPES.items()}
    print(", ".join(f"peak in {precision} {value / 1e12:.2f}·10¹² operations/s" for precision, value in peaks.items()))
    found: dict[str, Any] = {}
    for backbone in arguments.backbones.split(","):
        found[backbone] = timed(backbone, arguments.batch, arguments.steps, arguments.rounds, peaks)
        for precision, row in found[backbone].items():
            print(
                f"{backbone:16} {precision:14} {row['images_per_second']:7.0f} images/s "
                f"{row['operations_per_second'] / 1e12:5.2f}·10¹²/s {100 * row['share_of_peak']:5.1f} % of the peak"
            )
    if arguments.out:
        told = {"batch": arguments.batch, "steps": arguments.steps, "rounds": arguments.rounds}
        written = {**told, "load_at_start": load, "versions": versions(), "peaks": peaks, "backbones": found}
        write_json(arguments.out, written)


def peak(dtype: tf.DType) -> float:
    """Return the operations a second of the best of 5 matrix products."""
    matrix = tf.cast(tf.random.stateless_normal([MATMUL, MATMUL], [0, 0]), dtype)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        tf.matmul(matrix, matrix).numpy()
        seconds.append(time.perf_counter() - started)
    return OPERATIONS * MATMUL**3 / min(seconds)


def timed(backbone: str, batch: int, steps: int, rounds: int, peaks: dict[str, float]) -> dict[str, Any]:
    """Time the training of a net in each precision, in turns."""
    job = {"net": backbone, "batch": batch, "steps": steps, "defence": "wca", "adversarial": False}
    jobs = {precision: training.prepare({**job, "precision": precision}) for precision in DTYPES}
    seconds: dict[str, list[float]] = {precision: [] for precision in jobs}
    for number in range(rounds + 1):
        for precision in turned(list(jobs), number):
            taken = jobs[precision].run()
            if number:  # the first traces
                seconds[precision].append(taken)
    model = training.untrained({**job, "precision": "float32"}, training.random_examples(backbone, batch))
    work = OPERATIONS * PASSES * nets.multiply_adds(model)
    rows = {}
    for precision, times in seconds.items():
        speed = steps * batch / statistics.median(times)
        share = speed * work / peaks[precision]
        rows[precision] = {"images_per_second": speed, "operations_per_second": speed * work, "share_of_peak": share}
    return rows


if __name__ == "__main__":
    main()
