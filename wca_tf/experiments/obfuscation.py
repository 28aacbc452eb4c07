"""Section 4.5: the paper's five criteria of gradient obfuscation, and those of Carlini et al., on its nets."""

from typing import Any

from wca_tf.experiments.charts import panels, save
from wca_tf.experiments.rows import ABLATION_LABELS
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table

ATTACKS = ["fgsm", "pgd", "z_margin"]
PAPERS_CRITERIA = 5  # it says that WCA-Net passes all; the first of the checklist


def reproduce(run: Run) -> Table:
    """A row per criterion, a column per net: passed or FAILED, with the evidence."""
    [dataset] = run.datasets
    table = Table(f"Gradient obfuscation on {dataset}, epsilon = 8/255: section 4.5 of the paper", ["paper"])
    found: dict[str, list[dict[str, Any]]] = {}
    for label, variant in ABLATION_LABELS:
        images = run.scale.checklist_images
        evaluated = run.evaluated(dataset, variant, ATTACKS, num_examples=images, checklist=True)
        found[label] = evaluated.results["checklist"]
        for place, item in enumerate(found[label]):
            table.add(item["criterion"], "paper", text="passed" if place < PAPERS_CRITERIA else "not examined")
            table.add(item["criterion"], label, text=f"{_verdict(item)}: {item['evidence']}")
    _draw(run, found)
    table.notes = run.notes(dataset, tuple(variant for _, variant in ABLATION_LABELS), ATTACKS)
    table.notes[-1] = f"{run.scale.checklist_images} test images"
    return table


def _verdict(item: dict[str, Any]) -> str:
    return {True: "passed", False: "FAILED", None: "does not apply"}[item["passed"]]


def _draw(run: Run, found: dict[str, list[dict[str, Any]]]) -> None:
    """A square per criterion and net, and beside them what the paper says of its net."""
    colours = {True: "#1f9e77", False: "#d9632a", None: "#cccccc"}
    figure, [axis] = panels(1, 9.0, 4.4)
    criteria = [item["criterion"] for item in next(iter(found.values()))]
    columns: dict[str, list[bool | None]] = {
        "paper": [True] * PAPERS_CRITERIA + [None] * (len(criteria) - PAPERS_CRITERIA),
        **{label: [item["passed"] for item in items] for label, items in found.items()},
    }
    for x, verdicts in enumerate(columns.values()):
        for y, passed in enumerate(verdicts):
            axis.add_patch(_square(x, y, colours[passed]))
            axis.text(x, y, {True: "passed", False: "failed", None: "–"}[passed], ha="center", va="center", fontsize=8)
    axis.set_xlim(-0.5, len(columns) - 0.5)
    axis.set_ylim(len(criteria) - 0.5, -0.5)
    axis.set_ylabel("")
    axis.set_xticks(range(len(columns)), list(columns))
    axis.set_yticks(range(len(criteria)), criteria)
    save(figure, run.report_dir, "obfuscation")


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.48, y - 0.45), 0.96, 0.9, color=colour, alpha=0.6)
