"""The identity of a report directory: it belongs to one model, and to one choice of images, seed and draws."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.evaluation.measures.measure import Measure
from wca_tf.evaluation.report.table import attack_table
from wca_tf.nets.random_stream import STREAMS
from wca_tf.runs.model_dir import ModelDirectory

SCHEMA = 2  # of results.json
WRITTEN = ("examples.npz", "report.html", "model_card.md")  # before results.json
RECORDS = ("records", "checklist")  # evaluation.json says of which net they are
# Parts of the error message about a report directory that belongs to another evaluation.
OTHER = {
    "model_dir": "another directory of a model",
    "model": "another model",
    "images_sha256": "other images",
}


def digest_of_net(model: keras.Model) -> str:
    """Return the SHA-256 of a Keras model's weights and architecture, in which a layer is named by its place.

    Keras counts names up: the same net, built again, has others. If the model cannot describe its architecture, the
    name of its class is used instead.
    """
    try:
        described = keras.saving.serialize_keras_object(model)
        described.pop("compile_config", None)  # it does not change the net's answers
    except (NotImplementedError, TypeError, ValueError):
        described = {"class": f"{type(model).__module__}.{type(model).__qualname__}"}
    names = dict.fromkeys(layer.name for layer in _layers(model))
    places = {name: f"layer {place}" for place, name in enumerate(names)}
    architecture = json.dumps(_renamed(described, places), sort_keys=True, default=str)
    return files.sha256_of_arrays(
        np.frombuffer(architecture.encode(), np.uint8),
        # A stream moves with every call, and decides no number.
        *(np.asarray(weight) for weight in model.weights if not weight.path.endswith(STREAMS)),
    )


def _layers(layer: keras.Layer) -> Iterator[keras.Layer]:
    """Yield a layer, and those inside it."""
    yield layer
    for inner in getattr(layer, "layers", ()):
        yield from _layers(inner)


def _renamed(described: Any, names: dict[str, str]) -> Any:
    """Return a description with the new name in place of each text that is an old one, and all of it trainable.

    What is trainable decides no answer: a net whose batch normalisation learns as it answers is refused.
    """
    if isinstance(described, dict):
        return {key: key == "trainable" or _renamed(value, names) for key, value in described.items()}
    if isinstance(described, list | tuple):
        return [_renamed(value, names) for value in described]
    return names.get(described, described) if isinstance(described, str) else described


def describe_model(directory: ModelDirectory) -> dict[str, Any]:
    """Return the state of the model: its epoch, whether training was complete, and the SHA-256 of its file."""
    return {
        "epoch": directory.best_epoch()["epoch"],
        "training_complete": directory.last.exists(),
        "sha256": files.sha256(directory.best),
    }


def evaluation_name(identity: dict[str, Any]) -> str:
    """Return a directory name for an evaluation. Two evaluations have the same name only if their identity is equal."""
    hashed = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    return f"{identity['config']['split']}-{identity['config']['num_examples'] or 'all'}-{hashed}"


def _differing(stored: Any, config: dict[str, Any]) -> str:
    """Return the options that differ, with both values, such as "num_examples=20, not 5"."""
    stored = stored if isinstance(stored, dict) else {}
    names = [name for name in {**config, **stored} if stored.get(name) != config.get(name)]
    default = "the default"
    return ", ".join(f"{name}={stored.get(name, default)}, not {config.get(name, default)}" for name in names)


def stored_results(report: Path, identity: dict[str, Any], every: list[Measure]) -> dict[str, Any] | None:
    """Return the results in `report`, or `None` where there are no results.

    Raises:
        InputError: the results are of another evaluation, which would be lost; or they are broken, or of another
            version.
    """
    for name in ("evaluation.json", "results.json"):
        if (report / name).exists():
            stored = files.read_json(report / name)
            if not isinstance(stored, dict):
                raise InputError(f"expected an object in {report / name}: name another --report_dir")
            other = [what for key, what in OTHER.items() if stored.get(key) != identity[key]]
            if stored.get("config") != identity["config"]:
                other.append(_differing(stored.get("config"), identity["config"]))
            if other:
                raise InputError(f"{report / name} is of {', '.join(other)}: name another --report_dir")
    if not (report / "results.json").exists():
        return None
    results = files.read_json(report / "results.json")
    if results.get("schema") != SCHEMA or not all(measure.is_valid(results) for measure in every):
        raise InputError(
            f"expected attacks and a checklist of schema {SCHEMA} in {report / 'results.json'}: it is of another "
            "version, or broken; name another --report_dir"
        )
    try:
        _ = attack_table(results), [measure.lines(results) for measure in every if set(measure.keys) <= set(results)]
    except Exception:  # broken contents raise anything
        raise InputError(
            f"expected all numbers of an evaluation in {report / 'results.json'}, received a part: remove the file, "
            "and it is made again from the records beside it"
        ) from None
    return results


def is_whole(report: Path, stored: dict[str, Any]) -> bool:
    """Return whether the files beside results.json are there, with the numbers of its attacks and images."""
    try:
        with np.load(report / "examples.npz", allow_pickle=False) as arrays:
            shape = dict(arrays)["probability_correct"].shape
    except Exception:  # NumPy raises whatever zip and its own readers raise; the file is made again
        return False
    whole = shape == (1 + len(stored["attacks"]), stored["num_examples"])
    return whole and all((report / name).exists() for name in WRITTEN)
