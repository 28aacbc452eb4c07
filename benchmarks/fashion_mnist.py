"""The honest table: WCA-Net and the undefended net on Fashion-MNIST, by the paper's protocol and by adaptive attacks.

    .venv/bin/python benchmarks/fashion_mnist.py --tfds_data_dir=DIR

Trains three LeNet++ (none, isotropic, anisotropic) on all 60,000 images for 10 epochs, attacks 1,000 test images, and
writes docs/results/fashion_mnist.{json,md,png}. What exists in runs/ is not done again. Over an hour on 2 cores.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from wca_tf import files
from wca_tf.config import EvaluateConfig, TrainConfig
from wca_tf.evaluation.report.table import format_results, percent
from wca_tf.evaluation.runner import evaluate
from wca_tf.training import train

EPSILONS = "0.03,0.1,0.3"
# fgsm, pgd: the paper's protocol. pgd:steps=40 and z_margin:steps=10 compare the objectives at equal steps.
ATTACKS = "fgsm,pgd,pgd:steps=40,margin,z_margin:steps=10,z_margin"
# Clean, FGSM, PGD: the paper's Table 5 (ablation), Fashion-MNIST.
PAPER = {"none": (90.8, 26.4, 12.0), "isotropic": (90.1, 63.5, 37.2), "anisotropic": (90.1, 65.2, 48.5)}
# Kept of each results.json: the numbers, not where they were made.
KEPT = ("dataset", "split", "num_examples", "seed", "training", "versions", "clean", "attacks", "worst_case")
COLOURS = {"none": "tab:gray", "isotropic": "tab:blue", "anisotropic": "tab:red"}
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tfds_data_dir", required=True, help="where TFDS's fashion_mnist is")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the models go")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="where the table goes")
    arguments = parser.parse_args()
    results = {covariance: measure(covariance, arguments.tfds_data_dir, arguments.runs) for covariance in PAPER}
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = {covariance: {key: value[key] for key in KEPT} for covariance, value in results.items()}
    for value in kept.values():
        value["training"] = {k: v for k, v in value["training"].items() if k != "tfds_data_dir"}
    files.write_json(arguments.out / "fashion_mnist.json", kept)
    table = markdown_table(results)
    files.write_atomically(arguments.out / "fashion_mnist.md", lambda path: Path(path).write_text(table))
    files.write_atomically(arguments.out / "fashion_mnist.png", lambda path: plot(results, path))
    print(table)


def measure(covariance: str, tfds_data_dir: str, runs: Path) -> dict[str, Any]:
    """Train and evaluate one model, or read what is there; returns results.json's contents."""
    model_dir = runs / f"fashion_mnist_{covariance}"
    training = TrainConfig(
        dataset="fashion_mnist",
        tfds_data_dir=tfds_data_dir,
        covariance=covariance,
        weight_decay=0.0 if covariance == "none" else 1e-4,
        epochs=10,
    )
    train(training, model_dir)
    evaluation = EvaluateConfig(attacks=ATTACKS, epsilons=EPSILONS, num_examples=1000)
    results = evaluate(evaluation, model_dir)
    print(format_results(results))
    return results


def markdown_table(results: dict[str, dict[str, Any]]) -> str:
    """One row per model and epsilon: the paper's figures, its protocol here, the adaptive attacks."""
    lines = [
        "| noise | ε | clean | FGSM | PGD-10 | PGD-40 | margin-40 | z-margin-10 | z-margin-40 "
        "| worst case | z-margin-40, 100 queries | paper: clean / FGSM / PGD |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for covariance, result in results.items():
        for worst in result["worst_case"]:
            epsilon = worst["epsilon"]
            by_name = {attack["name"]: attack for attack in result["attacks"] if attack["epsilon"] == epsilon}
            drawn = [percent(by_name[name]["accuracy"]) for name in ("fgsm", "pgd", "pgd:steps=40")]
            expected = [
                percent(by_name[name]["expected_accuracy"]) for name in ("margin", "z_margin:steps=10", "z_margin")
            ]
            queries = percent(by_name["z_margin"]["n_query_accuracy"]["100"])
            paper = " / ".join(f"{value:.1f}" for value in PAPER[covariance]) if epsilon == 0.3 else ""
            cells = [covariance, f"{epsilon:g}", percent(result["clean"]["accuracy"]), *drawn, *expected]
            lines.append("| " + " | ".join([*cells, percent(worst["expected_accuracy"]), queries, paper]) + " |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, dict[str, Any]], path: str) -> None:
    """Accuracy against epsilon: the paper's PGD-10 dashed, the worst case over all attacks solid."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), constrained_layout=True)
    for covariance, result in results.items():
        epsilons = [0.0, *(worst["epsilon"] for worst in result["worst_case"])]
        pgd = [result["clean"]["accuracy"], *(a["accuracy"] for a in result["attacks"] if a["name"] == "pgd")]
        worst = [result["clean"]["expected_accuracy"], *(w["expected_accuracy"] for w in result["worst_case"])]
        for numbers, style, label in (
            (pgd, "--", "PGD-10 (paper's protocol)"),
            (worst, "-", "worst case of all attacks"),
        ):
            axes.plot(
                epsilons, [100 * n["value"] for n in numbers], style, marker="o", color=COLOURS[covariance],
                label=f"{covariance}: {label}",
            )  # fmt: skip
            low, high = ([100 * n[key] for n in numbers] for key in ("low", "high"))
            axes.fill_between(epsilons, low, high, color=COLOURS[covariance], alpha=0.12)
    axes.set(xlabel="ε (l∞, images in [0, 1])", ylabel="accuracy, %", ylim=(0, 100), xlim=(0, 0.3))
    axes.set_title("Fashion-MNIST, LeNet++, 1,000 test images", fontsize=10)
    axes.legend(fontsize=7, handlelength=3.5)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
