"""Every stochastic defence judged alike: by its authors' protocol, by strong attacks, and without its noise."""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.core.errors import DivergedError
from wca_tf.experiments.baselines import (
    BASELINES,
    BUDGET,
    FEW_IMAGES,
    Baseline,
    Net,
    known_draws,
    load_net,
    noise_over_margin,
    right_votes,
    trained_baseline,
    with_few,
    without_noise,
)
from wca_tf.experiments.charts import bar_chart, dot_chart, dumbbell_chart
from wca_tf.experiments.defence_columns import (
    ADDS,
    COLUMNS,
    MARGIN,
    OVERSTATES,
    PROTOCOL,
    SAME_INFERENCE,
    SEEDS,
    STRONG,
    TWICE,
    TWIN,
    TWIN_OVERSTATES,
    WORST,
    notes_of,
)
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.noise_numbers import RATIO
from wca_tf.experiments.paper import EPSILON, RADII
from wca_tf.experiments.run import Evaluated, Run
from wca_tf.experiments.tables import NO_PAPER, Table, by_seed, in_points
from wca_tf.gaussian.intervals import mean_difference, mean_with_interval
from wca_tf.nets.judge import Judgement
from wca_tf.nets.targets import has_noise, is_gaussian
from wca_tf.runs.model_dir import ModelDirectory

RADIUS, LARGER = RADII[EPSILON], 0.1
NOISE_OFF = {WORST: "worst case", TWIN: "worst case, noise off", "100 queries": "worst case, 100 queries"}
CHART = ("clean", PROTOCOL, WORST, TWIN)  # the columns of the chart
# Rows whose nets are trained three times, by the names of their variants after "rival_".
THREE_SEEDS = ("none", "wca", "none_at", "wca_at", "se_snn_at")
# Nets without noise that are attacked as nets with noise before their last features are: the variant, and its words.
CONTROLS = {"none": "", "decay": ", decay of RSE", "none_at": ", AT"}


def reproduce(run: Run) -> Table:
    """Return a table with a row for each defence, trained on clean images and adversarially."""
    [dataset] = run.datasets
    table = Table(f"Stochastic defences on {dataset}, epsilon = {EPSILON}", list(COLUMNS))
    table.legend = NO_PAPER
    moved = {}
    for more, words in (("", ""), ("_at", ", AT")):
        for name, baseline in BASELINES.items():
            label, asked = baseline.label + words, [baseline.protocol, baseline.votes, list(STRONG), BUDGET]
            trained = dict.fromkeys(("none", name))  # RFD starts from the undefended net
            nets = [run.net(dataset, f"rival_{each}{more}") for each in trained]
            fill = partial(_add_baseline, run, dataset, name, more, label)
            table.add(label, "authors' claim", text=baseline.claim_at if more else baseline.claim)
            moved[label] = kept_rows(run, table, label, nets, fill, asked)
    for variant, words in CONTROLS.items():
        label = f"No Defense{words}, {FEW_IMAGES} images"
        control = partial(_add_control, run, dataset, f"rival_{variant}", label)
        kept_rows(run, table, label, [run.net(dataset, f"rival_{variant}")], control, [list(STRONG), BUDGET])
    for cells in table.rows.values():
        if WORST in cells:
            cells.setdefault(SAME_INFERENCE, cells[WORST])  # one draw answers
    table.notes = [*notes_of(table, moved), *run.notes(dataset, [(name, f"rival_{name}") for name in BASELINES], [])]
    bar_chart(table, run.report_dir, "defences", ("paper", f"here, {dataset}"), CHART)
    _draw(table, run.report_dir, dataset)
    return table


def _draw(table: Table, directory: Path, dataset: str) -> None:
    """Write figures: what the authors' protocol overstates, and what is left with the noise and without it."""
    judged = f"{dataset}, ε = {EPSILON}"
    with_protocol = {label: cells for label, cells in table.rows.items() if PROTOCOL in cells}
    dumbbell_chart(
        dataclasses.replace(table, rows=with_protocol), directory, "overstated", PROTOCOL, SAME_INFERENCE, judged
    )
    dot_chart(table, directory, "noise_off", NOISE_OFF, f"accuracy in %, {judged}")


def _add_baseline(run: Run, dataset: str, name: str, more: str, label: str, table: Table) -> float | None:
    """Train a defence and fill its row; return by how many errors twice the draws move it, `None` without noise."""
    path = trained_baseline(run, dataset, name, more)
    errors = _add_row(table, run, load_net(run, path), label, BASELINES[name])
    if name + more in THREE_SEEDS:
        _add_seeds(table, run, dataset, label, path, f"rival_{name}{more}")
    return errors


def _add_control(run: Run, dataset: str, variant: str, label: str, table: Table) -> None:
    """Train a net without noise and fill its row, with the attacks on nets with noise before their last features."""
    net = with_few(run, load_net(run, run.trained(dataset, variant)))
    _add_row(table, run, net, label, BASELINES["none"], at_larger=False)


def _add_row(table: Table, run: Run, net: Net, label: str, baseline: Baseline, at_larger: bool = True) -> float | None:
    """Fill a row; return by how many errors twice the draws move it, or `None` for a net without noise."""
    noisy, doubled = has_noise(net.model.target()), f"{MARGIN}:eot_samples={2 * net.draws}"
    protocol = [baseline.protocol] if baseline.protocol else []
    attacks = [*dict.fromkeys([*STRONG, net.adaptive, net.square, *protocol])]
    _add_training(table, net, label)
    if at_larger and is_gaussian(net.model.target()):  # before the other radius, whose page is then the one that stays
        _add_larger(table, run, net, label, [*dict.fromkeys(["pgd", net.adaptive, *protocol])])
    found = run.evaluated_at(net.path, [*attacks, *([doubled] if noisy else [])], EPSILON, **net.asked)
    worst = found.worst_judgement(attacks, RADIUS)
    table.add(label, "clean", found.number("clean", what="expected_accuracy"))
    if protocol:
        _add_protocol(table, run, net, label, baseline, found, worst)
    for attack, column in {**STRONG, net.adaptive: "adaptive", net.square: "Square"}.items():
        table.add(label, column, found.number(attack, RADIUS, "expected_accuracy"))
    table.add(label, WORST, worst.n_query_accuracy(1))
    table.add(label, "100 queries", worst.n_query_accuracy(100))
    table.add(label, "images", text=str(found.results["num_examples"]))
    if not noisy:
        return None
    table.add(label, "majority vote", worst.majority_accuracy())
    _add_noise(table, run, net, label, baseline, found)
    more, fewer = found.judgement(doubled, RADIUS), found.judgement(MARGIN, RADIUS)
    table.add(label, TWICE, text=in_points(more.less(fewer)))
    return _paired_errors(more.probability_correct - fewer.probability_correct)


def _add_protocol(
    table: Table, run: Run, net: Net, label: str, baseline: Baseline, found: Evaluated, worst: Judgement
) -> None:
    """Fill the columns of the authors' protocol: its accuracy, and by how much that is above the worst case."""
    if baseline.votes > 1:
        right = right_votes(run, net, baseline)
        table.add(label, SAME_INFERENCE, worst.majority_accuracy())
        table.add(label, PROTOCOL, mean_with_interval(right))
        overstated = mean_difference(right.astype(float) - (worst.probability_correct > 0.5))
    else:
        table.add(label, PROTOCOL, found.number(baseline.protocol, RADIUS))
        overstated = found.judgement(baseline.protocol, RADIUS).less(worst)
    table.add(label, OVERSTATES, text=in_points(overstated))


def _add_larger(table: Table, run: Run, net: Net, label: str, attacks: list[str]) -> None:
    """Fill the columns of the larger radius."""
    found = run.evaluated_at(net.path, attacks, str(LARGER), **net.asked)
    table.add(label, "PGD at 0.1", found.number("pgd", LARGER, "expected_accuracy"))
    table.add(label, "worst case at 0.1", found.worst_case(attacks, LARGER))
    if has_noise(net.model.target()):
        twin = without_noise(run, net, attacks, str(LARGER))
        table.add(label, "noise off: at 0.1", twin.worst_case(attacks, LARGER))


def _add_training(table: Table, net: Net, label: str) -> None:
    """Fill the columns that say how the net was trained."""
    directory = ModelDirectory(net.path)
    line = directory.best_epoch()
    table.add(label, "epochs", text=f"{line['epoch']:.0f}")
    table.add(label, "trained as", text=directory.train_config().defence)
    if "robust_accuracy" in line:
        shares = [f"{100 * line[metric]:.0f} %" for metric in ("robust_accuracy", "trained_attack_accuracy")]
        table.add(label, "in training", text=", ".join(shares))


def _add_noise(table: Table, run: Run, net: Net, label: str, baseline: Baseline, found: Evaluated) -> None:
    """Fill the columns that say what the noise is worth: its size, known to the attacker, and switched off."""
    table.add(label, RATIO, text=f"{noise_over_margin(run, net):.2g}")
    if known := known_draws(run, net):
        means = [outcome.judgement.probability_correct.mean() for outcome in known]
        table.add(label, "knows the draw", text=f"{100 * np.mean(means):.1f}")
    protocol = [baseline.protocol] if baseline.protocol else []
    attacks = [*dict.fromkeys(["pgd", net.adaptive, *protocol])]  # adaptive has Square
    twin = without_noise(run, net, attacks)
    worst_of_twin = twin.worst_judgement(attacks, RADIUS)
    table.add(label, "noise off: clean", twin.number("clean"))
    table.add(label, TWIN, worst_of_twin.n_query_accuracy(1))
    table.add(label, ADDS, text=in_points(found.worst_judgement(attacks, RADIUS).less(worst_of_twin)))
    if protocol:
        overstated = twin.judgement(baseline.protocol, RADIUS).less(worst_of_twin)
        table.add(label, TWIN_OVERSTATES, text=in_points(overstated))


def _add_seeds(table: Table, run: Run, dataset: str, label: str, path: Path, variant: str) -> None:
    """Fill the column with the worst case of nets that differ in their seed alone, by `adaptive`."""
    try:
        nets = [load_net(run, each) for each in (path, *run.other_seeds(dataset, variant))]
    except DivergedError:
        table.add(label, SEEDS, text="one diverged")
        return
    found = [run.evaluated_at(net.path, [net.adaptive], EPSILON, **net.asked) for net in nets]
    worst = [each.worst_case([net.adaptive], RADIUS) for each, net in zip(found, nets, strict=True)]
    table.add(label, SEEDS, text=by_seed(worst))


def _paired_errors(differences: np.ndarray[Any, Any]) -> float:
    """Return the mean of paired differences [N] in standard errors; 0 where all are 0."""
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    return float(differences.mean()) / error if error > 0 else 0.0
