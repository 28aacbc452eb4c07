"""Any Keras classifier, from its file: `bin/evaluate --model=FILE.keras --dataset=NAME`."""

from pathlib import Path

import keras
import numpy as np

from wca_tf.core.errors import InputError, UnnamedModuleError, one_line
from wca_tf.core.keras_graph import call_behind, last_operation
from wca_tf.core.own_modules import import_classes
from wca_tf.data.config import DataConfig
from wca_tf.data.sources import load_examples
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.report_object import Report
from wca_tf.evaluation.runner import evaluate_model
from wca_tf.nets.keras_target import check_takes_images


def evaluate_file(path: Path, data: DataConfig, config: EvaluateConfig, report_dir: Path) -> Report:
    """Attack the classifier in a `.keras` file, and write what `evaluate` writes.

    Args:
        path: the file. It is read safely: layers that hold code (Lambda) are refused, and it imports no other module.
        data: the data set whose test images are attacked; the classifier takes them as float32 in [0, 1].
        config: the attacks.
        report_dir: directory for the results.

    Raises:
        InputError: the file is no Keras classifier of such images, data are absent, or `config.split` is not "test".
    """
    if config.split != "test":
        raise InputError(f"expected --split=test with --model, whose training is not known; received {config.split}")
    model = load_classifier(path)
    check_takes_images(model)
    examples = load_examples(data, "test", config.num_examples)
    classes = len(examples.class_names)
    try:
        output = model(np.zeros((1, *examples.image_shape), np.float32))
    except Exception:  # whatever a layer raises
        takes = tuple(getattr(model, "input_shape", None) or ())[1:]
        raise InputError(
            f"expected a classifier of images {examples.image_shape} in {path.name}, received one that takes {takes}"
        ) from None
    returned = list(output.shape) if hasattr(output, "shape") else type(output).__name__
    if returned != [1, classes]:
        raise InputError(
            f"expected a classifier of the {classes} classes of {data.dataset}, received one that returns {returned} "
            "for an image"
        )
    results = evaluate_model(model, examples.images, examples.labels, config, report_dir, name=path.name)
    return Report(results)


def load_classifier(path: Path) -> keras.Model:
    """Read a `.keras` file, and leave out the softmax or sigmoid that it ends with, also inside an inner model.

    Attacks need logits, because probabilities saturate. The net's answers do not change.

    Raises:
        InputError: the file cannot be read, has unknown layers, or needs a module that is not imported.
    """
    try:
        import_classes(path)
        model = keras.models.load_model(path, compile=False)
    except UnnamedModuleError:
        raise
    except Exception as error:  # Keras raises whatever zip, JSON and HDF5 readers raise
        raise InputError(f"expected a .keras file of known layers in {path}: {one_line(error)}") from None
    last = last_operation(model)
    if isinstance(last, keras.layers.Softmax) and call_behind(model.outputs[0]).layer is last:
        model = keras.Model(model.inputs[0], call_behind(model.outputs[0]).inputs[0])
    elif getattr(last, "activation", None) in (keras.activations.softmax, keras.activations.sigmoid):
        last.activation = keras.activations.linear
    else:
        return model
    print(f"the last activation of {last.name!r} is left out: attacks need logits")
    return model
