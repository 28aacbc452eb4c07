"""The cascade `adaptive` beside its members, each run whole: what it leaves, and what it takes.

    .venv/bin/python benchmarks/adaptive.py --tfds_data_dir=DIR

Attacks two nets of benchmarks/fashion_mnist.py on 500 test images, and writes docs/results/adaptive.{json,md}.
What has been run is not run again. Its times are of 100 images, and want an idle machine: the making of each graph is
in them.
"""

import argparse
from pathlib import Path
from typing import Any

from fashion_mnist_nets import evaluated, parse_arguments

from wca_tf.attacks.radii import parse_radii
from wca_tf.core import files
from wca_tf.evaluation.intervals import percent

NETS = ("none", "anisotropic")
EPSILONS = "8/255,0.1"
# As `Adaptive.rounds` has them; transfer is left out of a net without noise.
MEMBERS = ("z_margin", "apgd_dlr", "margin", "transfer:source_objective=dlr", "square:queries=1000")
CASCADE = "adaptive"
# Seconds are of an evaluation of their own, with nothing beside it: the accuracies take hours.
TIMED_IMAGES = 100


def main() -> None:
    arguments = parse_arguments(__doc__)
    rows = [row for net in NETS for row in measure(arguments, net)]
    files.write_json(arguments.out / "adaptive.json", {"members": MEMBERS, "rows": rows})
    table = markdown_table(rows)
    files.write_atomically(arguments.out / "adaptive.md", lambda path: Path(path).write_text(table))
    print(table)


def measure(arguments: argparse.Namespace, net: str) -> list[dict[str, Any]]:
    """Return a row per radius: expected accuracy under the members' worst case and under the cascade, and seconds."""
    members = [member for member in MEMBERS if net != "none" or not member.startswith("transfer")]
    found = evaluated(arguments, net, (*members, CASCADE), EPSILONS)
    timed = evaluated(arguments, net, (*members, CASCADE), EPSILONS, num_examples=TIMED_IMAGES)
    rows = []
    for epsilon in (radius.epsilon for radius in parse_radii(EPSILONS)):
        seconds = {name: timed.entry(name, epsilon)["seconds"] for name in (*members, CASCADE)}
        row = {
            "net": net,
            "epsilon": epsilon,
            "images": found.results["num_examples"],
            "members_whole": found.worst_case(members, epsilon),
            "adaptive": found.number(CASCADE, epsilon, "expected_accuracy"),
            "timed_images": TIMED_IMAGES,
            "seconds": seconds,
            "time_share": seconds[CASCADE] / sum(seconds[member] for member in members),
        }
        rows.append(row)
    return rows


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
