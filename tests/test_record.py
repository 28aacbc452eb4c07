"""The record of an evaluation: what it gives, what is made from it, and that nothing runs twice."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import arrays, dense_net, digits, read_strictly, without_seconds

import wca_tf
from wca_tf.attacks.radii import Radius, as_radius, parse_radii
from wca_tf.core.errors import InputError
from wca_tf.evaluation import trials
from wca_tf.evaluation.derive import DERIVED
from wca_tf.evaluation.measures.noise_off import NoiseOff, twin_of
from wca_tf.evaluation.outcomes import as_stored
from wca_tf.evaluation.record import Evaluation
from wca_tf.nets.judge import Judgement
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.nets.targets import GaussianLogitsTarget, has_noise

IMAGES = 30
NOISE = 2.0 * np.eye(4, dtype=np.float32)


def noisy_net():
    return GaussianLogitsTarget(tf.identity, dense_net(4), NOISE)


def run(directory=None, net=None, attacks="fgsm,pgd:steps=3", epsilons="0.1,l2:0.8", **options):
    test = digits(4)[1].take(slice(0, IMAGES))
    asked = {"attacks": attacks, "epsilons": epsilons, "eot_samples": 3, "name": "net", **options}
    return wca_tf.evaluate(net or noisy_net(), test.images, test.labels, report_dir=directory, **asked)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    directory = tmp_path_factory.mktemp("record") / "report"
    return run(directory), directory


@pytest.fixture
def copy(report, tmp_path):
    return shutil.copytree(report[1], tmp_path / "copy")


@pytest.fixture
def attacked(monkeypatch):
    """The attacks that run, as (name, radius)."""
    ran, attack_batch = [], trials._attack_batch

    def attack(nets, trial, described, *rest):
        ran.append((described[0], trial.radius and trial.radius.text))
        return attack_batch(nets, trial, described, *rest)

    monkeypatch.setattr(trials, "_attack_batch", attack)
    return ran


# What it gives


def test_an_attack_is_found_by_its_name_and_radius_however_that_is_written(report):
    evaluation = report[0]
    found = evaluation.attack("fgsm", "0.1")
    for radius in (0.1, "linf:0.1", Radius(0.1, "linf"), Radius(0.1)):
        assert evaluation.attack("fgsm", radius) is found
    assert evaluation.attack("fgsm") is found and evaluation.attack("clean") is evaluation.clean
    assert evaluation.attack("fgsm:eot_samples=3:norm=l2", "l2:0.8").radius == Radius(0.8, "l2")
    assert [radius.text for radius in evaluation.radii] == ["0.1", "l2:0.8"]
    for name, radius in (("fgsm", "0.2"), ("bim", None), ("fgsm", "l2:0.1")):
        with pytest.raises(InputError, match="expected one attack of this evaluation, fgsm at 0.1"):
            evaluation.attack(name, radius)


@pytest.mark.parametrize("text", ["0.1", "8/255", "l2:0.5", "l2:1e-05", "1", "0"])
def test_the_text_of_a_radius_is_the_radius(text):
    [parsed] = parse_radii(text)
    assert parse_radii(parsed.text) == [parsed] == [as_radius(text)]


def test_the_worst_case_is_over_the_attacks_named_and_the_clean_image(report):
    evaluation = report[0]
    both = [evaluation.clean, evaluation.attack("fgsm", 0.1), evaluation.attack("pgd:steps=3", 0.1)]
    left = np.stack([outcome.judgement.probability_correct for outcome in both])
    np.testing.assert_array_equal(evaluation.worst_case().probability_correct, left.min(axis=0))
    np.testing.assert_array_equal(evaluation.worst_case(["fgsm"], "0.1").probability_correct, left[:2].min(axis=0))
    for attacks, radius in ((["bim"], "0.1"), (None, "0.3")):
        with pytest.raises(InputError, match="expected attacks at 0.[13] of this evaluation"):
            evaluation.worst_case(attacks, radius)


def test_two_nets_are_compared_in_pairs_of_the_same_image(report):
    plain = run(net=dense_net(4))
    pairs = report[0].worst_case().probability_correct - plain.worst_case().probability_correct
    assert report[0].less(plain)["value"] == pytest.approx(pairs.mean())
    with pytest.raises(InputError, match="the same images"):
        report[0].less(run(net=dense_net(4), num_examples=20))


def test_it_is_read_as_it_was(report):
    read = Evaluation.read(report[1])
    assert read == report[0] == read_strictly(report[1] / "results.json") and repr(read) == repr(report[0])
    np.testing.assert_array_equal(read.worst_case().probability_correct, report[0].worst_case().probability_correct)


def test_probabilities_of_hits_are_rounded_before_they_count():
    hits = np.random.default_rng(0).random((5, 200))
    zeros = np.zeros(5)
    stored = as_stored(Judgement(zeros > 0, zeros, hits.mean(axis=1), zeros, zeros, hits, np.arange(5)))
    np.testing.assert_array_equal(stored.hits, 1 - (1 - hits).astype(np.float16).astype(np.float64))
    np.testing.assert_array_equal(stored.probability_correct, stored.hits.mean(axis=1))
    assert np.abs(stored.probability_correct - hits.mean(axis=1)).max() < 1e-4


@pytest.mark.parametrize("p", [0.9998, 0.9999, 0.997, 0.5])
def test_probabilities_near_one_keep_their_chance_over_a_hundred_queries(p):
    """As float16 themselves, 0.9998 and 0.9999 would be 1."""
    hits, zeros = np.full((3, 200), p), np.zeros(3)
    stored = as_stored(Judgement(zeros > 0, zeros, hits.mean(axis=1), zeros, zeros, hits, np.arange(3)))
    np.testing.assert_allclose(stored.n_query_probability(100), p**100, atol=1e-3)
    np.testing.assert_array_equal(as_stored(stored).hits, stored.hits)


def test_the_images_that_are_kept_are_the_first_that_flip(report):
    evaluation = report[0]
    outcome, before = evaluation.attack("pgd:steps=3", 0.1), evaluation.clean.judgement.probability_correct
    flips = (before > 0.5) & (outcome.judgement.probability_correct <= 0.5)
    assert 0 < outcome.flips.sum() == min(flips.sum(), 8)
    assert outcome.shown[: outcome.flips.sum()].tolist() == np.flatnonzero(flips)[:8].tolist()
    originals = digits(4)[1].images[outcome.shown]
    np.testing.assert_allclose(outcome.originals, originals, atol=1e-3)


# What is made from it


def test_what_is_derived_is_made_again_to_the_same_bytes_and_nothing_runs(report, copy, command, tmp_path):
    for name in DERIVED:
        (copy / name).unlink()
    done = command("evaluate", "--report_only", f"--report_dir={copy}", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "worst case" in done.out and "noise off at 0.1" in done.out
    for name in DERIVED:
        assert (copy / name).read_bytes() == (report[1] / name).read_bytes(), name


@pytest.mark.parametrize("arguments", [(), ("--report_dir=absent",), ("--report_dir=r", "--model_dir=m")])
def test_a_report_without_records_is_one_line(fails_in_one_line, tmp_path, arguments):
    assert "report" in fails_in_one_line(tmp_path, "evaluate", "--report_only", *arguments)


def test_what_is_added_runs_and_nothing_else(report, copy, attacked):
    run(copy)
    assert attacked == []
    run(copy, attacks="bim:steps=2", epsilons="0.1", noise_off=False)
    twice = [("bim:steps=2", "0.1")] * 2  # and on the net without its noise, which the directory has
    assert attacked == twice
    attacked.clear()
    more = run(copy, epsilons="0.2,l2:0.8", attacks="fgsm")
    assert attacked == [("fgsm", "0.2")] * 2
    kept = [row for row in more["attacks"] if (row["name"], row["epsilon"]) in (("fgsm", 0.1), ("pgd:steps=3", 0.1))]
    assert kept == report[0]["attacks"][:2]
    attacked.clear()
    run(copy, known_draws=True)
    assert len(attacked) == 8 and {name for name, _ in attacked} == {"pgd:steps=40"}


@pytest.mark.parametrize("broken", ["of another version", "cut"])
def test_the_record_of_an_attack_or_a_measure_is_made_again_with_a_line(report, copy, attacked, capsys, broken):
    [path], measure = (copy / "records").glob("fgsm-0.1-*"), copy / "measures" / "noise_off.json"
    if broken == "cut":
        path.write_bytes(path.read_bytes()[:200])
        measure.write_text(measure.read_text()[:50])
    else:
        with np.load(path) as stored:
            contents = {name: stored[name] for name in stored.files}
        described = json.loads(str(contents["described"]))
        described["config"]["algorithm"] = 0
        np.savez(path, **{**contents, "described": np.array(json.dumps(described))})
        measure.write_text(json.dumps({**read_strictly(measure), "version": 0}))
    again = run(copy)
    assert attacked == [("fgsm", "0.1")]  # the net without its noise has records of its own
    told = capsys.readouterr().out
    assert told.count(f"made again: {path}") == 1 and "made again" in told and "noise_off" in told
    assert without_seconds(again) == without_seconds(report[0])
    assert {name: values.tolist() for name, values in arrays(copy).items() if name != "found"} == {
        name: values.tolist() for name, values in arrays(report[1]).items() if name != "found"
    }


def test_an_attack_that_was_not_finished_is_left_out_where_nobody_asks_for_it(report, copy):
    described = read_strictly(copy / "evaluation.json")
    described["attacks"].append({"name": "margin", "radius": "0.1", "options": {}})
    (copy / "evaluation.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match="without all images of margin: run it again"):
        Evaluation.read(copy)
    (copy / "results.json").unlink()
    assert [row["name"] for row in run(copy)["attacks"]] == [row["name"] for row in report[0]["attacks"]]


# What the noise adds


def test_the_noise_adds_the_paired_difference_of_two_worst_cases(report):
    evaluation, twin = report[0], run(net=dense_net(4))
    for row in evaluation["noise_off"]["radii"]:
        radius = Radius(row["epsilon"], row["norm"])
        assert row["worst_case"]["value"] == pytest.approx(twin.worst_case(radius=radius).probability_correct.mean())
        expected = evaluation.worst_case(radius=radius).less(twin.worst_case(radius=radius))
        assert row["noise_adds"] == pytest.approx(expected)
    assert "the noise adds" in repr(evaluation)


def test_a_net_without_noise_or_without_a_twin_has_none():
    net = dense_net(4)
    assert "noise_off" not in run(net=net, epsilons="0.1")
    blind = SampledTarget(lambda images, seed: net(images) + tf.random.stateless_normal([4], seed))
    assert "noise_off" not in run(net=blind, attacks="fgsm", epsilons="0.1")
    assert "noise_off" not in run(noise_off=False, attacks="fgsm", epsilons="0.1")


def test_a_net_judged_by_draws_has_the_twin_that_it_names():
    net = dense_net(4)
    target = SampledTarget(
        lambda images, seed: net(images) + tf.random.stateless_normal([4], seed), noise_free_logits=net
    )
    images = tf.constant(digits(4)[1].images[:3])
    target.num_classes = 4
    twin = twin_of(target)
    assert has_noise(target) and not has_noise(twin)
    np.testing.assert_allclose(twin.noise_free_logits(twin.features(images)), net(images), atol=1e-6)
    left = run(net=target, attacks="fgsm", epsilons="0.1")["noise_off"]["radii"][0]["worst_case"]
    assert left["value"] == run(net=net, attacks="fgsm", epsilons="0.1")["worst_case"][0]["expected_accuracy"]["value"]
    assert NoiseOff.name == "noise_off"
