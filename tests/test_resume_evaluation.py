import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import attack_nets
import keras
import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import (
    InputNoise,
    arrays,
    assert_same_arrays,
    assert_same_outcomes,
    dense_net,
    digits,
    read_strictly,
    with_layers,
    without_seconds,
    write_model_dir,
)

from wca_tf.attacks import parse_attack
from wca_tf.attacks.auto_pgd import AutoPGD
from wca_tf.attacks.radii import Radius, as_radius
from wca_tf.attacks.transfer import Transfer
from wca_tf.core.errors import InputError
from wca_tf.core.files import TEMPORARY_PREFIX
from wca_tf.data.examples import Examples
from wca_tf.data.sources import load_examples
from wca_tf.evaluation import trials
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.evaluation.outcomes import GALLERY, load_outcome, record_path, save_outcome
from wca_tf.evaluation.runner import evaluate, evaluate_model
from wca_tf.evaluation.trials import CLEAN_TRIAL, Settings, run_attacks, trial_of
from wca_tf.nets import model_files
from wca_tf.nets.judge import JUDGEMENT_VERSION
from wca_tf.nets.model_files import load_model, save_model
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.runs.model_dir import ModelDirectory

TARGET = attack_nets.tanh_target(scale=0.3)
COUNT = 18
SETTINGS = Settings(seed=5, batch_size=5)


RADIUS = Radius(0.1, "linf")


def trial(text, epsilon):
    return trial_of(parse_attack(text, eot_samples=3), epsilon)


TRIALS = [
    CLEAN_TRIAL,
    trial("fgsm", 0.1),
    trial("pgd:steps=2", 0.1),
    trial("n_pixel:population=6:generations=2", None),
    trial("pgd:steps=2:targeted=true", 0.1),
]
BATCHES = -(-COUNT // SETTINGS.batch_size)
# The command with a record after every batch, not every two seconds: a kill need not wait so long.
EVALUATE = """
import sys
from wca_tf.evaluation import trials
trials.SAVE_EVERY = 0.0
from wca_tf.cli.evaluate import console
sys.argv[0] = "bin/evaluate"
console()
"""
CONFIG = EvaluateConfig(
    attacks="fgsm,pgd:steps=150", epsilons="0.1", eot_samples=4, num_examples=30, batch_size=2, seed=3
)


@pytest.fixture(scope="module")
def examples():
    images = attack_nets.random_images(COUNT).numpy()
    labels = attack_nets.predictions(TARGET, images)
    return Examples(images, labels, tuple("0123"))


@pytest.fixture(scope="module")
def uninterrupted(examples, tmp_path_factory):
    """(outcomes of all planned attacks, the directory with their records)."""
    records = tmp_path_factory.mktemp("records")
    return run_attacks(TARGET, TRIALS, examples, SETTINGS, records), records


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("resume") / "model")


class Killed(BaseException):
    """Stands for SIGKILL: nothing in wca_tf may catch it."""


def stop_after(monkeypatch, saves):
    """Have a record written after each batch, and the process end after so many records."""
    written = []

    def save(outcome, directory):
        save_outcome(outcome, directory)
        written.append(outcome)
        if len(written) == saves:
            raise Killed

    save_outcome = trials.save_outcome
    monkeypatch.setattr(trials, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(trials, "save_outcome", save)


def records_in(directory):
    """name -> (contents, when written) of every file."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def rewrite(path, change):
    """Change the arrays of a record in place."""
    with np.load(path) as stored:
        contents = {name: stored[name] for name in stored.files}
    change(contents)
    np.savez(path, **contents)


# In one process


@pytest.mark.parametrize("saves", [1, BATCHES, BATCHES + 1, 2 * BATCHES + 2, 3 * BATCHES + 3, 5 * BATCHES])
def test_stopped_after_any_record_it_goes_on_to_the_same_bits(examples, uninterrupted, monkeypatch, tmp_path, saves):
    with monkeypatch.context() as patch:
        stop_after(patch, saves)
        with pytest.raises(Killed):
            run_attacks(TARGET, TRIALS, examples, SETTINGS, tmp_path)
    assert_same_outcomes(run_attacks(TARGET, TRIALS, examples, SETTINGS, tmp_path), uninterrupted[0])


def test_a_record_of_more_images_is_of_other_images(examples, tmp_path):
    run_attacks(TARGET, [CLEAN_TRIAL], examples, SETTINGS, tmp_path)
    with pytest.raises(InputError, match=f"records of 5 images.*received {COUNT}: name another --report_dir"):
        run_attacks(TARGET, [CLEAN_TRIAL], examples.take(slice(0, 5)), SETTINGS, tmp_path)


def test_what_was_recorded_is_not_attacked_again(examples, uninterrupted, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        stop_after(patch, 2 * BATCHES + 2)
        with pytest.raises(Killed):
            run_attacks(TARGET, TRIALS, examples, SETTINGS, tmp_path)
    done = 2 * SETTINGS.batch_size
    third = record_path(tmp_path, TRIALS[2].name, RADIUS)
    before = records_in(tmp_path)
    complete = set(before) - {third.name}
    assert len(complete) == 2

    def mark(contents):
        assert len(contents["l2"]) == done
        contents["l2"] += 1000

    rewrite(third, mark)
    outcomes = run_attacks(TARGET, TRIALS, examples, SETTINGS, tmp_path)
    whole = uninterrupted[0][2].l2
    np.testing.assert_array_equal(outcomes[2].l2, np.where(np.arange(COUNT) < done, whole + 1000, whole))
    after = records_in(tmp_path)
    assert {name: after[name] for name in complete} == {name: before[name] for name in complete}


def test_everything_recorded_is_read_and_nothing_runs(examples, uninterrupted, monkeypatch):
    before = records_in(uninterrupted[1])
    monkeypatch.setattr(trials, "judge", None)  # calling it would raise
    assert_same_outcomes(run_attacks(TARGET, TRIALS, examples, SETTINGS, uninterrupted[1]), uninterrupted[0])
    assert records_in(uninterrupted[1]) == before


def test_a_record_of_other_parameters_is_not_taken(examples, uninterrupted, tmp_path):
    """The same text can mean something else in another version, whose defaults differ."""
    run_attacks(TARGET, TRIALS[:2], examples, SETTINGS, tmp_path)

    def other(contents):
        described = json.loads(str(contents["described"]))
        described["config"]["relative_step_size"] = 0.5
        contents["described"] = np.array(json.dumps(described))
        contents["l2"] += 1000

    rewrite(record_path(tmp_path, "fgsm", RADIUS), other)
    assert_same_outcomes(run_attacks(TARGET, TRIALS[:2], examples, SETTINGS, tmp_path), uninterrupted[0][:2])


@pytest.mark.parametrize("older", ["algorithm", "judged_by"])
def test_a_record_of_an_older_algorithm_is_made_again(examples, uninterrupted, tmp_path, older):
    """Of the attack, or of what judges: its numbers are not mixed with today's."""
    outcomes, records = uninterrupted
    shutil.copytree(records, tmp_path / "records")
    for outcome in outcomes:
        stale = dataclasses.replace(outcome, config={**outcome.config, older: 0}, linf=np.full(COUNT, 7.0))
        save_outcome(stale, tmp_path / "records")
    again = run_attacks(TARGET, TRIALS, examples, SETTINGS, tmp_path / "records")
    assert_same_outcomes(again, outcomes)


def test_every_attack_has_the_number_of_its_algorithm_in_its_record(uninterrupted):
    for outcome in uninterrupted[0][1:]:
        assert outcome.config["algorithm"] == parse_attack(outcome.name).version
        assert outcome.config["judged_by"] == JUDGEMENT_VERSION


def test_a_record_of_a_worst_case_is_made_again_after_a_new_algorithm_of_a_member(monkeypatch):
    adaptive = trial("adaptive", 0.1)
    before = dict(adaptive.config)
    assert adaptive.matches(before)
    monkeypatch.setattr(AutoPGD, "version", AutoPGD.version + 1)
    assert not adaptive.matches(before)


def test_names_and_radii_have_records_of_their_own(tmp_path):
    names = ["pgd", "PGD", "pgd:steps=40", "pgd:steps=4", "transfer:source=a/b", "transfer:source=a_b", "x" * 300]
    radii = [None, *(Radius(epsilon, norm) for epsilon in (0.1, 0.1000001, 0.0) for norm in ("linf", "l2"))]
    paths = {record_path(tmp_path, name, radius) for name in names for radius in radii}
    assert len(paths) == len(radii) * len(names)
    assert {path.parent for path in paths} == {tmp_path}
    assert max(len(path.name) for path in paths) < 120


@pytest.mark.parametrize("broken", ["empty", "half", "text", "another npz"])
def test_broken_records_are_made_again_in_one_run(examples, uninterrupted, tmp_path, broken, capsys):
    run_attacks(TARGET, TRIALS[:2], examples, SETTINGS, tmp_path)
    paths = [record_path(tmp_path, each.name, each.radius) for each in TRIALS[:2]]
    for path in paths:
        if broken == "half":
            os.truncate(path, path.stat().st_size // 2)
        elif broken == "another npz":
            np.savez(path, l2=np.zeros(3))
        else:
            path.write_text("" if broken == "empty" else "not a record")
    assert_same_outcomes(run_attacks(TARGET, TRIALS[:2], examples, SETTINGS, tmp_path), uninterrupted[0][:2])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("made again: ")]
    assert len(told) == 2 and all(str(path) in line for path, line in zip(paths, told, strict=True))


def test_a_record_that_the_disk_does_not_give_is_not_replaced(examples, tmp_path):
    """It may be whole."""
    run_attacks(TARGET, TRIALS[:2], examples, SETTINGS, tmp_path)
    path = record_path(tmp_path, "fgsm", RADIUS)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=rf"{path.name}.*Is a directory"):
        run_attacks(TARGET, TRIALS[:2], examples, SETTINGS, tmp_path)


def test_a_record_holds_a_few_images_and_numbers_of_all(uninterrupted):
    assert COUNT > GALLERY
    records = list(uninterrupted[1].iterdir())
    assert len(records) == len(TRIALS)
    for path in records:
        with np.load(path) as stored:
            shapes = {name: stored[name].shape for name in stored.files if name not in ("described", "draws")}
        shown = 0 if path.name.startswith("clean") else GALLERY
        assert shapes.pop("images") == shapes.pop("originals") == (shown, *attack_nets.SHAPE)
        assert shapes.pop("shown") == shapes.pop("flips") == (shown,)
        assert shapes.pop("hits") == (COUNT, 0)  # the numbers are exact
        assert set(shapes.values()) == {(COUNT,)}


def test_attacks_that_differ_by_their_radius_share_the_net_that_they_transfer_from(monkeypatch):
    """One in memory for all radii, and one graph."""
    asked = []
    monkeypatch.setattr(model_files, "target_in", lambda path: asked.append(path) or TARGET)
    planned = [CLEAN_TRIAL, trial("pgd", 0.1), trial("transfer:source=a", 0.1), trial("transfer:source=a", 0.2)]
    clean, pgd, first, second = trials._loaded(planned)
    assert asked == ["a"]
    assert (clean, pgd) == tuple(planned[:2])
    assert first.attack == second.attack == dataclasses.replace(planned[2].attack, source=TARGET)
    assert (first.radius.epsilon, second.radius.epsilon) == (0.1, 0.2)
    assert isinstance(first.attack, Transfer)


# The command, killed


def start(root, environment, model_dir, report):
    arguments = [f"--{name}={getattr(CONFIG, name)}" for name in ("attacks", "epsilons", "eot_samples", "seed")]
    arguments += [f"--num_examples={CONFIG.num_examples}", f"--batch_size={CONFIG.batch_size}"]
    command = [sys.executable, "-c", EVALUATE, *arguments, f"--model_dir={model_dir}", f"--report_dir={report}"]
    environment = {**environment, "PYTHONPATH": str(root)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def recorded(report, name):
    outcome = load_outcome(report / "records", name, RADIUS)
    return len(outcome) if outcome else 0


@pytest.mark.slow
def test_the_command_killed_within_an_attack_goes_on_to_the_same_results(
    root, command, command_environment, model_dir, tmp_path
):
    """Stopped first, so that it holds its directory for certain while another evaluation tries to have it."""
    interrupted, whole = tmp_path / "interrupted", tmp_path / "whole"
    process = start(root, command_environment, model_dir, interrupted)
    try:
        deadline = time.monotonic() + 240
        while not recorded(interrupted, "pgd:steps=150"):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)
        before = records_in(interrupted / "records")
        with pytest.raises(InputError, match="in use"):
            evaluate(CONFIG, model_dir, interrupted)
        assert records_in(interrupted / "records") == before
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = recorded(interrupted, "pgd:steps=150")
    assert 0 < done < CONFIG.num_examples, "it was not killed within the attack"
    assert not (interrupted / "results.json").exists()
    fgsm = record_path(interrupted / "records", "fgsm", RADIUS).name
    (interrupted / "records" / f"{TEMPORARY_PREFIX}half.npz").write_bytes(b"half a record")
    (interrupted / f"{TEMPORARY_PREFIX}half.json").write_bytes(b"{")

    again = start(root, command_environment, model_dir, interrupted)
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert "worst case" in out
    expected = evaluate(CONFIG, model_dir, whole)
    received = read_strictly(interrupted / "results.json")
    assert without_seconds(received) == without_seconds(expected)
    assert_same_arrays(arrays(interrupted), arrays(whole))
    assert records_in(interrupted / "records")[fgsm] == before[fgsm]
    assert not list(interrupted.rglob(f"{TEMPORARY_PREFIX}*"))


# Adding to an evaluation


SMALL = EvaluateConfig(attacks="fgsm", epsilons="0.1", eot_samples=2, num_examples=12, batch_size=12)


@pytest.fixture
def started(tmp_path):
    """(results, directory) of an evaluation of a plain net by one attack."""
    _, test = digits()
    return evaluate_model(dense_net(), test.images, test.labels, SMALL, tmp_path / "report"), tmp_path / "report"


def go_on(directory, model=None, images=None, labels=None, name="model", **changes):
    _, test = digits()
    return evaluate_model(
        dense_net() if model is None else model,
        test.images if images is None else images,
        test.labels if labels is None else labels,
        dataclasses.replace(SMALL, **changes),
        directory,
        name,
    )


def test_a_second_evaluation_adds_attacks_and_epsilons_and_leaves_the_first(started, contents, capsys):
    first, directory = started
    before = records_in(directory / "records")
    changes = {"attacks": "pgd:steps=2,cw:steps=3:searches=2", "epsilons": "0.2,0.1"}
    second = go_on(directory, **changes)
    after = records_in(directory / "records")
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 3
    names = [(attack["epsilon"], attack["name"]) for attack in second["attacks"]]
    cw = "cw:steps=3:searches=2"
    assert names == [(0.1, "fgsm"), (0.1, "pgd:steps=2"), (0.2, "pgd:steps=2"), (None, cw)]
    assert second["attacks"][0] == first["attacks"][0]  # its seconds too
    assert second["clean"] == first["clean"]
    assert [worst["epsilon"] for worst in second["worst_case"]] == [0.1, 0.2]
    rows = arrays(directory)
    assert rows["attack"].tolist() == ["clean", "fgsm", "pgd:steps=2", "pgd:steps=2", cw]
    assert read_strictly(directory / "results.json") == second

    capsys.readouterr()
    there = contents(directory)
    for again in (changes, {}):  # the second's attacks, and the first's
        assert go_on(directory, **again) == second
        assert "nothing to do" in capsys.readouterr().out
    assert contents(directory) == there


def test_a_radius_of_zero_alone_can_be_added(started):
    """A checklist needs a radius above 0, but none is asked for here."""
    first, directory = started
    [alone] = [attack for attack in go_on(directory, epsilons="0")["attacks"] if attack["epsilon"] == 0]
    assert alone["accuracy"] == first["clean"]["accuracy"]


def test_numbers_of_an_older_algorithm_are_made_again_with_whatever_is_asked(started, capsys):
    """Else an old number would stand beside new ones, under the new versions."""
    first, directory = started
    stored = read_strictly(directory / "results.json")
    stored["attacks"][0]["config"]["algorithm"] = 1
    (directory / "results.json").write_text(json.dumps(stored))
    record = load_outcome(directory / "records", "fgsm", RADIUS)
    old = dataclasses.replace(record, config={**record.config, "algorithm": 1}, linf=0 * record.linf)
    save_outcome(old, directory / "records")
    capsys.readouterr()
    assert (
        without_seconds(go_on(directory, attacks="pgd:steps=2"))["attacks"][0] == without_seconds(first)["attacks"][0]
    )
    assert "nothing to do" not in capsys.readouterr().out


def test_attacks_added_one_by_one_are_those_of_one_evaluation(started, tmp_path):
    _, directory = started
    added = go_on(directory, attacks="pgd:steps=2")
    together = go_on(tmp_path / "together", attacks="fgsm,pgd:steps=2")
    assert without_seconds(added) == without_seconds(together)
    assert_same_arrays(arrays(directory), arrays(tmp_path / "together"))


def with_other_weights():
    model = with_layers(dense_net())
    other = type(model).from_config(model.get_config())
    other.set_weights([1.01 * weight for weight in model.get_weights()])
    return other


@pytest.mark.parametrize(
    "difference",
    [
        {"seed": 1},
        {"num_examples": 11},
        {"eot_samples": 3},
        {"name": "another"},
        {"images": lambda: np.ascontiguousarray(digits()[1].images[:, ::-1])},
        {"labels": lambda: digits()[1].labels[::-1].copy()},
        {"model": with_other_weights},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_a_directory_of_another_evaluation_is_refused_and_stays(started, contents, difference):
    before = contents(started[1])
    with pytest.raises(InputError, match="another --report_dir") as raised:
        go_on(started[1], **{name: value() if callable(value) else value for name, value in difference.items()})
    assert "\n" not in str(raised.value)
    assert contents(started[1]) == before


def test_a_directory_of_a_net_with_equal_weights_and_other_noise_is_refused(tmp_path, contents):
    """Deviations of noise, rates of dropout and activations are no weights."""
    go_on(tmp_path / "report", with_layers(dense_net(), [InputNoise(0.01)]))
    before = contents(tmp_path / "report")
    with pytest.raises(InputError, match="another --report_dir"):
        go_on(tmp_path / "report", with_layers(dense_net(), [InputNoise(1.0)]))
    assert contents(tmp_path / "report") == before


@pytest.mark.slow
def test_the_default_directory_is_one_for_a_model_its_images_and_a_seed(model_dir):
    config = EvaluateConfig(attacks="fgsm", epsilons="0.1", eot_samples=2, num_examples=4)
    evaluate(config, model_dir)
    both = evaluate(dataclasses.replace(config, attacks="bim:steps=2", epsilons="0.2"), model_dir)
    [directory] = (model_dir / "evaluations").iterdir()
    assert [attack["name"] for attack in both["attacks"]] == ["fgsm", "bim:steps=2"]
    assert read_strictly(directory / "results.json") == both
    evaluate(dataclasses.replace(config, seed=1), model_dir)
    assert len(list((model_dir / "evaluations").iterdir())) == 2


def test_a_folder_of_which_an_image_changed_is_another_evaluation(model_dir, tmp_path, contents):
    folder, model = tmp_path / "images", tmp_path / "model"
    for number in range(50):
        (folder / str(number % 10)).mkdir(parents=True, exist_ok=True)
        image = tf.fill([8, 8, 1], np.uint8(5 * number))
        tf.io.write_file(str(folder / str(number % 10) / f"{number:02}.png"), tf.io.encode_png(image))
    shutil.copytree(model_dir, model)
    config = dataclasses.replace(ModelDirectory(model).train_config(), dataset=f"folder:{folder}")
    ModelDirectory(model).config.unlink()
    ModelDirectory(model).write_config(
        config, load_examples(config, "train"), load_model(ModelDirectory(model_dir).best)
    )
    wanted = EvaluateConfig(attacks="fgsm", epsilons="0.1", eot_samples=2, num_examples=4)
    evaluate(wanted, model, tmp_path / "report")
    before = contents(tmp_path / "report")
    for path in folder.rglob("*.png"):
        tf.io.write_file(str(path), tf.io.encode_png(tf.fill([8, 8, 1], np.uint8(7))))
    with pytest.raises(InputError, match="other images.*another --report_dir"):
        evaluate(wanted, model, tmp_path / "report")
    assert contents(tmp_path / "report") == before


@pytest.mark.slow
def test_a_transfer_from_a_source_trained_again_is_done_again(model_dir, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(model_dir, source)
    config = EvaluateConfig(
        attacks=f"fgsm,transfer:steps=3:source={source}", epsilons="0.3", eot_samples=2, num_examples=10
    )
    first = evaluate(config, model_dir, tmp_path / "report")
    net = load_model(ModelDirectory(source).best)
    net.classifier.kernel.assign(-net.classifier.kernel)
    save_model(net, ModelDirectory(source).best)
    second = evaluate(config, model_dir, tmp_path / "report")
    assert second["attacks"][0] == first["attacks"][0]
    shas = [results["attacks"][1]["config"]["source_sha256"] for results in (first, second)]
    assert shas[0] != shas[1]
    left = [results["attacks"][1]["expected_accuracy"]["value"] for results in (first, second)]
    assert left[1] > left[0]  # its images make the opposite net err
    assert evaluate(config, model_dir, tmp_path / "report") == second
    shutil.rmtree(source)  # what is done stays, and others can be added
    third = evaluate(dataclasses.replace(config, attacks="bim:steps=2"), model_dir, tmp_path / "report")
    assert third["attacks"][:2] == second["attacks"]


def test_a_report_that_was_removed_is_made_again(started, tmp_path, contents):
    report = shutil.copytree(started[1], tmp_path / "copy")
    before = contents(report / "records")
    (report / "report.html").unlink()
    assert without_seconds(go_on(report)) == without_seconds(started[0])
    assert (report / "report.html").exists() and contents(report / "records") == before


@pytest.mark.parametrize("row", ["worst_case", "attacks"])
def test_a_worst_case_of_older_code_is_made_again_from_the_records(started, tmp_path, contents, row):
    """Older rows lack a key. Their attacks are not run again."""
    report = shutil.copytree(started[1], tmp_path / "copy")
    before, results = contents(report / "records"), json.loads((report / "results.json").read_text())
    for each in results[row]:
        del each["algorithm" if row == "worst_case" else "parts"]
        each["expected_accuracy"]["value"] = 0.99
    (report / "results.json").write_text(json.dumps(results))
    assert without_seconds(go_on(report)) == without_seconds(started[0])
    assert contents(report / "records") == before


def test_radii_of_two_norms_stand_side_by_side(started, tmp_path):
    """Each has rows and a worst case of its own, also where the radii are the same number."""
    report = shutil.copytree(started[1], tmp_path / "both_norms")
    before = started[0]["worst_case"]
    radius = before[0]["epsilon"]
    results = go_on(report, attacks="fgsm:norm=l2", epsilons=f"{radius},l2:3")
    assert [(worst["norm"], worst["epsilon"]) for worst in results["worst_case"]] == [
        *((worst["norm"], worst["epsilon"]) for worst in before),
        ("l2", radius),
        ("l2", 3.0),
    ]
    assert results["worst_case"][: len(before)] == before
    rows = {(row["name"], row["epsilon"]): row for row in results["attacks"]}
    assert rows["fgsm:norm=l2", 3.0]["norm"] == "l2"
    assert f"epsilon {radius:.4g} (l2)" in format_results(results)
    page = (report / "report.html").read_text()
    assert "ε (l2, images in [0, 1])" in page and f"ε = {as_radius(radius).text} (l∞)" in page  # two radii, and one


class Wrapped(keras.Model):
    """A net that does not say how it is made."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def call(self, images):
        return self.net(images)


def test_a_net_that_cannot_be_described_is_known_by_its_weights(tmp_path):
    first = go_on(tmp_path / "report", Wrapped(dense_net()))
    assert go_on(tmp_path / "report", Wrapped(dense_net())) == first
    with pytest.raises(InputError, match="another model"):
        go_on(tmp_path / "report", Wrapped(with_other_weights()))


def test_compiling_makes_no_other_net(tmp_path):
    net = with_layers(dense_net())
    first = go_on(tmp_path / "report", net)
    net.compile("sgd", "mse")
    assert go_on(tmp_path / "report", net) == first


def test_batches_matter_to_noise_anywhere(tmp_path):
    """Whose draws may depend on the place in a batch: records of two sizes must not be mixed."""
    target = SampledTarget(lambda images, seed: dense_net()(images))
    go_on(tmp_path / "report", target)
    with pytest.raises(InputError, match="batch_size"):
        go_on(tmp_path / "report", target, batch_size=5)


# Memory


MEMORY = """
import resource, sys
sys.path.insert(0, {tests!r})
import attack_nets
import numpy as np

classes, images = {classes}, attack_nets.random_images({images})
labels = np.zeros({images}, np.int64)
target = attack_nets.linear_target(attack_nets.normal(6, classes), attack_nets.normal(classes, 3))
peaks = []
for draws in ({few}, {many}):
    for name in {attacks}:
        attack_nets.run(attack_nets.build_attack(name, 0.1, draws), target, images, labels)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(*peaks)
"""


@pytest.mark.slow
def test_the_number_of_draws_does_not_decide_the_memory(root):
    """The bound is one tensor of the logits of all draws. Held at once they would take several: softmax and so on."""
    few, many, images, classes = 250, 20_000, 20, 100
    attacks = ("pgd:steps=1", "square:queries=1", "random_sampling:points=1", "n_pixel:population=4:generations=1")
    script = MEMORY.format(
        tests=str(root / "tests"), few=few, many=many, images=images, classes=classes, attacks=attacks
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    low, high = (1024 * int(peak) for peak in done.stdout.split())  # ru_maxrss is in KiB
    bound = many * images * classes * np.dtype(np.float32).itemsize
    print(f"peak grew by {(high - low) / 1e6:.0f} MB; logits of all draws are {bound / 1e6:.0f} MB")
    assert high - low < bound
