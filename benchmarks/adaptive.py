"""The cascade `adaptive` beside its members, each run whole: what it leaves, and what it takes.

    .venv/bin/python benchmarks/adaptive.py --tfds_data_dir=DIR

Attacks the nets of benchmarks/fashion_mnist.py on 500 test images, and writes docs/results/adaptive.{json,md}.
What exists in runs/ is not done again. Its times want an idle machine; they have the making of each graph in them.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf import files
from wca_tf.config import EvaluateConfig, parse_epsilons
from wca_tf.evaluation.accuracy import least_probability, percent
from wca_tf.evaluation.outcomes import stored_judgements
from wca_tf.evaluation.runner import evaluate

ROOT = Path(__file__).resolve().parent.parent
NETS = ("none", "anisotropic")
EPSILONS = "8/255,0.1"
# As `Adaptive.rounds` has them; the last but one is left out of a net without noise.
MEMBERS = ("z_margin", "apgd_dlr", "margin", "transfer:climbs=dlr", "square:queries=1000")
CASCADE = "adaptive"
IMAGES = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tfds_data_dir", default="", help="where TFDS's fashion_mnist is; empty: as in training")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the models are")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="where the table goes")
    arguments = parser.parse_args()
    rows = [row for net in NETS for row in measure(net, arguments.tfds_data_dir, arguments.runs)]
    files.write_json(arguments.out / "adaptive.json", {"images": IMAGES, "members": MEMBERS, "rows": rows})
    table = markdown_table(rows)
    files.write_atomically(arguments.out / "adaptive.md", lambda path: Path(path).write_text(table))
    print(table)


def measure(net: str, tfds_data_dir: str, runs: Path) -> list[dict[str, Any]]:
    """Return a row per radius: expected accuracy under the members' worst case and under the cascade, and seconds."""
    members = [member for member in MEMBERS if net != "none" or not member.startswith("transfer")]
    config = EvaluateConfig(",".join([*members, CASCADE]), EPSILONS, num_examples=IMAGES, tfds_data_dir=tfds_data_dir)
    report = runs / "adaptive" / net
    results = evaluate(config, runs / f"fashion_mnist_{net}", report)
    with np.load(report / "examples.npz") as stored:
        arrays = dict(stored)
    return [_row(net, epsilon, members, results, arrays) for epsilon in parse_epsilons(EPSILONS)]


def _row(
    net: str, epsilon: float, members: list[str], results: dict[str, Any], arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    names, radii = arrays["attack"].tolist(), arrays["epsilon"]
    chosen = [i for i, name in enumerate(names) if name == "clean" or (name in members and radii[i] == epsilon)]
    seconds = {a["name"]: a["seconds"] for a in results["attacks"] if a["epsilon"] == epsilon}
    [cascade] = [a for a in results["attacks"] if (a["name"], a["epsilon"]) == (CASCADE, epsilon)]
    return {
        "net": net,
        "epsilon": epsilon,
        "members_whole": least_probability(stored_judgements(arrays, chosen)).n_query_accuracy(1),
        "adaptive": cascade["expected_accuracy"],
        "seconds": seconds,
        "time_share": seconds[CASCADE] / sum(seconds[member] for member in members),
    }


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """One row per net and radius."""
    lines = [
        "| noise | ε | members run whole, worst case, % | adaptive, % | adaptive's share of their time |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["net"], f"{row['epsilon']:.4g}", percent(row["members_whole"]), percent(row["adaptive"])]
        lines.append("| " + " | ".join([*cells, f"{row['time_share']:.2f}"]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
