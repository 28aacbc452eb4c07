"""Every attack on the Fashion-MNIST models of benchmarks/fashion_mnist.py, and their checklists.

    .venv/bin/python benchmarks/attack_suite.py --tfds_data_dir=DIR

Writes docs/results/attack_suite.{json,md}. What exists in runs/ is not done again. Hours on 2 cores, hence the budgets:
C&W, n-pixel and the images of the costly attacks are fewer than the paper's, as the table says.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf import files
from wca_tf.config import EvaluateConfig
from wca_tf.evaluation.accuracy import distance_text, least_probability
from wca_tf.evaluation.outcomes import stored_judgements
from wca_tf.evaluation.report.table import format_results, percent
from wca_tf.evaluation.runner import evaluate

ROOT = Path(__file__).resolve().parent.parent
COVARIANCES = ("none", "isotropic", "anisotropic")
EPSILON = "0.1"
BALL = "fgsm,pgd,pgd:steps=40,margin,z_margin,z_margin:restarts=10,apgd_ce,apgd_dlr,auto_rand,transfer,adaptive"
BALL += ",square:queries=1000"
# None of these, which are what z_margin with ten restarts and the cascade are compared with.
COMPARED = ("z_margin:restarts=10", "adaptive")
CW_BUDGET = "steps=40:learning_rate=0.03:initial_constant=0.01:searches=4"
CW = ",".join(f"cw:confidence={kappa}:{CW_BUDGET}" for kappa in ("0.1", "1.0", "2.0", "5.0"))
PIXELS = ",".join(f"n_pixel{count}:generations=3" for count in ("", ":pixels=2", ":pixels=3", ":pixels=5"))
PIXEL_BY_MARGIN = "n_pixel:objective=margin:population=100:generations=80"
# (images, attacks, images at a time)
PLAN = (
    (500, BALL, 100),
    (200, "pgd_restarts", 100),
    (500, CW, 100),
    (100, f"{PIXELS},{PIXEL_BY_MARGIN}", 100),
)
CHECKLISTS = ("anisotropic",)
HEAD = 8  # columns of each net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tfds_data_dir", default="", help="where TFDS's fashion_mnist is; empty: as in training")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where the models are")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="where the table goes")
    arguments = parser.parse_args()
    results = {name: measure(name, arguments.tfds_data_dir, arguments.runs) for name in COVARIANCES}
    files.write_json(arguments.out / "attack_suite.json", results)
    table = markdown_table(results)
    files.write_atomically(arguments.out / "attack_suite.md", lambda path: Path(path).write_text(table))
    print(table)


def measure(covariance: str, tfds_data_dir: str, runs: Path) -> dict[str, Any]:
    """Every attack of the plan on one model, and its checklist: the numbers of results.json."""
    found: dict[str, Any] = {"attacks": [], "worst_case": {}}
    for count, attacks, batch_size in PLAN:
        config = EvaluateConfig(
            attacks, EPSILON, num_examples=count, batch_size=batch_size, tfds_data_dir=tfds_data_dir
        )
        results = evaluate(config, runs / f"fashion_mnist_{covariance}", runs / "suite" / f"{covariance}_{count}")
        print(format_results(results))
        chosen = [a for a in results["attacks"] if a["epsilon"] in (float(EPSILON), None)]
        listed = {attack["name"] for attack in found["attacks"]}
        found["attacks"] += [{**a, "num_examples": count} for a in chosen if a["name"] not in listed]
        if attacks == BALL:
            found["compared"] = compared(runs / "suite" / f"{covariance}_{count}")
        found["worst_case"][str(count)] = [w for w in results["worst_case"] if w["epsilon"] == float(EPSILON)]
        found.setdefault("clean", results["clean"])
        found.setdefault("model", results["model"])
    found["checklist"] = checklist(covariance, tfds_data_dir, runs) if covariance in CHECKLISTS else []
    return found


def compared(report: Path) -> dict[str, Any]:
    """Expected accuracy in the worst case over all l∞ attacks on all images but `COMPARED`, beside each of those."""
    with np.load(report / "examples.npz") as stored:
        arrays = dict(stored)
    names = arrays["attack"].tolist()
    rows = {name: [names.index(name)] for name in COMPARED}
    rows["all others"] = [i for i, name in enumerate(names) if name not in COMPARED and name in BALL.split(",")]
    return {
        name: least_probability(stored_judgements(arrays, [names.index("clean"), *chosen])).n_query_accuracy(1)
        for name, chosen in rows.items()
    }


def checklist(covariance: str, tfds_data_dir: str, runs: Path) -> list[dict[str, Any]]:
    """The checklist of one model; its own report directory, since it looks at fewer images."""
    config = EvaluateConfig("fgsm,pgd,z_margin", EPSILON, num_examples=100, tfds_data_dir=tfds_data_dir, checklist=True)
    model_dir = runs / f"fashion_mnist_{covariance}"
    return evaluate(config, model_dir, runs / "suite" / f"{covariance}_checklist")["checklist"]


def markdown_table(results: dict[str, dict[str, Any]]) -> str:
    """A row per attack, the models side by side; then the checklists."""
    head = "one draw | expected | noise-free | 100 queries | median l2 | found | generations | seconds"
    lines = ["| attack | images | " + " | ".join(f"{name}: {head}" for name in results) + " |"]
    lines.append("|---" * (2 + HEAD * len(results)) + "|")
    rows = {(a["name"], a["num_examples"]): None for result in results.values() for a in result["attacks"]}
    lines.append(_row("clean", 500, [result["clean"] for result in results.values()]))
    for name, count in rows:
        found = [next((a for a in r["attacks"] if a["name"] == name), None) for r in results.values()]
        lines.append(_row(name, count, found))
    for count in next(iter(results.values()))["worst_case"]:
        worst = [percent(w[0]["expected_accuracy"]) if (w := r["worst_case"][count]) else "" for r in results.values()]
        if any(worst):
            lines.append(
                f"| worst case | {count} | " + " | ".join(f" | {value} | | | | | | " for value in worst) + " |"
            )
    lines += ["", "| expected accuracy, % | " + " | ".join(results) + " |", "|---" * (1 + len(results)) + "|"]
    for name in next(iter(results.values()))["compared"]:
        numbers = [percent(result["compared"][name]) for result in results.values()]
        lines.append(f"| {name}, and the clean image | " + " | ".join(numbers) + " |")
    verdict = {True: "pass", False: "**fail**", None: "–"}
    lines += ["", "| criterion | " + " | | ".join(CHECKLISTS) + " | |", "|---" * (1 + 2 * len(CHECKLISTS)) + "|"]
    for items in zip(*(results[name]["checklist"] for name in CHECKLISTS), strict=True):
        cells = " | ".join(f"{verdict[item['passed']]} | {item['evidence']}" for item in items)
        lines.append(f"| {items[0]['criterion']} | {cells} |")
    return "\n".join(lines) + "\n"


def _row(name: str, count: int, found: list[dict[str, Any] | None]) -> str:
    cells = []
    for numbers in found:
        if numbers is None:
            cells += [""] * HEAD
            continue
        cells += [percent(numbers[key]) for key in ("accuracy", "expected_accuracy", "noise_free_accuracy")]
        cells.append(percent(numbers["n_query_accuracy"]["100"]))
        cells.append(distance_text(numbers["distortion"]["l2"]["median"]) if "distortion" in numbers else "")
        cells.append(percent(numbers["found"]) if numbers.get("found") else "")
        cells.append(f"{numbers['generations']['median']:g}" if numbers.get("generations") else "")
        cells.append(f"{numbers['seconds']:.0f}" if "seconds" in numbers else "")
    return f"| {name} | {count} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
