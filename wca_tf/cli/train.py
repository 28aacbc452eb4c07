"""wca-train: train a net with a defence, or resume a run that was stopped.

    bin/train --flagfile=configs/digits_anisotropic.flags --model_dir=runs/digits_anisotropic

After Ctrl-C the same command continues. It leaves in --model_dir: model.keras (the epoch that is best on validation
images), last.keras, metrics.jsonl, config.json and tensorboard/. Attack the net with bin/evaluate.
"""

from absl import flags

import wca_tf
from wca_tf.cli.flags import config_from_flags, define_flags, import_tensorflow, run, show_in_help
from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user
from wca_tf.data.preflight import check_dataset_present
from wca_tf.defences.tables import help_text
from wca_tf.distribution.cluster import check_strategy, would_be_chief
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.preflight import check_source_present

DETAILS = """
Defences, --defence=NAME:option=value:... or module:Class of your own (docs/howto/add_a_defence.md):
"""
COMMON = (
    "model_dir",
    "dataset",
    "tfds_data_dir",
    "download",
    "defence",
    "adversarial",
    "backbone",
    "epochs",
    "learning_rate",
    "batch_size",
    "augmentation",
    "precision",
    "seed",
)


def main() -> None:
    """Train as the parsed flags say."""
    config = config_from_flags(TrainConfig)
    if not flags.FLAGS.model_dir:
        raise InputError("expected --model_dir=DIR, where the model goes")
    model_dir = expand_user(flags.FLAGS.model_dir)
    check_dataset_present(config)
    check_strategy(config.strategy)
    if not (model_dir / "config.json").exists():  # a run that goes on has what it needs
        check_source_present(config)

    import_tensorflow()  # only when the flags are right: it takes seconds
    best = wca_tf.train(config, model_dir)
    if not would_be_chief(config.strategy):
        return
    directory = wca_tf.ModelDirectory(model_dir)
    modules = ",".join(directory.needed_modules())
    own = f" --modules={modules}" if modules else ""
    judge = f"bin/certify --radii={config.margin_radius:g}" if config.margin_radius else "bin/evaluate"
    print(f"best epoch {best['epoch']:.0f}: {directory.selection()}\nnext: {judge} --model_dir={model_dir}{own}")


def console() -> None:
    """Run bin/train, or wca-train."""
    define_flags(TrainConfig)
    flags.DEFINE_string("model_dir", None, "directory of the model; an unfinished run in it is resumed")
    show_in_help("model_dir")
    run(main, __doc__ or "", COMMON, DETAILS + help_text())
