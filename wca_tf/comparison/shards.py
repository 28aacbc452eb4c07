"""The parts of an evaluation, made by `bin/evaluate --shard=i/n`, as one evaluation."""

import dataclasses
from typing import Any

import numpy as np

from wca_tf.comparison.evaluation import Evaluation
from wca_tf.core.errors import InputError
from wca_tf.evaluation.outcomes import stored_judgements


def merge_shards(evaluations: list[Evaluation]) -> list[Evaluation]:
    """Return the evaluations, with all parts of an evaluation as one, in the place of the first of them.

    Raises:
        InputError: a part is missing, or parts have different attacks.
    """
    groups: dict[str, list[Evaluation]] = {}
    for number, evaluation in enumerate(evaluations):
        groups.setdefault(_whole(evaluation.results) or f"{number}", []).append(evaluation)
    return [_merged(parts) if "shard" in parts[0].results else parts[0] for parts in groups.values()]


def _whole(results: dict[str, Any]) -> str:
    """Return what parts of one evaluation have in common, as text; empty for an evaluation of all images."""
    if "shard" not in results:
        return ""
    config = {name: value for name, value in results["config"].items() if name != "shard"}
    number_of_parts = results["config"]["shard"].split("/")[1]
    return str([results["model"], results["images_sha256"], sorted(config.items()), number_of_parts])


def _merged(parts: list[Evaluation]) -> Evaluation:
    """Return the evaluation of all images: numbers are made again from those of each image."""
    parts = sorted(parts, key=lambda part: part.results["shard"]["first"])
    first = parts[0]
    count = int(first.results["config"]["shard"].split("/")[1])
    given = [int(part.results["config"]["shard"].split("/")[0]) for part in parts]
    if given != list(range(1, count + 1)):
        told = ", ".join(f"{number}/{count}" for number in given)
        raise InputError(f"expected all {count} parts of an evaluation, each once; received {told}")
    named = [
        list(zip(*(part.arrays[key].astype(str) for key in ("attack", "norm", "epsilon")), strict=True))
        for part in parts
    ]
    if any(each != named[0] for each in named):
        raise InputError(f"expected the same attacks, in the same order, in all parts of {first.path}")
    if any(_options(part) != _options(first) for part in parts):
        raise InputError(f"expected parts made by the same attacks and the same code, as that in {first.path}")
    arrays = {name: _joined(name, [part.arrays[name] for part in parts]) for name in first.arrays}
    clean, *attacked = (each.numbers() for each in stored_judgements(arrays, list(range(len(arrays["attack"])))))
    results = {name: value for name, value in first.results.items() if name != "shard"}
    results |= {
        "num_examples": len(arrays["index"]),
        "clean": {**results["clean"], **clean},
        "attacks": [{**row, **numbers} for row, numbers in zip(results["attacks"], attacked, strict=True)],
    }
    return dataclasses.replace(first, results=results, arrays=arrays)


def _options(part: Evaluation) -> list[Any]:
    """Return the options and versions of the attacks of a part."""
    return [row["config"] for row in part.results["attacks"]]


def _joined(name: str, parts: list[np.ndarray]) -> np.ndarray:
    if name in ("attack", "norm", "epsilon"):
        return parts[0]
    return np.concatenate(parts, axis=0 if name in ("index", "label") else 1)
