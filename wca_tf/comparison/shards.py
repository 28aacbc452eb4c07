"""The parts of an evaluation, made by `bin/evaluate --shard=i/n`, as one evaluation."""

import dataclasses
import json
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
    for evaluation in evaluations:
        groups.setdefault(_whole(evaluation), []).append(evaluation)
    return [_merged(parts) if "shard" in parts[0].results else parts[0] for parts in groups.values()]


def _whole(evaluation: Evaluation) -> str:
    """Return a text that only the parts of the same evaluation share."""
    results = evaluation.results
    if "shard" not in results:
        return str(evaluation.path)
    config = {name: value for name, value in results["config"].items() if name != "shard"}
    return json.dumps([results["model"], results["images_sha256"], config, results["shard"]["parts"]], sort_keys=True)


def _merged(parts: list[Evaluation]) -> Evaluation:
    """Return the evaluation of all images: accuracies are made again from the numbers of each image.

    Other entries of results.json, such as the seconds, are left out.
    """
    parts = sorted(parts, key=lambda part: part.results["shard"]["number"])
    results, count = parts[0].results, parts[0].results["shard"]["parts"]
    given = [part.results["shard"]["number"] for part in parts]
    if given != list(range(1, count + 1)):
        received = ", ".join(f"{number}/{count}" for number in given)
        raise InputError(f"expected all {count} parts of an evaluation, each once; received {received}")
    attacks = _attacks(parts[0])
    for part in parts:
        if _attacks(part) != attacks:
            raise InputError(f"expected the same attacks, by the same code, in {part.path} as in {parts[0].path}")
    arrays = {name: _joined(name, [part.arrays[name] for part in parts]) for name in parts[0].arrays}
    if arrays["index"].tolist() != list(range(len(arrays["index"]))):
        raise InputError(f"expected parts of {parts[0].path} and others by the same code: images are missing or twice")
    clean, *attacked = (each.numbers() for each in stored_judgements(arrays, list(range(1 + len(attacks)))))
    rows = [{**row, **numbers} for row, numbers in zip(attacks, attacked, strict=True)]
    whole: dict[str, Any] = {name: value for name, value in results.items() if name != "shard"}
    whole |= {"num_examples": len(arrays["index"]), "clean": clean, "attacks": rows}
    return dataclasses.replace(parts[0], results=whole, arrays=arrays)


def _attacks(part: Evaluation) -> list[dict[str, Any]]:
    """Return the attacks of a part with their options and versions, without numbers."""
    return [{name: row[name] for name in ("name", "norm", "epsilon", "config")} for row in part.results["attacks"]]


def _joined(name: str, parts: list[np.ndarray]) -> np.ndarray:
    """Return an array of examples.npz for all images; some are of the attacks, and the same in each part."""
    if name in ("attack", "norm", "epsilon"):
        return parts[0]
    return np.concatenate(parts, axis=0 if name in ("index", "label") else 1)
