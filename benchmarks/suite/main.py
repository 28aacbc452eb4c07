"""Time, memory and start-up of wca_tf beside its peers, in one run that can be interrupted. Started by benchmarks/run.

    benchmarks/run [--out FILE.json] [--only SECTION] [--rounds 5] [--threads 2] [--smoke]
    benchmarks/run --tables [--out FILE.json]       # measures nothing: charts and tables of an earlier run

Every library attacks one network with equal weights, which is checked first. Contenders take turns, in processes of
which one computes at a time. The file is written after every cell, and a run that is started again does what is
missing. Charts go beside it. Hours on 2 idle cores; --smoke takes minutes, and its figures mean nothing.
"""

import argparse
import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.suite import evaluation, plan, tables
from benchmarks.suite.plan import OURS, PEERS, ROOT
from benchmarks.suite.process import Worker, WorkerError
from benchmarks.suite.results import SECTIONS, Results
from benchmarks.suite.targets import peers_of, verdicts
from benchmarks.suite.timing import MIN_SECONDS, Contender, median_ratio, time_in_turns
from wca_tf.cli.flags import import_tensorflow
from wca_tf.core.errors import InputError, one_line
from wca_tf.core.files import read_json
from wca_tf.distribution.progress import progress_bar

TOLERANCE = 1e-4  # of the largest logit or gradient
WORKERS = {name: ["-m", f"benchmarks.suite.{name}"] for name in ("ours", "peers")}
Step = tuple[str, str, Callable[[], dict[str, Any]]]  # section, name, measure


@dataclasses.dataclass(frozen=True)
class Suite:
    """A run: where its results go, who computes, and how much."""

    results: Results
    workers: dict[str, Worker]
    rounds: int
    smoke: bool

    def turns(self, contenders: list[Contender]) -> dict[str, Any]:
        """Time the contenders in turns."""
        return time_in_turns(contenders, self.workers, self.rounds, 0.0 if self.smoke else MIN_SECONDS)


def main() -> None:
    arguments = parse_arguments()
    try:
        results = read_json(arguments.out) if arguments.tables else measured(arguments)
    except InputError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
    import_tensorflow()  # what the charts stand on imports it
    from benchmarks.suite.charts import draw

    found = verdicts(results)
    draw({**results, "targets": found}, arguments.out)
    print(tables.attacks(results), tables.targets(found), sep="\n\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/benchmarks.json"), help="the results' file")
    parser.add_argument("--only", choices=SECTIONS, help="measure one section")
    parser.add_argument("--threads", type=int, default=2, help="of every library")
    parser.add_argument("--rounds", type=int, default=5, help="turns that every contender gets")
    parser.add_argument("--smoke", action="store_true", help="shows only that it runs")
    parser.add_argument("--tables", action="store_true", help="only make the charts and tables of --out again")
    return parser.parse_args()


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, section by section; return the results."""
    settings = {name: getattr(arguments, name) for name in ("smoke", "threads", "rounds")}
    settings["target_draws"] = plan.target_draws(arguments.smoke)
    results = Results(arguments.out, settings, ROOT / "benchmarks" / "peers.txt")
    with started_workers(arguments.threads) as workers:
        suite = Suite(results, workers, arguments.rounds, arguments.smoke)
        for section in (arguments.only,) if arguments.only else SECTIONS:
            steps = list(STEPS[section](suite))
            missing = [step for step in steps if not results.has(*step[:2])]
            if missing:
                results.begin(section)
                if section != "evaluation":
                    agree(suite)
                measure(results, missing, done=len(steps) - len(missing))
    return results.values


@contextlib.contextmanager
def started_workers(threads: int, commands: dict[str, list[str]] = WORKERS) -> Iterator[dict[str, Worker]]:
    """Give a process of each environment, wca_tf's and the peers'; what they print goes to .benchmarks/*.log."""
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    os.environ |= {**dict.fromkeys(names, str(threads)), "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}
    workers = {}
    for name, python in (("ours", sys.executable), ("peers", str(PEERS / "bin" / "python"))):
        log = PEERS / f"{name}.log"
        log.unlink(missing_ok=True)
        workers[name] = Worker([python, *commands[name]], log)
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def measure(results: Results, steps: list[Step], done: int) -> None:
    """Take the steps of a section, with a bar over its cells; one that fails is told of."""
    with progress_bar(done + len(steps), "cells", initial=done) as progress:
        for section, name, take in steps:
            progress.set_description(name)
            try:
                found = take()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                found = {"error": one_line(error)}
            results.add(section, name, found)
            progress.update()


def agree(suite: Suite) -> None:
    """Export every net and stop the run unless the peers' copy gives the same logits and gradients."""
    for net in plan.NETS:
        try:
            exported, found = (
                suite.workers[worker].ask("prepare", "once", {"kind": kind, "net": net})["told"]
                for worker, kind in (("ours", "export"), ("peers", "agreement"))
            )
        except WorkerError as error:
            sys.exit(f"error: {net}: {error}; see {PEERS}/*.log")
        if not max(found.values()) <= TOLERANCE:
            sys.exit(f"error: the torch {net} is not the Keras one: of the largest, {found}")
        suite.results.add("agreement", net, {**found, **exported})


def attack_steps(suite: Suite) -> Iterator[Step]:
    for cell in plan.attack_cells(suite.smoke):
        yield "attacks", cell.key, lambda cell=cell: measure_attack(suite, cell)


def measure_attack(suite: Suite, cell: plan.Cell) -> dict[str, Any]:
    timed = suite.turns(plan.attack_contenders(cell))
    for result in timed.values():
        count_passes(result, f"{plan.ATTACKS[cell.attack].unit}_per_image")
    found = with_ratios(cell, timed)
    fastest = min(peers_of(found), key=lambda name: timed[name]["median"], default=None)
    share = peak_share(found, suite.results.values["agreement"][cell.net]["multiply_adds"])
    return {**found, "fastest_peer": fastest, "peak_share": share}


def with_ratios(cell: Any, timed: dict[str, Any]) -> dict[str, Any]:
    """Return the cell with its contenders, and medians of the rounds' ratios of wca_tf to every other."""
    seconds = {name: result["seconds"] for name, result in timed.items() if "seconds" in result}
    mine = seconds.pop(OURS, None)
    ratios = {other: median_ratio(mine, theirs) for other, theirs in seconds.items()} if mine else {}
    return {**dataclasses.asdict(cell), "contenders": timed, "ratios": ratios}


def count_passes(result: dict[str, Any], counted: str) -> None:
    """Divide a peer's times by what its passes are worth, where it makes more of them than it was asked for."""
    if "passes_per_unit" in result and "seconds" in result:
        made = result["forward_passes"] / result["passes_per_unit"]
        share, result[counted] = result[counted] / made, made
        result["seconds"] = [seconds * share for seconds in result["seconds"]]
        result["median"] *= share


def peak_share(cell: dict[str, Any], multiply_adds: int) -> float | None:
    """Return the multiplications a second that the attack achieved, over those of the product of matrices."""
    if plan.PRODUCT not in cell["ratios"]:
        return None
    spec = plan.ATTACKS[cell["attack"]]
    counted = spec.counted(cell["contenders"][OURS]["units"])
    work = spec.forward + counted * (2 if spec.unit == "gradients" else 1)
    return multiply_adds * work / counted / plan.MATMUL**3 / cell["ratios"][plan.PRODUCT]


def training_steps(suite: Suite) -> Iterator[Step]:
    for cell in plan.training_cells(suite.smoke):
        yield "training", cell.key, lambda cell=cell: measure_training(suite, cell)


def measure_training(suite: Suite, cell: plan.TrainingCell) -> dict[str, Any]:
    timed = suite.turns(plan.training_contenders(cell))
    for result in timed.values():
        if "median" in result:
            result["images_per_second"] = 1 / result["median"]
    return with_ratios(cell, timed)


def evaluation_steps(suite: Suite) -> Iterator[Step]:
    return (("evaluation", name, take) for name, take in evaluation.parts(suite.smoke).items())


STEPS = {"attacks": attack_steps, "training": training_steps, "evaluation": evaluation_steps}

if __name__ == "__main__":
    main()
