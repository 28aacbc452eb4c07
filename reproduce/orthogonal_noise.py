"""What noise does to the certificates of orthogonal nets, and what rounding adds to their features."""

from __future__ import annotations

from typing import Any

from reproduce import readings as read
from reproduce.certificates import BOUNDS, KNOWING, certified, left, row_at
from reproduce.engine import Need
from reproduce.image_bounds import Bounds
from reproduce.nets import TITLES, Net
from reproduce.orthogonal_choices import ANY
from reproduce.orthogonal_nets import ATTACKS, RADII, net_of
from reproduce.study import Study
from reproduce.tables import Cell, Missing, Reading, Row, Site, Table

OWN = "orthogonal"  # the name of the evidence
DEVIATIONS = {"tiny": (0.0, 0.05), "small": (0.0, 0.02, 0.08, 0.32), "paper": (0.0, 0.02, 0.08, 0.32)}


def after_training(dataset: str, scale: str) -> Table:
    """Declare what noise that is put on the trained net leaves of its certificates."""
    at = RADII[dataset][0]
    net = net_of(dataset, scale)
    rows = [Row(f"deviation {value:g}", (net,), radius=at) for value in DEVIATIONS[scale]]

    def cell(place: int) -> Any:
        def of(site: Site) -> Cell:
            own = site.study.evidence.own(OWN, site.net)
            if own is None:
                raise Missing(f"noise on {site.net.name(site.study.scale)}")
            found = next(each for each in own["deviations"] if f"deviation {each[0]:g}" == site.label)
            return Cell(found[1 + place])

        return of

    return Table(
        f"Isotropic noise on the features of the trained net: {TITLES[dataset]}, {at.replace(':', ' ')}",
        rows,
        [Reading(name, cell(place), trains_only=True) for place, name in enumerate(BOUNDS.values())],
        notes=[
            "C1: the attacker sees the draw. C2: not. Certified: the larger of the two for each image.",
        ],
    )


def with_training(dataset: str, scale: str) -> Table:
    """Declare the certificates of nets that are trained with the noise."""
    nets = [
        (dataset, "isotropic"),
        (dataset, "anisotropic"),
        *([("mnist", "isotropic")] if dataset == "cifar10" else []),
    ]
    rows = [
        Row(f"{TITLES[name]}, {kind}, {at.replace(':', ' ')}", (Net(name, f"orthogonal_{kind}"),), radius=at)
        for name, kind in nets
        for at in RADII[name][:2]
    ]
    every = ",".join(dict.fromkeys(row.radius for row in rows))
    on_all: dict[str, Any] = {"part": "certified_all", "certified": every}

    def bound(key: str) -> Any:
        return lambda site: Cell.of(row_at(site, str(site.radius))[key])

    return Table(
        "Nets trained with WCA's noise",
        rows,
        [
            read.clean_expected(attack=ANY, **on_all),
            *(Reading(name, bound(key), (ANY,), **on_all) for key, name in BOUNDS.items()),
            Reading("certified, attacked images", certified, ATTACKS[scale], part="certified", certified=every),
            Reading("left by attacks", left, ATTACKS[scale], part="certified", certified=every),
        ],
        notes=[
            "Trained by the constraint in place of the penalty. Noise off: the certificate of the same net without its "
            "noise."
        ],
    )


def measure_noise(study: Study, dataset: str) -> None:
    """Write what rounding, and noise on the features of the trained net, do; attack it where the draw is known.

    Raises:
        InputError: an attack went below a certificate.
    """
    net = net_of(dataset, study.scale)
    study.engine.provide([Need(net)])
    if study.evidence.own(OWN, net) is not None or (directory := study.engine.trained(net)) is None:
        return
    at, bounds = RADII[dataset][0], Bounds.of(study, directory)
    bounds.check([at], KNOWING[study.scale])
    found = [[value, *bounds.with_deviation(value, at)] for value in DEVIATIONS[study.scale]]
    study.evidence.add_own(OWN, {"deviations": found, "rounding": bounds.rounding(at)}, net)
