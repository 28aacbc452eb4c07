"""Intervals of nets whose images share an attack's draws: how often they cover, and how wide they are.

In simulations a part of the luck is that of a block. Images are "whole" where P(correct) is 0 or 1, and "soft" where it
lies between. "before" has blocks of 20 images, and the quantile of Student's distribution without a limit. Then one
net: noise on the pixels of digits, attacked by PGD.

.venv/bin/python benchmarks/shared_draws.py [--repetitions 2000] [--net_repetitions 200] [--out FILE.json]
"""

import argparse
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from scipy import stats
from sklearn.datasets import load_digits

from wca_tf.attacks import parse_attack
from wca_tf.core import files
from wca_tf.data.examples import Examples
from wca_tf.evaluation.blocks import BLOCK_SIZE, block_size
from wca_tf.evaluation.trials import Settings, run_attacks, trial_of
from wca_tf.gaussian.intervals import Number, design_effect_over_draws, mean_with_interval
from wca_tf.nets.adapter import adapt
from wca_tf.nets.judge import Judgement

IMAGES = (20, 30, 40, 60, 100, 200)
DRAWS = 200
CASES = [("soft", 0.75, shared) for shared in (0.0, 0.5, 1.0)]
CASES += [("whole", 0.75, shared) for shared in (0.0, 0.2, 0.5, 1.0)]
CASES += [("whole", 0.9, shared) for shared in (0.2, 0.5, 1.0)]
HEADS = ("images", "parts before", "covers", "width", "its sd", "parts after", "covers", "width", "its sd")
EPSILON = 2 / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--net_repetitions", type=int, default=200)
    parser.add_argument("--out", help="write the figures to this JSON file")
    arguments = parser.parse_args()
    rows = []
    for kind, mean, shared in CASES if arguments.repetitions else []:
        print(f"{kind}, mean {mean}, part of the luck that a block shares {shared}\n  " + "  ".join(HEADS), flush=True)
        for images in IMAGES:
            row = simulate(kind, mean, shared, images, arguments.repetitions)
            rows.append({"kind": kind, "mean": mean, "shared": shared, **row})
            print("  " + "  ".join(f"{value:{len(head)}.3g}" for value, head in zip(row.values(), HEADS, strict=True)))
    of_net = real_net(arguments.net_repetitions) if arguments.net_repetitions else {}
    print("digits with noise: " + "  ".join(f"{name} {value:.4g}" for name, value in of_net.items()))
    if arguments.out:
        told = {"repetitions": arguments.repetitions, "draws": DRAWS, "rows": rows, "digits_with_noise": of_net}
        files.write_json(arguments.out, told)


def simulate(kind: str, mean: float, shared: float, images: int, repetitions: int) -> dict[str, float]:
    """Return how often the intervals of `images` images cover, in per cent, and their width, before and after."""
    row: dict[str, float] = {"images": images}
    for name, size in (("before", BLOCK_SIZE), ("after", block_size(images))):
        rng, blocks = np.random.default_rng(images), np.arange(images) // size
        numbers = []
        for _ in range(repetitions):
            hits = draw_hits(rng, kind, mean, shared, blocks)
            numbers.append(judged(hits, blocks).n_query_accuracy(1) if name == "after" else number_before(hits, blocks))
        widths = [number["high"] - number["low"] for number in numbers]
        covered = [number["low"] <= mean <= number["high"] for number in numbers]
        row |= {f"{name}_parts": len(set(blocks)), f"{name}_covers": 100 * float(np.mean(covered))}
        row |= {f"{name}_width": 100 * float(np.mean(widths)), f"{name}_width_sd": 100 * float(np.std(widths))}
    return row


def draw_hits(rng: np.random.Generator, kind: str, mean: float, shared: float, blocks: np.ndarray) -> np.ndarray:
    """Return hits [N, draws] of images with a mean of P(correct) of `mean`, which have luck in common."""
    count = len(blocks)
    luck = np.sqrt(shared) * rng.normal(size=count)[blocks] + np.sqrt(1 - shared) * rng.normal(size=count)
    threshold = stats.norm.ppf(mean)
    probability = luck < threshold if kind == "whole" else stats.norm.cdf(np.sqrt(2) * threshold - luck)
    hits: np.ndarray = rng.random((count, DRAWS), np.float32) < probability[:, np.newaxis]
    return hits


def judged(hits: np.ndarray, blocks: np.ndarray) -> Judgement:
    """Return the judgement of images from hits [N, draws]."""
    probability = hits.mean(axis=1)
    zeros = np.zeros(len(hits))
    return Judgement(hits[:, 0], np.full(len(hits), np.nan), probability, zeros, zeros, hits, blocks)


def number_before(hits: np.ndarray, blocks: np.ndarray) -> Number:
    """Return the mean of P(correct) with the interval of the older rule."""
    values, count = hits.mean(axis=1), len(set(blocks))
    effect = design_effect_over_draws(hits, 1, shared_noise=True)
    if count > 1 and values.any() and np.var(values):
        deviations = np.bincount(blocks, weights=values - values.mean())
        between = count / (count - 1) * np.sum(deviations**2) / len(values) ** 2
        few = (stats.t.ppf(0.975, count - 1) / stats.norm.ppf(0.975)) ** 2
        effect += max(few * between / (np.var(values) / len(values)), 1.0) - 1
    return mean_with_interval(values, effect)


class PixelNoise(keras.layers.Layer):  # type: ignore[misc]
    """Gaussian noise of TensorFlow's own stream on the pixels, at test time too."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        return images + 0.3 * tf.random.normal(tf.shape(images))


def real_net(repetitions: int, images: int = 40) -> dict[str, float]:
    """Return how many intervals cover, of random images and seeds; the truth is of all images and ten seeds."""
    digits = load_digits()
    pixels, half = (digits.images[..., np.newaxis] / 16).astype(np.float32), len(digits.target) // 2
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    net = keras.Sequential([keras.Input((8, 8, 1)), PixelNoise(), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(3e-3), loss)
    net.fit(pixels[:half], digits.target[:half], epochs=10, batch_size=50, verbose=0)
    test, labels = pixels[half:], digits.target[half:].astype(np.int64)
    target, trials = adapt(net, (8, 8, 1)), [trial_of(parse_attack("pgd:steps=3:eot_samples=2"), EPSILON)]

    def attacked(chosen: np.ndarray, settings: Settings) -> Judgement:
        examples = Examples(test[chosen], labels[chosen], tuple(map(str, range(10))))
        with tempfile.TemporaryDirectory() as directory:
            [outcome] = run_attacks(target, trials, examples, settings, Path(directory))
        return outcome.judgement

    everything = np.arange(len(test))
    truth = float(np.mean([attacked(everything, Settings(seed)).probability_correct.mean() for seed in range(10)]))
    rng, numbers = np.random.default_rng(2), []
    for seed in range(repetitions):
        chosen = rng.choice(len(test), images, replace=False)
        numbers.append(attacked(chosen, Settings(100 + seed, block_size=block_size(images))).n_query_accuracy(1))
    widths = [number["high"] - number["low"] for number in numbers]
    covered = sum(number["low"] <= truth <= number["high"] for number in numbers)
    told = {"images": images, "truth": 100 * truth, "repetitions": repetitions, "covered": covered}
    return told | {"width": 100 * float(np.mean(widths)), "width_sd": 100 * float(np.std(widths))}


if __name__ == "__main__":
    main()
