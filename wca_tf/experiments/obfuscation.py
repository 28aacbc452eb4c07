"""Section 4.5: the paper's five criteria of gradient obfuscation, and those of Carlini et al., on its nets."""

import math
from collections.abc import Callable
from typing import Any

from matplotlib.patches import Rectangle

from wca_tf.core.errors import InputError
from wca_tf.defences.wca.net import NOISE_METRICS
from wca_tf.evaluation.measures.checklist import IMAGES, MIN_IMAGES
from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments.charts import legend, panels, plain_numbers, save
from wca_tf.experiments.paper import ABLATION_LABELS
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table
from wca_tf.runs.model_dir import ModelDirectory

ATTACKS = ["fgsm", "pgd", "z_margin"]
NOISY = ABLATION_LABELS[1:]
# Numbers that follow from the records of training, by epoch: (line of metrics.jsonl, C) -> a number.
NOISE: dict[str, Callable[[dict[str, Any], int], float]] = {
    "deviation of a logit (geometric mean of the classes)": lambda line, classes: math.exp(
        line["alignment"] / 2 / classes
    ),
    "share of the logits' variance that all classes have in common": lambda line, _: line["common_noise_share"],
    "deviation of the nearest difference of logits over the margin": lambda line, _: line["noise_to_margin"],
}
# In the names of the paper's criteria. The paper says that WCA-Net passes all of them; it examines the second with
# pixels alone, and its own Table 4 has Square below PGD.
PAPERS, BY_SQUARE = "(paper,", "(paper's criterion 2, but by Square)"


def reproduce(run: Run) -> Table:
    """Return a table with a row per criterion and a column per net: the verdict, with the evidence."""
    [dataset] = run.datasets
    table = Table(f"Gradient obfuscation on {dataset}, epsilon = 8/255: section 4.5 of the paper", ["paper"])
    table.legend = "Each criterion with its evidence: means of the exact P(correct)."
    found: dict[str, list[dict[str, Any]]] = {}
    asked = run.budget.num_examples
    images = max(asked, MIN_IMAGES) if asked else 0
    for label, variant in ABLATION_LABELS:
        evaluated = run.evaluated(dataset, variant, ATTACKS, num_examples=images, checklist=True)
        found[label] = evaluated.results["checklist"]
        for item in found[label]:
            table.add(item["criterion"], "paper", text=_papers(item["criterion"]))
            table.add(item["criterion"], label, text=f"{_verdict(item)}: {item['evidence']}")
    _add_noise_in_training(table, run, dataset)
    _draw(run, dataset, found)
    table.notes = run.notes(dataset, ABLATION_LABELS, ATTACKS, num_examples=images)
    table.notes.append(f"the checklist is of the first {min(images or IMAGES, IMAGES)} of them")
    return table


def _papers(criterion: str) -> str:
    """Return the paper's verdict on a criterion."""
    if BY_SQUARE in criterion:
        return "not examined; its Table 4: Square 49.0 %, PGD-100 71.2 %"
    return "passed" if PAPERS in criterion else "not examined"


def _add_noise_in_training(table: Table, run: Run, dataset: str) -> None:
    """Add rows, and write a figure, that show how the noise grew over training and how much of it counts."""
    figure, axes = panels(len(NOISE), label="by epoch")
    for axis, title in zip(axes, NOISE, strict=True):
        axis.set_title(title, fontsize=8)
        axis.set_xlabel("epoch")
        axis.set_yscale("log")
        plain_numbers(axis.yaxis)
    for place, (label, variant) in enumerate(NOISY):
        directory = ModelDirectory(run.model_dir(dataset, variant))
        num_classes = len(directory.read_config()["dataset"]["class_names"])
        lines = directory.read_metrics()
        if not all(line.keys() >= set(NOISE_METRICS) for line in lines):  # common_noise_share was added last
            raise InputError(
                f"expected {', '.join(NOISE_METRICS)} in {directory.path}/metrics.jsonl: older code trained "
                "this net; remove the directory, and it is trained again"
            )
        for axis, (row, value_of) in zip(axes, NOISE.items(), strict=True):
            values = [value_of(line, num_classes) for line in lines]
            text = f"{values[0]:.3g} in epoch 1, {values[-1]:.3g} in epoch {len(values)}"
            table.add(f"in training: {row}", label, text=text)
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, color=COLOURS[place], label=label)
    legend(axes[-1])
    save(figure, run.report_dir, "noise_over_training")


def _verdict(item: dict[str, Any]) -> str:
    return {True: "passed", False: "FAILED", None: "does not apply"}[item["passed"]]


def _draw(run: Run, dataset: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """Draw a square per criterion and net, and beside them a column for the paper's own verdicts on its net."""
    colours = {True: "#1f9e77", False: "#d9632a", None: "#cccccc"}
    figure, [axis] = panels(1, 9.0, 4.4, label="")
    criteria = [item["criterion"] for item in next(iter(found.values()))]
    columns: dict[str, list[bool | None]] = {
        "paper": [(PAPERS in criterion) or None for criterion in criteria],
        **{label: [item["passed"] for item in items] for label, items in found.items()},
    }
    for x, verdicts in enumerate(columns.values()):
        for y, passed in enumerate(verdicts):
            axis.add_patch(Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=colours[passed], alpha=0.6))
            axis.text(x, y, {True: "passed", False: "failed", None: "–"}[passed], ha="center", va="center", fontsize=8)
    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_ylim(len(criteria) - 0.5, -0.5)
    axis.set_xticks(range(len(columns)), [label.replace(" ", "\n") for label in columns])
    figure.suptitle(f"epsilon = 8/255; paper: CIFAR-10, the others: {dataset}", fontsize=10)
    axis.set_yticks(range(len(criteria)), criteria)
    save(figure, run.report_dir, "obfuscation")
