"""Forms of the alignment term: where each puts the noise, and what it leaves under attack."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.colors import LogNorm

from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.report.figures import COLOURS
from wca_tf.experiments.alignment_certificates import CERTIFIED_NOTE, add_certified_rows
from wca_tf.experiments.alignment_rows import (
    BASELINE,
    CANDIDATES,
    CHOOSING,
    DECAY,
    DECAYED,
    DECAYS,
    DEVIATIONS,
    FEW,
    FORMS,
    NUMBER_OF_CANDIDATES,
    PAPERS,
    TRIED,
    WELL_POSED,
    best_corrected,
    fill_rows,
    most_left,
)
from wca_tf.experiments.alignment_seeds import NOISE, Form, add_seeds
from wca_tf.experiments.charts import legend, panels, plain_numbers, save
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import COMMON, NOTES, RATIO
from wca_tf.experiments.paper import EPSILON
from wca_tf.experiments.robustness_columns import TWIN
from wca_tf.experiments.run import Run
from wca_tf.experiments.stress_test import add_stress_rows, stress_settings
from wca_tf.experiments.tables import NO_PAPER, Table
from wca_tf.experiments.variants import TWO_STEPS

STRESS_ROWS = "without mercy"
# The nets whose noise between each two classes is drawn.
SHOWN = (PAPERS, *(f"{FORMS[form]}, constraint, free" for form in FORMS), WELL_POSED)


def reproduce(run: Run) -> Table:
    """Return a table with a row for the undefended net and for each form of the term, limit and kind of features.

    The paper's loss, the form that kept most, with and without a decay, the corrected one that kept most and the one
    without an escape get the stress test. The first, the second and the fourth are trained on the second data
    set with several seeds, and adversarially; there the paper's loss, adversarially trained, gets the stress test.
    """
    dataset, larger = run.datasets[0], run.datasets[-1]
    table = Table(f"Alignment of what decides, on {dataset} and {larger}, epsilon = {EPSILON}", [])
    table.legend = NO_PAPER
    undefended, decayed, drawn = fill_rows(run, table)
    plain, most, best = Form("No Defense", "aligned_none", {}), most_left(drawn), best_corrected(drawn)
    labels = dict.fromkeys((PAPERS, most, most + DECAY, best, WELL_POSED))
    forms = [Form(label, "aligned_wca", {"defence": drawn[label]["defence"]}) for label in labels if label in drawn]
    forms = [form for form in forms if form.changes["defence"]]  # of one that diverged it is ""
    without = [plain._replace(changes=undefended), *([Form(DECAYED, "aligned_none", decayed)] if decayed else [])]
    for form in (*without, *forms):
        _attack_hard(run, table, dataset, form, form.label, undefended)
    trained = [plain, *(form for form in forms if form.label in (PAPERS, most, best))]
    on_larger = {form.label: add_seeds(table, run, larger, form) for form in trained}
    for form in (form for form in forms if form.label == PAPERS):
        adversarial = form._replace(variant=f"{form.variant}_at")
        _attack_hard(run, table, larger, adversarial, f"{larger}, {form.label}, AT", {})
    add_certified_rows(table, run, dataset, FORMS)
    _draw(run, [(dataset, drawn), (larger, on_larger)], [most, best])
    _draw_deviations(run, {label: drawn[label] for label in SHOWN if drawn[label]["deviations"]})
    table.notes = _notes(run, dataset, larger)
    return table


def _notes(run: Run, dataset: str, larger: str) -> list[str]:
    """Return what rows and columns mean."""
    count = NUMBER_OF_CANDIDATES[run.config.scale]
    nets_of_notes = [(name, f"aligned_{name}") for name in ("none", "wca", "rse")]
    tried = [f"{limit}: {', '.join(options[:count])}" for limit, options in CANDIDATES.items()]
    return [
        f"{TRIED}: what {CHOOSING} at {EPSILON} leaves, in %, of nets with {'; '.join(tried)}; the best is judged. No "
        "Defense: as many seeds, each on validation images of its own",
        "with the constraint the bound of the variance is chosen too: the noise that is best for the term alone is as "
        "large as the bound allows, whatever the weight",
        f"{DECAYED}: a decay of all weights, {', '.join(DECAYS[:count])}, chosen as for the other rows: what a net "
        "keeps that is regularised without noise. A form's name with decay: its best options, and a decay of the "
        "weights before the noise, chosen of the same values",
        f"{BASELINE}: first_deviation {', '.join(DEVIATIONS[:count])}, chosen likewise; noise in its layers, so "
        f"that fewer images are attacked, with fewer draws; compare it with {FEW}",
        f"{PAPERS}: per class, penalty, free features, and an alignment weight of 1, whatever validation images say",
        "penalty, normalised: the weights of the classes are not bounded, so that margins may still grow",
        f"nets on {dataset} were trained once: differences of two or three points between rows say nothing",
        f"{larger}: the options are those chosen on {dataset}; seeds: nets that differ in their seed alone; "
        f"AT: on images attacked by {TWO_STEPS}, one net",
        CERTIFIED_NOTE,
        *NOTES,
        f"{COMMON}, {RATIO} on {dataset}: after the first epoch → of the net that is judged, on all validation images",
        "rows with an attack's name: the attacks named, on the nets without noise and without the term, on the net of "
        f"{PAPERS}, on those of the form (with and without a decay) and of the corrected form (centred or pairwise) "
        f"that kept most validation images, and on {WELL_POSED}, which has no "
        f"escape; on {larger}, AT, on that of {PAPERS}. Attacks in rounds leave an "
        "image alone once P(correct) is 0.01 or less",
        "noise off, worst of all: under the same attacks but two that are about noise",
        f"{TWIN}: the same net without its noise, under its own worst case",
        f"a net whose {RATIO} is small has almost no noise: its row is that of a net without",
        *dict.fromkeys(note for each in (dataset, larger) for note in run.notes(each, nets_of_notes, ["adaptive"])),
    ]


def _attack_hard(run: Run, table: Table, dataset: str, form: Form, label: str, undefended: dict[str, Any]) -> None:
    """Fill the rows of a stress test of a net; attacks transfer from the net with the changes `undefended`."""

    def fill(part: Table) -> None:
        source = run.trained(dataset, "aligned_none", **undefended)
        try:
            path = run.trained(dataset, form.variant, **form.changes)
        except DivergedError:
            part.add(label, "clean", text="diverged")
            return
        add_stress_rows(part, run, label, path, source)

    nets = [
        dataclasses.replace(run.net(dataset, variant), **changes)
        for variant, changes in ((form.variant, form.changes), ("aligned_none", undefended))
    ]
    kept_rows(run, table, f"{STRESS_ROWS}, {label}", nets, fill, stress_settings(run.config.scale))


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
        axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        axis.set_title(f"{dataset}: {f'1 − {title}' if title == COMMON else title}")
        for label in (label for label in shown if label in forms):
            values = [1 - value if title == COMMON else value for value in forms[label][metric]]
            colour = COLOURS[shown.index(label)]
            axis.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=label, color=colour)
        plain_numbers(axis.yaxis)
    legend(axes[len(NOISE) - 1])
    save(figure, run.report_dir, "where_the_noise_goes")


def _draw_deviations(run: Run, forms: dict[str, dict[str, Any]]) -> None:
    """Draw for each form the deviation of the noise between each two classes, over the mean margin, as a heat map."""
    if not forms:
        return
    figure, axes = panels(len(forms), 3.0, 3.9, label="", columns=len(forms))
    images = []
    for axis, (label, found) in zip(axes, forms.items(), strict=True):
        shown = np.array(found["deviations"]) / found["margin"]
        np.fill_diagonal(shown, np.nan)
        images.append(axis.imshow(shown, norm=LogNorm(0.01, 10), cmap="viridis"))
        axis.set(title=label.replace(", ", "\n", 1), xlabel="class")
        axis.set_xticks(range(len(shown)))
        axis.set_yticks(range(len(shown)))
    bar = figure.colorbar(images[0], ax=axes, label="deviation of the difference / margin", extend="both")
    bar.set_ticks(ticks := [0.01, 0.1, 1, 10], labels=[f"{tick:g}" for tick in ticks])
    bar.minorticks_off()
    save(figure, run.report_dir, "noise_between_classes")
