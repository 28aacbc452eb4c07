import dataclasses
import json
import math
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from evaluation_nets import arrays, dense_net, digits, read_strictly
from scipy import stats

from wca_tf.attacks.radii import Radius
from wca_tf.core.errors import InputError
from wca_tf.core.files import exclusive_directory
from wca_tf.core.options import identity
from wca_tf.defences.wca.net import WCANet
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.identity import evaluation_name
from wca_tf.evaluation.measures.registry import format_results
from wca_tf.evaluation.runner import evaluate, evaluate_model
from wca_tf.gaussian.intervals import mean_with_interval
from wca_tf.nets.backbones import build_backbone
from wca_tf.nets.model_files import save_model
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.training import train

CONFIG = EvaluateConfig(
    attacks="fgsm,pgd:steps=3,z_margin:steps=3:relative_step_size=0.5",
    epsilons="0,8/255,0.1",
    eot_samples=4,
    num_examples=45,
    batch_size=100,
)
ATTACKS = ("fgsm", "pgd:steps=3", "z_margin:steps=3:relative_step_size=0.5")
EPSILONS = (0.0, 8 / 255, 0.1)
NUMBERS = {"accuracy", "expected_accuracy", "noise_free_accuracy", "n_query_accuracy"}


@pytest.fixture(scope="module")
def report(trained, tmp_path_factory):
    """(results as returned, report directory) of the noisy net, all images in one batch."""
    directory = tmp_path_factory.mktemp("report")
    return evaluate(CONFIG, trained, directory), directory


@pytest.fixture(scope="module")
def undefended_report(trained_undefended, tmp_path_factory):
    directory = tmp_path_factory.mktemp("undefended_report")
    return evaluate(dataclasses.replace(CONFIG, epsilons="0.1"), trained_undefended, directory), directory


def values(results):
    """Every number of every attack and of the clean images, by name."""
    found = {}
    for entry in [{"name": "clean", "epsilon": 0, **results["clean"]}, *results["attacks"]]:
        for key in NUMBERS - {"n_query_accuracy"}:
            found[entry["name"], entry["epsilon"], key] = entry[key]["value"]
        for n, number in entry["n_query_accuracy"].items():
            found[entry["name"], entry["epsilon"], n] = number["value"]
    return found


# The files


def test_results_have_exactly_the_documented_keys(report):
    results = read_strictly(report[1] / "results.json")
    documented = {"schema", "model_dir", "dataset", "split", "num_examples", "seed", "versions", "seconds", "clean"}
    documented |= {"attacks", "worst_case", "conventions", "noise", "noise_off"}
    assert set(results) == documented | {"config", "model", "images_sha256", "training", "authors_attack", "modules"}
    assert set(results["clean"]) == NUMBERS | {"probability_error"}
    for attack in results["attacks"]:
        keys = {"name", "norm", "epsilon", "config", "no_useful_gradient_share", "probability_error", "distortion"}
        keys |= {"found", "generations", "parts", "passes", "seconds"}
        assert set(attack) == NUMBERS | keys
        assert set(attack["distortion"]) == {"linf", "l2", "l0"}
    for worst in results["worst_case"]:
        assert set(worst) == {"norm", "epsilon", "expected_accuracy", "n_query_accuracy", "algorithm"}
        assert worst["n_query_accuracy"]["1"] == worst["expected_accuracy"]


def test_the_documented_files_are_there_and_no_other(report):
    files = {
        "results.json",
        "examples.npz",
        "report.html",
        "model_card.md",
        "evaluation.json",
        "records",
        "measures",
        ".lock",
    }
    assert {path.name for path in report[1].iterdir()} == files
    assert len(list((report[1] / "records").iterdir())) == 1 + len(EPSILONS) * len(ATTACKS)
    identity = read_strictly(report[1] / "evaluation.json")
    same = ("schema", "model_dir", "model", "images_sha256", "config", "dataset", "training", "versions")
    assert {key: identity[key] for key in same} == {key: report[0][key] for key in same}
    assert [(entry["name"], entry["radius"]) for entry in identity["attacks"]] == [
        (attack["name"], Radius(attack["epsilon"]).text) for attack in report[0]["attacks"]
    ]


def test_results_say_what_was_evaluated(report, trained):
    results = read_strictly(report[1] / "results.json")
    assert results == report[0]
    assert results["schema"] == 3
    assert results["model_dir"] == str(trained.resolve())
    assert (results["dataset"], results["split"], results["num_examples"], results["seed"]) == ("digits", "test", 45, 0)
    assert results["training"]["defence"] == "wca"
    assert results["model"]["training_complete"]
    assert results["model"]["epoch"] == ModelDirectory(trained).best_epoch()["epoch"]
    assert results["config"] == identity(CONFIG)
    assert results["versions"]["tensorflow"]
    assert results["seconds"] > 0
    expected = [(epsilon, attack) for epsilon in EPSILONS for attack in ATTACKS]
    assert [(attack["epsilon"], attack["name"]) for attack in results["attacks"]] == expected
    for attack in results["attacks"]:
        assert attack["config"]["epsilon"] == attack["epsilon"]
        assert attack["config"]["steps"] == (1 if attack["name"] == "fgsm" else 3)
        assert attack["config"]["eot_samples"] == 4
    assert [worst["epsilon"] for worst in results["worst_case"]] == list(EPSILONS)


def test_every_number_is_in_its_interval_and_in_the_unit_range(report, undefended_report):
    def check(node):
        if isinstance(node, dict) and "value" in node:
            assert set(node) == {"value", "low", "high"}
            assert 0 <= node["low"] <= node["value"] <= node["high"] <= 1
            assert node["low"] < node["high"]
            return 1
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        return sum(check(child) for child in children)

    of_attacks = ("clean", "attacks", "worst_case")
    assert check({key: report[0][key] for key in of_attacks}) == 10 * 6 + 3 * 4
    assert check({key: undefended_report[0][key] for key in of_attacks}) == 4 * 6 + 1 * 4


def test_a_report_of_every_kind_of_attack(tmp_path):
    """Without a radius epsilon is null, without gradients of the net their share; targeted attacks have a rate."""
    free = "n_pixel:population=6:generations=2"
    attacks = ["pgd:steps=2:targeted=true", "square:queries=3", "cw:steps=3:searches=1", free, "transfer:steps=2"]
    _, test = digits()
    config = EvaluateConfig(attacks=",".join(attacks), epsilons="0.1,0.2", eot_samples=2, num_examples=12)
    results = evaluate_model(dense_net(), test.images, test.labels, config, tmp_path)
    assert read_strictly(tmp_path / "results.json") == results
    with_radius = [attacks[0], attacks[1], attacks[4]]
    names = [(e, name) for e in (0.1, 0.2) for name in with_radius] + [(None, attacks[2]), (None, free)]
    assert [(attack["epsilon"], attack["name"]) for attack in results["attacks"]] == names
    for attack in results["attacks"]:
        assert ("epsilon" in attack["config"]) == (attack["epsilon"] is not None)
        assert (attack["no_useful_gradient_share"] is None) == (attack["name"] not in (attacks[0], attacks[2]))
        assert ("target_rate" in attack) == (attack["name"] == attacks[0])
        if attack["no_useful_gradient_share"] is not None:
            assert attack["no_useful_gradient_share"] == 0  # a plain net has none
    [pixels] = [attack for attack in results["attacks"] if attack["name"] == free]
    assert pixels["distortion"]["l0"] == {"mean": 1, "median": 1}
    assert pixels["generations"].keys() == {"mean", "median", "min", "max"} and pixels["found"] is None
    assert 0 <= pixels["generations"]["min"] <= pixels["generations"]["max"] <= 2
    assert [worst["epsilon"] for worst in results["worst_case"]] == [0.1, 0.2]
    epsilons = arrays(tmp_path)["epsilon"]
    assert epsilons[:7].tolist() == [0, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2] and np.isnan(epsilons[7:]).all()
    table = format_results(results)
    assert table.index("epsilon 0.2") < table.index("no radius") < table.index(f"  {free}")


def test_examples_have_the_documented_arrays(report):
    examples = arrays(report[1])
    judged = {"correct", "noise_free_correct", "probability_correct", "probability_error", "z_margin"}
    per_attack = judged | {"linf", "l2", "l0"}
    assert set(examples) == {"index", "label", "attack", "norm", "epsilon", "found"} | per_attack
    assert np.isnan(examples["found"]).all()  # no attack here searches for the nearest image
    assert examples["index"].tolist() == list(range(45))
    assert examples["label"].shape == (45,)
    assert examples["attack"].tolist() == ["clean", *ATTACKS, *ATTACKS, *ATTACKS]
    assert examples["epsilon"].tolist() == [0, *np.repeat(EPSILONS, 3)]
    for name in per_attack:
        assert examples[name].shape == (10, 45), name
        assert np.isfinite(examples[name]).all()


def test_results_are_the_means_of_the_examples(report):
    results, examples = report[0], arrays(report[1])
    for i, entry in enumerate([results["clean"], *results["attacks"]]):
        probability = examples["probability_correct"][i]
        means = {
            "accuracy": examples["correct"][i].mean(),
            "expected_accuracy": probability.mean(),
            "noise_free_accuracy": examples["noise_free_correct"][i].mean(),
        }
        for name, mean in means.items():
            assert math.isclose(entry[name]["value"], mean, abs_tol=1e-12)
        for n in (1, 10, 100):
            assert math.isclose(entry["n_query_accuracy"][str(n)]["value"], (probability**n).mean(), abs_tol=1e-12)
        assert entry["probability_error"] == examples["probability_error"][i].max()
        np.testing.assert_array_equal(examples["noise_free_correct"][i], examples["z_margin"][i] > 0)
    for i, attack in enumerate(results["attacks"], start=1):
        for norm, distortion in attack["distortion"].items():
            assert distortion == {"mean": examples[norm][i].mean(), "median": np.median(examples[norm][i])}


def test_no_image_is_farther_than_epsilon(report):
    examples = arrays(report[1])
    rows = zip(*(examples[name] for name in ("epsilon", "linf", "l2", "l0")), strict=True)
    for epsilon, linf, l2, l0 in rows:
        assert ((l0 > 0) == (linf > 0)).all() and (l0 <= 25 * 25).all()
        assert (l2**2 <= l0 * linf**2 + 1e-5).all()
        assert (linf <= epsilon + 1e-6).all()
        assert (l2 <= 25 * linf + 1e-6).all()  # 25×25 pixels
        assert (linf <= l2 + 1e-6).all()
        if epsilon:
            assert linf.max() > 0.9 * epsilon


# The numbers


def test_a_wider_ball_and_a_gradient_make_the_net_worse(report):
    found = values(report[0])
    clean = found["clean", 0, "expected_accuracy"]
    assert clean > 0.4
    for attack in ATTACKS:
        assert found[attack, 0.1, "expected_accuracy"] < found[attack, 8 / 255, "expected_accuracy"] < clean


def test_epsilon_zero_gives_the_clean_numbers_for_every_attack(report):
    clean = report[0]["clean"]
    for attack in report[0]["attacks"][:3]:
        assert attack["epsilon"] == 0
        assert {key: attack[key] for key in clean} == clean
    examples = arrays(report[1])
    for name in ("correct", "noise_free_correct", "probability_correct", "z_margin"):
        assert (examples[name][1:4] == examples[name][0]).all()
    for norm in ("linf", "l2", "l0"):
        assert (examples[norm][:4] == 0).all()


def test_more_queries_leave_less_and_one_query_is_the_expected_accuracy(report):
    for entry in [report[0]["clean"], *report[0]["attacks"]]:
        queries = {int(n): number["value"] for n, number in entry["n_query_accuracy"].items()}
        assert list(queries) == [1, 10, 100]
        assert math.isclose(queries[1], entry["expected_accuracy"]["value"], abs_tol=1e-12)
        assert queries[1] > queries[10] > queries[100]


def test_worst_case_is_at_most_every_attack_and_the_clean_images(report):
    results, examples = report[0], arrays(report[1])
    for worst in results["worst_case"]:
        chosen = (examples["epsilon"] == worst["epsilon"]) | (examples["attack"] == "clean")
        value = worst["expected_accuracy"]["value"]
        assert math.isclose(value, examples["probability_correct"][chosen].min(axis=0).mean(), abs_tol=1e-12)
        assert value <= results["clean"]["expected_accuracy"]["value"] + 1e-12
        for attack in results["attacks"]:
            if attack["epsilon"] == worst["epsilon"]:
                assert value <= attack["expected_accuracy"]["value"] + 1e-12


def test_one_draw_and_its_probability_agree(report):
    """Each draw is correct with its image's P(correct): the sum over images is within five standard deviations."""
    examples = arrays(report[1])
    for correct, probability in zip(examples["correct"], examples["probability_correct"], strict=True):
        deviation = math.sqrt((probability * (1 - probability)).sum())
        assert abs(correct.sum() - probability.sum()) < 5 * deviation + 1e-6


def test_numbers_do_not_depend_on_the_batch_size(report, trained, tmp_path):
    """Tolerance: 1e-3 on means of P(correct). A batch of another size may round convolutions differently."""
    results = evaluate(dataclasses.replace(CONFIG, batch_size=7), trained, tmp_path)
    one, other = arrays(report[1]), arrays(tmp_path)
    difference = np.abs(one["probability_correct"] - other["probability_correct"])
    print(f"largest difference of P(correct) between batch sizes 7 and 100: {difference.max():.2e}")
    assert np.mean(difference > 1e-3) <= 0.02
    for name in ("index", "label", "attack", "norm", "epsilon"):
        np.testing.assert_array_equal(one[name], other[name])
    expected, received = values(report[0]), values(results)
    for key, value in expected.items():
        tolerance = 1e-3 if key[2] not in ("accuracy", "noise_free_accuracy") else 1 / 45 + 1e-9
        assert abs(received[key] - value) <= tolerance, key
    np.testing.assert_allclose(one["probability_correct"][0], other["probability_correct"][0], atol=1e-4)  # clean


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(report, trained, tmp_path):
    small = dataclasses.replace(CONFIG, attacks="pgd:steps=3", epsilons="0.1")
    results = [
        evaluate(dataclasses.replace(small, seed=seed), trained, tmp_path / str(i)) for i, seed in enumerate((0, 0, 1))
    ]
    first, again, other = (arrays(tmp_path / str(i)) for i in range(3))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name], err_msg=name)
    assert values(results[0]) == values(results[1])
    assert not np.array_equal(first["probability_correct"][1], other["probability_correct"][1])  # random starts
    assert not np.array_equal(first["correct"][0], other["correct"][0])  # draws on clean images
    np.testing.assert_array_equal(first["probability_correct"][0], other["probability_correct"][0])  # exact numbers
    # An attack's numbers do not depend on the other attacks of the evaluation.
    whole = arrays(report[1])
    [row] = np.flatnonzero((whole["attack"] == "pgd:steps=3") & (whole["epsilon"] == 0.1))
    np.testing.assert_array_equal(first["probability_correct"][1], whole["probability_correct"][row])


def test_fewer_images_are_the_first_ones_with_the_same_numbers(report, trained, tmp_path):
    small = dataclasses.replace(CONFIG, attacks="fgsm", epsilons="0.1", num_examples=10, batch_size=3)
    evaluate(small, trained, tmp_path)
    whole, first = arrays(report[1]), arrays(tmp_path)
    [row] = np.flatnonzero((whole["attack"] == "fgsm") & (whole["epsilon"] == 0.1))
    np.testing.assert_array_equal(first["label"], whole["label"][:10])
    np.testing.assert_array_equal(first["correct"][0], whole["correct"][0, :10])
    np.testing.assert_allclose(first["probability_correct"][1], whole["probability_correct"][row, :10], atol=5e-3)


def test_without_noise_every_number_is_the_noise_free_accuracy(undefended_report):
    results, directory = undefended_report
    examples = arrays(directory)
    assert set(np.unique(examples["probability_correct"])) == {0.0, 1.0}
    np.testing.assert_array_equal(examples["probability_correct"], examples["correct"])
    np.testing.assert_array_equal(examples["probability_correct"], examples["z_margin"] > 0)
    assert (examples["probability_error"] == 0).all()
    for entry in [results["clean"], *results["attacks"]]:
        assert entry["accuracy"] == entry["expected_accuracy"] == entry["noise_free_accuracy"]
        assert all(number == entry["accuracy"] for number in entry["n_query_accuracy"].values())


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (1, 3), (50, 100), (471, 1000), (9999, 10000)])
def test_the_interval_of_zeros_and_ones_is_wilsons(k, n):
    number = mean_with_interval(np.arange(n) < k)
    interval = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert number["value"] == k / n
    np.testing.assert_allclose([number["low"], number["high"]], [interval.low, interval.high], atol=1e-12)
    assert 0 <= number["low"] <= number["value"] <= number["high"] <= 1


def test_the_interval_of_probabilities_covers_their_mean():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        number = mean_with_interval(rng.beta(0.3, 0.2, 60))
        covered += number["low"] <= 0.6 <= number["high"]
    assert covered >= 0.95 * 400


# The table


def test_the_table_has_every_attack_with_its_percentages(report):
    results = report[0]
    table = format_results(results)
    lines = table.splitlines()
    assert "digits test, 45 images" in lines[0]
    blocks = table.split("epsilon ")
    assert len(blocks) == 1 + len(EPSILONS)
    for epsilon, block in zip(EPSILONS, blocks[1:], strict=True):
        assert block.startswith(f"{epsilon:.4g}")
        for attack in results["attacks"]:
            if attack["epsilon"] == epsilon:
                [line] = [line for line in block.splitlines() if line.split()[:1] == [attack["name"]]]
                accuracy = attack["accuracy"]
                assert f"{100 * accuracy['value']:.1f} [{100 * accuracy['low']:.1f}" in line
                assert f" {100 * attack['expected_accuracy']['value']:.1f} " in line
                assert f" {100 * attack['noise_free_accuracy']['value']:.1f} " in line
                protocol = "adaptive" if attack["name"] == ATTACKS[2] else "variant"  # of another number of draws
                assert protocol in line
        assert "worst case" in block
    [clean] = [line for line in lines if line.startswith("clean")]
    assert f" {100 * results['clean']['expected_accuracy']['value']:.1f} " in clean


# Where it goes, and refusals


def test_equal_models_images_and_seeds_alone_have_equal_names():
    def name(**change):
        return evaluation_name({"config": identity(dataclasses.replace(CONFIG, **change)), "model": "one"})

    different = ({}, {"seed": 1}, {"split": "validation"}, {"num_examples": 10}, {"eot_samples": 5})
    assert len({name(**change) for change in different}) == len(different)
    assert name() != evaluation_name({"config": identity(CONFIG), "model": "another"})
    same = ({"attacks": "fgsm"}, {"epsilons": "0.1"}, {"batch_size": 3}, {"tfds_data_dir": "a"}, {"checklist": True})
    assert {name(**change) for change in same} == {name()}


@pytest.fixture
def broken(trained, tmp_path):
    """A copy of the trained directory, to be broken."""
    return shutil.copytree(trained, tmp_path / "broken")


@pytest.mark.parametrize("difference", [{"seed": 1}, {"num_examples": 10}, {"split": "validation"}, {"eot_samples": 5}])
def test_the_report_of_another_evaluation_is_not_overwritten(report, trained, contents, difference):
    before = contents(report[1])
    with pytest.raises(InputError, match="another --report_dir"):
        evaluate(dataclasses.replace(CONFIG, **difference), trained, report[1])
    assert contents(report[1]) == before


def test_the_report_of_another_model_is_not_overwritten(report, trained_undefended, contents):
    before = contents(report[1])
    with pytest.raises(InputError, match="another --report_dir"):
        evaluate(CONFIG, trained_undefended, report[1])
    assert contents(report[1]) == before


@pytest.mark.parametrize("text", ["", '{"schema": 1', "[]", "{}", '"text"'])
def test_a_report_directory_with_a_results_file_that_is_not_ours_is_refused(trained, tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match=r"results\.json"):
        evaluate(CONFIG, trained, tmp_path)
    assert (tmp_path / "results.json").read_text() == text


def test_a_report_directory_in_use_is_refused(trained, tmp_path):
    with exclusive_directory(tmp_path):
        with pytest.raises(InputError, match="in use"):
            evaluate(CONFIG, trained, tmp_path)
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize("size", [0, 1000, 1_000_000])
def test_a_truncated_model_is_an_input_error_that_names_the_file(broken, tmp_path, size):
    os.truncate(broken / "model.keras", size)
    with pytest.raises(InputError, match=r"model\.keras") as raised:
        evaluate(CONFIG, broken, tmp_path / "report")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report").exists()


def test_a_directory_without_a_model_is_an_input_error(broken, tmp_path):
    (broken / "model.keras").unlink()
    with pytest.raises(InputError, match=r"model\.keras"):
        evaluate(CONFIG, broken)
    with pytest.raises(InputError, match="absent"):
        evaluate(CONFIG, tmp_path / "absent")
    assert not (tmp_path / "absent").exists()
    assert not (broken / "evaluations").exists()


def change_configuration(directory, **changes):
    contents = json.loads((directory / "config.json").read_text())
    contents["config"].update(changes)
    (directory / "config.json").write_text(json.dumps(contents))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "folder:absent"}, "absent"),
        ({"dataset": "cifar10"}, "cifar10.*--tfds_data_dir"),
        ({"image_size": 28}, "image_shape"),
        ({"not_a_flag": 1}, "not_a_flag"),
        ({"epochs": 0}, "--epochs"),
    ],
)
def test_absent_data_and_a_wrong_configuration_are_input_errors(broken, tmp_path, changes, message):
    change_configuration(broken, **{"tfds_data_dir": str(tmp_path), **changes})
    with pytest.raises(InputError, match=message) as raised:
        evaluate(CONFIG, broken)
    assert "\n" not in str(raised.value)
    assert not (broken / "evaluations").exists()


def folder_of_classes(root, names):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in names:
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(8):
                image = rng.integers(0, 256, (25, 25, 1), np.uint8)
                (root / split / name / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())


def test_data_with_other_classes_than_the_models_are_refused(tmp_path):
    folder_of_classes(tmp_path / "data", "abc")
    config = TrainConfig(dataset=f"folder:{tmp_path / 'data'}", defence="none", batch_size=4, epochs=1)
    train(config, tmp_path / "model")
    shutil.rmtree(tmp_path / "data" / "train" / "a")
    shutil.rmtree(tmp_path / "data" / "test" / "a")
    with pytest.raises(InputError, match="class_names"):
        evaluate(EvaluateConfig(attacks="fgsm"), tmp_path / "model")
    assert not (tmp_path / "model" / "evaluations").exists()


def test_validation_images_of_data_that_changed_are_refused(tmp_path):
    folder_of_classes(tmp_path / "data", "abc")
    config = TrainConfig(dataset=f"folder:{tmp_path / 'data'}", defence="none", batch_size=4, epochs=1)
    train(dataclasses.replace(config, validation_split=0.25), tmp_path / "model")
    asked = EvaluateConfig(attacks="fgsm", split="validation", num_examples=4)
    assert evaluate(asked, tmp_path / "model")["split"] == "validation"
    shutil.copytree(tmp_path / "data" / "test" / "b", tmp_path / "data" / "train" / "b", dirs_exist_ok=True)
    with pytest.raises(InputError, match="train_sha256"):
        evaluate(asked, tmp_path / "model")


def test_an_evaluation_that_exists_is_not_made_again(report, trained, capsys):
    assert evaluate(CONFIG, trained, report[1]) == report[0]
    assert "nothing to do" in capsys.readouterr().out


def test_an_attack_that_cannot_be_built_is_refused_before_anything_is_written(trained, tmp_path):
    config = dataclasses.replace(CONFIG, attacks="fgsm,transfer:source=/nowhere", epsilons="0.1")
    with pytest.raises(InputError, match="/nowhere/model.keras: there is none") as raised:
        evaluate(config, trained, tmp_path / "report")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report").exists()


def test_a_transfer_from_a_net_of_other_classes_is_refused_at_once(trained, tmp_path):
    source = WCANet(build_backbone("lenet_plus_plus", (25, 25, 1)), num_classes=3, feature_dim=4)
    source.build((None, 25, 25, 1))
    (tmp_path / "source").mkdir()
    save_model(source, tmp_path / "source" / "model.keras")
    config = dataclasses.replace(CONFIG, attacks=f"fgsm,transfer:source={tmp_path / 'source'}", epsilons="0.1")
    with pytest.raises(InputError, match="expected a source of 10 classes, received 3"):
        evaluate(config, trained, tmp_path / "report")
    assert not (tmp_path / "report").exists()
