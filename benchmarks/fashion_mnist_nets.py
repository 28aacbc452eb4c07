"""The nets of the Fashion-MNIST benchmarks. `bin/reproduce --scale=small` has the same nets and evaluations.

An attack that one benchmark or experiment has run on a net is not run again by another.
"""

import argparse
from pathlib import Path

from wca_tf.experiments.run import Evaluated, Run
from wca_tf.experiments.settings import ReproduceConfig

ROOT = Path(__file__).resolve().parent.parent
DATASET = "fashion_mnist"
NETS = ("none", "isotropic", "anisotropic")


def parse_arguments(description: str | None) -> argparse.Namespace:
    """Return --tfds_data_dir, --models_dir and --out, which every one of these benchmarks takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tfds_data_dir", required=True, help="where TFDS's fashion_mnist is")
    parser.add_argument(
        "--models_dir",
        type=Path,
        default=ROOT / "runs" / "reproduce",
        help="where the nets are; missing ones are trained",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="where the table goes")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def evaluated(arguments: argparse.Namespace, net: str, attacks: tuple[str, ...], epsilons: str, **changes) -> Evaluated:
    """Train a net, if it is missing, and attack it on the first 500 test images, or on as many as `num_examples`."""
    run = Run(
        ReproduceConfig(
            experiment="ablation",
            report_dir=str(arguments.out),
            models_dir=str(arguments.models_dir),
            tfds_data_dir=arguments.tfds_data_dir,
        )
    )
    return run.evaluated(DATASET, net, list(attacks), epsilons, **changes)
