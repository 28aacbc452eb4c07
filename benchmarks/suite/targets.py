"""What was aimed at, and whether it was reached: each target with the value of every cell that it is about."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.suite import evaluation, plan, training_plan

Values = dict[str, float]  # cell -> value


@dataclasses.dataclass(frozen=True)
class Target:
    """An aim.

    Attributes:
        name: what is measured.
        bound: what it must not pass.
        values: the results -> the value of each cell.
        at_least: the value must be as large as the bound, else as small.
    """

    name: str
    bound: float
    values: Callable[[dict[str, Any]], Values]
    at_least: bool = False

    def verdict(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return the worst cell's value, and whether every cell meets the bound; None when there is no cell yet."""
        values = self.values(results)
        met = {cell: value >= self.bound if self.at_least else value <= self.bound for cell, value in values.items()}
        return {
            "name": self.name,
            "bound": self.bound,
            "at_least": self.at_least,
            "value": (min if self.at_least else max)(values.values()) if values else None,
            "met": all(met.values()) if met else None,
            "cells": {cell: {"value": value, "met": met[cell]} for cell, value in values.items()},
        }


def verdicts(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [target.verdict(results) for target in TARGETS]


def peers_of(cell: dict[str, Any]) -> list[str]:
    """Return the contenders of a cell that are other libraries', and were timed beside wca_tf."""
    return [name for name in cell["ratios"] if cell["attack"] in plan.LIBRARIES.get(name, ())]


def _cells(results: dict[str, Any], attack: str, draws: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, cell) of an attack with so many draws."""
    for cell in results["attacks"].values():
        if (cell.get("attack"), cell.get("draws")) == (attack, draws):
            yield f"{cell['net']}, {cell['images']} images", cell


def _pgd_over(other: str) -> Callable[[dict[str, Any]], Values]:
    """Return the time of PGD with EoT over that of another contender."""

    def values(results: dict[str, Any]) -> Values:
        cells = _cells(results, "pgd", results["settings"]["target_draws"])
        return {name: cell["ratios"][other] for name, cell in cells if other in cell["ratios"]}

    return values


def _speed_over_peers(results: dict[str, Any]) -> Values:
    """Return how many times faster PGD with EoT is than each peer."""
    cells = _cells(results, "pgd", results["settings"]["target_draws"])
    return {f"{name}, {peer}": 1 / cell["ratios"][peer] for name, cell in cells for peer in peers_of(cell)}


def _over_fastest(attack: str) -> Callable[[dict[str, Any]], Values]:
    """Return the time of the deterministic attack over the fastest peer's, per gradient or query."""

    def values(results: dict[str, Any]) -> Values:
        cells = [(name, cell, cell["fastest_peer"]) for name, cell in _cells(results, attack, 0)]
        return {f"{name}, {fastest}": cell["ratios"][fastest] for name, cell, fastest in cells if fastest}

    return values


def _over_bare_passes(results: dict[str, Any]) -> Values:
    """Return the time of the gradient attacks on ResNet-18 over that of the net's forward and backward passes."""
    return {
        f"{attack}, {name}": cell["ratios"][plan.BARE]
        for attack in ("fgsm", "pgd", "cw", "apgd")
        for name, cell in _cells(results, attack, 0)
        if cell["net"] == "resnet18" and plan.BARE in cell["ratios"]
    }


def _peak_shares(results: dict[str, Any]) -> Values:
    return {
        f"{attack}, {name}": cell["peak_share"]
        for attack in plan.ATTACKS
        for name, cell in _cells(results, attack, 0)
        if cell["net"] == "lenet_plus_plus" and cell["peak_share"] is not None
    }


def _training_over(other: str) -> Callable[[dict[str, Any]], Values]:
    """Return the seconds an image of WCA training over another contender's."""

    def values(results: dict[str, Any]) -> Values:
        cells = results["training"].items()
        return {name: cell["ratios"][other] for name, cell in cells if other in cell.get("ratios", {})}

    return values


def _pipeline_over_training(results: dict[str, Any]) -> Values:
    """Return the images a second of the input pipeline over those of training, when one machine measured both."""
    machine, made, found = results["machine"], results["evaluation"].get("input pipeline", {}), {}
    if machine.get("evaluation") != machine.get("training"):
        return {}
    for name, cell in results["training"].items():
        trained = cell.get("contenders", {}).get(training_plan.WCA, {})
        if cell.get("net") in made and "images_per_second" in trained:
            found[name] = made[cell["net"]]["images_per_second"] / trained["images_per_second"]
    return found


def _start_up(name: str) -> Callable[[dict[str, Any]], Values]:
    def values(results: dict[str, Any]) -> Values:
        measured = results["evaluation"].get("start-up", {}).get(name)
        return {name: measured["median"]} if measured else {}

    return values


TARGETS = (
    Target("PGD with EoT over deterministic", 1.05, _pgd_over(plan.DETERMINISTIC)),
    Target("PGD with EoT, times faster than each peer", 40.0, _speed_over_peers, at_least=True),
    Target("PGD with EoT over a pass per draw", 1 / 30, _pgd_over(plan.REPEAT)),
    Target("PGD over the fastest peer", 1.0, _over_fastest("pgd")),
    Target("Square over the fastest peer", 1.0, _over_fastest("square")),
    Target("C&W over the fastest peer", 1.0, _over_fastest("cw")),
    Target("n_pixel over the fastest peer", 1.0, _over_fastest("n_pixel")),
    Target("share of the float32 peak, LeNet++", 0.7, _peak_shares, at_least=True),
    Target("attacks over bare passes, ResNet-18", 1.05, _over_bare_passes),
    Target("training over the authors' in torch", 1.0, _training_over(training_plan.AUTHORS)),
    Target("WCA training over undefended", 1.05, _training_over(training_plan.UNDEFENDED)),
    Target("adversarial training over ART's", 1.0, _training_over(training_plan.ART)),
    Target("input pipeline over training, images a second", 2.0, _pipeline_over_training, at_least=True),
    Target("seconds of bin/train --help", 0.3, _start_up(evaluation.TRAIN_HELP)),
    Target("seconds of bin/evaluate to its first batch", 8.0, _start_up(evaluation.FIRST_BATCH)),
)
