"""P(correct) against 100,000 plain draws, for 2, 10 and 100 classes: how far apart, against what both errors allow.

.venv/bin/python benchmarks/probability_correct.py [--out FILE.json]
"""

import argparse
import time
from typing import Any

import numpy as np

from wca_tf.core import files
from wca_tf.gaussian.probability import probability_correct

DRAWS = 100_000
EXAMPLES = 100
CHUNK = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the figures to this JSON file")
    arguments = parser.parse_args()
    rows = [compare(num_classes, feature_dim) for num_classes, feature_dim in ((2, 32), (10, 32), (100, 256))]
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if arguments.out:
        files.write_json(arguments.out, {"draws": DRAWS, "examples": EXAMPLES, "rows": rows})


def compare(num_classes: int, feature_dim: int) -> dict[str, Any]:
    """Random logits and correlated noise; the gap in units of the two 95 % half-widths together."""
    rng = np.random.default_rng(num_classes)
    scale = rng.normal(size=(num_classes, feature_dim)) * np.geomspace(1, 0.01, feature_dim)
    deviation = np.linalg.norm(scale, axis=1).mean()
    labels = rng.integers(0, num_classes, EXAMPLES)
    mean = rng.normal(size=(EXAMPLES, num_classes)) * deviation
    mean[np.arange(EXAMPLES), labels] += rng.uniform(0, 4, EXAMPLES) * deviation
    started = time.perf_counter()
    probability, error = probability_correct(mean, labels, scale)
    seconds = time.perf_counter() - started
    drawn = np.array([_drawn(rng, mean[i], labels[i], scale) for i in range(EXAMPLES)])
    half_width = 1.96 * np.sqrt(np.maximum(probability * (1 - probability), 1 / DRAWS) / DRAWS)
    gap = np.abs(probability - drawn) / np.hypot(error, half_width)
    return {
        "classes": num_classes,
        "mean_probability": float(probability.mean()),
        "largest_stated_error": float(error.max()),
        "largest_difference": float(np.abs(probability - drawn).max()),
        "share_within_95_percent": float((gap <= 1).mean()),
        "largest_gap_in_half_widths": float(gap.max()),
        "seconds": seconds,
    }


def _drawn(rng: np.random.Generator, mean: np.ndarray, label: int, scale: np.ndarray) -> float:
    """Share of plain draws in which the label's logit is the largest."""
    hits = 0
    for _ in range(DRAWS // CHUNK):
        logits = mean + rng.standard_normal((CHUNK, scale.shape[1])) @ scale.T
        hits += int((logits.argmax(axis=1) == label).sum())
    return hits / DRAWS


if __name__ == "__main__":
    main()
