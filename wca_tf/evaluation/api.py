"""`wca_tf.evaluate`: a net attacked from Python. The answer is a `Report`, which shows itself."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wca_tf.attacks import Attack
from wca_tf.config import EvaluateConfig
from wca_tf.evaluation import runner
from wca_tf.evaluation.report_object import Report


def evaluate(
    model: Any,
    images: Any,
    labels: Any,
    *,
    attacks: str | Attack | Sequence[str | Attack] = EvaluateConfig.attacks,
    epsilons: float | str | Sequence[float | str] = EvaluateConfig.epsilons,
    report_dir: str | Path | None = None,
    name: str = "keras model",
    **options: Any,
) -> Report:
    """Attack a net on images in memory, and judge what comes out.

    Args:
        model: a Keras classifier that returns logits [N, C], with noise in any layer or none, or a target.
        images: [N, H, W, channels], uint8, or float32 in [0, 1].
        labels: whole numbers [N].
        attacks: as in `bin/evaluate --attacks`, or a list of such texts and of objects, of your own too.
        epsilons: a radius, or a list of them, in the images' [0, 1] units; as text, also for one norm: "l2:0.5".
        report_dir: where results.json, report.html, model_card.md and examples.npz go. An evaluation that was stopped
            goes on there, and other attacks are added. None: nothing is written.
        name: what the report calls the model.
        options: other fields of `EvaluateConfig`, such as eot_samples, seed, checklist; num_examples is 0, for all.

    Raises:
        InputError: images, labels, attacks or a model that cannot be used; a directory of another evaluation.
    """
    config = EvaluateConfig(_items(attacks), _items(epsilons), **{"num_examples": 0, **options})
    if report_dir is not None:
        return Report(runner.evaluate_model(model, images, labels, config, report_dir, name))
    with tempfile.TemporaryDirectory() as directory:
        return Report(runner.evaluate_model(model, images, labels, config, directory, name, quiet=True))


def _items(value: Any) -> Any:
    """Return a text as it is, a list as a tuple, and a single object as a tuple of one."""
    if isinstance(value, str):
        return value
    return tuple(value) if isinstance(value, Iterable) else (value,)


def evaluate_model_dir(config: EvaluateConfig, model_dir: str | Path, report_dir: str | Path = "") -> Report:
    """Attack the net that `bin/train` left in a directory, as `bin/evaluate` does.

    Args:
        config: which attacks, on which images.
        model_dir: of the training run.
        report_dir: where the results go; empty for a directory of its own below `model_dir`/evaluations.

    Raises:
        InputError: no or a broken model, absent data, a report directory of another evaluation.
    """
    return Report(runner.evaluate(config, model_dir, report_dir))
