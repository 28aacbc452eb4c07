"""wca-quickstart: from nothing to an honest comparison, on scikit-learn's digits.

    bin/quickstart

Trains a net without a defence and a WCA-Net, attacks both, exports the WCA-Net for TF Serving, and ends with one table
of both nets. After Ctrl-C the same command continues. Where it has run before, it shows the table again.
"""

import dataclasses
from pathlib import Path
from typing import Any

from absl import flags

import wca_tf
from wca_tf.cli.flags import import_tensorflow, run, show_in_help
from wca_tf.core.paths import expand_user
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.gaussian.intervals import percent
from wca_tf.runs.config import TrainConfig
from wca_tf.serving.config import ExportConfig

# A small net for few epochs and attacks with few steps: it takes a minute, and shows what the long way shows.
TRAINING = TrainConfig(dataset="digits", backbone="lenet5", epochs=20, learning_rate=2e-3, batch_size=64)
ATTACKS = EvaluateConfig(attacks="pgd,adaptive:apgd_steps=30:queries=200", epsilons="0.1", num_examples=200)
NETS = {"none": "a net without a defence", "wca": "a WCA-Net"}


def main() -> None:
    """Train, attack, export and compare."""
    work_dir = expand_user(flags.FLAGS.work_dir)
    print("the first import of TensorFlow takes seconds")
    import_tensorflow()
    from wca_tf.comparison.tables import table_text  # it loads matplotlib

    for number, (defence, name) in enumerate(NETS.items()):
        _train_and_attack(work_dir, defence, name, 2 * number + 1)
    _export(work_dir / "wca", work_dir / "served" / "digits")
    reports = [work_dir / defence / "report" for defence in NETS]
    [group] = wca_tf.compare_evaluations(reports, work_dir / "compared")
    print(f"\n{table_text(group)}\n\n{_finding(group)}")
    print(f"The comparison as a page, with a report for each net: {work_dir / 'compared' / 'comparison.html'}")


def _train_and_attack(work_dir: Path, defence: str, name: str, step: int) -> None:
    """Train a net and attack it; print the first numbers."""
    print(f"\n[{step}/5] training {name}")
    wca_tf.train(dataclasses.replace(TRAINING, defence=defence), work_dir / defence)
    print(f"\n[{step + 1}/5] attacking {name}")
    report = wca_tf.evaluate_model_dir(ATTACKS, work_dir / defence, work_dir / defence / "report")
    clean, worst = (100 * number["expected_accuracy"]["value"] for number in (report["clean"], report["worst_case"][0]))
    print(f"{name}: accuracy {clean:.1f} % on clean images, {worst:.1f} % in the worst case at ε = {ATTACKS.epsilons}")


def _export(model_dir: Path, export_dir: Path) -> None:
    """Export the net as version 1, where there is no version 1 yet: a version is never replaced."""
    print("\n[5/5] exporting the WCA-Net for TF Serving")
    if not (export_dir / "1").exists():
        wca_tf.export_model_dir(ExportConfig(model_dir=str(model_dir), export_dir=str(export_dir)))
    print(f"exported: {export_dir / '1'}")


def _finding(group: Any) -> str:
    """Return a sentence that says what the table shows."""
    none, wca = group.rows
    return (
        f"By the usual protocol the WCA-Net keeps {percent(wca.protocol)} %. In the worst case it keeps "
        f"{percent(wca.worst_case)} %, and {percent(wca.queries)} % if a client may ask 100 times, where the net "
        f"without a defence keeps {percent(none.queries)} %."
    )


def console() -> None:
    """Run bin/quickstart, or wca-quickstart."""
    flags.DEFINE_string("work_dir", "runs/quickstart", "where the nets, reports and the export go")
    show_in_help("work_dir")
    run(main, __doc__ or "")


if __name__ == "__main__":
    console()
