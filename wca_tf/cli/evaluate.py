"""wca-evaluate: attack a trained model and say what its robustness is worth.

    bin/evaluate --model_dir=runs/digits_anisotropic --attacks=fgsm,pgd,z_margin --epsilons=8/255,0.1

Prints a table and writes results.json (every number with its 95 % interval) and examples.npz (per image). fgsm, bim and
pgd are the paper's protocol; margin and z_margin are adapted to the noise. "one draw" is the paper's accuracy,
"expected" the mean of the exact P(correct), "n queries" what is left when an attacker may ask n times.
"""

from absl import flags

from wca_tf.cli.flags import config_from_flags, define_flags, import_tensorflow, run, show_in_help
from wca_tf.config import EvaluateConfig, expand
from wca_tf.errors import InputError


def main() -> None:
    """Evaluate as the parsed flags say."""
    config = config_from_flags(EvaluateConfig)
    model_dir = expand(flags.FLAGS.model_dir or "")
    for name in ("config.json", "model.keras"):
        if not flags.FLAGS.model_dir or not (model_dir / name).is_file():
            raise InputError(f"expected --model_dir=DIR with a {name}, made by bin/train; received {model_dir}")
    report_dir = expand(flags.FLAGS.report_dir) if flags.FLAGS.report_dir else ""

    import_tensorflow()  # only when the flags are right: it takes seconds
    from wca_tf.evaluation.runner import evaluate
    from wca_tf.evaluation.table import format_results

    print(format_results(evaluate(config, model_dir, report_dir)))


def console() -> None:
    """The entry point of bin/evaluate and wca-evaluate."""
    define_flags(EvaluateConfig)
    flags.DEFINE_string("model_dir", None, "directory of a trained model")
    flags.DEFINE_string("report_dir", "", "where the results go; default: MODEL_DIR/evaluations/NAME")
    show_in_help("model_dir")
    show_in_help("report_dir")
    run(main, __doc__ or "")
