"""The identity of a report directory: it belongs to one model, and to one choice of images, seed and draws."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from wca_tf.attacks.radii import Radius, as_radius
from wca_tf.core import files
from wca_tf.core.errors import InputError, one_line
from wca_tf.nets.foreign_net import ForeignNet
from wca_tf.nets.mixture_net import AdaptedMixture, MixtureNet
from wca_tf.nets.random_stream import STREAMS
from wca_tf.nets.targets import AnyTarget
from wca_tf.runs.model_dir import ModelDirectory

SCHEMA = 3  # of evaluation.json and results.json
# The types of what evaluation.json must have.
FORM: dict[str, Any] = {
    **dict.fromkeys(("dataset", "split", "images_sha256"), str),
    **dict.fromkeys(("num_examples", "first"), int),
    **dict.fromkeys(("attacks", "class_names", "image_shape", "modules"), list),
    **dict.fromkeys(("model", "config", "versions"), dict),
    "model_dir": str | None,
    "training": dict | None,
    "has_noise": bool,
}
INTERNAL = ("attacks", "first", "class_names", "image_shape", "has_noise")  # keys of evaluation.json alone
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


def digest_of(model: Any, target: AnyTarget) -> str | None:
    """Return the SHA-256 of a Keras model, of a target's net with its options, or of a mixture's nets and weights.

    It is of what is known: a function has its options alone. It is `None` for a target that `adapt` did not make. In a
    mixture such a target counts by its place alone.
    """
    if isinstance(model, keras.Model):
        return digest_of_net(model)
    if isinstance(model, MixtureNet):
        targets = target.net.targets if len(model.nets) > 1 else (target,)  # one net is its own mixture
        every = [digest_of(net, own) for net, own in zip(model.nets, targets, strict=True)]
        return _sha256_of([every, model.weights])
    net = target.net
    if net is None or net.target is not target:  # a target that was made from another has no options of its own
        return None
    if isinstance(net, AdaptedMixture):
        return _sha256_of([[digest_of(own, own) for own in net.targets], net.target.weights])
    if isinstance(net, ForeignNet):
        return _sha256_of([net.net.digest(), *net.options])
    return _sha256_of([digest_of_net(net.model) if isinstance(net.model, keras.Model) else None, *net.options])


def _sha256_of(described: Any) -> str:
    """Return the SHA-256 of lists of texts and numbers."""
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()


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


def read_described(directory: Path) -> dict[str, Any]:
    """Return the contents of evaluation.json; raise InputError where it is absent, broken or of another version."""
    path = directory / "evaluation.json"
    if not path.exists() and (directory / "results.json").exists():
        raise InputError(
            f"expected an evaluation of schema {SCHEMA} in {directory}: it is of another version of wca_tf"
        )
    described = files.read_json(path)
    if not isinstance(described, dict) or described.get("schema") != SCHEMA:
        raise InputError(
            f"expected an evaluation of schema {SCHEMA} in {directory}: it is of another version of wca_tf"
        )
    try:
        if wrong := [name for name, kinds in FORM.items() if not isinstance(described[name], kinds)]:
            raise ValueError(f"{', '.join(wrong)} of another type")
        _ = [entry_key(entry) for entry in described["attacks"]]
    except Exception as error:  # broken contents raise anything
        raise InputError(
            f"expected a whole evaluation.json in {directory}, which cannot be read: {one_line(error)}"
        ) from None
    return described


def entry_key(entry: dict[str, Any]) -> tuple[str, Radius | None]:
    """Return the name and the radius of an attack in the list of evaluation.json."""
    if not isinstance(entry["name"], str) or not isinstance(entry["options"], dict):
        raise ValueError("an attack without a name or options")
    if entry["radius"] is None:
        return entry["name"], None
    radius = as_radius(entry["radius"])
    return entry["name"], Radius(radius.epsilon, radius.norm or "linf")


def stored_description(report: Path, belongs_to: dict[str, Any]) -> dict[str, Any] | None:
    """Return the evaluation.json of a report directory; `None` where there is none.

    Raises:
        InputError: it is of another evaluation, which would be lost; or it is broken, or of another version.
    """
    if not (report / "evaluation.json").exists():
        return None
    try:
        stored = read_described(report)
    except InputError as error:
        raise InputError(f"{error}; name another --report_dir") from None
    other = [what for key, what in OTHER.items() if stored[key] != belongs_to[key]]
    if stored["config"] != belongs_to["config"]:
        other.append(_differing(stored["config"], belongs_to["config"]))
    if other:
        raise InputError(f"{report / 'evaluation.json'} is of {', '.join(other)}: name another --report_dir")
    return stored


def _differing(stored: Any, config: dict[str, Any]) -> str:
    """Return the options that differ, with both values, such as "num_examples=20, not 5"."""
    stored = stored if isinstance(stored, dict) else {}
    names = [name for name in {**config, **stored} if stored.get(name) != config.get(name)]
    return ", ".join(f"{name}={stored.get(name)}, not {config.get(name)}" for name in names)
