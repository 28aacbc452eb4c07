"""Certificates of nets with 1-Lipschitz features beside attacks in l2: what noise adds to what can be proved."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import wca_tf
from reproduce import readings as read
from reproduce.budgets import part_options
from reproduce.charts import curves, panels, plain_numbers
from reproduce.engine import Need
from reproduce.image_bounds import Bounds
from reproduce.nets import SEEDS, TITLES, Net
from reproduce.study import Study
from reproduce.tables import Cell, Filled, Missing, Reading, Row, Site, Table

# Radii in l2 that are certified and attacked; in l∞, where the certificate is that of the l2 ball around the l∞ ball.
RADII = {
    "digits": ("l2:0.1",),
    "mnist": ("l2:0.3", "l2:1.58", "linf:0.03"),
    "fashion_mnist": ("l2:0.3", "l2:1.0", "linf:0.03"),
    "cifar10": ("l2:36/255", "l2:72/255", "linf:1/255"),
}
NETS = {
    "No Defense": "certified_none",
    "No Defense, larger margins": "certified_far",
    "WCA-Net isotropic": "certified_isotropic",
    "WCA-Net anisotropic": "certified_anisotropic",
}
# At a rate of 0.01 the change of variables of C&W hardly moves a pixel that is black or white.
ATTACKS = {
    "tiny": ("pgd:steps=3:norm=l2",),
    "small": (
        *("pgd:steps=40:norm=l2", "apgd_ce:steps=50:norm=l2", "margin:steps=40:norm=l2", "z_margin:steps=40:norm=l2"),
        *("multi_targeted:steps=20:norm=l2", "apgd_ce:objective=log_error:steps=50:norm=l2"),
    ),
    "paper": ("pgd:steps=40:norm=l2", "apgd_ce:norm=l2", "adaptive:norm=l2", "apgd_ce:objective=log_error:norm=l2"),
}
IN_LINF = {
    "tiny": ("pgd:steps=3",),
    "small": ("pgd:steps=40", "margin:steps=40", "z_margin:steps=40", "multi_targeted:steps=20"),
    "paper": ("pgd:steps=40", "adaptive"),
}
# Certified accuracy of nets without noise that others publish, on all test images, as shares.
PUBLISHED = {
    ("mnist", "No Defense", "l2:0.3"): 0.957,  # GloRo
    ("mnist", "No Defense, larger margins", "l2:1.58"): 0.628,  # GloRo
    ("cifar10", "No Defense", "l2:36/255"): 0.591,  # AOL, small net
}
SMOOTHING = {"digits": (0.25,), "mnist": (0.5, 1.0), "fashion_mnist": (0.5,), "cifar10": (0.25,)}
# Deviations of isotropic noise that is put on the features of a trained net.
DEVIATIONS = {"tiny": (0.05,), "small": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28), "paper": (0.02, 0.08, 0.32)}
# The attack of one who knows the draw.
KNOWING = {"tiny": "margin:steps=3", "small": "margin:steps=40", "paper": "margin:steps=100"}
BOUNDS = {"certificate": "certified", "known_draw": "C1", "gaussian_shift": "C2", "deterministic": "noise off"}


def declare(dataset: str, scale: str) -> tuple[Table, ...]:
    """Declare certificates beside attacks, the vote of randomised smoothing, and noise without training."""
    radii = RADII[dataset]
    certified = ",".join(radii)
    rows = [
        Row(f"{label}, {_shown(at)}", _seeds(dataset, variant, scale), radius=at, part="certified")
        for label, variant in NETS.items()
        for at in radii
    ]
    attacks = {at: IN_LINF[scale] if at.startswith("linf") else ATTACKS[scale] for at in radii}
    on_all: dict[str, Any] = {"part": "certified_all", "certified": certified}
    columns = [
        read.clean_expected(**on_all, attack="fgsm:norm=l2", radius=radii[0]),
        *(_bound(key, name, radii[0], **on_all) for key, name in BOUNDS.items()),
        Reading("the noise adds", _adds),
        *(_left(attacks[at], at, certified) for at in radii),
    ]
    papers = {
        (f"{label}, {_shown(at)}", "certified"): share
        for (name, label, at), share in PUBLISHED.items()
        if name == dataset
    }
    return (
        Table(
            f"Certificates in l2 on {TITLES[dataset]}",
            rows,
            columns,
            papers,
            [
                "Certified: the larger of C1, where the attacker sees the draw, and C2, where not, for each image. All "
                "test images. Noise off: the certificate of the same net without its noise.",
                "The noise adds: certified less noise off, in pairs of an image.",
                "Left by attacks at a radius: on 100 images, the chance that one answer is right.",
                "Radii in l∞ are certified by the l2 ball around them.",
                "Paper: what others publish for nets without noise: GloRo on MNIST, AOL's small net on CIFAR-10.",
            ],
            [_draw_deviations(dataset)],
        ),
        votes(dataset, scale),
    )


def _seeds(dataset: str, variant: str, scale: str) -> tuple[Net, ...]:
    once = scale == "tiny" or dataset == "cifar10" or variant == "certified_far"
    return tuple(Net(dataset, variant).of_seed(seed) for seed in (SEEDS[:1] if once else SEEDS))


def _shown(radius: str) -> str:
    norm, number = radius.split(":")
    return f"{'l∞' if norm == 'linf' else norm} {number}"


def row_at(site: Site, radius: str) -> dict[str, Any]:
    """Return the row of a radius in the measure `certificates`."""
    found = site.evaluation.results.get("certificates", {}).get("rows", [])
    wanted = wca_tf.as_radius(radius)
    for row in found:
        if row["norm"] == wanted.norm and np.isclose(row["radius"], wanted.epsilon):
            return dict(row)
    raise Missing(f"certificates of {site.net.name(site.study.scale)} at {radius}")


def certified(site: Site) -> Cell:
    """Return the certified accuracy at the row's radius."""
    return Cell.of(row_at(site, str(site.radius))["certificate"])


def in_float32(site: Site) -> Cell:
    """Return the certified accuracy at the row's radius with the rounding of float32 subtracted."""
    found = row_at(site, str(site.radius)).get("float32")
    if found is None:
        raise Missing(f"certificates in float32 of {site.net.name(site.study.scale)} at {site.radius}")
    return Cell.of(found)


def left(site: Site) -> Cell:
    """Return what attacks leave at the row's radius.

    Raises:
        InputError: an image is below its certificate.
    """
    return _left_at(site, str(site.radius))


def _left_at(site: Site, radius: str) -> Cell:
    row = row_at(site, radius)
    if row["violations"]:
        raise wca_tf.InputError(f"expected no attack below a certificate, received {row['violations']} images below it")
    return Cell.of(row["attacked"]) if row["attacked"] else Cell()


def _radius_of(site: Site) -> str:
    """Return the radius that the row's label ends in."""
    norm, number = site.label.rsplit(", ", 1)[1].split(" ")
    return f"{'linf' if norm == 'l∞' else norm}:{number}"


def _bound(key: str, name: str, attacked: str, **options: Any) -> Reading:
    def cell(site: Site) -> Cell:
        return Cell.of(row_at(site, _radius_of(site))[key])

    return Reading(name, cell, ("fgsm:norm=l2",), radius=attacked, **options)


def _left(attacks: tuple[str, ...], radius: str, certified: str) -> Reading:
    """Read what attacks leave at a radius, in the rows of this radius."""

    def cell(site: Site) -> Cell:
        if _radius_of(site) != radius:
            return Cell(text="–")
        return _left_at(site, radius)

    return Reading(f"left at {_shown(radius)}", cell, attacks, radius=radius, certified=certified)


def _adds(site: Site) -> Cell:
    own = site.study.evidence.own("certificates", site.net)
    if own is None:
        raise Missing(f"certificates of {site.net.name(site.study.scale)}")
    return Cell.of(own["adds"][_radius_of(site)], signed=True)


def votes(dataset: str, scale: str, norms: tuple[str, ...] = ("l2", "linf")) -> Table:
    """Declare randomised smoothing's vote (Cohen et al., 2019), with rows for radii in `norms`."""
    radii, net = RADII[dataset], Net(dataset, "certified_smoothing")
    rows = [
        Row(f"deviation {deviation:g}, {_shown(at)}", (net.but(defence=f"smoothing:deviation={deviation:g}"),))
        for deviation in SMOOTHING[dataset]
        for at in radii
        if at.startswith(norms)
    ]

    def cell(key: str) -> Any:
        return lambda site: Cell.of(row_at(_voted(site), _radius_of(site))[key])

    part = "certified_votes"
    options: dict[str, Any] = {"radius": radii[0], "part": part, "certified": ",".join(radii)}
    attacks = ("fgsm:norm=l2",)
    return Table(
        f"Randomised smoothing's vote on {TITLES[dataset]}",
        rows,
        [
            Reading("vote certified", cell("vote"), attacks, **options),
            Reading("abstained", cell("abstained"), attacks, **options),
            Reading("seconds an image", _seconds_an_image, attacks, **options),
        ],
        notes=[
            f"The vote is of {part_options(part, scale)['certified_draws']:,} draws, and no single answer. A certified "
            "radius is wrong with a chance of 0.001 at most. Seconds: at all radii."
        ],
    )


def _voted(site: Site) -> Site:
    """Return the site; raise Missing where fewer images are certified than judged."""
    results = site.evaluation.results
    if results["certificates"]["votes"]["images"] < results["num_examples"]:
        raise Missing(f"the vote on all images that are judged, of {site.net.name(site.study.scale)}")
    return site


def _seconds_an_image(site: Site) -> Cell:
    found = _voted(site).evaluation.results["certificates"]
    return Cell(text=f"{found['seconds'] / found['votes']['images']:.1f}")


def measure(study: Study, dataset: str) -> None:
    """Write what the certificates of each image say: what the noise adds, and noise without training.

    Raises:
        InputError: an attack that knows the draw, or on the net without noise, went below a certificate.
    """
    radii = RADII["digits" if study.scale == "tiny" else dataset]
    for variant in NETS.values():
        for net in _seeds(dataset, variant, study.scale):
            study.engine.provide([Need(net)])
            line = study.evidence.training(net)
            if line is None or line["diverged"] or study.evidence.own("certificates", net) is not None:
                continue
            directory = study.engine.trained(net)
            if directory is None:
                continue
            bounds = Bounds.of(study, directory)
            bounds.check(radii, KNOWING[study.scale])
            own: dict[str, Any] = {"adds": {at: bounds.adds(at) for at in radii}}
            if variant == NETS["No Defense"] and net == Net(dataset, variant):
                own["deviations"] = {
                    at: [[value, *bounds.with_deviation(value, at)] for value in DEVIATIONS[study.scale]]
                    for at in radii
                    if at.startswith("l2")
                }
            study.evidence.add_own("certificates", own, net)


def _draw_deviations(dataset: str) -> Any:
    """Return the chart of certificates over the deviation of noise that is put on a trained net."""

    def draw(filled: Filled) -> Figure:
        net = Net(dataset, NETS["No Defense"])
        own = filled.study.evidence.own("certificates", net) or {}
        drawn = own.get("deviations", {})
        figure, axes = panels(max(len(drawn), 1))
        for axis, (at, points) in zip(axes, drawn.items(), strict=False):
            named = {name: [(p[0], p[place]) for p in points] for place, name in enumerate(BOUNDS.values(), 1)}
            curves(axis, named, f"No Defense with noise, {_shown(at)}", "deviation of the noise")
            axis.set_xscale("log")
            plain_numbers(axis.xaxis)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        return figure

    return draw
