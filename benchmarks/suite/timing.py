"""Contenders of a cell in turned order, medians, and ratios. Free of both frameworks."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.suite.process import Worker, WorkerError

MIN_SECONDS = 0.2  # seconds of a timed run; quicker jobs are repeated within it
MAX_TIMES = 50
PATIENCE = 600.0  # seconds for a run beyond what it was expected to take: tracing, a busy machine


@dataclasses.dataclass(frozen=True)
class Contender:
    """One of those that are timed in turns.

    Attributes:
        name: what tables call it.
        worker: the process that runs it.
        job: what that process is asked to prepare.
        share: the seconds of a run are divided by it: images, or images and gradients.
        told: more about it for the results.
    """

    name: str
    worker: str
    job: dict[str, Any]
    share: int = 1
    told: dict[str, Any] = dataclasses.field(default_factory=dict)


def turned(names: Sequence[Any], number: int) -> list[Any]:
    """The order of round `number`: as given, and from the end in every other round."""
    return list(names)[:: 1 if number % 2 == 0 else -1]


def median_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


def repetitions(seconds: float, shortest: float) -> int:
    """How often a job is run within a round that takes `shortest` seconds, from the seconds of one run."""
    return min(MAX_TIMES, max(1, math.ceil(shortest / max(seconds, 1e-9))))


def time_in_turns(
    contenders: Sequence[Contender], workers: dict[str, Worker], rounds: int, shortest: float = MIN_SECONDS
) -> dict[str, Any]:
    """Every contender warmed up, then timed once a round: {name: result}. One that raises is told of, not timed.

    A result has `seconds`, those of each round over the contender's share, their `median`, `peak_bytes`, and what the
    job told; or `error`, one line.
    """
    results: dict[str, Any] = {each.name: dict(each.told) for each in contenders}
    times = {each.name: _ready(each, workers[each.worker], results[each.name], shortest) for each in contenders}
    for number in range(rounds):
        for each in turned(contenders, number):
            result = results[each.name]
            if "error" not in result:
                _run(each, workers[each.worker], times[each.name], result)
    for worker in {each.worker for each in contenders}:
        _forget(workers[worker])
    for result in results.values():
        if "error" in result:
            result.pop("seconds", None)
        else:
            result["median"] = statistics.median(result["seconds"])
            peaks = result["peak_bytes"]
            result["peak_bytes"] = None if None in peaks else statistics.median_high(peaks)
    return results


def _ready(contender: Contender, worker: Worker, result: dict[str, Any], shortest: float) -> int:
    """Prepare and warm up; returns how often the job is run in a round."""
    try:
        worker.ask({"prepare": contender.name, "job": contender.job}, PATIENCE)
        first = worker.ask({"run": contender.name, "times": 1, "check": True}, PATIENCE)
        result |= first["told"]
        seconds = first["seconds"]
        if seconds < 10 * shortest:  # the first run may have been slow because it was the first
            seconds = worker.ask({"run": contender.name, "times": 1, "check": False}, PATIENCE)["seconds"]
    except WorkerError as error:
        result["error"] = str(error)
        return 1
    return repetitions(seconds, shortest)


def _run(contender: Contender, worker: Worker, times: int, result: dict[str, Any]) -> None:
    try:
        answer = worker.ask({"run": contender.name, "times": times, "check": False}, PATIENCE)
    except WorkerError as error:
        result["error"] = str(error)
        return
    result.setdefault("seconds", []).append(answer["seconds"] / contender.share)
    result.setdefault("peak_bytes", []).append(answer["peak_bytes"])


def _forget(worker: Worker) -> None:
    try:
        worker.ask({"forget": True}, PATIENCE)
    except WorkerError:
        pass  # it is started anew when it is next asked
