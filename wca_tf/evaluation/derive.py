"""The files that are made from the record of an evaluation, and never read back.

report_dir/
    results.json      the numbers; accuracies with their intervals
    examples.npz      the numbers of every image
    report.html       tables and figures, in one file
    model_card.md     the model and its robustness, on one page
"""

from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.core import files
from wca_tf.evaluation.measures.registry import measures
from wca_tf.evaluation.record import Evaluation, per_image_arrays
from wca_tf.evaluation.report.page import write_report

DERIVED = ("examples.npz", "report.html", "model_card.md", "results.json")


def write_derived(evaluation: Evaluation, directory: Path) -> None:
    """Write the files of an evaluation that are made from its record; results.json comes last."""
    results, outcomes = evaluation.results, [evaluation.clean, *evaluation.attacks]
    named = [measure for measure in measures() if measure.name in results]
    sections = [section for measure in named if (section := measure.section(results))]
    write_report(directory, results, outcomes, evaluation.described, sections)
    arrays: dict[str, Any] = per_image_arrays(evaluation)
    files.write_atomically(directory / "examples.npz", lambda path: np.savez(path, **arrays))
    files.write_json(directory / "results.json", results)


def report_again(directory: Path) -> Evaluation:
    """Make the files of a report directory again from its records, and run nothing.

    Raises:
        InputError: there is no finished evaluation of this version, or the directory is in use.
    """
    evaluation = Evaluation.read(directory)
    with files.exclusive_directory(directory):
        write_derived(evaluation, directory)
    return evaluation
