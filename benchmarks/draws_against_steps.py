"""Many draws in few steps, or few draws in many: what the bounded margin leaves of a net with noise anywhere.

    .venv/bin/python benchmarks/draws_against_steps.py --model_dir=DIR [--epsilon=0.1] [--num_examples=100] [--out FILE]

Most rows spend 400 draws on an image. The first is PGD on the mean margin over draws, with 2,000. --model_dir is a
directory of bin/train, or a .keras file. Differences to the first row are paired, with 95 % intervals over images.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.attacks import Attack, parse_attack
from wca_tf.attacks.pgd import MomentumPGD
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.data.sources import load_examples
from wca_tf.nets.adapter import adapt
from wca_tf.nets.judge import judge
from wca_tf.nets.targets import AnyTarget
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory

STEPS_AND_DRAWS = ((400, 1), (200, 2), (80, 5), (40, 10), (20, 20))
JUDGING_SEED = 12345
BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_dir", required=True, help="a directory of bin/train, or a .keras file")
    parser.add_argument("--dataset", default="fashion_mnist", help="for a .keras file")
    parser.add_argument("--tfds_data_dir", default=TrainConfig.tfds_data_dir)
    parser.add_argument("--epsilon", type=float, default=0.1)
    parser.add_argument("--num_examples", type=int, default=100)
    parser.add_argument("--out", type=Path, help="add the figures to this JSON file, under the net's name")
    arguments = parser.parse_args()
    target, examples = load(arguments)
    rows, first = [], None
    for name, attack in attacks().items():
        left = probability_left(target, attack, arguments.epsilon, examples)
        first = left if first is None else first
        difference, error = float((left - first).mean()), float((left - first).std(ddof=1)) / len(left) ** 0.5
        rows.append({"attack": name, "left": float(left.mean()), "difference": difference, "half_width": 1.96 * error})
        print(f"{name:45s} {100 * left.mean():6.2f} %  {100 * difference:+.2f} ± {196 * error:.2f}", flush=True)
    if arguments.out:
        stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        name = f"{Path(arguments.model_dir).name} at {arguments.epsilon:g}, {len(examples)} images"
        arguments.out.write_text(json.dumps({**stored, name: rows}, indent=1) + "\n")


def attacks() -> dict[str, Attack]:
    """Return the attacks by their rows' names; the first is what the others are compared with."""
    mean = parse_attack("pgd:objective=expected_margin:steps=40", eot_samples=50)
    every: dict[str, Attack] = {"mean margin, 40 steps x 50 draws": mean}
    for momentum in (MomentumPGD.momentum, 0.0):
        for steps, draws in STEPS_AND_DRAWS:
            name = f"bounded, {steps} steps x {draws} draws, momentum {momentum:g}"
            every[name] = MomentumPGD(steps=steps, eot_samples=draws, momentum=momentum)
    every["bounded, 40 steps x 50 draws"] = MomentumPGD(steps=40, eot_samples=50)
    return every


def load(arguments: Any) -> tuple[AnyTarget, Examples]:
    """Return the net and its first test images."""
    path = Path(arguments.model_dir)
    if path.suffix == ".keras":
        config = TrainConfig(dataset=arguments.dataset, tfds_data_dir=arguments.tfds_data_dir)
        examples = load_examples(config, "test", arguments.num_examples)
        return adapt(keras.saving.load_model(path), examples.images.shape[1:]), examples
    directory = ModelDirectory(path)
    examples = load_examples(directory.train_config(), "test", arguments.num_examples)
    return adapt(directory.load_best()), examples


def probability_left(target: AnyTarget, attack: Attack, epsilon: float, examples: Examples) -> np.ndarray:
    """Return P(correct) of each image under the attack, by draws that no attack saw."""
    parts = []
    for first in range(0, len(examples), BATCH):
        part = examples.take(slice(first, first + BATCH))
        images, indices = to_float(tf.constant(part.images)), first + np.arange(len(part))
        found = attack.run(target, images, part.labels, epsilon, indices, 0).images
        judged = judge(target, found, tf.constant(part.labels), tf.constant(indices), JUDGING_SEED)
        parts.append(judged.probability_correct)
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
