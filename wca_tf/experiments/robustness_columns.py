"""Rows that say what an attack leaves of a net, and what its noise adds."""

from collections.abc import Sequence
from pathlib import Path

from wca_tf.experiments.baselines import load_net, with_few, without_noise
from wca_tf.experiments.paper import EPSILON, RADII
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, in_points
from wca_tf.nets.targets import has_noise

PGD, WORST, TWIN, ADDS = "PGD (paper)", "worst case, expected", "noise off: worst case", "the noise adds"
RADIUS = RADII[EPSILON]


def add_robustness_row(
    table: Table,
    run: Run,
    label: str,
    path: Path,
    papers_pgd: float | None = None,
    more: Sequence[str] = (),
    few: bool = False,
) -> None:
    """Fill a row: the paper's PGD, the worst case over it, `adaptive` and `more`, and the net without its noise.

    Args:
        table: gains the row.
        run: the run, with the budget of the attacks.
        label: the name of the row.
        path: the directory of the trained net.
        papers_pgd: the paper's accuracy under PGD, as a share; `None` where the paper has no number.
        more: more attacks as written, each with a column.
        few: whether the net has the budget of nets with noise before their last features, to stand beside them.
    """
    net = load_net(run, path)
    net = with_few(run, net) if few and run.config.scale != "paper" else net
    attacks = ["pgd", net.adaptive, *more]
    found = run.evaluated_at(path, attacks, EPSILON, **net.asked)
    worst = found.worst_judgement(attacks, RADIUS)
    table.add(label, "clean", found.number("clean", what="expected_accuracy"))
    table.add(label, PGD, found.number("pgd", RADIUS), papers_pgd)
    table.add(label, "adaptive", found.number(net.adaptive, RADIUS, "expected_accuracy"))
    for attack in more:
        table.add(label, attack, found.number(attack, RADIUS, "expected_accuracy"))
    table.add(label, WORST, worst.n_query_accuracy(1))
    table.add(label, "100 queries", worst.n_query_accuracy(100))
    for attack, column in (("pgd", "no useful gradient"), (net.adaptive, "no useful gradient, adaptive")):
        share = found.entry(attack, RADIUS)["no_useful_gradient_share"]
        table.add(label, column, text=f"{100 * share:.1f} %")
    if has_noise(net.model.target()):
        twin = without_noise(run, net, attacks).worst_judgement(attacks, RADIUS)
        table.add(label, TWIN, twin.n_query_accuracy(1))
        table.add(label, ADDS, text=in_points(worst.less(twin)))
    table.add(label, "images", text=str(found.results["num_examples"]))
