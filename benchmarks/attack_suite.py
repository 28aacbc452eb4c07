"""Every attack on the Fashion-MNIST nets of benchmarks/fashion_mnist.py, and a checklist.

    .venv/bin/python benchmarks/attack_suite.py --tfds_data_dir=DIR

Writes docs/results/attack_suite.{json,md}. What has been run is not run again. Hours on 2 cores, hence the budgets:
C&W, n-pixel and the images of the costly attacks are fewer than the paper's, as the table says.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fashion_mnist_nets import NETS, evaluated, parse_arguments

from wca_tf.core import files
from wca_tf.evaluation.intervals import distance_text
from wca_tf.evaluation.report.table import percent

EPSILON = 0.1
BALL = ("fgsm", "pgd", "pgd:steps=40", "margin", "z_margin", "z_margin:restarts=10", "apgd_ce", "apgd_dlr", "auto_rand")
BALL += ("transfer", "transfer:source_objective=dlr", "square:queries=1000", "adaptive")
# Each of these beside the worst case of all others.
COMPARED = ("z_margin:restarts=10", "adaptive")
CW_BUDGET = "steps=40:learning_rate=0.03:initial_constant=0.01:searches=4"
CW = tuple(f"cw:confidence={kappa}:{CW_BUDGET}" for kappa in ("0.1", "1.0", "2.0", "5.0"))
PIXELS = tuple(f"n_pixel{count}:generations=3" for count in ("", ":pixels=2", ":pixels=3", ":pixels=5"))
PIXEL_BY_MARGIN = "n_pixel:objective=margin:population=100:generations=80"
PLAN = {500: BALL + CW, 200: ("pgd_restarts",), 100: (*PIXELS, PIXEL_BY_MARGIN)}  # by test images
CHECKLIST = ("anisotropic", ("fgsm", "pgd", "z_margin"), 100)
HEAD = 8  # columns of each net


def main() -> None:
    arguments = parse_arguments(__doc__)
    results = {net: measure(arguments, net) for net in NETS}
    files.write_json(arguments.out / "attack_suite.json", results)
    table = markdown_table(results)
    files.write_atomically(arguments.out / "attack_suite.md", lambda path: Path(path).write_text(table))
    print(table)


def measure(arguments: argparse.Namespace, net: str) -> dict[str, Any]:
    """Return the entries of results.json for every attack of the plan on one net, and for its checklist."""
    measured: dict[str, Any] = {"attacks": []}
    for count, attacks in PLAN.items():
        found = evaluated(arguments, net, attacks, str(EPSILON), num_examples=count)
        radii = {attack["name"]: attack["epsilon"] for attack in found.results["attacks"] if attack["epsilon"] is None}
        entries = (found.entry(name, radii.get(name, EPSILON)) for name in attacks)
        measured["attacks"] += [{**entry, "num_examples": count} for entry in entries]
        if attacks[: len(BALL)] == BALL:
            measured |= {"clean": found.results["clean"], "model": found.results["model"]}
            others = [name for name in BALL if name not in COMPARED]
            measured["worst_case"] = found.worst_case(list(BALL), EPSILON)
            measured["compared"] = {name: found.worst_case([name], EPSILON) for name in COMPARED}
            measured["compared"]["worst case of all others"] = found.worst_case(others, EPSILON)
    judged, attacks, count = CHECKLIST
    if net == judged:
        found = evaluated(arguments, net, attacks, str(EPSILON), num_examples=count, checklist=True)
        measured["checklist"] = found.results["checklist"]
    return measured


def markdown_table(results: dict[str, dict[str, Any]]) -> str:
    """A row per attack, the nets side by side; then what two attacks leave beside all others; then the checklist."""
    head = "one draw | expected | noise-free | 100 queries | median l2 | found | generations | seconds"
    lines = ["| attack | images | " + " | ".join(f"{name}: {head}" for name in results) + " |"]
    lines.append("|---" * (2 + HEAD * len(results)) + "|")
    lines.append(_row("clean", max(PLAN), [result["clean"] for result in results.values()]))
    for entries in zip(*(result["attacks"] for result in results.values()), strict=True):
        lines.append(_row(entries[0]["name"], entries[0]["num_examples"], entries))
    lines += ["", "| expected accuracy, % | " + " | ".join(results) + " |", "|---" * (1 + len(results)) + "|"]
    for name in next(iter(results.values()))["compared"]:
        lines.append(f"| {name} | " + " | ".join(percent(r["compared"][name]) for r in results.values()) + " |")
    lines.append("| worst case of all | " + " | ".join(percent(r["worst_case"]) for r in results.values()) + " |")
    verdict = {True: "pass", False: "**fail**", None: "–"}
    lines += ["", f"| criterion, {CHECKLIST[0]} noise | verdict | evidence |", "|---|---|---|"]
    for item in results[CHECKLIST[0]]["checklist"]:
        lines.append(f"| {item['criterion']} | {verdict[item['passed']]} | {item['evidence']} |")
    return "\n".join(lines) + "\n"


def _row(name: str, count: int, found: Sequence[dict[str, Any]]) -> str:
    cells = []
    for numbers in found:
        cells += [percent(numbers[key]) for key in ("accuracy", "expected_accuracy", "noise_free_accuracy")]
        cells.append(percent(numbers["n_query_accuracy"]["100"]))
        cells.append(distance_text(numbers["distortion"]["l2"]["median"]) if "distortion" in numbers else "")
        cells.append(percent(numbers["found"]) if numbers.get("found") else "")
        cells.append(f"{numbers['generations']['median']:g}" if numbers.get("generations") else "")
        cells.append(f"{numbers['seconds']:.0f}" if "seconds" in numbers else "")
    return f"| {name} | {count} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
