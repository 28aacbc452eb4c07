"""The benchmark suite: its arithmetic, its workers, and, slowly, the whole of it at its smallest."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.suite import charts, evaluation, main, nets, plan, process, results, tables, targets, timing
from wca_tf.core.errors import InputError
from wca_tf.core.files import write_json

ROOT = Path(__file__).resolve().parent.parent
STORED = json.loads((ROOT / "docs" / "results" / "benchmarks.json").read_text())

STUB = """
import os, time
from benchmarks.suite.process import Job, serve

def prepare(job):
    runs = {"quick": lambda: 2.0, "bad": lambda: 1 / 0, "dies": lambda: os._exit(1), "hangs": lambda: time.sleep(60)}
    print("what a library prints is no answer")
    return Job(runs[job["what"]], told={"told": job["what"]}, times_itself=True)

serve(prepare)
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = process.Worker([sys.executable, "-c", STUB], tmp_path / "log")
    yield made
    made.close()


def contender(what, name="a", share=4):
    return timing.Contender(name, "stub", {"what": what}, share, {"images": share})


def test_contenders_take_turns_in_turned_order():
    assert [timing.turned("abc", number) for number in range(3)] == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]


def test_the_ratio_is_the_median_of_the_rounds_ratios():
    assert timing.median_ratio([1.0, 9.0, 4.0], [1.0, 3.0, 2.0]) == 2.0


@pytest.mark.parametrize(("seconds", "times"), [(1.0, 1), (0.2, 1), (0.05, 4), (1e-6, timing.MAX_TIMES)])
def test_quick_jobs_are_repeated_within_a_round(seconds, times):
    assert timing.repetitions(seconds, shortest=0.2) == times


def test_a_worker_times_jobs_and_tells_of_those_that_raise(worker):
    found = timing.time_in_turns([contender("quick"), contender("bad", "b")], {"stub": worker}, rounds=3, shortest=0.0)
    assert found["a"]["seconds"] == [0.5] * 3 and found["a"]["median"] == 0.5
    assert found["a"]["told"] == "quick" and found["a"]["images"] == 4
    assert found["b"] == {"images": 4, "error": "ZeroDivisionError: division by zero"}


def test_a_worker_that_died_is_told_of_and_started_anew(worker):
    found = timing.time_in_turns([contender("dies")], {"stub": worker}, rounds=1, shortest=0.0)
    assert found["a"]["error"] == "the process died"
    assert "median" in timing.time_in_turns([contender("quick")], {"stub": worker}, rounds=1, shortest=0.0)["a"]


def test_a_worker_that_hangs_is_ended(worker):
    with pytest.raises(process.WorkerError, match="no answer within 1 s"):
        worker.ask("prepare", "a", {"what": "hangs"}, timeout=1)


def test_multiply_adds_of_lenet_plus_plus():
    filters, size, channels, expected = (32, 32, 64, 64, 128, 128), 28, 1, 0
    for count in filters:
        size -= 4
        expected += size * size * 25 * channels * count
        channels = count
    expected += size * size * channels * 32 + 32 * 10
    assert nets.multiply_adds(nets.random_model("lenet_plus_plus", 10, 32)) == expected == 58_280_256


def test_multiply_adds_of_resnet18():
    expected = 32 * 32 * 9 * 3 * 64 + 4 * 32 * 32 * 9 * 64 * 64  # stem and first stage
    for stage, filters in enumerate((128, 256, 512), start=1):
        pixels = (32 >> stage) ** 2
        expected += pixels * filters * (9 * filters // 2 + 3 * 9 * filters + filters // 2)
    assert nets.multiply_adds(nets.random_model("resnet18", 10, 32)) == expected + 512 * 32 + 32 * 10


def planned(cell):
    """{contender: (images, units)} of those that attack."""
    told = {each.name: each.told for each in plan.attack_contenders(cell) if each.told}
    return {name: (each["images"], each["units"]) for name, each in told.items()}


def test_contenders_of_one_pass_a_step_do_the_same_work():
    assert set(planned(plan.Cell("pgd", "resnet18", 1, 0)).values()) == {(1, 10)}
    found = planned(plan.Cell("pgd", "resnet18", 256, 50))
    assert found[plan.OURS] == found[plan.DETERMINISTIC] == (256, 1)
    assert {found[name] for name in (plan.REPEAT, "Foolbox", "torchattacks")} == {(32, 1)}


def test_a_contender_that_would_take_too_long_is_left_out():
    assert set(planned(plan.Cell("pgd", "resnet18", 256, 200))) == {plan.OURS, plan.DETERMINISTIC}
    assert "Foolbox" in planned(plan.Cell("pgd", "lenet_plus_plus", 256, 200))


def test_a_search_is_never_its_start_alone():
    """Of one query Square makes the start, and peers make three passes more."""
    assert all(units >= 10 for _, units in planned(plan.Cell("square", "resnet18", 256, 0)).values())


def test_a_peer_is_timed_by_what_its_passes_are_worth():
    """Ten queries in 13 passes, and in 33 where a query takes three: as 13 and as 11."""
    for factor, passes, made in ((1.0, 13.0, 13), (3.0, 33.0, 11)):
        result = {"queries_per_image": 10, "seconds": [0.2, 0.4], "median": 0.3, "forward_passes": passes}
        counted = result | {"passes_per_unit": factor}
        main.count_passes(counted, "queries_per_image")
        assert counted["queries_per_image"] == made
        np.testing.assert_allclose(counted["seconds"], np.array([0.2, 0.4]) * 10 / made)
        np.testing.assert_allclose(counted["median"] * made, 0.3 * 10)
    ours = {"queries_per_image": 10, "seconds": [0.2], "median": 0.2}
    main.count_passes(ours, "queries_per_image")
    assert ours["seconds"] == [0.2]


@pytest.mark.parametrize(
    ("at_least", "values", "met", "worst"),
    [
        (False, {"a": 0.9, "b": 1.1}, False, 1.1),
        (False, {"a": 0.9, "b": 1.0}, True, 1.0),
        (True, {"a": 1.1, "b": 2.0}, True, 1.1),
        (True, {"a": 0.9, "b": 2.0}, False, 0.9),
        (True, {}, None, None),
    ],
)
def test_a_target_is_met_when_every_cell_meets_it(at_least, values, met, worst):
    verdict = targets.Target("name", 1.0, lambda results: values.items(), at_least).verdict({})
    assert (verdict["met"], verdict["value"]) == (met, worst)


def test_the_input_pipeline_is_compared_with_the_training_of_its_net():
    trained = {plan.OURS: {"images_per_second": 100.0}}
    results = {
        "machine": {"evaluation": "this", "training": "this"},
        "evaluation": {"input pipeline": {"resnet18": {"images_per_second": 150.0}}},
        "training": {
            "a": {"net": "resnet18", "contenders": trained},
            "b": {"net": "lenet_plus_plus", "contenders": trained},
            "c": {"error": "failed"},
        },
    }
    [target] = [target for target in targets.TARGETS if target.name.startswith("input pipeline")]
    assert target.verdict(results)["cells"] == {"a": {"value": 1.5, "met": False}}
    assert target.verdict(results | {"machine": {"evaluation": "this", "training": "that"}})["met"] is None


def test_a_section_goes_on_only_on_its_machine(tmp_path, monkeypatch):
    path, settings = tmp_path / "results.json", {"rounds": 1}
    first = results.Results(path, settings, ROOT / "benchmarks" / "peers.txt")
    first.begin("attacks")
    first.values["attacks"]["a"] = {}
    write_json(path, {**first.values, "targets": []})
    monkeypatch.setattr(results, "machine", lambda: {"processor": "another", "cores": 2})
    again = results.Results(path, settings, ROOT / "benchmarks" / "peers.txt")
    again.begin("training")
    with pytest.raises(InputError, match="is of other machine in attacks"):
        again.begin("attacks")
    del again.values["machine"]["attacks"]  # a file that does not say where its cells are from
    with pytest.raises(InputError, match="is of other machine in attacks"):
        again.begin("attacks")
    with pytest.raises(InputError, match="is of other settings"):
        results.Results(path, {"rounds": 2}, ROOT / "benchmarks" / "peers.txt")


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 10), (10, 10), (100, 10.5)], "flat"),
        ([(1, 10), (10, 19), (100, 109)], "linear"),
        ([(1, 10), (10, 10), (100, 11.5)], "linear"),  # the first rise is hidden in what a process takes anyway
        ([(1, 10), (10, 11), (100, 110)], "steeper than linear"),
    ],
)
def test_growth(points, expected):
    assert evaluation.growth(points) == expected


@pytest.mark.slow
def test_the_whole_suite_at_its_smallest(tmp_path):
    out = tmp_path / "benchmarks.json"
    command = [ROOT / "benchmarks" / "run", "--smoke", "--threads=1", "--rounds=2", f"--out={out}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(out.read_text())
    check_results(results)
    for name in ("targets", "attacks", "eot", "training", "evaluation"):
        assert (tmp_path / f"benchmarks_{name}.png").exists()
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and json.loads(out.read_text()) == results  # nothing is measured twice


def check_results(results):
    """Every section is whole: the nets agreed, all were timed, every target has a verdict."""
    for net, agreement in results["agreement"].items():
        assert agreement["logits"] <= 1e-4 and agreement["multiply_adds"] > 0, net
    cells = {cell.key: cell for cell in plan.attack_cells(smoke=True)}
    assert set(results["attacks"]) == set(cells)
    for key, cell in results["attacks"].items():
        expected = {each.name for each in plan.attack_contenders(cells[key])}
        assert set(cell["contenders"]) == expected, key
        for name, result in cell["contenders"].items():
            assert "error" not in result and len(result["seconds"]) == 2 and result["median"] > 0, (key, name, result)
            assert name == plan.OURS or math.isfinite(cell["ratios"][name])
    assert set(results["training"]) == {cell.key for cell in plan.training_cells(smoke=True)}
    for cell in results["training"].values():
        assert all(result["images_per_second"] > 0 for result in cell["contenders"].values()), cell
    assert set(results["evaluation"]) == set(evaluation.parts(smoke=True))
    assert not [part for part in results["evaluation"].values() if "error" in part]
    assert [target["name"] for target in results["targets"]] == [target.name for target in targets.TARGETS]
    assert all(target["met"] in (True, False) for target in results["targets"])


def test_ticks_of_many_decades_are_powers_of_ten():
    assert [charts._tick(value, 0.1, 9.0) for value in (0.2, 1.0, 5.0)] == ["0.2", "1", "5"]
    assert [charts._tick(value, 0.1, 9000.0) for value in (0.2, 1.0, 500.0, 1000.0)] == ["", "1", "", "1000"]


def test_the_table_of_the_page_is_the_stored_results():
    """Numbers alone: the page words its rows itself."""
    made = {numbers(row) for row in tables.attacks(STORED).splitlines()}
    table = (
        (ROOT / "docs" / "results" / "cost.md").read_text().split("| runtime ratio | LeNet++", 1)[1].split("\n\n", 1)[0]
    )
    rows = {numbers(row) for row in table.splitlines()[2:]}
    assert rows and rows <= made


def numbers(row):
    return tuple(cell.strip() for cell in row.strip("|").split("|")[1:])


def test_the_stored_targets_are_those_of_the_stored_cells():
    assert targets.verdicts(STORED) == STORED["targets"]


def test_charts_of_the_stored_results(tmp_path):
    charts.draw(STORED, tmp_path / "benchmarks.json")
    pages = {path.name for path in (ROOT / "docs" / "results").glob("benchmarks_*.png")}
    assert {path.name for path in tmp_path.iterdir()} == pages
