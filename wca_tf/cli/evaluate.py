"""wca-evaluate: attack a trained model and say what its robustness is worth.

    bin/evaluate --model_dir=runs/digits_anisotropic --attacks=fgsm,pgd,z_margin --epsilons=8/255,0.1
    bin/evaluate --model=net.keras --dataset=cifar10 --report_dir=report      any Keras classifier

Prints a table, and writes report.html, results.json (every number with its 95 % interval), examples.npz (the numbers of
each image) and model_card.md. After Ctrl-C the same command continues; other --attacks are added. The table:
    one draw    accuracy with one answer of the net for each image: the usual protocol
    expected    the mean chance that one answer is right; in the row "worst case" it is the number to quote
    n queries   what is left when an attacker may ask n times and needs one error

Attacks, with options after colons (pgd:steps=40:norm=l2), or module:Class of your own:
"""

import dataclasses
import sys
from typing import Any

from absl import flags

import wca_tf
from wca_tf.attacks.tables import help_text, names_by_group
from wca_tf.cli.flags import config_from_flags, define_flags, import_tensorflow, run, show_in_help
from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user
from wca_tf.data.config import DATASET_HELP, IN_MEMORY, IN_MEMORY_HELP, MAX_PIXELS_HELP, SHORTER_SIDE_HELP, DataConfig
from wca_tf.data.preflight import check_dataset_present
from wca_tf.distribution.cluster import check_strategy, is_chief
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.nets.pixel_range import check_range
from wca_tf.runs.preflight import check_classifier_present, check_model_present, check_sources_present

DETAILS = """
All attacks take eot_samples=N, the draws that a gradient averages over, and targeted=true, towards a class other than
the label. The options of each, with their defaults:
"""
# Flags that are for --model alone.
OF_IMAGES = ("image_size", "shorter_side", "max_image_pixels", "in_memory")
OF_NET = ("pixel_range", "outputs", "output", "training", "independent_noise")
OF_MODEL = ("dataset", *OF_IMAGES, "download", *OF_NET)
COMMON = (
    "model_dir",
    "model",
    "dataset",
    "download",
    "attacks",
    "epsilons",
    "num_examples",
    "report_dir",
    "report_only",
    "checklist",
    "strict",
    "self_test",
    "tfds_data_dir",
)


def main() -> None:
    """Evaluate as the parsed flags say."""
    if flags.FLAGS.report_only:
        return _report_again()
    config = config_from_flags(EvaluateConfig)
    if flags.FLAGS.model:
        return _evaluate_file(config)
    if given := [name for name in OF_MODEL if flags.FLAGS[name].value != flags.FLAGS[name].default]:
        raise InputError(f"expected --{given[0]} with --model alone: a net in --model_dir has its own data set")
    model_dir = check_model_present(flags.FLAGS.model_dir)
    check_sources_present(config.parsed_attacks)
    report_dir = expand_user(flags.FLAGS.report_dir) if flags.FLAGS.report_dir else ""
    check_strategy(config.strategy)

    if flags.FLAGS.strict:
        config = dataclasses.replace(config, checklist=True)
    import_tensorflow()  # only when the flags are right: it takes seconds
    if flags.FLAGS.self_test:
        from wca_tf.evaluation.measures.planted_examples import format_planted_examples  # it loads TensorFlow
        from wca_tf.evaluation.runner import planted_examples  # it loads TensorFlow

        tested = planted_examples(config, model_dir)
        print(format_planted_examples(tested))
        sys.exit(3 if any(result.passed is False for result in tested) else 0)
    _show(wca_tf.evaluate_model_dir(config, model_dir, report_dir))


def _report_again() -> None:
    """Make the report, and all other files, again from the records of a report directory."""
    if not flags.FLAGS.report_dir or flags.FLAGS.model or flags.FLAGS.model_dir:
        raise InputError("expected --report_only with --report_dir=DIR alone, whose records say what was evaluated")
    report_dir = expand_user(flags.FLAGS.report_dir)
    if not report_dir.is_dir():
        raise InputError(f"expected a report directory of bin/evaluate, received {report_dir}: there is none")
    import_tensorflow()
    from wca_tf.evaluation.derive import report_again  # it loads TensorFlow

    print(report_again(report_dir))


def _evaluate_file(config: EvaluateConfig) -> None:
    """Evaluate a Keras classifier from its file."""
    data = _data_config(config)
    if flags.FLAGS.model_dir or flags.FLAGS.self_test:
        raise InputError("expected --model alone, or --model_dir with --self_test; received both")
    check_classifier_present(flags.FLAGS.model)
    net_options = _net_options()
    if not flags.FLAGS.report_dir:
        raise InputError("expected --report_dir=DIR with --model, where the results go")
    check_dataset_present(data)
    check_sources_present(config.parsed_attacks)
    import_tensorflow()
    from wca_tf.evaluation.keras_file import evaluate_file  # it loads TensorFlow

    if flags.FLAGS.strict:
        config = dataclasses.replace(config, checklist=True)
    report_dir = expand_user(flags.FLAGS.report_dir)
    _show(evaluate_file(flags.FLAGS.model, data, config, report_dir, net_options))


def _net_options() -> dict[str, Any]:
    """Return the options of `adapt` that the flags say."""
    pixel_range = check_range(flags.FLAGS.pixel_range) if flags.FLAGS.pixel_range else None
    output = flags.FLAGS.output
    return {
        "pixel_range": pixel_range,
        "outputs": flags.FLAGS.outputs or None,
        "output": int(output) if output.isdigit() else output or None,
        "training": {"": None, "true": True, "false": False}[flags.FLAGS.training],
        "independent_noise": flags.FLAGS.independent_noise or None,
    }


def _data_config(config: EvaluateConfig) -> DataConfig:
    """Return the configuration of the images that --model is evaluated on."""
    if not flags.FLAGS.dataset:
        raise InputError("expected --dataset=NAME with --model, whose images it is evaluated on")
    where = config.tfds_data_dir or DataConfig.tfds_data_dir
    images = {name: flags.FLAGS[name].value for name in OF_IMAGES}
    return DataConfig(flags.FLAGS.dataset, where, flags.FLAGS.download, **images)


def _show(report: "wca_tf.Evaluation") -> None:
    """Print the results; exit with 3 when --strict finds a criterion that fails."""
    if is_chief():
        print(report)
    if flags.FLAGS.strict and any(item["passed"] is False for item in report["checklist"]):
        sys.exit(3)


def console() -> None:
    """Run bin/evaluate, or wca-evaluate."""
    define_flags(EvaluateConfig)
    flags.DEFINE_string("model_dir", None, "directory of a trained model")
    flags.DEFINE_string("model", "", "in its place: a .keras or .h5 file, a SavedModel's directory, or module:name")
    flags.DEFINE_list("pixel_range", [], "of --model: low,high of the pixels that it wants, as 0,255; default 0,1")
    flags.DEFINE_enum("outputs", "", ["", "logits", "probabilities"], "of --model: where its outputs do not tell")
    flags.DEFINE_string("output", "", "of --model: the number or name of the output to take, of several")
    flags.DEFINE_enum("training", "", ["", "true", "false"], "of --model: the argument training of each call")
    flags.DEFINE_bool("independent_noise", False, "of --model in PyTorch or JAX: each image has noise of its own")
    flags.DEFINE_string("dataset", "", f"of --model: {DATASET_HELP}")
    flags.DEFINE_integer("image_size", 0, "of --model: resize images to this height and width; 0 keeps their size")
    flags.DEFINE_integer("shorter_side", 0, f"of --model: {SHORTER_SIDE_HELP}")
    flags.DEFINE_enum("in_memory", DataConfig.in_memory, IN_MEMORY, f"of --model: {IN_MEMORY_HELP}")
    flags.DEFINE_integer("max_image_pixels", DataConfig.max_image_pixels, f"of --model: {MAX_PIXELS_HELP}")
    flags.DEFINE_bool("download", False, "of --model: fetch the TFDS set when it is absent")
    flags.DEFINE_string("report_dir", "", "where the results go; default with --model_dir: MODEL_DIR/evaluations/NAME")
    flags.DEFINE_bool("report_only", False, "make the files of --report_dir again from its records, and run nothing")
    flags.DEFINE_bool("strict", False, "run the checklist, and exit with 3 when a criterion fails")
    flags.DEFINE_bool("self_test", False, "only test whether the attacks find planted adversarial images")
    for name in ("model_dir", "model", *OF_MODEL, "report_dir", "report_only", "strict", "self_test"):
        show_in_help(name)
    run(main, (__doc__ or "") + names_by_group(), COMMON, DETAILS + help_text())
