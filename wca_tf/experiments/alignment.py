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
from wca_tf.experiments.hostile import add_hostile_rows, hostile_settings
from wca_tf.experiments.judged import RADIUS, TWIN, add_judged_row
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import COMMON, DEVIATION, LEAST, MARGIN, NOTES, PAIRS, RATIO, noise_numbers
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.run import Run
from wca_tf.experiments.settings import TWO_STEPS
from wca_tf.experiments.tables import Table
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory

FORMS = {"per_class": "per class (paper)", "centred": "centred", "pairwise": "pairwise"}
FEATURES = ("free", "normalised")
# An option that is chosen for each row on validation images, by the accuracy that `CHOOSING` leaves. Of equals the
# first counts. With the constraint we expect noise as large as its bound allows, whatever the weight: so the bound is
# chosen. The undefended net has as many seeds.
CANDIDATES: dict[str, tuple[str, tuple[float, ...]]] = {
    "penalty": ("alignment_weight", (1.0, 0.1, 0.01, 0.001)),
    "constraint": ("max_variance", (1.0, 4.0, 16.0, 64.0)),
}
# The rival that kept most images in docs/results/defences.md; the noise on its images is chosen.
BEST_RIVAL, DEVIATIONS = "RSE, the best rival", (0.2, 0.1, 0.3, 0.4)
NUMBER_OF_CANDIDATES = {"tiny": 1, "small": 4, "paper": 4}
CHOOSING = "z_margin:steps=10"
TRIED = "validation, of each candidate"
NOISE = {"common_noise_share": COMMON, "noise_to_margin": RATIO}
HOSTILE_ROWS = "without mercy"
PAPERS = "the paper's loss"  # per class, penalty, free features, and a weight of 1


def reproduce(run: Run) -> Table:
    """Return a table with a row for the undefended net and for each form of the term, limit and kind of features.

    The paper's loss and the best corrected one are attacked without mercy, and trained on the second data set with
    several seeds.
    """
    dataset, larger = run.datasets[0], run.datasets[-1]
    table = Table(f"Alignment of what decides, on {dataset} and {larger}, epsilon = {EPSILON}", [])
    count = NUMBER_OF_CANDIDATES[run.config.scale]
    seeds = [dataclasses.replace(run.net(dataset, "aligned_none"), seed=seed) for seed in range(count)]
    fill = partial(_add_undefended, run, dataset, seeds)
    undefended = kept_rows(run, table, "No Defense", seeds, fill, CHOOSING)
    rival = run.net(dataset, "aligned_rse")
    nets = [_with(rival, f"{rival.defence}:first_deviation={value:g}") for value in DEVIATIONS[:count]]
    kept_rows(run, table, BEST_RIVAL, nets, partial(_add_rival, run, dataset, nets), CHOOSING)
    drawn = {}
    for label, nets in _rows(run, dataset).items():
        drawn[label] = kept_rows(run, table, label, nets, partial(_add_aligned, run, dataset, label, nets), CHOOSING)
    _draw(run, drawn)
    best = _best_corrected(drawn)
    forms = {label: {"defence": drawn[label]["defence"]} for label in (PAPERS, best) if drawn[label]["defence"]}
    _attack_hard(run, table, dataset, Form("No Defense", "aligned_none", undefended), undefended)
    for label, changes in forms.items():
        _attack_hard(run, table, dataset, Form(label, "aligned_wca", changes), undefended)
    add_seeds(table, run, larger, Form("No Defense", "aligned_none", {}))
    for label, changes in forms.items():
        add_seeds(table, run, larger, Form(label, "aligned_wca", changes))
    table.notes = _notes(run, dataset, larger, count)
    return table


def _notes(run: Run, dataset: str, larger: str, count: int) -> list[str]:
    """Return what rows and columns mean; each net with an option to choose had `count` candidates."""
    nets_of_notes = [(name, f"aligned_{name}") for name in ("none", "wca", "rse")]
    tried = [f"{name} {values[:count]} ({limit})" for limit, (name, values) in CANDIDATES.items()]
    return [
        f"{TRIED}: what {CHOOSING} at {EPSILON} leaves, in %, of nets with {'; '.join(tried)}; the best is judged. No "
        "Defense: as many seeds, each on validation images of its own",
        f"{BEST_RIVAL}: first_deviation {DEVIATIONS[:count]}; noise in its layers, so that fewer images are attacked, "
        "with fewer draws",
        f"{PAPERS}: per class, penalty, free features, and an alignment weight of 1, whatever validation images say",
        "penalty, normalised: the weights of the classes are not bounded, so that margins may still grow",
        f"nets on {dataset} were trained once: differences of two or three points between rows say nothing",
        f"{larger}: the options are those chosen on {dataset}; seeds: nets that differ in their seed alone; "
        f"AT: on images attacked by {TWO_STEPS}, one net",
        *NOTES,
        f"{COMMON}, {RATIO}: after the first epoch → of the net that is judged, on all validation images",
        f"rows with an attack's name, on {dataset}: every attack that may break the undefended net, the net of "
        f"{PAPERS}, and the net of a corrected form that kept most validation images. Attacks in rounds leave an image "
        "alone once P(correct) is 0.01 or less",
        f"{TWIN}: the same net without its noise, under its own worst case",
        *[note for each in dict.fromkeys((dataset, larger)) for note in run.notes(each, nets_of_notes, ["adaptive"])],
    ]


def _add_undefended(run: Run, dataset: str, nets: Sequence[TrainConfig], table: Table) -> dict[str, Any]:
    """Fill the row of the undefended net; return the changes to its TrainConfig, its seed."""
    chosen, _, tried = _chosen(run, dataset, "aligned_none", [{"seed": net.seed} if net.seed else {} for net in nets])
    add_judged_row(table, run, "No Defense", run.trained(dataset, "aligned_none", **chosen))
    table.add("No Defense", TRIED, text=tried)
    return chosen


def _with(net: TrainConfig, defence: str) -> TrainConfig:
    return dataclasses.replace(net, defence=defence)


def _add_rival(run: Run, dataset: str, nets: Sequence[TrainConfig], table: Table) -> None:
    """Fill the row of the best rival of the experiment `defences`."""
    chosen, _, tried = _chosen(run, dataset, "aligned_rse", [{"defence": net.defence} for net in nets])
    add_judged_row(table, run, BEST_RIVAL, run.trained(dataset, "aligned_rse", **chosen))
    table.add(BEST_RIVAL, "chosen", text=chosen["defence"].rpartition(":")[2])
    table.add(BEST_RIVAL, TRIED, text=tried)


def _best_corrected(drawn: dict[str, dict[str, Any]]) -> str:
    """Return the label of the net that kept most validation images, of those whose term is not the paper's."""
    corrected = [label for label in drawn if not label.startswith((PAPERS, FORMS["per_class"]))]
    return max(corrected, key=lambda label: float(drawn[label]["left"]))


def _rows(run: Run, dataset: str) -> dict[str, list[TrainConfig]]:
    """Return the candidates of each row with noise; the paper's loss, with a weight of 1, has a row of its own."""
    wca = run.net(dataset, "aligned_wca")
    rows: dict[str, list[TrainConfig]] = {}
    for form, limit, features in itertools.product(FORMS, CANDIDATES, FEATURES):
        defence = f"{wca.defence}:alignment={form}:regularizer={limit}:features={features}"
        option, values = CANDIDATES[limit]
        texts = [f"{defence}:{option}={value:g}" for value in values[: NUMBER_OF_CANDIDATES[run.config.scale]]]
        nets = [_with(wca, text) for text in texts]
        if not rows:
            rows[PAPERS] = nets[:1]
        rows[f"{FORMS[form]}, {limit}, {features}"] = nets
    return rows


def _attack_hard(run: Run, table: Table, dataset: str, form: Form, undefended: dict[str, Any]) -> None:
    """Fill the rows of a hostile attempt on a net; attacks transfer from the net with the changes `undefended`."""

    def fill(part: Table) -> None:
        source = run.trained(dataset, "aligned_none", **undefended)
        add_hostile_rows(part, run, form.label, run.trained(dataset, form.variant, **form.changes), source)

    nets = [
        dataclasses.replace(run.net(dataset, variant), **changes)
        for variant, changes in ((form.variant, form.changes), ("aligned_none", undefended))
    ]
    kept_rows(run, table, f"{HOSTILE_ROWS}, {form.label}", nets, fill, hostile_settings(run.config.scale))


def _add_aligned(run: Run, dataset: str, label: str, nets: Sequence[TrainConfig], table: Table) -> dict[str, Any]:
    """Fill the row of a form of the term.

    Returns:
        Where the noise went, a number for each epoch and metric; the defence chosen, "" where every candidate diverged,
        and what it leaves of validation images.
    """
    try:
        chosen, left, tried = _chosen(run, dataset, "aligned_wca", [{"defence": net.defence} for net in nets])
    except DivergedError:
        table.add(label, "clean", text="diverged")
        return {**{metric: [] for metric in NOISE}, "defence": "", "left": -1.0}
    path = run.trained(dataset, "aligned_wca", **chosen)
    add_judged_row(table, run, label, path)
    table.add(label, "chosen", text=chosen["defence"].rpartition(":")[2])
    table.add(label, TRIED, text=tried)
    directory = ModelDirectory(path)
    lines, numbers = directory.read_metrics(), noise_numbers(run, directory)
    for column in (DEVIATION, PAIRS, LEAST, MARGIN):
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
        if title == RATIO:
            axis.set_yscale("log")
        for number, (label, values_of) in enumerate(drawn.items()):
            values = values_of[metric]
            style: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": "-" if number < len(COLOURS) else "--",
            }
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=label, **style)
    legend(axes[-1])
    save(figure, run.report_dir, "where_the_noise_goes")
