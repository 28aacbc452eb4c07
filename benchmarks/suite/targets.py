"""What was aimed at, and whether it was reached: each target with the value of every cell that it is about."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.suite import evaluation, plan, training_plan

Values = dict[str, float]  # cell -> value
COMPARABLE = "another attack"  # how notes begin of peers that are timed, but not compared with


@dataclasses.dataclass(frozen=True)
class Target:
    """An aim.

    Attributes:
        name: what is measured.
        bound: what it must not pass.
        at_least: the value must be as large as the bound, else as small.
        values: the results -> the value of each cell.
    """

    name: str
    bound: float
    values: Callable[[dict[str, Any]], Values]
    at_least: bool = False

    def verdict(self, results: dict[str, Any]) -> dict[str, Any]:
        """Met when every cell meets it; None when there is no cell yet. `value` is the worst cell's."""
        values = self.values(results)
        met = {cell: self._meets(value) for cell, value in values.items()}
        worst = (min if self.at_least else max)(values.values()) if values else None
        return {
            "name": self.name,
            "bound": self.bound,
            "at_least": self.at_least,
            "value": worst,
            "met": all(met.values()) if met else None,
            "cells": {cell: {"value": value, "met": met[cell]} for cell, value in values.items()},
        }

    def _meets(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def verdicts(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [target.verdict(results) for target in TARGETS]


def _cells(results: dict[str, Any], attack: str, draws: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, cell) of an attack with so many draws, None for the number that targets are about."""
    wanted = results["settings"]["target_draws"] if draws is None else draws
    for cell in results["attacks"].values():
        if cell["attack"] == attack and cell["draws"] == wanted:
            yield f"{cell['net']}, {cell['images']} images", cell


def _over(results: dict[str, Any], attack: str, other: str) -> Values:
    """Time of EoT over that of another contender."""
    cells = _cells(results, attack, None)
    return {name: cell["ratios"][other] for name, cell in cells if other in cell["ratios"]}


def _speed_over_peers(results: dict[str, Any]) -> Values:
    """How many times faster PGD with EoT is than each peer."""
    found = {}
    for name, cell in _cells(results, "pgd", None):
        for peer in peers_of(cell):
            found[f"{name}, {peer}"] = 1 / cell["ratios"][peer]
    return found


def _over_fastest(results: dict[str, Any], attack: str) -> Values:
    """Time of the deterministic attack over the fastest peer's, per gradient or query."""
    return {
        f"{name}, {cell['fastest_peer']}": cell["ratios"][cell["fastest_peer"]]
        for name, cell in _cells(results, attack, 0)
        if cell["fastest_peer"]
    }


def peers_of(cell: dict[str, Any]) -> list[str]:
    """The contenders of a cell that are other libraries', make the same attack, and were timed beside wca_tf."""
    own = (plan.OURS, plan.DETERMINISTIC, plan.REPEAT, plan.BARE)
    return [
        name
        for name, result in cell["contenders"].items()
        if name not in own and name in cell["ratios"] and not result.get("note", "").startswith(COMPARABLE)
    ]


def _over_bare_passes(results: dict[str, Any]) -> Values:
    """Time of the deterministic gradient attacks on ResNet-18 over that of the net's forward and backward passes."""
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
    """Seconds an image of WCA training over another contender's."""

    def values(results: dict[str, Any]) -> Values:
        cells = results["training"].items()
        return {name: cell["ratios"][other] for name, cell in cells if other in cell["ratios"]}

    return values


def _pipeline_over_training(results: dict[str, Any]) -> Values:
    """Images a second of the input pipeline alone over those of training, when one machine measured both."""
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
    Target("PGD with EoT over deterministic", 1.05, lambda r: _over(r, "pgd", plan.DETERMINISTIC)),
    Target("PGD with EoT, times faster than each peer", 40.0, _speed_over_peers, at_least=True),
    Target("PGD with EoT over a pass per draw", 1 / 30, lambda r: _over(r, "pgd", plan.REPEAT)),
    Target("PGD over the fastest peer", 1.0, lambda r: _over_fastest(r, "pgd")),
    Target("Square over the fastest peer", 1.0, lambda r: _over_fastest(r, "square")),
    Target("C&W over the fastest peer", 1.0, lambda r: _over_fastest(r, "cw")),
    Target("n_pixel over the fastest peer", 1.0, lambda r: _over_fastest(r, "n_pixel")),
    Target("share of the float32 peak, LeNet++", 0.7, _peak_shares, at_least=True),
    Target("attacks over bare passes, ResNet-18", 1.05, _over_bare_passes),
    Target("training over the authors' in torch", 1.0, _training_over(training_plan.AUTHORS)),
    Target("WCA training over undefended", 1.05, _training_over(training_plan.UNDEFENDED)),
    Target("adversarial training over ART's", 1.0, _training_over(training_plan.ART)),
    Target("input pipeline over training, images a second", 2.0, _pipeline_over_training, at_least=True),
    Target("seconds of bin/train --help", 0.3, _start_up(evaluation.TRAIN_HELP)),
    Target("seconds of bin/evaluate to its first batch", 8.0, _start_up(evaluation.FIRST_BATCH)),
)
