"""The honest table: WCA-Net and the undefended net on Fashion-MNIST, by the paper's protocol and by adaptive attacks.

    .venv/bin/python benchmarks/fashion_mnist.py --tfds_data_dir=DIR

Trains three LeNet++ (none, isotropic, anisotropic) on all 60,000 images for 10 epochs, attacks 500 test images, and
writes docs/results/fashion_mnist.{json,md,png}. What has been run is not run again. Hours on 2 cores.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from fashion_mnist_nets import NETS, evaluated, parse_arguments

from wca_tf.attacks.radii import parse_radii
from wca_tf.core import files
from wca_tf.evaluation.report.table import percent
from wca_tf.experiments.run import Evaluated

EPSILONS = "8/255,0.1,0.3"
# The paper's protocol: one draw per image.
DRAWN = {"fgsm": "FGSM", "pgd": "PGD-10", "pgd:steps=40": "PGD-40"}
# As expected accuracy. z_margin:steps=10 and pgd compare the objectives at equal steps.
EXPECTED = {
    "margin": "margin-40",
    "z_margin:steps=10": "z-margin-10",
    "z_margin": "z-margin-40",
    "adaptive": "adaptive",
}
ATTACKS = (*DRAWN, *EXPECTED)
# Clean, FGSM, PGD: the paper's Table 5 (ablation), Fashion-MNIST.
PAPER = {"none": (90.8, 26.4, 12.0), "isotropic": (90.1, 63.5, 37.2), "anisotropic": (90.1, 65.2, 48.5)}
# Kept of each results.json: the numbers, not where they were made.
KEPT = ("dataset", "split", "num_examples", "seed", "versions", "clean")
COLOURS = {"none": "tab:gray", "isotropic": "tab:blue", "anisotropic": "tab:red"}


def main() -> None:
    arguments = parse_arguments(__doc__)
    found = {net: evaluated(arguments, net, ATTACKS, EPSILONS) for net in NETS}
    kept = {net: _kept(evaluation) for net, evaluation in found.items()}
    files.write_json(arguments.out / "fashion_mnist.json", kept)
    table = markdown_table(kept)
    files.write_atomically(arguments.out / "fashion_mnist.md", lambda path: Path(path).write_text(table))
    files.write_atomically(arguments.out / "fashion_mnist.png", lambda path: plot(kept, path))
    print(table)


def _kept(found: Evaluated) -> dict[str, Any]:
    kept = {key: found.results[key] for key in KEPT}
    kept["training"] = {k: v for k, v in found.results["training"].items() if k != "tfds_data_dir"}
    radii = [radius.epsilon for radius in parse_radii(EPSILONS)]
    kept["attacks"] = [found.entry(attack, epsilon) for epsilon in radii for attack in ATTACKS]
    kept["worst_case"] = [
        {"epsilon": epsilon, "expected_accuracy": found.worst_case(list(ATTACKS), epsilon)} for epsilon in radii
    ]
    return kept


def markdown_table(results: dict[str, dict[str, Any]]) -> str:
    """One row per net and epsilon: the paper's protocol here, the adaptive attacks, the paper's figures."""
    heads = ["noise", "ε", "clean", *DRAWN.values(), *EXPECTED.values(), "worst case", "z-margin-40, 100 queries"]
    lines = ["| " + " | ".join([*heads, "paper: clean / FGSM / PGD"]) + " |", "|---" * (len(heads) + 1) + "|"]
    for net, result in results.items():
        for worst in result["worst_case"]:
            epsilon = worst["epsilon"]
            by_name = {attack["name"]: attack for attack in result["attacks"] if attack["epsilon"] == epsilon}
            drawn = [percent(by_name[name]["accuracy"]) for name in DRAWN]
            expected = [percent(by_name[name]["expected_accuracy"]) for name in EXPECTED]
            queries = percent(by_name["z_margin"]["n_query_accuracy"]["100"])
            paper = " / ".join(f"{value:.1f}" for value in PAPER[net]) if epsilon == 0.3 else ""
            cells = [net, f"{epsilon:.3g}", percent(result["clean"]["accuracy"]), *drawn, *expected]
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
    axes.set_title("Fashion-MNIST, LeNet++, 500 test images", fontsize=10)
    axes.legend(fontsize=7, handlelength=3.5)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
