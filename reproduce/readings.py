"""Readings: columns of tables, each with the attacks that it needs. Numbers are shares, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import wca_tf
from reproduce.nets import Net
from reproduce.tables import Cell, Missing, Reading, Site

# The attacks of a worst case: the paper's, more steps, the margins, and the cascade to quote.
STRONG = ("fgsm", "pgd", "pgd:steps=40", "margin", "z_margin:steps=10", "z_margin", "adaptive")


def clean(name: str = "clean", attack: str = "fgsm", **options: Any) -> Reading:
    """Read the accuracy on clean images by one draw of the noise for each image, the paper's protocol.

    An evaluation has an attack at least: `attack`.
    """
    return Reading(name, lambda site: Cell.of(site.evaluation["clean"]["accuracy"]), (attack,), **options)


def clean_expected(name: str = "clean", attack: str = "fgsm", **options: Any) -> Reading:
    """Read the chance that one answer to a clean image is right."""
    return Reading(name, lambda site: Cell.of(site.evaluation["clean"]["expected_accuracy"]), (attack,), **options)


def one_draw(attack: str = "", name: str = "", **options: Any) -> Reading:
    """Read the accuracy under an attack by one draw of the noise for each image, the paper's protocol."""
    return Reading(name or attack, lambda site: _number(site, "accuracy"), _given(attack), **options)


def expected(attack: str = "", name: str = "", **options: Any) -> Reading:
    """Read the chance that one answer is right under an attack."""
    return Reading(name or attack, lambda site: _number(site, "expected_accuracy"), _given(attack), **options)


def worst_case(attacks: Sequence[str] = STRONG, queries: int = 1, name: str = "worst case", **options: Any) -> Reading:
    """Read the chance that all of so many answers are right, in the worst case over all attacks of the evaluation.

    `attacks` are those that it has at least.
    """
    return Reading(name, lambda site: Cell.of(site.worst().n_query_accuracy(queries)), tuple(attacks), **options)


def worst_of(attacks: Sequence[str], name: str, **options: Any) -> Reading:
    """Read the chance that one answer is right in the worst case over these attacks alone."""
    return Reading(name, lambda site: Cell.of(site.worst(site.attacks).n_query_accuracy(1)), tuple(attacks), **options)


def noise_off(attacks: Sequence[str] = STRONG, name: str = "worst case, noise off", **options: Any) -> Reading:
    """Read the worst case of the same net without its noise, under all attacks of its evaluation."""
    return Reading(name, lambda site: _noise_off(site, "worst_case"), tuple(attacks), **options)


def noise_adds(attacks: Sequence[str] = STRONG, name: str = "the noise adds", **options: Any) -> Reading:
    """Read what the noise adds at test time: the worst case with it less that without it, in pairs of an image."""
    return Reading(name, lambda site: _noise_off(site, "noise_adds"), tuple(attacks), **options)


def gain_over(net: Net, attacks: Sequence[str] = STRONG, name: str = "gain", **options: Any) -> Reading:
    """Read the worst case less that of another net of the same seed, by the same attacks, in pairs of an image."""

    def other(given: Net) -> Net:
        return net.of_seed(dict(given.changes).get("seed", 0))

    def cell(site: Site) -> Cell:
        if site.net == other(site.net):
            return Cell(text="–")
        return Cell.of(site.worst(site.attacks).less(site.beside(other(site.net)).worst(site.attacks)), signed=True)

    return Reading(name, cell, tuple(attacks), against=other, **options)


def overstates(attack: str = "pgd", attacks: Sequence[str] = STRONG, name: str = "", **options: Any) -> Reading:
    """Read by how much an attack's expected accuracy is above the worst case, in pairs of the same image."""

    def cell(site: Site) -> Cell:
        try:
            one = site.evaluation.attack(site.attacks[-1], site.radius).judgement
        except wca_tf.InputError as error:
            raise Missing(str(error)) from None
        return Cell.of(one.less(site.worst()), signed=True)

    return Reading(name or f"{attack} overstates", cell, (*attacks, attack), **options)


def majority(attacks: Sequence[str] = STRONG, name: str = "majority vote", **options: Any) -> Reading:
    """Read the share of images that more than half of all draws get right in the worst case."""
    return Reading(name, lambda site: Cell.of(site.worst().majority_accuracy()), tuple(attacks), **options)


def zero_gradients(attack: str = "", name: str = "useless gradients", **options: Any) -> Reading:
    """Read the share of images where float32 loses the label's term of the attack's loss in every draw."""
    return Reading(name, lambda site: Cell(_row(site)["no_useful_gradient_share"]), _given(attack), **options)


def distance(attack: str = "", name: str = "median l2", **options: Any) -> Reading:
    """Read the median l2 distance of an attack's images."""

    def cell(site: Site) -> Cell:
        found = _row(site)["distortion"]["l2"]["median"]
        return Cell(text="∞" if found is None else f"{found:.3g}")

    return Reading(name, cell, _given(attack), **options)


def generations(attack: str = "", name: str = "median generations", **options: Any) -> Reading:
    """Read after how many generations the search of an image ended."""

    def cell(site: Site) -> Cell:
        found = _row(site)["generations"]
        return Cell(text=f"{found['median']:g}" if found else "–")

    return Reading(name, cell, _given(attack), **options)


def seconds(attacks: Sequence[str] = (), name: str = "seconds", **options: Any) -> Reading:
    """Read the seconds that attacks took; only times of one idle machine can be compared."""

    def cell(site: Site) -> Cell:
        return Cell(text=f"{sum(_outcome(site, attack).seconds for attack in site.attacks):.0f}")

    return Reading(name, cell, tuple(attacks), **options)


def checklist(name: str, **options: Any) -> Reading:
    """Read the verdict of the criterion of gradient obfuscation that the row is named after."""

    def cell(site: Site) -> Cell:
        items = {item["criterion"]: item for item in site.evaluation.results.get("checklist", [])}
        if site.label not in items:
            raise Missing(f"checklist of {site.net.name(site.study.scale)}")
        return Cell(text={True: "passed", False: "FAILED", None: "does not apply"}[items[site.label]["passed"]])

    return Reading(name, cell, ("fgsm", "pgd", "z_margin"), part="checklist", **options)


def noise(key: str, name: str, digits: int = 3, **options: Any) -> Reading:
    """Read a number of the measure `noise`: of Gaussian noise on the last features, on the images attacked."""

    def cell(site: Site) -> Cell:
        measured = site.evaluation.results.get("noise")
        return Cell(text=_text(measured[key], digits)) if measured else Cell(text="–")

    return Reading(name, cell, ("fgsm",), **options)


def metric(key: str, name: str, digits: int = 3) -> Reading:
    """Read a metric of training in the epoch that is judged."""

    def cell(site: Site) -> Cell:
        return Cell(text=_text(site.epoch[key], digits)) if key in site.epoch else Cell(text="–")

    return Reading(name, cell, trains_only=True)


def validation_accuracy(name: str = "clean, validation", **options: Any) -> Reading:
    """Read the accuracy on the validation images of training, in the epoch that is judged."""
    return Reading(name, lambda site: Cell(site.epoch.get("val_accuracy")), trains_only=True, **options)


def trained(name: str = "trained") -> Reading:
    """Read which epoch is judged, of how many."""
    return Reading(
        name, lambda site: Cell(text=f"{site.epoch['epoch']:.0f} of {_epochs(site)} epochs"), trains_only=True
    )


def images(name: str = "images", **options: Any) -> Reading:
    """Read the number of images that are attacked."""
    return Reading(name, lambda site: Cell(text=str(site.evaluation["num_examples"])), ("fgsm",), **options)


def _epochs(site: Site) -> int:
    return len(site.training["epochs"])


def _given(attack: str) -> tuple[str, ...]:
    return (attack,) if attack else ()


def _outcome(site: Site, attack: str) -> Any:
    try:
        return site.evaluation.attack(attack, site.radius)
    except wca_tf.InputError as error:
        raise Missing(str(error)) from None


def _row(site: Site) -> dict[str, Any]:
    """Return the attack's row of results.json."""
    row: dict[str, Any] = site.outcome().numbers()
    return row


def _number(site: Site, key: str) -> Cell:
    return Cell.of(_row(site)[key])


def _noise_off(site: Site, key: str) -> Cell:
    measured = site.evaluation.results.get("noise_off")
    if not measured and not site.evaluation.described["has_noise"]:
        return Cell(text="–")
    if not measured:
        raise Missing(f"noise_off of {site.net.name(site.study.scale)}")
    wanted = wca_tf.as_radius(site.radius)
    for row in measured["radii"]:
        if np.isclose(row["epsilon"], wanted.epsilon) and row["norm"] == (wanted.norm or "linf"):
            return Cell.of(row[key], signed=key == "noise_adds")
    raise Missing(f"noise_off of {site.net.name(site.study.scale)} at {site.radius}")


def _text(value: float, digits: int) -> str:
    """Return a number as text. A share near 1 is given by its difference to 1: 1 − 4.2e-05."""
    return f"1 − {1 - value:.1e}" if 0.99 < value < 1 else f"{value:.{digits}g}"
