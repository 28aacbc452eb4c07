"""A classifier that a user names: `bin/evaluate --model=FILE.keras --dataset=NAME`, a SavedModel, or module:name."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from wca_tf.core.errors import InputError, UnnamedModuleError, one_line
from wca_tf.core.own_modules import import_classes, import_own
from wca_tf.core.paths import expand_user
from wca_tf.data.config import DataConfig
from wca_tf.data.sources import load_examples
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.record import Evaluation
from wca_tf.evaluation.runner import evaluate_model


def evaluate_file(
    model: str, data: DataConfig, config: EvaluateConfig, report_dir: Path, net_options: Mapping[str, Any]
) -> Evaluation:
    """Attack the classifier that a user names, and write what `evaluate` writes.

    Args:
        model: as for `load_classifier`.
        data: the data set whose test images are attacked; the classifier takes them as floats, after `pixel_range`.
        config: the attacks.
        report_dir: directory for the results.
        net_options: pixel_range, outputs, output, training and independent_noise, as for `adapt`.

    Raises:
        InputError: there is no such classifier of such images, data are absent, or `config.split` is not "test".
    """
    if config.split != "test":
        raise InputError(f"expected --split=test with --model, whose training is not known; received {config.split}")
    net = load_classifier(model)
    examples = load_examples(data, "test", config.num_examples)
    return evaluate_model(
        net,
        examples.images,
        examples.labels,
        config,
        report_dir,
        name=Path(model).name,
        dataset=data.dataset,
        class_names=examples.class_names,
        net_options=net_options,
    )


def load_classifier(model: str | Path) -> Any:
    """Return a classifier: a Keras model, or a function of images.

    Args:
        model: a .keras or .h5 file, the directory of a SavedModel, or package.module:name of a model, or of a function
            without arguments that returns one. A file is read safely: layers that hold code (Lambda) are refused, and
            it imports no other module.

    Raises:
        InputError: there is nothing of this kind; it cannot be read, has unknown layers, or needs a module that is not
            imported.
    """
    path = expand_user(str(model))
    if path.is_file():
        return _from_file(path)
    if (path / "saved_model.pb").is_file():
        return _from_saved_model(path)
    module, _, name = str(model).partition(":")
    return _from_module(module, name)


def _from_file(path: Path) -> keras.Model:
    try:
        if path.suffix not in (".h5", ".hdf5"):
            import_classes(path)
        return keras.models.load_model(path, compile=False)
    except UnnamedModuleError:
        raise
    except Exception as error:  # Keras raises whatever zip, JSON and HDF5 readers raise
        raise InputError(f"expected a .keras or .h5 file of known layers in {path}: {one_line(error)}") from None


def _from_saved_model(path: Path) -> Callable[[tf.Tensor], Any]:
    try:
        loaded = tf.saved_model.load(str(path))
        signature = loaded.signatures["serving_default"]
        [(name, spec)] = signature.structured_input_signature[1].items()
    except Exception as error:  # TensorFlow raises whatever its readers raise
        raise InputError(
            f"expected a SavedModel with one input in serving_default in {path}: {one_line(error)}"
        ) from None
    if not spec.dtype.is_floating:
        raise InputError(
            f"expected a SavedModel that takes floats, received one that takes {spec.dtype.name}: no gradient passes it"
        )

    def call(images: tf.Tensor) -> Any:
        return signature(**{name: tf.cast(images, spec.dtype)})

    call.loaded = loaded  # type: ignore[attr-defined]  # its variables live as long as the object does
    return call


def _from_module(module: str, name: str) -> Any:
    try:
        found = getattr(import_own(module), name)
        needs_nothing = (
            callable(found) and not isinstance(found, keras.Model) and not inspect.signature(found).parameters
        )
        return found() if needs_nothing else found
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(
            f"expected --model={module}:{name} to be a model, or to return one: {one_line(error)}"
        ) from None
