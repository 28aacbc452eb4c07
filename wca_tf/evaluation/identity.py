"""The identity of a report directory: it belongs to one model, and to one choice of images, seed and draws."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from wca_tf.core import files
from wca_tf.runs.model_dir import ModelDirectory

STREAMS = ("random_state", "seed_generator_state")  # weights that move with every call, and decide no number


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
