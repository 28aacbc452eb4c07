"""evaluate(config, model_dir): attack a trained model, judge the images, and write their records and a report.

A report directory belongs to one model and one choice of images, seed and draws. A later evaluation with other attacks
adds these attacks to it. An evaluation that was killed at any moment continues where it stopped. `record.py` says what
the directory holds, `derive.py` which files are made from that.
"""

import contextlib
import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks.objectives import num_classes_of
from wca_tf.core import files
from wca_tf.core.arithmetic import TENSOR_FLOAT_32, tensor_float_32, use_deterministic_operations
from wca_tf.core.errors import InputError
from wca_tf.core.options import identity
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples, as_arrays, check_images
from wca_tf.data.sources import load_examples, open_examples, place
from wca_tf.distribution.strategy import check_same_everywhere, lost_worker_is_an_error, make_strategy, one_writer
from wca_tf.evaluation.blocks import block_size, shard_of
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.derive import DERIVED, write_derived
from wca_tf.evaluation.identity import SCHEMA, describe_model, digest_of, evaluation_name, stored_description
from wca_tf.evaluation.measures.criteria import GradientFreeAttacks
from wca_tf.evaluation.measures.measure import MEASURES, Context, Measure, is_due, make
from wca_tf.evaluation.measures.planted_examples import IMAGES, FoundExamples, find_planted_examples, largest_radii
from wca_tf.evaluation.measures.registry import measures
from wca_tf.evaluation.outcomes import RECORDS
from wca_tf.evaluation.plan import due_measures, is_finished, listed, planned, trials_of, with_measured
from wca_tf.evaluation.record import Evaluation
from wca_tf.evaluation.report.attack_table import net_text
from wca_tf.evaluation.trials import CLEAN_TRIAL, Settings, check_attacks, run_attacks
from wca_tf.nets.adapter import adapt, check_pixels, in_its_range
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.inference_copy import inference_copy
from wca_tf.nets.targets import AnyTarget, has_noise
from wca_tf.runs.model_dir import ModelDirectory, same_defence, versions


def evaluate(
    config: EvaluateConfig,
    model_dir: str | Path,
    report_dir: str | Path = "",
    searches: GradientFreeAttacks | None = None,
) -> Evaluation:
    """Attack the model in `model_dir` and write results.json, examples.npz, report.html and model_card.md.

    Args:
        config: the attacks, and the images to attack.
        model_dir: directory of a training run.
        report_dir: directory for the results; empty for model_dir/evaluations/NAME, where NAME follows from the model,
            its directory, the images and `identity(config)`.
        searches: the checklist's attacks without gradients, which take the longest; `None` for the default.

    Raises:
        InputError: the model is absent or broken, data are absent, or the report directory belongs to another
            evaluation.
    """
    with lost_worker_is_an_error(Path(report_dir or model_dir)):
        strategy = make_strategy(config.strategy)
        with strategy.scope():
            return _evaluate_model_dir(config, model_dir, report_dir, strategy, searches)


def _evaluate_model_dir(
    config: EvaluateConfig,
    model_dir: str | Path,
    report_dir: str | Path,
    strategy: tf.distribute.Strategy,
    searches: GradientFreeAttacks | None,
) -> Evaluation:
    described_before = describe_model(ModelDirectory(model_dir))
    directory, model, examples = _load(config, model_dir)
    train_config = directory.train_config()
    if describe_model(directory) != described_before:
        raise InputError(f"{directory.path} is being trained, and its model has just changed: evaluate it again")
    belongs_to = {
        "model_dir": str(directory.path.resolve()),
        "model": described_before,
        "images_sha256": examples.sha256,
        "config": identity(config),
    }
    asked = dataclasses.replace(config, tfds_data_dir="", strategy="auto")
    check_same_everywhere(strategy, lambda: (asked, belongs_to["model"], belongs_to["images_sha256"]))
    report = Path(report_dir) if report_dir else directory.evaluations / evaluation_name(belongs_to)
    described = {
        "dataset": train_config.dataset,
        "split": config.split,
        "training": dataclasses.asdict(train_config),
        "authors_attack": train_config.parsed_defence.protocol,
        "modules": directory.needed_modules(),
    }
    target = _averaged(adapt(model), config)
    with one_writer(strategy, report) as own:
        return _evaluate(target, examples, config, own, belongs_to, described, model, searches)


def _averaged(target: AnyTarget, config: EvaluateConfig) -> AnyTarget:
    """Return the net that answers with the mean logits of `average_draws` draws."""
    return target.averaged(config.average_draws) if config.average_draws > 1 else target


def _attacked(target: AnyTarget, model: Any, config: EvaluateConfig) -> AnyTarget:
    """Return the net that attacks see: the net itself, or its copy in another precision."""
    if config.attack_precision in (EvaluateConfig.attack_precision, TENSOR_FLOAT_32):
        return target
    if not isinstance(model, StochasticClassifier):
        raise InputError(f"expected a net of this package with attack_precision, received {type(model).__name__}")
    return _averaged(adapt(inference_copy(model, config.attack_precision)), config)


def _load(config: EvaluateConfig, model_dir: str | Path) -> tuple[ModelDirectory, StochasticClassifier, Examples]:
    """Return a training run, its best model and the images to evaluate it on; check that they belong together."""
    directory = ModelDirectory(model_dir)
    train_config = directory.train_config()
    model = directory.load_best()
    examples = load_evaluation_examples(config, directory)
    directory.check_same_dataset(examples)
    if model.num_classes != len(examples.class_names) or not same_defence(train_config.defence, model.defence):
        raise InputError(f"{directory.best} is not the model that {directory.config} describes")
    return directory, model, examples


@tensor_float_32(on=False)
def planted_examples(config: EvaluateConfig, model_dir: str | Path) -> list[FoundExamples]:
    """Test whether each attack finds the images that are planted on the features of the model in `model_dir`."""
    if config.deterministic:
        use_deterministic_operations(config.seed)
    _, model, examples = _load(dataclasses.replace(config, num_examples=IMAGES), model_dir)
    return find_planted_examples(_averaged(adapt(model), config), largest_radii(config), examples, config.seed)


def evaluate_model(
    model: Any,
    images: Any,
    labels: Any,
    config: EvaluateConfig,
    report_dir: str | Path,
    name: str = "",
    quiet: bool = False,
    dataset: str = "",
    class_names: tuple[str, ...] = (),
    net_options: Mapping[str, Any] = {},
) -> Evaluation:
    """Attack any Keras classifier, or any target, on images in memory, and write what `evaluate` writes.

    Args:
        model: as for `adapt`; any layer may have noise.
        images, labels: as for `as_arrays`.
        config: the attacks; `tfds_data_dir` and `strategy` are not used, and `split` chooses no images. To attack a
            Keras model on several devices, build it and call this function in the scope of a tf.distribute strategy.
        report_dir: directory for the results.
        name: the model's name in the report. A report directory belongs to this name, the images and the Keras model; a
            target that `adapt` did not make is identified by its name alone.
        quiet: whether to write the records alone, and to print no line that says where the results are.
        dataset: the name of the data set, if it has one.
        class_names: the names of the classes, where they are known.
        net_options: pixel_range, outputs, output, training and independent_noise, as for `adapt`.

    Raises:
        InputError: images, labels or the model cannot be used, or the report directory belongs to another evaluation.
    """
    images, labels = as_arrays(images, labels)
    images, options = in_its_range(model, images)
    net_options = options | {name: value for name, value in net_options.items() if value is not None}
    check_images(images)
    name = name or "model"
    labels = labels.astype(np.int64) if np.issubdtype(labels.dtype, np.integer) else labels
    target = adapt(model, images.shape[1:], **net_options)
    classes = num_classes_of(target, to_float(tf.constant(images[:1])))
    names = class_names or tuple(str(i) for i in range(classes))
    if len(names) != classes:
        raise InputError(f"expected a classifier of the {len(names)} classes of {dataset}, received one of {classes}")
    examples = Examples(images, labels, names).take(slice(0, config.num_examples or None))
    belongs_to: dict[str, Any] = {
        "model_dir": None,
        "model": {"name": name, "sha256": digest_of(model, target)},
        "images_sha256": examples.sha256,
        "config": identity(config),
    }
    if net_options:
        belongs_to["model"]["options"] = json.loads(json.dumps(net_options))  # tuples as JSON has them
    check_pixels(target, examples.images, examples.labels)
    described: dict[str, Any] = {
        "dataset": dataset or name,
        "split": "given",
        "net": target.net.describe() if target.net else None,
        "training": None,
        "authors_attack": "",
        "modules": [],
    }
    known, report = target.net.headed if target.net else None, Path(report_dir)
    return _evaluate(
        _averaged(target, config), examples, config, report, belongs_to, described, known or model, quiet=quiet
    )


@tensor_float_32(on=False)
def _evaluate(
    target: AnyTarget,
    examples: Examples,
    config: EvaluateConfig,
    report: Path,
    belongs_to: dict[str, Any],
    described: dict[str, Any],
    model: Any,
    searches: GradientFreeAttacks | None = None,
    quiet: bool = False,
) -> Evaluation:
    if config.deterministic:
        use_deterministic_operations(config.seed)
    if not target.per_image_noise:  # an image's draws may depend on its place in the batch
        belongs_to = {**belongs_to, "config": {**belongs_to["config"], "batch_size": config.batch_size}}
    number, parts = config.parsed_shard
    part, block = shard_of(len(examples), number, parts), block_size(len(examples))
    examples = examples.take(part)
    if config.shard:
        described = {**described, "shard": {"number": number, "parts": parts}}
    described = {"schema": SCHEMA, **belongs_to, **described, **_about(examples, target, config, part)}
    every, settings = measures(searches), Settings(config.seed, config.batch_size, part.start, block)
    attacked = _attacked(target, model, config)

    def context() -> Context:
        stored = stored_description(report, belongs_to)
        trials = planned(report, stored, config)
        return Context(target, attacked, model, examples, config, settings, report, trials, {})

    planning = context()
    if is_finished(planning, every):
        print(f"{report} has this evaluation; nothing to do")
        return Evaluation.read(report)
    check_attacks(attacked, trials_of(config), examples)  # the source of an earlier attack may be gone
    with contextlib.redirect_stdout(io.StringIO()):  # what is made again is said when it is
        for measure in due_measures(planning := with_measured(planning, every), every):
            measure.check(planning)
    files.check_nothing_foreign(report, "evaluation.json", (*DERIVED, RECORDS, MEASURES))
    with files.exclusive_directory(report):
        evaluation = _run(with_measured(context(), every), described, every)
        if not quiet:
            write_derived(evaluation, report)
    if not quiet:
        print(f"written: {report / 'report.html'}, results.json, examples.npz and model_card.md beside it")
    return evaluation


def _about(examples: Examples, target: AnyTarget, config: EvaluateConfig, part: slice) -> dict[str, Any]:
    """Return what evaluation.json says of the images, and of what they are judged with."""
    return {
        "num_examples": len(examples),
        "first": part.start,
        "class_names": list(examples.class_names),
        "image_shape": list(examples.image_shape),
        "has_noise": has_noise(target),
        "seed": config.seed,
        "versions": versions(),
    }


def _run(context: Context, described: dict[str, Any], every: list[Measure]) -> Evaluation:
    """Run the attacks and the measures that are left to do, and return the evaluation."""
    report, records = context.directory, context.directory / RECORDS
    described = {**described, "attacks": listed(context.trials)}
    files.write_json(report / "evaluation.json", described)
    clean = run_attacks(context.target, [CLEAN_TRIAL], context.examples, context.settings, records)
    if described.get("net"):
        print(net_text(Evaluation(described, clean, {}).results))
    before = clean[0].judgement.probability_correct
    with tensor_float_32(on=context.config.attack_precision == TENSOR_FLOAT_32):
        outcomes = run_attacks(
            context.target, context.trials, context.examples, context.settings, records, context.attacked, before
        )
    context = dataclasses.replace(context, outcomes=[*clean, *outcomes])
    for measure in every:
        if is_due(measure, context):
            make(measure, context)
    return Evaluation(described, context.outcomes, context.measured, report)


def load_evaluation_examples(config: EvaluateConfig, directory: ModelDirectory) -> Examples:
    """Return the first `num_examples` images of the split, for the net in a directory.

    The validation images are the images that training held out.

    Raises:
        InputError: the validation images are asked for, and training held out no images, or the data have changed.
    """
    train_config = directory.train_config()
    if config.tfds_data_dir:
        train_config = dataclasses.replace(train_config, tfds_data_dir=config.tfds_data_dir)
    if config.split == "test":
        return load_examples(train_config, "test", config.num_examples)
    trained_on, kept = open_examples(train_config, "train").split_validation(
        train_config.validation_split, train_config.seed, train_config.max_train_examples
    )
    if kept is None:
        raise InputError("expected --split=test: this net was trained with --validation_split=0, on all images")
    directory.check_same_dataset(trained_on, training=True)  # of other data, another part would be held out
    [placed] = place(train_config, kept.take(slice(0, config.num_examples or None)))
    return placed
