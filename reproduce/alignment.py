"""Forms of the alignment term: where each puts the noise, and what it leaves under attack."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from reproduce import readings as read
from reproduce.charts import dots
from reproduce.nets import SEEDS, TITLES, Net
from reproduce.paper_tables import Tables
from reproduce.tables import Cell, Chosen, Reading, Row, Site, Table

FORMS = {"per_class": "per class (paper)", "centred": "centred", "pairwise": "pairwise"}
FEATURES = ("free", "normalised")
# Options, of which one is chosen for each row on validation images. With the constraint the noise that is best for the
# term alone is as large as its bound allows, whatever the weight (Proposition 4 of docs/concepts.md): so the bound is
# chosen too.
CANDIDATES = {
    "penalty": tuple(f"alignment_weight={weight}" for weight in ("1", "0.1", "0.01", "0.001")),
    "constraint": tuple(f"alignment_weight={w}:max_variance={v}" for w in ("1", "0.01") for v in ("1", "16")),
}
DECAYS = ("0.005", "0.001", "0.02", "0.05")
DEVIATIONS = ("0.2", "0.1", "0.3", "0.4")  # of RSE's noise on its images
PAPERS = "the paper's loss"  # per class, penalty, free features, and a weight of 1
BEST = "centred, constraint, free"  # the form that kept most in an earlier study
ATTACKS = ("pgd", "adaptive")
# What each attack of the stress test is for.
STRESS = {
    "the paper's attack": "pgd",
    "more steps and starts": "z_margin:steps=100:relative_step_size=0.03:restarts=5",
    "on the plain margin": "margin:steps=100:restarts=5",
    "its step size adapts": "apgd_dlr:steps=300",
    "the same on the z-margin": "apgd_ce:objective=z_margin:steps=300",
    "written for noise": "apgd_ce:objective=log_error:steps=300",
    "towards each class": "multi_targeted:objective=z_margin:steps=100",
    "from its own net without noise": "transfer:steps=100",
    "without gradients": "square:queries=2000",
    "the cascade": "adaptive",
}
STRESS_TINY = {"more steps and starts": "z_margin:steps=10:restarts=2", "without gradients": "square:queries=50"}


def declare(dataset: str, scale: str) -> Tables:
    """Declare the forms on a data set; on CIFAR-10 those that kept most on Fashion-MNIST, with three seeds."""
    if dataset == "cifar10":
        return (_on_cifar10(scale),)
    forms = _forms(dataset, scale)
    rows = [
        Row("No Defense", (Net(dataset, "aligned_none"),)),
        Row("No Defense, decay", (_most_left([_decayed(dataset, value) for value in DECAYS], scale),)),
        *(Row(label, (net,)) for label, net in forms.items()),
        Row(f"{BEST}, decay", (_most_left(_with_decay(forms[BEST]), scale),)),
        Row("RSE", (_most_left([_rse(dataset, value) for value in DEVIATIONS], scale),), part="few"),
        Row("No Defense, 100 images", (Net(dataset, "aligned_none"),), part="few"),
    ]
    return (
        Table(
            f"Forms of the alignment term on {TITLES[dataset]}, ε = 8/255",
            rows,
            [*_columns(), Reading("chosen", lambda site: Cell(text=_options(site)), trains_only=True)],
            notes=_NOTES,
            charts=[dots("worst case", "worst case, noise off")],
        ),
        _stress(dataset, scale, {"No Defense": Net(dataset, "aligned_none"), PAPERS: _papers(dataset)}),
    )


_NOTES = [
    "Noise over margin: the deviation of the deciding difference of logits over the margin. Noise in common: the share "
    "of the logits' variance that cancels in every answer. A net whose noise over margin is small has almost no noise.",
    "Chosen: the options that keep most validation images under `adaptive`, of four for each row.",
    "Decay: of the weights before the noise, or of all weights without noise, chosen in the same way.",
]


def _columns() -> list[Reading]:
    return [
        read.clean_expected(),
        read.one_draw("pgd", "PGD"),
        read.worst_case(ATTACKS),
        read.noise_off(ATTACKS),
        read.noise_adds(ATTACKS),
        read.worst_case(ATTACKS, 100, "100 queries"),
        read.noise("noise_to_margin", "noise over margin"),
        read.noise("common_share", "noise in common"),
    ]


def _on_cifar10(scale: str) -> Table:
    """Declare the forms on CIFAR-10, and adversarially trained."""
    seeds = SEEDS[:1] if scale == "tiny" else SEEDS
    defences = {PAPERS: "wca", BEST: "wca:alignment=centred:regularizer=constraint"}
    nets = {"No Defense": Net("cifar10", "aligned_none")}
    nets |= {label: Net("cifar10", "aligned_wca").but(defence=text) for label, text in defences.items()}
    rows = [Row(label, tuple(net.of_seed(seed) for seed in seeds)) for label, net in nets.items()]
    rows += [Row(f"{label}, AT", (Net("cifar10", f"{net.variant}_at", net.changes),)) for label, net in nets.items()]
    smaller = [
        read.worst_case(("adaptive",), name="worst case, 1/255", radius="1/255"),
        read.noise_adds(("adaptive",), "the noise adds, 1/255", radius="1/255"),
    ]
    return Table(
        "Forms of the alignment term on cifar10, ε = 8/255",
        rows,
        [*_columns(), *smaller],
        notes=[*_NOTES[:1], "AT: on attacked images alone, by PGD of two steps."],
        charts=[dots("worst case", "worst case, 1/255")],
    )


def _forms(dataset: str, scale: str) -> dict[str, Net | Chosen]:
    """Return the net of each form; the paper's loss, with a weight of 1, has a row of its own."""
    rows: dict[str, Net | Chosen] = {PAPERS: _papers(dataset)}
    for form, limit, features in itertools.product(FORMS, CANDIDATES, FEATURES):
        defence = f"wca:alignment={form}:regularizer={limit}:features={features}"
        nets = [Net(dataset, "aligned_wca").but(defence=f"{defence}:{option}") for option in CANDIDATES[limit]]
        rows[f"{FORMS[form]}, {limit}, {features}"] = _most_left(nets, scale)
    if scale == "tiny":
        return {label: rows[label] for label in (PAPERS, BEST, "pairwise, constraint, normalised")}
    return rows


def _papers(dataset: str) -> Net:
    return Net(dataset, "aligned_wca").but(defence="wca:alignment=per_class:alignment_weight=1")


def _decayed(dataset: str, decay: str) -> Net:
    return Net(dataset, "aligned_none").but(defence=f"none:weight_decay={decay}:backbone_decay={decay}")


def _rse(dataset: str, deviation: str) -> Net:
    return Net(dataset, "aligned_rse").but(defence=f"rse:first_deviation={deviation}")


def _with_decay(form: Net | Chosen) -> list[Net]:
    """Return the nets of a form with each decay of the weights before the noise."""
    candidates = form.candidates if isinstance(form, Chosen) else (form,)
    return [
        net.but(defence=f"{dict(net.changes)['defence']}:backbone_decay={decay}")
        for net in candidates[:1]
        for decay in DECAYS
    ]


def _most_left(nets: Sequence[Net], scale: str) -> Chosen:
    """Return the choice of the net that keeps most validation images under `adaptive`."""

    def most(sites: Sequence[Site]) -> int:
        left = [site.outcome().judgement.n_query_accuracy(1)["value"] for site in sites]
        return left.index(max(left))

    return Chosen(tuple(nets[:1] if scale == "tiny" else nets), most, "adaptive")


def _options(site: Site) -> str:
    defence: Any = dict(site.net.changes).get("defence", "")
    options = [
        each for each in defence.split(":")[1:] if each.split("=")[0] not in ("alignment", "regularizer", "features")
    ]
    return ", ".join(f"`{option}`" for option in options) or "–"


def _stress(dataset: str, scale: str, nets: dict[str, Net]) -> Table:
    """Declare a stress test: every attack that may find what the usual attacks miss."""
    attacks = STRESS_TINY if scale == "tiny" else STRESS
    return Table(
        f"Stress test on {TITLES[dataset]}, ε = 8/255",
        [Row(f"{what}: `{attack}`", (nets["No Defense"],), attack=attack) for what, attack in attacks.items()],
        [read.expected("", label, net=net) for label, net in nets.items()],
        notes=["Numbers: the chance that one answer is right."],
    )
