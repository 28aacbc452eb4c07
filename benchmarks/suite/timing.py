"""Contenders of a cell in turned order, medians, and ratios. Free of both frameworks."""

import dataclasses
import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.suite.process import Worker, WorkerError

BUSY = 0.7  # load average before a run
MIN_SECONDS = 0.2  # seconds of a timed run; quicker jobs are repeated within it
MAX_TIMES = 50


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


def machine_load() -> float:
    """Return the load average, and warn on a busy machine."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"warning: the machine is busy (load {load:.1f}); the figures are not to be quoted")
    return load


def turned(names: Sequence[Any], number: int) -> list[Any]:
    """Return the order of round `number`: as given, and from the end in every other round."""
    return list(names)[:: 1 if number % 2 == 0 else -1]


def median_ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(seconds, others, strict=True))


def repetitions(seconds: float, shortest: float) -> int:
    """Return how often a job of so many seconds is run within a round that takes `shortest` seconds."""
    return min(MAX_TIMES, max(1, math.ceil(shortest / max(seconds, 1e-9))))


def time_in_turns(
    contenders: Sequence[Contender], workers: dict[str, Worker], rounds: int, shortest: float = MIN_SECONDS
) -> dict[str, Any]:
    """Warm every contender up, then time each once a round: {name: result}. One that raises is told of, not timed.

    A result has `seconds`, those of each round over the contender's share, their `median`, `peak_bytes`, and what the
    job told; or `error`, one line.
    """
    results: dict[str, Any] = {each.name: dict(each.told) for each in contenders}
    times = {each.name: _warm_up(each, workers[each.worker], results[each.name], shortest) for each in contenders}
    answers: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contenders}
    for number in range(rounds):
        for each in turned(contenders, number):
            if "error" not in results[each.name]:
                answers[each.name].append(
                    _ask(workers[each.worker], results[each.name], "run", each.name, times[each.name])
                )
    for worker in {each.worker for each in contenders}:
        _ask(workers[worker], {}, "forget")  # one that died is started anew when it is next asked
    for each in contenders:
        if "error" not in (result := results[each.name]):
            result["seconds"] = [answer["seconds"] / each.share for answer in answers[each.name]]
            result["median"] = statistics.median(result["seconds"])
            peaks = [answer["peak_bytes"] for answer in answers[each.name]]
            result["peak_bytes"] = None if None in peaks else statistics.median_high(peaks)
    return results


def _ask(worker: Worker, result: dict[str, Any], *request: Any) -> dict[str, Any]:
    """Return the answer; where there is none, write why into the result."""
    try:
        return worker.ask(*request)
    except WorkerError as error:
        result["error"] = str(error)
        return {}


def _warm_up(contender: Contender, worker: Worker, result: dict[str, Any], shortest: float) -> int:
    """Prepare a contender; return how often its job is run in a round."""
    first = _ask(worker, result, "prepare", contender.name, contender.job)
    result |= first.get("told", {})
    seconds = first.get("seconds", shortest)
    if seconds < 10 * shortest and "error" not in result:  # it may have been slow because it was the first
        seconds = _ask(worker, result, "run", contender.name, 1).get("seconds", shortest)
    return repetitions(seconds, shortest)
