"""Forms of the alignment term: where each puts the noise, and what it leaves under attack."""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import ticker

from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments.alignment_certificates import CERTIFIED_NOTE, add_certified_rows
from wca_tf.experiments.alignment_seeds import NOISE, Form, add_seeds, noise_over_training
from wca_tf.experiments.charts import legend, panels, plain_numbers, save
from wca_tf.experiments.hostile import add_hostile_rows, hostile_settings
from wca_tf.experiments.judged import RADIUS, TWIN, add_judged_row
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import (
    COMMON,
    DEVIATION,
    LEAST,
    MARGIN,
    NOTES,
    PAIRS,
    RATIO,
    noise_numbers,
    number_text,
)
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.rivals import FEW_IMAGES, load_net
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import NO_PAPER, Table
from wca_tf.experiments.variants import TWO_STEPS
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory

FORMS = {"per_class": "per class (paper)", "centred": "centred", "pairwise": "pairwise"}
FEATURES = ("free", "normalised")
# Options, of which one is chosen for each row on validation images, by the accuracy that `CHOOSING` leaves. Of equals
# the first counts. With the constraint the noise that is best for the term alone is as large as its bound allows,
# whatever the weight (Proposition 4 of docs/concepts.md): so the bound is chosen too. The undefended net has as many
# seeds.
CANDIDATES: dict[str, tuple[str, ...]] = {
    "penalty": tuple(f"alignment_weight={weight}" for weight in ("1", "0.1", "0.01", "0.001")),
    "constraint": tuple(f"alignment_weight={w}:max_variance={v}" for w in ("1", "0.01") for v in ("1", "16")),
}
# The rival that kept most images in docs/results/defences.md; the noise on its images is chosen.
RIVAL, DEVIATIONS = "RSE", (0.2, 0.1, 0.3, 0.4)
NUMBER_OF_CANDIDATES = {"tiny": 1, "small": 4, "paper": 4}
CHOOSING = "z_margin:steps=10"
CHOOSING_RIVAL = "pgd:steps=10:objective=expected_margin"  # a z-margin needs Gaussian logits
# Forms are compared by an attack whose steps become smaller: ten steps of a tenth of the radius may end short of it.
RANKING = {"tiny": "apgd_ce:objective=z_margin:steps=10", "small": "apgd_ce:objective=z_margin:steps=100"}
RANKING["paper"] = RANKING["small"]
TRIED = "validation, of each candidate"
HOSTILE_ROWS = "without mercy"
PAPERS = "the paper's loss"  # per class, penalty, free features, and a weight of 1
# The corrected loss that has no escape (docs/concepts.md): it is attacked too where others kept more.
WELL_POSED = f"{FORMS['pairwise']}, constraint, normalised"
FEW = f"No Defense, {FEW_IMAGES} images"  # beside the rival, which has noise before its last features
DIVERGED: dict[str, Any] = {**{metric: [] for metric in NOISE}, "defence": "", "left": -1.0}


def reproduce(run: Run) -> Table:
    """Return a table with a row for the undefended net and for each form of the term, limit and kind of features.

    The paper's loss, the form that kept most, the corrected one that kept most and the one without an escape are
    attacked without mercy. All but the last are trained on the second data set with several seeds.
    """
    dataset, larger = run.datasets[0], run.datasets[-1]
    table = Table(f"Alignment of what decides, on {dataset} and {larger}, epsilon = {EPSILON}", [])
    table.legend = NO_PAPER
    count = NUMBER_OF_CANDIDATES[run.config.scale]
    seeds = [dataclasses.replace(run.net(dataset, "aligned_none"), seed=seed) for seed in range(count)]
    fill = partial(_add_undefended, run, dataset, seeds)
    undefended = kept_rows(run, table, "No Defense", seeds, fill, [CHOOSING, FEW]) or {}
    drawn, asked = {}, [CHOOSING, RANKING[run.config.scale]]
    for label, nets in _rows(run, dataset).items():
        fill = partial(_add_aligned, run, dataset, label, nets)
        drawn[label] = kept_rows(run, table, label, nets, fill, asked) or DIVERGED
    rival = run.net(dataset, "aligned_rse")
    nets = [_with(rival, f"{rival.defence}:first_deviation={value:g}") for value in DEVIATIONS[:count]]
    kept_rows(run, table, RIVAL, nets, partial(_add_rival, run, dataset, nets), CHOOSING_RIVAL)
    plain, most, best = Form("No Defense", "aligned_none", {}), _most_left(drawn), _best_corrected(drawn)
    labels = dict.fromkeys((PAPERS, most, best, WELL_POSED))
    forms = [Form(label, "aligned_wca", {"defence": drawn[label]["defence"]}) for label in labels]
    forms = [form for form in forms if form.changes["defence"]]  # of one that diverged it is ""
    for form in (plain._replace(changes=undefended), *forms):
        _attack_hard(run, table, dataset, form, form.label, undefended)
    trained = [plain, *(form for form in forms if form.label in (PAPERS, most, best))]
    on_larger = {form.label: add_seeds(table, run, larger, form) for form in trained}
    for form in (plain, *(form for form in forms if form.label == best)):
        adversarial = form._replace(variant=f"{form.variant}_at")
        _attack_hard(run, table, larger, adversarial, f"{larger}, {form.label}, AT", {})
    add_certified_rows(table, run, dataset, FORMS)
    _draw(run, [(dataset, drawn), (larger, on_larger)], [most, best])
    table.notes = _notes(run, dataset, larger, count)
    return table


def _notes(run: Run, dataset: str, larger: str, count: int) -> list[str]:
    """Return what rows and columns mean; each net with an option to choose had `count` candidates."""
    nets_of_notes = [(name, f"aligned_{name}") for name in ("none", "wca", "rse")]
    tried = [f"{limit}: {', '.join(options[:count])}" for limit, options in CANDIDATES.items()]
    return [
        f"{TRIED}: what {CHOOSING} at {EPSILON} leaves, in %, of nets with {'; '.join(tried)}; the best is judged. No "
        "Defense: as many seeds, each on validation images of its own",
        "with the constraint the bound of the variance is chosen too: the noise that is best for the term alone is as "
        "large as the bound allows, whatever the weight",
        f"{RIVAL}: first_deviation {DEVIATIONS[:count]}, chosen by {CHOOSING_RIVAL}; noise in its layers, so that "
        f"fewer images are attacked, with fewer draws; compare it with {FEW}",
        f"{PAPERS}: per class, penalty, free features, and an alignment weight of 1, whatever validation images say",
        "penalty, normalised: the weights of the classes are not bounded, so that margins may still grow",
        f"nets on {dataset} were trained once: differences of two or three points between rows say nothing",
        f"{larger}: the options are those chosen on {dataset}; seeds: nets that differ in their seed alone; "
        f"AT: on images attacked by {TWO_STEPS}, one net",
        CERTIFIED_NOTE,
        *NOTES,
        f"{COMMON}, {RATIO} on {dataset}: after the first epoch → of the net that is judged, on all validation images",
        f"rows with an attack's name: the attacks named, on the undefended net, the net of {PAPERS}, those of the form "
        f"and of the corrected form (centred or pairwise) that kept most validation images under "
        f"{RANKING[run.config.scale]}, and {WELL_POSED}, which has no escape; on {larger}, AT, on the undefended net "
        "and that of the corrected form. Attacks in rounds leave an image alone once P(correct) is 0.01 or less",
        "noise off, worst of all: under the same attacks but two that are about noise",
        f"{TWIN}: the same net without its noise, under its own worst case",
        f"a net whose {RATIO} is small has almost no noise: its row is that of a net without",
        *dict.fromkeys(note for each in (dataset, larger) for note in run.notes(each, nets_of_notes, ["adaptive"])),
    ]


def _add_undefended(run: Run, dataset: str, nets: Sequence[TrainConfig], table: Table) -> dict[str, Any]:
    """Fill the row of the undefended net; return the changes to its TrainConfig, its seed."""
    chosen, tried = _chosen(run, dataset, "aligned_none", [{"seed": net.seed} if net.seed else {} for net in nets])
    path = run.trained(dataset, "aligned_none", **chosen)
    add_judged_row(table, run, "No Defense", path)
    add_judged_row(table, run, FEW, path, few=True)
    table.add("No Defense", TRIED, text=tried)
    return chosen


def _with(net: TrainConfig, defence: str) -> TrainConfig:
    return dataclasses.replace(net, defence=defence)


def _add_rival(run: Run, dataset: str, nets: Sequence[TrainConfig], table: Table) -> None:
    """Fill the row of the rival that kept most images in the experiment `defences`."""
    try:
        chosen, tried = _chosen(run, dataset, "aligned_rse", [{"defence": net.defence} for net in nets], CHOOSING_RIVAL)
    except DivergedError:
        table.add(RIVAL, "clean", text="diverged")
        return
    add_judged_row(table, run, RIVAL, run.trained(dataset, "aligned_rse", **chosen))
    table.add(RIVAL, "chosen", text=chosen["defence"].rpartition(":")[2])
    table.add(RIVAL, TRIED, text=tried)


def _most_left(drawn: dict[str, dict[str, Any]]) -> str:
    """Return the label of the form that kept most validation images under `RANKING`."""
    return max(drawn, key=lambda label: float(drawn[label]["left"]))


def _best_corrected(drawn: dict[str, dict[str, Any]]) -> str:
    """Return the label of the corrected form, centred or pairwise, that kept most."""
    corrected = (FORMS["centred"], FORMS["pairwise"])
    return _most_left({label: found for label, found in drawn.items() if label.startswith(corrected)})


def _rows(run: Run, dataset: str) -> dict[str, list[TrainConfig]]:
    """Return the candidates of each row with noise; the paper's loss, with a weight of 1, has a row of its own."""
    wca = run.net(dataset, "aligned_wca")
    rows: dict[str, list[TrainConfig]] = {}
    for form, limit, features in itertools.product(FORMS, CANDIDATES, FEATURES):
        defence = f"{wca.defence}:alignment={form}:regularizer={limit}:features={features}"
        options = CANDIDATES[limit][: NUMBER_OF_CANDIDATES[run.config.scale]]
        nets = [_with(wca, f"{defence}:{option}") for option in options]
        if not rows:
            rows[PAPERS] = nets[:1]
        rows[f"{FORMS[form]}, {limit}, {features}"] = nets
    return rows


def _attack_hard(run: Run, table: Table, dataset: str, form: Form, label: str, undefended: dict[str, Any]) -> None:
    """Fill the rows of a hostile attempt on a net; attacks transfer from the net with the changes `undefended`."""

    def fill(part: Table) -> None:
        source = run.trained(dataset, "aligned_none", **undefended)
        try:
            path = run.trained(dataset, form.variant, **form.changes)
        except DivergedError:
            part.add(label, "clean", text="diverged")
            return
        add_hostile_rows(part, run, label, path, source)

    nets = [
        dataclasses.replace(run.net(dataset, variant), **changes)
        for variant, changes in ((form.variant, form.changes), ("aligned_none", undefended))
    ]
    kept_rows(run, table, f"{HOSTILE_ROWS}, {label}", nets, fill, hostile_settings(run.config.scale))


def _add_aligned(run: Run, dataset: str, label: str, nets: Sequence[TrainConfig], table: Table) -> dict[str, Any]:
    """Fill the row of a form of the term.

    Returns:
        Where the noise went, a number for each epoch and metric; the defence chosen, "" where every candidate diverged,
        and what `RANKING` leaves of validation images.
    """
    try:
        chosen, tried = _chosen(run, dataset, "aligned_wca", [{"defence": net.defence} for net in nets])
    except DivergedError:
        table.add(label, "clean", text="diverged")
        return DIVERGED
    path = run.trained(dataset, "aligned_wca", **chosen)
    add_judged_row(table, run, label, path)
    table.add(label, "chosen", text=chosen["defence"].partition(":features=")[2].partition(":")[2])
    table.add(label, TRIED, text=tried)
    directory = ModelDirectory(path)
    lines, numbers = directory.read_metrics(), noise_numbers(run, directory)
    for column in (DEVIATION, PAIRS, LEAST, MARGIN):
        table.add(label, column, text=number_text(column, numbers[column]))
    for metric, column in NOISE.items():
        ends = [line[f"val_{metric}"] for line in (lines[0], directory.best_epoch())]
        table.add(label, column, text=" → ".join(number_text(column, value) for value in ends))
    left = _left(run, path, RANKING[run.config.scale])
    return {**noise_over_training(directory), "defence": chosen["defence"], "left": left}


def _chosen(
    run: Run, dataset: str, variant: str, candidates: Sequence[dict[str, Any]], attack: str = CHOOSING
) -> tuple[dict[str, Any], str]:
    """Return the changes whose net keeps most validation images under an attack, and the share of each, as a text."""
    left: list[float | None] = []
    for changes in candidates:
        try:
            left.append(_left(run, run.trained(dataset, variant, **changes), attack))
        except DivergedError:
            left.append(None)  # no candidate
    found = [value for value in left if value is not None]
    if not found:
        raise DivergedError(f"every candidate diverged: {candidates}")
    told = ", ".join("diverged" if value is None else f"{100 * value:.1f}" for value in left)
    return candidates[left.index(max(found))], told


def _left(run: Run, path: Path, attack: str) -> float:
    """Return the share of validation images that an attack leaves of a net."""
    found = run.evaluated_at(path, [attack], EPSILON, split="validation", **load_net(run, path).asked)
    return float(found.number(attack, RADIUS, "expected_accuracy")["value"])


def _draw(run: Run, drawn: list[tuple[str, dict[str, Any]]], best: Sequence[str]) -> None:
    """Draw over the epochs of training where the noise goes, a row of panels for each data set.

    The lines are the paper's loss, corrected forms with the least limits, each form with the most, and the forms
    `best`: as many as there are colours.
    """
    least, most = [f"{FORMS[form]}, penalty, free" for form in ("centred", "pairwise")], "constraint, normalised"
    shown = list(dict.fromkeys([PAPERS, *least, *(f"{form}, {most}" for form in FORMS.values()), *best]))
    figure, axes = panels(len(NOISE) * len(drawn), label="", shared=False, columns=len(NOISE))
    every = itertools.product(drawn, NOISE.items())
    for axis, ((dataset, forms), (metric, title)) in zip(axes, every, strict=True):
        axis.set_xlabel("epoch")
        axis.set_yscale("log")
        plain_numbers(axis.yaxis)
        axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axis.set_title(f"{dataset}: {f'1 − {title}' if title == COMMON else title}")
        for label in (label for label in shown if label in forms):
            values = [1 - value if title == COMMON else value for value in forms[label][metric]]
            colour = COLOURS[shown.index(label)]
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=label, color=colour)
    legend(axes[len(NOISE) - 1])
    save(figure, run.report_dir, "where_the_noise_goes")
