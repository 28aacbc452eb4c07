"""wca-certify: what no attack within a radius can do to a trained model, beside the strongest attacks at that radius.

    bin/train --backbone=lipschitz_cnn --margin_radius=0.5 --defence=wca:regularizer=constraint --model_dir=runs/net
    bin/certify --model_dir=runs/net --radii=0.1,0.3,1.58

It certifies nets whose features have a Lipschitz constant: --backbone=orthogonal_net (with
--optimizer=orthogonal_muon) or lipschitz_cnn, and --defence=none or wca. Of
--defence=smoothing it certifies the majority vote, of the first --certified_images=20 images: give --num_examples the
same number, and --attacks=pgd:norm=l2.
Radii are in l2, for images in [0, 1]; linf:0.01 is one in l∞. The certificate is a lower bound of the expected accuracy
of a single answer, in exact arithmetic, and the attacks give an upper bound. For orthogonal_net without noise there is
also what holds in float32, whose rounding is bounded.
"""

from absl import flags

import wca_tf
from wca_tf.attacks.radii import parse_radii
from wca_tf.cli.flags import config_from_flags, define_flags, import_tensorflow, run, show_in_help
from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user
from wca_tf.distribution.cluster import check_strategy, is_chief
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.runs.preflight import check_model_present, check_sources_present

# By norm. C&W has no radius: its images count at every radius that they are within. At a rate of 0.01 its change of
# variables hardly moves a pixel that is black or white.
ATTACKS = {
    "l2": "pgd:steps=40:norm=l2,apgd_ce:norm=l2,adaptive:norm=l2,cw:steps=200:learning_rate=0.1:searches=6",
    "linf": "pgd:steps=40,apgd_ce,adaptive",
}
OWN = ("attacks", "epsilons", "certified_radii", "checklist", "shard", "average_draws", "attack_precision")
COMMON = ("model_dir", "radii", "attacks", "num_examples", "report_dir", "tfds_data_dir")


def main() -> None:
    """Certify as the parsed flags say."""
    if not flags.FLAGS.radii:
        raise InputError("expected --radii=0.1,0.3, the l2 radii to certify")
    radii = [(radius.norm or "l2", radius.epsilon) for radius in parse_radii(flags.FLAGS.radii, "--radii")]
    if len(set(radii)) < len(radii):
        raise InputError(f"expected each radius of --radii once, received {flags.FLAGS.radii!r}")
    if any(norm == "linf" and epsilon > 1 for norm, epsilon in radii):
        raise InputError(f"expected --radii in linf between 0 and 1, received {flags.FLAGS.radii!r}")
    norms = dict.fromkeys(norm for norm, _ in radii)
    config = config_from_flags(
        EvaluateConfig,
        attacks=flags.FLAGS.attacks or ",".join(ATTACKS[norm] for norm in norms),
        epsilons=",".join(f"{norm}:{epsilon!r}" for norm, epsilon in radii),
        certified_radii=",".join(f"{norm}:{epsilon!r}" for norm, epsilon in radii),
    )
    model_dir = check_model_present(flags.FLAGS.model_dir)
    check_sources_present(config.parsed_attacks)
    _ = config.parsed_radii
    report_dir = expand_user(flags.FLAGS.report_dir) if flags.FLAGS.report_dir else ""
    check_strategy(config.strategy)
    import_tensorflow()  # only when the flags are right: it takes seconds
    report = wca_tf.evaluate_model_dir(config, model_dir, report_dir)
    if is_chief():
        print(report)


def console() -> None:
    """Run bin/certify, or wca-certify."""
    define_flags(EvaluateConfig, without=OWN)
    flags.DEFINE_string("model_dir", None, "directory of a trained model")
    flags.DEFINE_string("radii", "", "comma-separated radii to certify, in l2 (linf:0.01 for l∞), for images in [0, 1]")
    flags.DEFINE_string("attacks", "", "attacks at these radii; empty: PGD, Auto-PGD, the cascade adaptive, and C&W")
    flags.DEFINE_string("report_dir", "", "where the results go; default: MODEL_DIR/evaluations/NAME")
    for name in ("model_dir", "radii", "attacks", "report_dir"):
        show_in_help(name)
    run(main, __doc__ or "", COMMON)
