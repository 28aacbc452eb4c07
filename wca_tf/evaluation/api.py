"""`wca_tf.evaluate`: attacks on a net from Python. The result is an `Evaluation`, which shows itself as a table."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from wca_tf.attacks import Attack
from wca_tf.attacks.transfer import Transfer
from wca_tf.core.errors import InputError
from wca_tf.core.own_modules import import_modules
from wca_tf.core.paths import expand_user
from wca_tf.evaluation import runner
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.criteria import GradientFreeAttacks
from wca_tf.evaluation.record import Evaluation
from wca_tf.runs.preflight import check_model_present


def evaluate(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    attacks: str | Attack | Sequence[str | Attack] = EvaluateConfig.attacks,
    epsilons: float | str | Sequence[float | str] = EvaluateConfig.epsilons,
    report_dir: str | Path | None = None,
    name: str = "",
    pixel_range: tuple[float, float] | None = None,
    outputs: str | None = None,
    output: int | str | None = None,
    training: bool | None = None,
    independent_noise: bool = False,
    **options: Any,
) -> Evaluation:
    """Attack a net on images in memory, and judge the adversarial images.

    Args:
        model: a Keras classifier, with or without noise in any layer; a PyTorch module; a function of images, of
            TensorFlow or JAX; a `FunctionNet`; or a target.
        images: [N, H, W, channels], or [N, H, W] of grey images: uint8, or floats in [0, 1]. Or, without labels, a
            `tf.data.Dataset` of (images, labels) batches.
        labels: whole numbers [N] or [N, 1], or one-hot rows [N, C].
        attacks: as in `bin/evaluate --attacks`, or a list of such texts and of attack objects. An attack object may be
            of your own class.
        epsilons: a radius or a list of radii, in the images' [0, 1] units. A text may be a radius of one norm alone, as
            "l2:0.5".
        report_dir: directory for results.json, report.html, model_card.md and examples.npz. An evaluation that was
            stopped continues there, and other attacks are added. `None`: no files are kept.
        name: the model's name in the report. `report_dir` knows a target by this name, and a Keras model by its weights
            and its configuration: a change of a Python attribute alone is not seen.
        pixel_range: (low, high), the pixels that the model wants, where they are not from 0 to 1. Without it, the
            accuracies with pixels from 0 to 1, 0 to 255 and −1 to 1 are compared, and an error says which is better.
        outputs, output, training, independent_noise: as for `adapt`.
        options: other fields of `EvaluateConfig`, such as eot_samples, seed, checklist; num_examples is 0 by default,
            for all images.

    Raises:
        InputError: images, labels, attacks or the model cannot be used, or the directory belongs to another evaluation.
    """
    if report_dir is not None and (not isinstance(report_dir, str | Path) or not str(report_dir)):
        raise InputError(f"expected a directory as report_dir, or None to keep no files; received {report_dir!r}")
    if report_dir is not None and not name and not isinstance(model, keras.Model):
        raise InputError("expected name=..., which tells one target from another in report_dir")
    net_options: dict[str, Any] = {"pixel_range": pixel_range, "outputs": outputs, "output": output}
    net_options |= {"training": training, "independent_noise": independent_noise or None}
    config = EvaluateConfig(_items(attacks), _items(epsilons), **{"num_examples": 0, **options})
    if report_dir is not None:
        _check_sources_have_names(config)
        return runner.evaluate_model(model, images, labels, config, report_dir, name, net_options=net_options)
    with tempfile.TemporaryDirectory() as directory:
        evaluation = runner.evaluate_model(
            model, images, labels, config, directory, name, quiet=True, net_options=net_options
        )
    evaluation.directory = None
    return evaluation


def _check_sources_have_names(config: EvaluateConfig) -> None:
    """Raise InputError for a transfer from a net in memory: its record would not say from which net."""
    for attack in config.parsed_attacks:
        if isinstance(attack, Transfer) and not isinstance(attack.source, str):
            raise InputError("expected a directory of bin/train as the source of transfer where report_dir is given")


def _items(value: Any) -> Any:
    """Return a text as it is, a list or an array as a tuple, and a single object as a tuple of one."""
    if isinstance(value, str):
        return value
    if hasattr(value, "__array__"):
        value = np.asarray(value).tolist()
    return tuple(value) if isinstance(value, Iterable) else (value,)


def evaluate_model_dir(
    config: EvaluateConfig,
    model_dir: str | Path,
    report_dir: str | Path = "",
    modules: Iterable[str] = (),
    searches: Mapping[str, str] = {},
) -> Evaluation:
    """Attack the net that `bin/train` left in a directory, as `bin/evaluate` does.

    Args:
        config: the attacks, and the images to attack.
        model_dir: directory of the training run.
        report_dir: directory for the results; empty for a directory below `model_dir`/evaluations, named after the
            images and options of the evaluation.
        modules: modules of your own that the directory needs. It imports no others.
        searches: the checklist's attacks without gradients as written, by "square", "n_pixel" and "random_sampling",
            where they are not the default, which takes minutes.

    Raises:
        InputError: the model is absent or broken, or needs another module; data are absent; or the report directory
            belongs to another evaluation.
    """
    import_modules(modules)
    model_dir = check_model_present(str(model_dir))
    directory = expand_user(str(report_dir)) if report_dir else ""
    return runner.evaluate(config, model_dir, directory, GradientFreeAttacks(**searches))
