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

from wca_tf.attacks.radii import Radius
from wca_tf.core import files
from wca_tf.evaluation.measures.registry import measures
from wca_tf.evaluation.record import Evaluation
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


def per_image_arrays(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Return the arrays of examples.npz.

    `index` and `label` are [N]. The other arrays have a row for each outcome, and the clean images come first: names,
    norms and radii are [A], numbers are [A, N]. An attack without a radius has epsilon NaN and an empty norm. For a net
    that is judged by draws, there are also `hits` [A, N, draws] and `blocks` [A, N].
    """
    clean = evaluation.clean
    outcomes = [clean, *evaluation.attacks]
    hits = np.stack([outcome.judgement.hits for outcome in outcomes])
    radii = [outcome.radius or Radius(0.0 if outcome is clean else np.nan, "") for outcome in outcomes]
    judged = ("correct", "noise_free_correct", "probability_correct", "probability_error", "z_margin")
    return {
        "index": evaluation.described["first"] + np.arange(len(clean)),
        "label": clean.labels,
        "attack": np.array([outcome.name for outcome in outcomes]),
        "norm": np.array([radius.norm for radius in radii]),
        "epsilon": np.array([radius.epsilon for radius in radii]),
        **{name: np.stack([getattr(o.judgement, name) for o in outcomes]) for name in judged},
        **{name: np.stack([getattr(o, name) for o in outcomes]) for name in ("linf", "l2", "l0", "found")},
        **({"hits": hits, "blocks": np.stack([o.judgement.blocks for o in outcomes])} if hits.size else {}),
    }
