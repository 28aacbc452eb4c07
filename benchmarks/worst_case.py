"""The worst case over attacks of nets judged by draws, in simulations: what is told, beside the truth.

Every row has 200 draws of each image under each attack. "before" is the rule of version 1: ties go to the first attack,
here the clean image, and no interval knows that a choice may be wrong. To see whether more draws that choose would pay,
change the number of draws, or the part of them that judges 100 queries.

.venv/bin/python benchmarks/worst_case.py [--repetitions 2000] [--only ROW] [--out FILE.json]
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from wca_tf.core import files
from wca_tf.evaluation import worst_case
from wca_tf.evaluation.worst_case import least_probability
from wca_tf.gaussian.intervals import Number
from wca_tf.nets.judge import QUERIES, Judgement

DRAWS = 200
CHOSEN_BEFORE = 0.4  # of the draws, for n > 1
Draw = Callable[[np.random.Generator], np.ndarray]  # P(correct) of each attack and image
ROWS: dict[str, Draw] = {
    "P = 1, and an attack at 0.99": lambda rng: np.tile([[1.0], [0.99]], 500),
    "P = 1, and an attack at 0.995": lambda rng: np.tile([[1.0], [0.995]], 500),
    "eight, 0.98 to 0.997": lambda rng: rng.uniform(0.98, 0.997, (8, 500)),
    "eight equal at 0.99": lambda rng: np.full((8, 100), 0.99),
    "eight equal at 0.75": lambda rng: np.full((8, 100), 0.75),
    "eight equal, each image its own": lambda rng: np.tile(rng.uniform(0.9, 1, 100), (8, 1)),
    "eight, 0 to 1": lambda rng: rng.uniform(0, 1, (8, 100)),
    "eight, 0.5 with deviation 0.04": lambda rng: rng.normal(0.5, 0.04, (8, 100)).clip(0, 1),
    "0.98 on all, and seven at 0.985": lambda rng: np.tile(0.985 - 0.005 * (np.arange(8) == 3)[:, np.newaxis], 100),
    "two, 0.99 on half of the images each": lambda rng: 1 - 0.01 * (rng.integers(0, 2, 100) == [[0], [1]]),
}
HEADS = ("queries", "truth", "single", "before", "covers", "after", "covers", "mean low", "≤", "above single, in se")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--only", default="", help="a part of a row's name")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--most_judging", type=float, default=worst_case.MOST_JUDGING)
    parser.add_argument("--out", help="write the figures to this JSON file")
    arguments = parser.parse_args()
    rows, worst_case.MOST_JUDGING = [], arguments.most_judging
    for name, draw in ROWS.items():
        if arguments.only in name:
            rows += simulate(name, draw, arguments.repetitions, arguments.draws)
            told = {"repetitions": arguments.repetitions, "draws": arguments.draws, "rows": rows}
            if arguments.out:
                files.write_json(arguments.out, told)


def simulate(name: str, draw: Draw, repetitions: int, draws: int) -> list[dict[str, Any]]:
    """Return a row for each number of queries, and print it; numbers are in per cent."""
    rng = np.random.default_rng(0)
    found: dict[int, list[tuple[float, float, Number, Number]]] = {n: [] for n in QUERIES}
    for _ in range(repetitions):
        true = draw(rng)
        attacks = [judged(rng.random((len(each), draws), np.float32) < each[:, np.newaxis]) for each in true]
        after = least_probability(attacks)
        hits = np.stack([attack.hits for attack in attacks])
        for n in QUERIES:
            before = judged(chosen_before(hits, n)).n_query_accuracy(n)
            truth, single = (true**n).min(axis=0).mean(), (true**n).mean(axis=1).min()
            found[n].append((truth, single, before, after.n_query_accuracy(n)))
    print(f"{name}\n  " + "  ".join(HEADS), flush=True)
    rows = [{"case": name, "queries": n, **summary(found[n])} for n in QUERIES]
    for row in rows:
        print("  " + "  ".join(f"{row[key]:{len(head)}.4g}" for key, head in zip(list(row)[1:], HEADS, strict=True)))
    return rows


def judged(hits: np.ndarray) -> Judgement:
    """Return the judgement of images that share nothing, from hits [N, draws]."""
    probability = hits.mean(axis=1)
    zeros = np.zeros(len(hits))
    return Judgement(hits[:, 0], np.full(len(hits), np.nan), probability, zeros, zeros, hits, np.arange(len(hits)))


def chosen_before(hits: np.ndarray, queries: int) -> np.ndarray:
    """Return the hits [N, draws] that version 1 judged, from hits [attacks, N, draws]."""
    images, middle, first = np.arange(hits.shape[1]), hits.shape[2] // 2, round(CHOSEN_BEFORE * hits.shape[2])
    if queries > 1:
        return hits[hits[:, :, :first].mean(axis=2).argmin(axis=0), images, first:]
    halves = hits[:, :, :middle], hits[:, :, middle:]
    pairs = (halves, halves[::-1])
    return np.concatenate([second[first.mean(axis=2).argmin(axis=0), images] for first, second in pairs], axis=1)


def summary(found: list[tuple[float, float, Number, Number]]) -> dict[str, float]:
    """Return the means over repetitions, in per cent, and how often an interval has the truth."""
    truth, single = (float(np.mean([each[place] for each in found])) for place in (0, 1))
    row: dict[str, float] = {"truth": 100 * truth, "single": 100 * single}
    for name, place in (("before", 2), ("after", 3)):
        numbers = [each[place] for each in found]
        row[name] = 100 * float(np.mean([number["value"] for number in numbers]))
        covered = [number["low"] <= truth <= number["high"] for number in numbers]
        row[f"{name}_covers"] = 100 * float(np.mean(covered))
    row["low"] = 100 * float(np.mean([after["low"] for *_, after in found]))
    row["upper_bound"] = 100 * float(np.mean(["upper_bound" in after for *_, after in found]))
    error = float(np.std([after["value"] for *_, after in found]))
    row["above_single"] = (row["after"] / 100 - single) / error if error else 0.0
    return row


if __name__ == "__main__":
    main()
