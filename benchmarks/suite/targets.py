"""What was aimed at, and whether it was reached: each target with the value of every cell that it is about."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.suite import evaluation, plan

Results = dict[str, Any]
Values = Iterator[tuple[str, float]]  # (cell, value)
GRADIENTS = ("fgsm", "pgd", "cw", "apgd")


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
    values: Callable[[Results], Values]
    at_least: bool = False

    def verdict(self, results: Results) -> dict[str, Any]:
        """Return the worst cell's value, and whether every cell meets the bound; None when there is no cell yet."""
        values = dict(self.values(results))
        met = {cell: value >= self.bound if self.at_least else value <= self.bound for cell, value in values.items()}
        return {
            "name": self.name,
            "bound": self.bound,
            "at_least": self.at_least,
            "value": (min if self.at_least else max)(values.values()) if values else None,
            "met": all(met.values()) if met else None,
            "cells": {cell: {"value": value, "met": met[cell]} for cell, value in values.items()},
        }


def verdicts(results: Results) -> list[dict[str, Any]]:
    return [target.verdict(results) for target in TARGETS]


def peers_of(cell: dict[str, Any]) -> list[str]:
    """Return the contenders of a cell that are other libraries', and were timed beside wca_tf."""
    return [name for name in cell["ratios"] if cell["attack"] in plan.LIBRARIES.get(name, ())]


def _cells(results: Results, attack: str, draws: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, cell) of an attack with so many draws."""
    for cell in results["attacks"].values():
        if (cell.get("attack"), cell.get("draws")) == (attack, draws):
            yield f"{cell['net']}, {cell['images']} images", cell


def _eot(results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    return _cells(results, "pgd", results["settings"]["target_draws"])


def _over(cells: Iterator[tuple[str, dict[str, Any]]], other: str) -> Values:
    """Yield the time over another contender's."""
    return ((name, cell["ratios"][other]) for name, cell in cells if other in cell.get("ratios", {}))


def _speed_over_peers(results: Results) -> Values:
    """Yield how many times faster PGD with EoT is than each peer."""
    for name, cell in _eot(results):
        for peer in peers_of(cell):
            yield f"{name}, {peer}", 1 / cell["ratios"][peer]


def _over_fastest(results: Results, attack: str) -> Values:
    """Yield the time of the deterministic attack over the fastest peer's, per gradient or query."""
    for name, cell in _cells(results, attack, 0):
        if fastest := cell["fastest_peer"]:
            yield f"{name}, {fastest}", cell["ratios"][fastest]


def _of_net(results: Results, net: str, attacks: Any, value: Callable[[dict[str, Any]], float | None]) -> Values:
    """Yield a value of the deterministic attacks on a net."""
    for attack in attacks:
        for name, cell in _cells(results, attack, 0):
            if cell["net"] == net and (found := value(cell)) is not None:
                yield f"{attack}, {name}", found


def _pipeline_over_training(results: Results) -> Values:
    """Yield the images a second of the input pipeline over those of training, when one machine measured both."""
    machine, made = results["machine"], results["evaluation"].get("input pipeline", {})
    for name, cell in results["training"].items():
        trained = cell.get("contenders", {}).get(plan.OURS, {}).get("images_per_second")
        if machine.get("evaluation") == machine.get("training") and cell.get("net") in made and trained:
            yield name, made[cell["net"]]["images_per_second"] / trained


def _start_up(results: Results, name: str) -> Values:
    if measured := results["evaluation"].get("start-up", {}).get(name):
        yield name, measured["median"]


TARGETS = (
    Target("PGD with EoT over deterministic", 1.05, lambda r: _over(_eot(r), plan.DETERMINISTIC)),
    Target("PGD with EoT, times faster than each peer", 40.0, _speed_over_peers, at_least=True),
    Target("PGD with EoT over a pass per draw", 1 / 30, lambda r: _over(_eot(r), plan.REPEAT)),
    Target("PGD over the fastest peer", 1.0, lambda r: _over_fastest(r, "pgd")),
    Target("Square over the fastest peer", 1.0, lambda r: _over_fastest(r, "square")),
    Target("C&W over the fastest peer", 1.0, lambda r: _over_fastest(r, "cw")),
    Target("n_pixel over the fastest peer", 1.0, lambda r: _over_fastest(r, "n_pixel")),
    Target(
        "share of the float32 peak, LeNet++",
        0.7,
        lambda r: _of_net(r, "lenet_plus_plus", plan.ATTACKS, lambda cell: cell["peak_share"]),
        at_least=True,
    ),
    Target(
        "attacks over bare passes, ResNet-18",
        1.05,
        lambda r: _of_net(r, "resnet18", GRADIENTS, lambda cell: cell["ratios"].get(plan.BARE)),
    ),
    Target("training over the authors' in torch", 1.0, lambda r: _over(r["training"].items(), plan.AUTHORS)),
    Target("WCA training over undefended", 1.05, lambda r: _over(r["training"].items(), plan.UNDEFENDED)),
    Target("adversarial training over ART's", 1.0, lambda r: _over(r["training"].items(), plan.ART)),
    Target("input pipeline over training, images a second", 2.0, _pipeline_over_training, at_least=True),
    Target("seconds of bin/train --help", 0.3, lambda r: _start_up(r, evaluation.TRAIN_HELP)),
    Target("seconds of bin/evaluate to its first batch", 8.0, lambda r: _start_up(r, evaluation.FIRST_BATCH)),
)
