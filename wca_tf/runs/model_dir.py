"""The files that a training run leaves on disk, and the functions that write and read them.

model_dir/
    config.json          every flag, the versions, and a description of the dataset
    model.keras          the best epoch on validation images: by accuracy, or by what --margin_radius certifies;
                         without validation images the last. In adversarial training by one or two steps, the best on
                         training images under PGD
    last.keras           the last epoch, with the optimizer; present when training is complete
    metrics.jsonl        a line per epoch
    backup/latest.keras  the last complete epoch, with the optimizer; present during training
    tensorboard/         the same metrics for TensorBoard
    evaluations/NAME/    results.json and examples.npz of each evaluation
"""

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras

from wca_tf import __version__
from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.core.options import identity
from wca_tf.core.own_modules import (
    check_imported,
    is_imported,
    module_of,
    modules_in,
    own_modules,
)
from wca_tf.core.paths import expand_user
from wca_tf.data.examples import Examples
from wca_tf.defences import parse_defence
from wca_tf.nets.classifier import CERTIFIED, StochasticClassifier
from wca_tf.nets.model_files import BEST, load_for_inference
from wca_tf.runs.catastrophic_overfitting import METRIC as ROBUST_METRIC
from wca_tf.runs.config import TrainConfig

SCHEMA = 2
# What chooses the epoch whose net is kept, in words: the first that all epochs have. Fast adversarial training measures
# the accuracy under PGD. There, clean accuracy would prefer the epochs that overfit to the attack of training.
SELECTION_METRICS = {
    ROBUST_METRIC: "accuracy of training images under PGD",
    f"val_{CERTIFIED}": "validation accuracy that is certified at --margin_radius",
    "val_accuracy": "validation accuracy",
}
# Directories may move: only whether one was given is compared.
PATHS = ("initial_weights",)


def same_defence(left: str, right: str) -> bool:
    """Return whether two texts, as in `--defence`, mean the same defence."""
    if left == right or not (left and right):
        return left == right
    known = all(is_imported(module_of(text)) for text in (left, right))  # a file's text imports nothing
    return known and parse_defence(left) == parse_defence(right)


def _both_given(left: str, right: str) -> bool:
    return bool(left) == bool(right)


# Comparisons of the flags whose values may be the same without being equal.
SAME: dict[str, Callable[[Any, Any], bool]] = {"defence": same_defence, **dict.fromkeys(PATHS, _both_given)}


class ModelDirectory:
    """Paths below a model directory, and the reading and writing of its config.json and metrics.jsonl."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.best = self.path / BEST
        self.last = self.path / "last.keras"
        self.backup = self.path / "backup" / "latest.keras"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.evaluations = self.path / "evaluations"

    def snapshot(self, epoch: int) -> "ModelDirectory":
        """Return the directory of the net as it was after an epoch, if `train` was asked to keep it."""
        return ModelDirectory(self.path / "snapshots" / f"epoch_{epoch}")

    def check_same_config(self, config: TrainConfig) -> None:
        """Raise InputError, naming the flag, when the directory belongs to another configuration."""
        if not self.config.exists():
            if self.best.exists() or self.last.exists() or self.backup.exists():
                raise InputError(f"{self.path} has a model but no config.json: name another --model_dir")
            return
        stored = self._stored_flags()
        for name, value in identity(config).items():
            same = SAME[name](stored[name], value) if name in SAME else stored[name] == value
            if not same:
                raise InputError(
                    f"{self.path} holds a run with --{name}={stored[name]}, received --{name}={value}: "
                    "name another --model_dir"
                )
        began = self.read_config().get("initial_weights_sha256")
        if began and _sha256_of_weights(config) not in (None, began):
            raise InputError(
                f"{self.path} holds a run from other weights than --initial_weights={config.initial_weights} has now: "
                "name another --model_dir"
            )
        options = self.read_config()["defence_options"]
        if options != config.parsed_defence.options():
            raise InputError(f"{self.path} holds a run of {config.defence} with other defaults, {options}")

    def check_same_dataset(self, examples: Examples, training: bool = False) -> None:
        """Raise InputError when the classes or the image shape differ from those of the training images.

        With `training`, the examples are the training images, and their number and contents must be the same too.
        """
        described = _describe_dataset(examples, training)
        stored = self.read_config()["dataset"]
        for name, value in described.items():
            if stored.get(name) != value:
                raise InputError(f"{self.path} was trained with {name} {stored.get(name)}, the data have {value}")

    def write_config(self, config: TrainConfig, training: Examples, model: StochasticClassifier) -> None:
        """Write config.json."""
        described = keras.saving.serialize_keras_object(model)
        contents = {
            "schema": SCHEMA,
            "config": dataclasses.asdict(config),
            "defence_options": config.parsed_defence.options(),
            "dataset": _describe_dataset(training, training=True),
            "initial_weights_sha256": _sha256_of_weights(config),
            "modules": sorted({type(model).__module__, *modules_in(described)}),
            "versions": versions(),
        }
        files.write_json(self.config, contents)

    def read_config(self) -> dict[str, Any]:
        """Return the contents of config.json; raise InputError when it is absent, broken or of another schema."""
        contents = files.read_json(self.config)
        if (
            not isinstance(contents, dict)
            or contents.get("schema") != SCHEMA
            or not isinstance(contents.get("config"), dict)
            or not isinstance(contents.get("dataset"), dict)
            or not isinstance(contents.get("defence_options"), dict)
            or not isinstance(modules := contents.get("modules"), list)
            or not all(isinstance(module, str) for module in modules)
        ):
            raise InputError(
                f"expected a config.json of schema {SCHEMA} in {self.path}: is it of another version of wca_tf?"
            )
        return contents

    def train_config(self) -> TrainConfig:
        """Return the configuration that the run was started with.

        Raises:
            InputError: a configuration of another version of wca_tf, or one that needs a module that is not imported.
        """
        check_imported(self.needed_modules(), str(self.path))
        return TrainConfig(**self._stored_flags())

    def needed_modules(self) -> list[str]:
        """Return the modules of a user's own that the net and its configuration need. None of them is imported."""
        stored = self._stored_flags()
        named = [module_of(stored[name]) for name in ("defence", "adversarial_attack")]
        return own_modules([*self.read_config()["modules"], *named])

    def _stored_flags(self) -> dict[str, Any]:
        """Return the flags of the run by name; raise InputError when they are of another version, or of other types."""
        defaults, stored = dataclasses.asdict(TrainConfig()), self.read_config()["config"]
        if differing := stored.keys() ^ defaults.keys():
            names = ", ".join(sorted(differing))
            raise InputError(f"{self.config} is of another version of wca_tf, with other flags: {names}")
        for name, default in defaults.items():
            if type(stored[name]) not in ((int, float) if isinstance(default, float) else (type(default),)):
                raise InputError(f"expected a {type(default).__name__} as {name} in {self.config}")
        return stored

    def read_metrics(self) -> list[dict[str, float]]:
        """Return the lines of metrics.jsonl, one for each epoch; an empty list when there is no file.

        Raises:
            InputError: broken lines.
        """
        if not self.metrics.exists():
            return []
        lines = files.read_json_lines(self.metrics)
        for line in lines:
            if not isinstance(line, dict) or "epoch" not in line:
                raise InputError(f"expected an epoch in each line of {self.metrics}")
            if not all(type(value) in (int, float) for value in line.values()):
                raise InputError(f"expected numbers alone in each line of {self.metrics}")
        return lines

    def best_epoch(self) -> dict[str, float]:
        """Return the line of the epoch that model.keras holds; raise InputError when there are no lines."""
        lines = self.read_metrics()
        if not lines:
            raise InputError(f"expected a line for each epoch in {self.metrics}, received none")
        return best_line(lines)

    def selection(self) -> str:
        """Return what chose the best epoch, in words, with its value there."""
        lines = self.read_metrics()
        metric = _selection_metric(lines)
        return f"{SELECTION_METRICS[metric]} {best_line(lines)[metric]:.4f}" if metric else "the last one"

    def load_best(self, modules: Iterable[str] = ()) -> StochasticClassifier:
        """Return the net of the best epoch as it answers.

        Args:
            modules: as for `load_model`.

        Raises:
            InputError: as `load_model`.
        """
        return load_for_inference(self.best, modules)

    def write_metrics(self, lines: list[dict[str, float]]) -> None:
        """Write metrics.jsonl, a line for each epoch."""
        files.write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))


def _describe_dataset(examples: Examples, training: bool) -> dict[str, Any]:
    """Return config.json's description of a dataset, with the number and the SHA-256 of the training images alone."""
    described = {"class_names": list(examples.class_names), "image_shape": list(examples.image_shape)}
    if not training:
        return described
    return {**described, "num_train_examples": len(examples), "train_sha256": examples.sha256}


def _sha256_of_weights(config: TrainConfig) -> str | None:
    """Return the SHA-256 of the net that training starts from; `None` without one, or where it is gone."""
    path = expand_user(config.initial_weights) / "model.keras"
    return files.sha256(path) if config.initial_weights and path.exists() else None


def best_line(lines: list[dict[str, float]]) -> dict[str, float]:
    """Return the line with the highest of the first of `SELECTION_METRICS` that the lines have, the earliest of equals.

    Without any of them it is the last line.
    """
    metric = _selection_metric(lines) or "epoch"
    return max(lines, key=lambda line: line[metric])


def _selection_metric(lines: list[dict[str, float]]) -> str | None:
    return next((name for name in SELECTION_METRICS if all(name in line for line in lines)), None)


def versions() -> dict[str, str]:
    """Return the versions of Python, of wca_tf and of the packages that affect the results."""
    names = ("tensorflow", "keras", "tensorflow-probability", "tensorflow-datasets", "numpy", "scipy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), "wca_tf": __version__, **found}
