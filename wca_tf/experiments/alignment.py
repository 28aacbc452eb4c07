"""Forms of the alignment term: where each puts the noise, and what it leaves under attack."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments.alignment_seeds import Form, add_seeds
from wca_tf.experiments.charts import legend, panels, save
from wca_tf.experiments.hostile import add_hostile_rows, hostile_attacks
from wca_tf.experiments.judged import RADIUS, TWIN, add_judged_row
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import COMMON, DEVIATION, MARGIN, NOTES, RATIO, noise_numbers
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.run import Run
from wca_tf.experiments.settings import TWO_STEPS
from wca_tf.experiments.tables import Table
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory

FORMS = {"per_class": "per class (paper)", "centred": "centred", "pairwise": "pairwise"}
LIMITS, FEATURES = ("penalty", "constraint"), ("free", "normalised")
# The weight of the term, chosen for each net on validation images by the accuracy that this attack leaves. Of equals
# the first counts. The undefended net has as many seeds in place of weights.
WEIGHTS = {"tiny": (1.0,), "small": (1.0, 0.1, 0.01, 0.001), "paper": (1.0, 0.1, 0.01, 0.001)}
CHOOSING = "z_margin:steps=10"
TRIED = "validation, of each weight"
NOISE = {"common_noise_share": COMMON, "noise_to_margin": RATIO}
HOSTILE_ROWS = "without mercy"
PAPERS = f"{FORMS['per_class']}, penalty, free"  # the label of the paper's own loss


def reproduce(run: Run) -> Table:
    """Return a table with a row for the undefended net and for each form of the term, limit and kind of features.

    The paper's form and the best corrected one are trained on the second data set too, with several seeds.
    """
    dataset, larger = run.datasets[0], run.datasets[-1]
    table = Table(f"Alignment of what decides, on {dataset} and {larger}, epsilon = {EPSILON}", [])
    weights = WEIGHTS[run.config.scale]
    seeds = [dataclasses.replace(run.net(dataset, "aligned_none"), seed=seed) for seed in range(len(weights))]
    fill = partial(_add_undefended, run, dataset, seeds)
    undefended = kept_rows(run, table, "No Defense", seeds, fill, CHOOSING)
    drawn, wca = {}, run.net(dataset, "aligned_wca")
    for form, limit, features in itertools.product(FORMS, LIMITS, FEATURES):
        label = f"{FORMS[form]}, {limit}, {features}"
        defence = f"{wca.defence}:alignment={form}:regularizer={limit}:features={features}"
        nets = [dataclasses.replace(wca, defence=f"{defence}:alignment_weight={weight:g}") for weight in weights]
        drawn[label] = kept_rows(run, table, label, nets, partial(_add_aligned, run, dataset, label, nets), CHOOSING)
    _draw(run, drawn)
    best = _best_corrected(drawn)
    _attack_best(run, table, dataset, best, drawn[best]["defence"], undefended)
    forms = {label: {"defence": drawn[label]["defence"]} for label in (PAPERS, best)}
    add_seeds(table, run, larger, Form("No Defense", "aligned_none", {}))
    for label, changes in forms.items():
        add_seeds(table, run, larger, Form(label, "aligned_wca", changes))
    table.notes = [
        f"{TRIED}: what {CHOOSING} at {EPSILON} leaves, in %, of nets with alignment weights "
        f"{', '.join(f'{weight:g}' for weight in weights)}; the best is judged. No Defense: as many seeds",
        f"nets on {dataset} were trained once: differences of two or three points between rows say nothing",
        f"{larger}: the alignment weights are those chosen on {dataset}; seeds: nets that differ in their seed alone; "
        f"AT: on images attacked by {TWO_STEPS}, one net",
        *NOTES,
        f"{COMMON}, {RATIO}: after the first epoch → of the net that is judged, on all validation images",
        f"rows with an attack's name, on {dataset}: every attack that may break the undefended net, and the net of a "
        "corrected form that kept most validation images",
        f"{TWIN}: the same net without its noise, under its own worst case",
        *[
            note
            for each in dict.fromkeys((dataset, larger))
            for note in run.notes(each, [("No Defense", "aligned_none"), ("WCA-Net", "aligned_wca")], ["adaptive"])
        ],
    ]
    return table


def _add_undefended(run: Run, dataset: str, nets: Sequence[TrainConfig], table: Table) -> dict[str, Any]:
    """Fill the row of the undefended net; return the changes to its TrainConfig, its seed."""
    chosen, _, tried = _chosen(run, dataset, "aligned_none", [{"seed": net.seed} if net.seed else {} for net in nets])
    add_judged_row(table, run, "No Defense", run.trained(dataset, "aligned_none", **chosen))
    table.add("No Defense", TRIED, text=tried)
    return chosen


def _best_corrected(drawn: dict[str, dict[str, Any]]) -> str:
    """Return the label of the net that kept most validation images, of those whose term is not the paper's."""
    corrected = [label for label in drawn if not label.startswith(FORMS["per_class"])]
    return max(corrected, key=lambda label: float(drawn[label]["left"]))


def _attack_best(run: Run, table: Table, dataset: str, best: str, defence: str, undefended: dict[str, Any]) -> None:
    """Fill the rows of a hostile attempt on the undefended net, and on the best net whose term is not the paper's."""
    wca, none = run.net(dataset, "aligned_wca"), run.net(dataset, "aligned_none")

    def fill(part: Table) -> None:
        path = run.trained(dataset, "aligned_wca", defence=defence)
        add_hostile_rows(part, run, best, path, run.trained(dataset, "aligned_none", **undefended))

    def fill_undefended(part: Table) -> None:
        path = run.trained(dataset, "aligned_none", **undefended)
        add_hostile_rows(part, run, "No Defense", path, path)

    asked = list(hostile_attacks(run.config.scale).values())
    kept_rows(run, table, HOSTILE_ROWS, [dataclasses.replace(wca, defence=defence)], fill, asked)
    undefended_net = dataclasses.replace(none, **undefended)
    kept_rows(run, table, f"{HOSTILE_ROWS}, No Defense", [undefended_net], fill_undefended, asked)


def _add_aligned(run: Run, dataset: str, label: str, nets: Sequence[TrainConfig], table: Table) -> dict[str, Any]:
    """Fill the row of a form of the term.

    Returns:
        Where the noise went, a number for each epoch and metric; the defence chosen, and what it leaves of validation
        images.
    """
    chosen, left, tried = _chosen(run, dataset, "aligned_wca", [{"defence": net.defence} for net in nets])
    path = run.trained(dataset, "aligned_wca", **chosen)
    add_judged_row(table, run, label, path)
    table.add(label, "weight", text=chosen["defence"].rpartition("=")[2])
    table.add(label, TRIED, text=tried)
    directory = ModelDirectory(path)
    lines, numbers = directory.read_metrics(), noise_numbers(run, directory)
    for column in (DEVIATION, MARGIN):
        table.add(label, column, text=f"{numbers[column]:.3g}")
    for metric, column in NOISE.items():
        ends = [line[f"val_{metric}"] for line in (lines[0], directory.best_epoch())]
        table.add(label, column, text=" → ".join(f"{value:.3g}" for value in ends))
    went = {metric: [line[f"val_{metric}"] for line in lines] for metric in NOISE}
    return {**went, "defence": chosen["defence"], "left": left}


def _chosen(
    run: Run, dataset: str, variant: str, candidates: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], float, str]:
    """Return the changes whose net keeps most validation images, the share that it keeps, and of each, as a text."""
    left: list[float | None] = []
    for changes in candidates:
        try:
            path = run.trained(dataset, variant, **changes)
        except DivergedError:
            left.append(None)  # no candidate
            continue
        evaluated = run.evaluated_at(path, [CHOOSING], EPSILON, split="validation")
        left.append(evaluated.number(CHOOSING, RADIUS, "expected_accuracy")["value"])
    found = [value for value in left if value is not None]
    if not found:
        raise DivergedError(f"every candidate diverged: {candidates}")
    told = ", ".join("diverged" if value is None else f"{100 * value:.1f}" for value in left)
    return candidates[left.index(max(found))], max(found), told


def _draw(run: Run, drawn: dict[str, dict[str, Any]]) -> None:
    """Draw over the epochs of training where the noise goes, a line for each net."""
    figure, axes = panels(len(NOISE), label="by epoch", shared=False)
    for axis, (metric, title) in zip(axes, NOISE.items(), strict=True):
        axis.set_title(title)
        axis.set_xlabel("epoch")
        for number, (label, values_of) in enumerate(drawn.items()):
            values = values_of[metric]
            style: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": "-" if number < len(COLOURS) else "--",
            }
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=label, **style)
    legend(axes[-1])
    save(figure, run.report_dir, "where_the_noise_goes")
