"""What attacks in bfloat16 cost and find, beside the same attacks in float32: --attack_precision of bin/evaluate.

    .venv/bin/python benchmarks/attack_precision.py --model_dirs DIR [DIR ...] --tfds_data_dir=DIR --work_dir=DIR
        [--epsilon=8/255] [--num_examples=500] [--attacks=pgd,margin,z_margin,apgd_dlr] [--out FILE.json]

Each net is attacked through its copy in float32 and through that in --precision, and judged by itself: prints what is
left of accuracy, in expectation, for each attack and for the worst case of all, and by how many points they differ.
Then times the first attack on a batch of 100 images, in turns, --rounds times on 2 threads. Evaluations go to
--work_dir and are not run again, so that a second run on an idle machine is of seconds.
"""

import argparse
import dataclasses
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.suite.timing import machine_load, median_ratio, turned
from wca_tf.core.files import write_json
from wca_tf.data.batches import to_float
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import evaluate, load_evaluation_examples
from wca_tf.nets.adapter import adapt
from wca_tf.nets.inference_copy import inference_copy
from wca_tf.nets.model_files import load_model
from wca_tf.runs.model_dir import ModelDirectory, versions

BASELINE = "float32"
BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_dirs", type=Path, nargs="+", required=True)
    parser.add_argument("--work_dir", type=Path, required=True)
    parser.add_argument("--tfds_data_dir", default="")
    parser.add_argument("--attacks", default="pgd,margin,z_margin,apgd_dlr")
    parser.add_argument("--epsilon", default="8/255")
    parser.add_argument("--num_examples", type=int, default=500)
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    arguments = parser.parse_args()
    load = machine_load()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    config = EvaluateConfig(
        attacks=arguments.attacks,
        epsilons=arguments.epsilon,
        num_examples=arguments.num_examples,
        tfds_data_dir=arguments.tfds_data_dir,
    )
    nets = {
        directory.name: {
            "left": left(config, directory, arguments.precision, arguments.work_dir),
            "time": timed(config, directory, arguments.precision, arguments.rounds),
        }
        for directory in arguments.model_dirs
    }
    for name, net in nets.items():
        print(name)
        for attack, row in net["left"].items():
            numbers = ", ".join(f"{precision} {100 * value:.2f}" for precision, value in row["expected"].items())
            print(f"  {attack:12} {numbers}: {row['points']:+.2f} points")
        print(f"  {net['time']['attack']} takes {net['time']['ratio']:.3f} of the time")
    if arguments.out:
        told = {"epsilon": arguments.epsilon, "num_examples": arguments.num_examples, "precision": arguments.precision}
        write_json(arguments.out, {**told, "load_at_start": load, "versions": versions(), "nets": nets})


def left(config: EvaluateConfig, directory: Path, precision: str, work_dir: Path) -> dict[str, Any]:
    """What attacks leave of expected accuracy in both precisions, and the difference in points."""
    found: dict[str, dict[str, float]] = {}
    for each in (BASELINE, precision):
        results = evaluate(
            dataclasses.replace(config, attack_precision=each), directory, work_dir / f"{directory.name}-{each}"
        )
        for attack in results["attacks"]:
            found.setdefault(attack["name"], {})[each] = attack["expected_accuracy"]["value"]
        [worst] = results["worst_case"]
        found.setdefault("worst case", {})[each] = worst["expected_accuracy"]["value"]
    return {
        name: {"expected": values, "points": 100 * (values[precision] - values[BASELINE])}
        for name, values in found.items()
    }


def timed(config: EvaluateConfig, directory: Path, precision: str, rounds: int) -> dict[str, Any]:
    """Seconds of the first attack on a batch in both precisions, in turns, and the median ratio."""
    run = ModelDirectory(directory)
    model = load_model(run.best)
    examples = load_evaluation_examples(dataclasses.replace(config, num_examples=BATCH), run.train_config())
    attack, epsilon = config.parsed_attacks[0], config.parsed_radii[0].epsilon
    targets = {each: adapt(inference_copy(model, each)) for each in (BASELINE, precision)}
    images, labels = to_float(tf.constant(examples.images)), tf.constant(examples.labels)
    seconds: dict[str, list[float]] = {each: [] for each in targets}
    for number in range(rounds + 1):
        for each in turned(list(targets), number):
            started = time.perf_counter()
            attack.run(targets[each], images, labels, epsilon, range(len(labels)), 0).images.numpy()
            if number:  # the first traces
                seconds[each].append(time.perf_counter() - started)
    medians = {each: statistics.median(values) for each, values in seconds.items()}
    ratio = median_ratio(seconds[precision], seconds[BASELINE])
    return {"attack": attack.name, "images": len(labels), "seconds": seconds, "medians": medians, "ratio": ratio}


if __name__ == "__main__":
    main()
