"""Time, memory and start-up of wca_tf beside its peers, in one run that can be interrupted. Started by benchmarks/run.

    benchmarks/run [--out FILE.json] [--only SECTION] [--budget 30] [--rounds 5] [--threads 2] [--smoke]

Every library attacks one network with equal weights, which is checked first. Contenders take turns, in processes of
which one computes at a time. The file is written after every cell, and a run that is started again does what is
missing. Charts go beside it. Hours on 2 idle cores; --smoke takes minutes, and its figures mean nothing.
"""

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.suite import evaluation, plan, training_plan
from benchmarks.suite.process import Worker, WorkerError
from benchmarks.suite.results import BUSY, SECTIONS, Results
from benchmarks.suite.targets import peers_of
from benchmarks.suite.timing import MIN_SECONDS, Contender, median_ratio, time_in_turns
from wca_tf.cli.flags import import_tensorflow
from wca_tf.core.errors import InputError, one_line
from wca_tf.distribution.progress import progress_bar

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / ".benchmarks"
TOLERANCES = {"logits": 1e-4, "noisy_logits": 1e-4, "gradient": 1e-4}  # of the largest
PASSES_ROUNDS = 3
Step = tuple[str, str, Callable[[], dict[str, Any]]]  # section, name, measure
START = 600.0  # seconds until a worker has imported its library and made a net


@dataclasses.dataclass(frozen=True)
class Suite:
    """A run: where its results go, who computes, and how much.

    Attributes:
        environment: of every process, its number of threads above all.
    """

    results: Results
    workers: dict[str, Worker]
    arguments: argparse.Namespace
    environment: dict[str, str]

    @property
    def sizes(self) -> plan.Sizes:
        return plan.SMOKE if self.arguments.smoke else plan.FULL

    def path_of(self, net: str) -> str:
        """Where the net's weights are for the peers."""
        return str(PEERS / f"{net}.npz")

    def turns(self, contenders: list[Contender], rounds: int) -> dict[str, Any]:
        """The contenders timed in turns."""
        told = [
            dataclasses.replace(each, job={**each.job, "path": self.path_of(each.job["net"])}) for each in contenders
        ]
        return time_in_turns(told, self.workers, rounds, 0.0 if self.arguments.smoke else MIN_SECONDS)


def main() -> None:
    arguments = parse_arguments()
    settings = {name: getattr(arguments, name) for name in ("smoke", "threads", "rounds", "budget")}
    sizes = plan.SMOKE if arguments.smoke else plan.FULL
    try:
        results = Results(
            arguments.out,
            {
                **settings,
                "target_draws": sizes.target_draws,
                "least_images": plan.MIN_IMAGES,
                "least_queries": plan.ATTACKS["square"].least,
                "longest": plan.MAX_SECONDS,
            },
            ROOT / "benchmarks" / "peers.txt",
        )
    except InputError as error:
        sys.exit(f"error: {error}")
    if results.load > BUSY:
        print(f"warning: the machine is busy (load {results.load:.1f}); the figures are not to be quoted")
    environment = threads_environment(arguments.threads)
    workers = make_workers(environment)
    try:
        run(Suite(results, workers, arguments, environment))
    except InputError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
    finally:
        for worker in workers.values():
            worker.close()
    import_tensorflow()  # what the charts stand on imports it
    from benchmarks.suite.charts import draw

    draw(results.values, arguments.out)
    print(table(results.values["targets"]))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/benchmarks.json"), help="the results' file")
    parser.add_argument("--only", choices=SECTIONS, help="measure one section")
    parser.add_argument("--threads", type=int, default=2, help="of every library")
    parser.add_argument("--rounds", type=int, default=5, help="turns that every contender gets")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds that an attack's cell may take, roughly")
    parser.add_argument("--smoke", action="store_true", help="shows only that it runs")
    return parser.parse_args()


def threads_environment(threads: int) -> dict[str, str]:
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}


def make_workers(environment: dict[str, str]) -> dict[str, Worker]:
    """A process for each library's environment; what they print goes to .benchmarks/*.log."""
    pythons = {"ours": sys.executable, "peers": str(PEERS / "bin" / "python")}
    workers = {}
    for name, python in pythons.items():
        log = PEERS / f"{name}.log"
        log.unlink(missing_ok=True)
        workers[name] = Worker([python, "-m", f"benchmarks.suite.{name}"], environment, log)
    return workers


def run(suite: Suite) -> None:
    """Measure what is missing, section by section."""
    for section in (suite.arguments.only,) if suite.arguments.only else SECTIONS:
        steps = list(STEPS[section](suite))
        missing = [step for step in steps if not suite.results.has(*step[:2])]
        if missing:
            suite.results.begin(section)
            if section != "evaluation":
                agree(suite)
            measure(suite, missing, done=len(steps) - len(missing))


def measure(suite: Suite, steps: list[Step], done: int) -> None:
    """Take the steps of a section, with a bar over its cells; one that fails is told of."""
    with progress_bar(done + len(steps), "cells", initial=done) as progress:
        for section, name, take in steps:
            progress.set_description(name)
            try:
                found = take()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                found = {"error": one_line(error)}
            suite.results.add(section, name, found)
            progress.update()


def agree(suite: Suite) -> None:
    """Export every net and stop the run unless the peers' copy gives the same logits and gradients."""
    for net in [net for net, *_ in suite.sizes.grid]:
        job = {"net": net, "known": suite.sizes.known, "path": suite.path_of(net)}
        try:
            exported = ask(suite.workers["ours"], {**job, "kind": "export"})
            found = ask(suite.workers["peers"], {**job, "kind": "agreement"})
        except WorkerError as error:
            sys.exit(f"error: {net}: {error}; see {PEERS}/*.log")
        for name, tolerance in TOLERANCES.items():
            if not found[name] <= tolerance:
                sys.exit(f"error: the torch {net} is not the Keras one: {name} differ by {found[name]:.1e}")
        suite.results.add("agreement", net, {**found, **exported})


def ask(worker: Worker, job: dict[str, Any]) -> dict[str, Any]:
    """What a job tells."""
    worker.ask({"prepare": "once", "job": job}, START)
    return worker.ask({"run": "once", "times": 1, "check": False}, START)["told"]


def attack_steps(suite: Suite) -> Iterator[Step]:
    """(section, name, measure) of bare passes, then of the attacks, for each net and number of images."""
    known = set()
    for cell in plan.attack_cells(suite.sizes):
        if (group := f"{cell.net}, {cell.images} images") not in known:
            known.add(group)
            yield "passes", group, lambda cell=cell: measure_passes(suite, cell)
        yield "attacks", cell.key, lambda cell=cell, group=group: measure_attack(suite, cell, group)


def measure_passes(suite: Suite, cell: plan.Cell) -> dict[str, Any]:
    job = {"known": suite.sizes.known}
    contenders = plan.passes_contenders(cell.net, cell.images, job)
    return {"contenders": suite.turns(contenders, min(suite.arguments.rounds, PASSES_ROUNDS))}


def measure_attack(suite: Suite, cell: plan.Cell, group: str) -> dict[str, Any]:
    passes = suite.results.values["passes"][group].get("contenders", {})
    if not passes or any("error" in result for result in passes.values()):
        raise RuntimeError("expected bare passes, which say how much work fits; they were not timed")
    seconds = {name: result["median"] for name, result in passes.items()}
    rounds, budget = suite.arguments.rounds, suite.arguments.budget
    contenders, rounds, left_out = plan.attack_contenders(cell, suite.sizes, seconds, budget, rounds)
    measured = suite.turns(contenders, rounds)
    unit = plan.ATTACKS[cell.attack].unit
    for result in measured.values():
        if "median" in result:
            count_passes(result, f"{unit}_per_image")
            result["seconds_per_image"] = result["median"] * result[f"{unit}_per_image"]
    found = {
        **dataclasses.asdict(cell),
        "seconds_are_of": f"an image, over its {unit}",
        "contenders": measured,
        "absent": plan.absent(cell) | left_out,
        "ratios": ratios(measured, plan.OURS),
    }
    peers = peers_of(found)
    fastest = min(peers, key=lambda name: measured[name]["median"], default=None)
    net = suite.results.values["agreement"][cell.net]
    return {**found, "fastest_peer": fastest, "peak_share": peak_share(cell, found, net, seconds, suite.sizes)}


def count_passes(result: dict[str, Any], counted: str) -> None:
    """Divide a peer's times by what its passes are worth, where it makes more of them than it was asked for."""
    if "passes_per_unit" in result:
        made = result["forward_passes"] / result["passes_per_unit"]
        share, result[counted] = result[counted] / made, made
        result["seconds"] = [seconds * share for seconds in result["seconds"]]
        result["median"] *= share


def ratios(measured: dict[str, Any], name: str) -> dict[str, float]:
    """Medians of the rounds' ratios of `name` to every other contender that was timed."""
    if "seconds" not in measured[name]:
        return {}
    own = measured[name]["seconds"]
    others = {other: result["seconds"] for other, result in measured.items() if "seconds" in result and other != name}
    return {other: median_ratio(own, seconds) for other, seconds in others.items()}


def peak_share(
    cell: plan.Cell, found: dict[str, Any], net: dict[str, Any], passes: dict[str, float], sizes: plan.Sizes
) -> float | None:
    """Multiplications a second that the attack achieved, over those of the product of matrices."""
    ours = found["contenders"][plan.OURS]
    if "median" not in ours:
        return None
    spec, units = plan.ATTACKS[cell.attack], ours["units"]
    work = spec.forward(units, sizes.population) + 2 * spec.gradient(units, sizes.population)
    each = net["multiply_adds"] * work / spec.counted(units, sizes.population)
    return each / ours["median"] / (plan.MATMUL**3 / passes["matmul"])


def training_steps(suite: Suite) -> Iterator[Step]:
    sizes = training_plan.SMOKE if suite.arguments.smoke else training_plan.FULL
    for cell in training_plan.training_cells(sizes):
        yield "training", cell.key, lambda cell=cell: measure_training(suite, cell, sizes)


def measure_training(
    suite: Suite, cell: training_plan.TrainingCell, sizes: training_plan.TrainingSizes
) -> dict[str, Any]:
    measured = suite.turns(training_plan.training_contenders(cell, sizes), suite.arguments.rounds)
    for result in measured.values():
        if "median" in result:
            result["images_per_second"] = 1 / result["median"]
    found = {**dataclasses.asdict(cell), "seconds_are_of": "an image", "contenders": measured}
    return {**found, "ratios": ratios(measured, training_plan.WCA)}


def evaluation_steps(suite: Suite) -> Iterator[Step]:
    sizes = evaluation.SMOKE if suite.arguments.smoke else evaluation.FULL
    for name, measure in evaluation.evaluation_parts(sizes, suite.environment).items():
        yield "evaluation", name, measure


STEPS = {"attacks": attack_steps, "training": training_steps, "evaluation": evaluation_steps}


def table(targets: list[dict[str, Any]]) -> str:
    """The targets, a line each."""
    words = {True: "met", False: "missed", None: "not measured"}
    lines = []
    for target in targets:
        value = "–" if target["value"] is None else f"{target['value']:.3g}"
        sign = ">=" if target["at_least"] else "<="
        lines.append(f"{target['name']:44} {value:>8} {sign} {target['bound']:<6.3g} {words[target['met']]}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
