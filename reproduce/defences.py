"""Table 3, and more: every stochastic defence judged alike."""

from __future__ import annotations

from collections.abc import Sequence

from reproduce import readings as read
from reproduce.charts import dots
from reproduce.more_tables import EXPECTED, HUNDRED, OFF, judged_by
from reproduce.nets import BASELINES, TITLES, Net
from reproduce.paper_tables import Tables
from reproduce.tables import Chosen, Row, Site, Table

_NAMES = {
    "none": "No Defense",
    "wca": "WCA-Net",
    "rse": "RSE",
    "pni": "PNI-W",
    "l2p": "Learn2Perturb",
    "adv_bnn": "Adv-BNN",
    "se_snn": "SE-SNN",
    "smoothing": "smoothing",
    "ctrw": "CTRW",
    "rfd": "RFD, last features",
}
_IN_HEAD = ("none", "wca", "se_snn", "rfd")
# RFD's noise: the largest that costs at most a point of validation accuracy.
_DEVIATIONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_POINT = 0.01


def declare(dataset: str, scale: str) -> Tables:
    """Declare Table 3, and more: every stochastic defence judged alike, beside its net without the noise."""
    return tuple(
        Table(
            f"Table 3, and more: stochastic defences on {TITLES[dataset]}{words}, ε = 8/255",
            [
                *(_baseline(dataset, name, more, scale) for name in BASELINES),
                Row("No Defense, 100 images", (Net(dataset, f"baseline_none{more}"),), part="few"),
                *([] if more else [Row("No Defense, decay of RSE", (Net(dataset, "baseline_decay"),), part="few")]),
            ],
            [
                read.clean_expected(),
                read.one_draw("pgd", "PGD, one answer"),
                read.expected("pgd:steps=20:objective=expected_margin", "margin"),
                read.expected("single_draw", "single draw"),
                read.expected("square", "Square"),
                *judged_by(("pgd", "adaptive")),
                read.majority(("pgd", "adaptive")),
                read.overstates("pgd", ("pgd", "adaptive"), "PGD overstates"),
                read.images(),
            ],
            notes=[
                EXPECTED,
                HUNDRED,
                OFF,
                "Rows of 100 images: nets with noise before their last features, and nets to compare with them, by "
                "smaller budgets.",
                "RFD: the largest noise that costs at most a point of validation accuracy, on a net that is trained "
                "without it.",
            ],
            charts=[dots("worst case", "worst case, noise off", "100 queries")],
        )
        for more, words in (("", ""), ("_at", ", adversarially trained"))
    )


def _baseline(dataset: str, name: str, more: str, scale: str) -> Row:
    net: Net | Chosen = Net(dataset, f"baseline_{name}{more}")
    if name == "rfd" and isinstance(net, Net):
        deviations = _DEVIATIONS[:2] if scale == "tiny" else _DEVIATIONS
        plain, candidates = (
            Net(dataset, f"baseline_none{more}"),
            tuple(net.but(defence=f"rfd:deviation={value}") for value in deviations),
        )

        def largest(sites: Sequence[Site]) -> int:
            before = sites[0].beside(plain).epoch["val_accuracy"]
            costs = [before - site.epoch["val_accuracy"] for site in sites]
            return max((place for place, cost in enumerate(costs) if cost <= _POINT), default=0)

        net = Chosen(candidates, largest, beside=(plain,))
    return Row(_NAMES[name], (net,), part="judged" if name in _IN_HEAD else "few")
