"""Every stochastic defence judged alike: by its authors' protocol, by strong attacks, and without its noise."""

from functools import partial
from pathlib import Path

import numpy as np

from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.intervals import Number
from wca_tf.evaluation.judging import Judgement
from wca_tf.experiments.charts import bar_chart, dumbbell_chart
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.paper import EPSILON, RADII
from wca_tf.experiments.rivals import KNOWING, RIVALS, Net, Rival, known_draws, load_net, trained_rival, without_noise
from wca_tf.experiments.run import Evaluated, Run
from wca_tf.experiments.tables import Table, by_seed, in_points
from wca_tf.nets.targets import has_noise, is_gaussian
from wca_tf.runs.model_dir import ModelDirectory

PROTOCOL, WORST, TWIN = "authors' protocol", "worst case, expected", "noise off: worst case"
ADDS, TWICE, LARGER, SEEDS = "the noise adds", "twice the draws", "worst case at 0.1", "worst case, 3 seeds"
RADIUS = RADII[EPSILON]
CHART = ("clean", PROTOCOL, WORST, TWIN)  # the columns of the chart
STRONG = {"pgd": "PGD, EoT", "single_draw": "single draw", "transfer:source_objective=dlr": "transfer"}
COLUMNS = (
    *("clean", "authors' claim", PROTOCOL, *STRONG.values(), "adaptive", "Square", "knows the draw", WORST),
    *("100 queries", "majority vote", "noise off: clean", TWIN, ADDS, TWICE, LARGER, SEEDS, "images", "epochs"),
)
# Rows whose nets are trained three times, by the names of their variants after "rival_".
THREE_SEEDS = ("none", "wca", "none_at", "wca_at", "smoothing_at")


def reproduce(run: Run) -> Table:
    """Return a table with a row for each defence, trained on clean images and adversarially."""
    [dataset] = run.datasets
    table = Table(f"Stochastic defences on {dataset}, epsilon = {EPSILON}", list(COLUMNS))
    moved = []
    for more, words in (("", ""), ("_at", ", AT")):
        for name, rival in RIVALS.items():
            label = rival.label + words
            trained = dict.fromkeys(("none", name))  # RFD starts from the undefended net
            nets = [run.net(dataset, f"rival_{each}{more}") for each in trained]
            twice = kept_rows(run, table, label, nets, partial(_add_rival, run, dataset, name, more, label))
            if twice and not twice["low"] <= 0 <= twice["high"]:
                moved.append(label)
    table.notes = [
        "authors' claim: clean / attacked, CIFAR-10, as the paper quotes it or the authors print it",
        f"{PROTOCOL}: their attack as coded, at {EPSILON} here; one draw of the noise judges; –: they attack nothing",
        "majority vote: the share of images that more than half of all draws get right, in the worst case",
        "noise off: the same net without its noise, under its own worst case by PGD, adaptive, Square",
        f"knows the draw: {KNOWING} alone, so an upper bound; the attack knows the draw; mean of 8 draws",
        f"{SEEDS}: nets that differ in their seed alone, by adaptive alone",
        "AT: on images attacked by FGSM-RS alone, for every defence; not the authors' own recipes",
        "epochs: the epoch whose net is judged, the best on clean validation images; AT may end a run early",
        "Adv-BNN: its weights deviate by 0.01 at first; 0.05 drowns the signal of LeNet++, without batch normalisation",
        f"{TWICE}: PGD whose gradients average over twice as many draws, less PGD, in points, paired over the images",
        f"rows that twice the draws move by more than two standard errors: {', '.join(moved) or 'no row'}",
        "nets with noise before the last features: 100 images, 20 draws, fewer steps and 200 queries, not at 0.1",
        *run.notes(dataset, [(name, f"rival_{name}") for name in RIVALS], []),
    ]
    bar_chart(table, run.report_dir, "defences", ("paper", f"here, {dataset}"), CHART)
    dumbbell_chart(table, run.report_dir, "overstated", PROTOCOL, WORST, f"{dataset}, ε = {EPSILON}")
    return table


def _add_rival(run: Run, dataset: str, name: str, more: str, label: str, table: Table) -> Number | None:
    """Train a defence and fill its row; return what twice the draws change, or `None` for a net without noise."""
    try:
        path = trained_rival(run, dataset, name, more)
    except DivergedError:
        table.add(label, "clean", text="diverged")
        return None
    table.add(label, "epochs", text=f"{ModelDirectory(path).best_epoch()['epoch']:.0f}")
    twice = _add_row(table, run, load_net(run, path), label, RIVALS[name])
    if name + more in THREE_SEEDS:
        _add_seeds(table, run, dataset, label, path, f"rival_{name}{more}")
    return twice


def _add_row(table: Table, run: Run, net: Net, label: str, rival: Rival) -> Number | None:
    """Fill a row; return what twice the draws change, or `None` for a net without noise."""
    noisy, doubled = has_noise(net.model.target()), f"pgd:eot_samples={2 * net.draws}"
    attacks = [*dict.fromkeys([*STRONG, net.adaptive, net.square, *([rival.protocol] if rival.protocol else [])])]
    if is_gaussian(net.model.target()):  # before the other radius, whose page is then the one that stays
        at_larger = run.evaluated_at(net.path, [net.adaptive], "0.1", **net.asked)
        table.add(label, LARGER, at_larger.worst_case([net.adaptive], 0.1))
    found = run.evaluated_at(net.path, [*attacks, *([doubled] if noisy else [])], EPSILON, **net.asked)
    worst = found.worst_judgement(attacks, RADIUS)
    _add_protocols(table, label, found, net, rival)
    table.add(label, WORST, worst.n_query_accuracy(1))
    table.add(label, "100 queries", worst.n_query_accuracy(100))
    if not noisy:
        table.add(label, "images", text=str(found.results["num_examples"]))
        return None
    table.add(label, "majority vote", worst.majority_accuracy())
    _add_noise(table, run, net, label, worst)
    twice = found.judgement(doubled, RADIUS).less(found.judgement("pgd", RADIUS))
    table.add(label, TWICE, text=in_points(twice))
    table.add(label, "images", text=str(found.results["num_examples"]))
    return twice


def _add_protocols(table: Table, label: str, found: Evaluated, net: Net, rival: Rival) -> None:
    """Fill the columns of the protocols: one draw by the authors' protocol, expected accuracy by the others."""
    table.add(label, "clean", found.number("clean", what="expected_accuracy"))
    table.add(label, "authors' claim", text=rival.claim)
    if rival.protocol:
        table.add(label, PROTOCOL, found.number(rival.protocol, RADIUS))
    for attack, column in {**STRONG, net.adaptive: "adaptive", net.square: "Square"}.items():
        table.add(label, column, found.number(attack, RADIUS, "expected_accuracy"))


def _add_noise(table: Table, run: Run, net: Net, label: str, worst: Judgement) -> None:
    """Fill the columns that say what the noise is worth: known to the attacker, and switched off."""
    if known := known_draws(run, net):
        means = [outcome.judgement.probability_correct.mean() for outcome in known]
        table.add(label, "knows the draw", text=f"{100 * np.mean(means):.1f}")
    attacks = ["pgd", net.adaptive, net.square]
    twin = without_noise(run, net, attacks)
    worst_of_twin = twin.worst_judgement(attacks, RADIUS)
    table.add(label, "noise off: clean", twin.number("clean"))
    table.add(label, TWIN, worst_of_twin.n_query_accuracy(1))
    table.add(label, ADDS, text=in_points(worst.less(worst_of_twin)))


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
