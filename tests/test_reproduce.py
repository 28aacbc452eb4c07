import copy
import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from absl import flags as absl_flags
from PIL import Image

from wca_tf.attacks import ATTACKS
from wca_tf.core.errors import DivergedError, InputError, NonFiniteError
from wca_tf.core.machine import fast_precision
from wca_tf.data.batches import to_float
from wca_tf.defences import parse_defence
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.experiments import EXPERIMENTS, charts, headline, training_length
from wca_tf.experiments import kept_rows as kept_rows_module
from wca_tf.experiments.alignment_rows import PAPERS, WELL_POSED, best_corrected, most_left
from wca_tf.experiments.baselines import BASELINES, NOISE_IMAGES, load_net, noise_over_margin
from wca_tf.experiments.budgets import BUDGETS
from wca_tf.experiments.charts import bar_chart, curves, panels, plain_numbers, save
from wca_tf.experiments.config import ReproduceConfig, absent_data, each_experiment
from wca_tf.experiments.contours import angles_to_axes
from wca_tf.experiments.defence_columns import ADDS, OVERSTATES, STRONG, TWIN_OVERSTATES
from wca_tf.experiments.defences import _add_row
from wca_tf.experiments.grid_search import GRID
from wca_tf.experiments.index_page import index_page
from wca_tf.experiments.kept_rows import kept_rows
from wca_tf.experiments.net_times import NetTimes
from wca_tf.experiments.noise_numbers import COMMON, RATIO, number_text
from wca_tf.experiments.paper import ABLATION_NUMBERS, CONTROLS, EPSILON, IMAGENET, NETS, RADII, ablation_rows
from wca_tf.experiments.reproduce import check_own, reproduce, reproduce_all
from wca_tf.experiments.run import Run
from wca_tf.experiments.settings import differences, train_changes
from wca_tf.experiments.strong_attacks import WORST, strong_rows
from wca_tf.experiments.tables import Cell, Table, add_all_seeds, load_table, write_table
from wca_tf.experiments.variants import OWN_RECIPES, PAPER, VARIANTS
from wca_tf.gaussian.margins import nearest_difference
from wca_tf.nets.targets import is_gaussian
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.training import train

# Seconds each; the others train more nets, and run with --slow.
QUICK = ("ablation",)
# They keep their rows.
KEEPING = (
    "headline",
    "adversarial",
    "training_length",
    "alignment",
    "certificates",
    "defences",
    "attack_suite",
    "adaptive",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduce")


def ask(directory, name, **changes):
    return ReproduceConfig(name, str(directory / name), str(directory / "models"), "tiny", **changes)


def check_written(directory, table):
    """table.md and table.json say the same as the table, and a figure in both formats can be opened."""
    stored = json.loads((directory / "table.json").read_text())
    assert stored["columns"] == table.columns
    assert list(stored["rows"]) == list(table.rows)
    assert (directory / "table.md").read_text() == table.markdown()
    figures = list(directory.glob("*.png"))
    assert figures
    for figure in figures:
        assert min(Image.open(figure).size) > 200
        assert "<svg" in figure.with_suffix(".svg").read_text()
    assert not list(directory.glob(".wca_tf-*"))
    for cells in stored["rows"].values():
        for cell in cells.values():
            number = cell.get("measured")
            assert number is None or 0 <= number["value"] <= 1
    return stored


def test_the_noise_over_the_margin_is_that_of_the_exact_covariance(trained, directory):
    run = Run(ask(directory, "defences"))
    net = load_net(run, trained)._replace(images=NOISE_IMAGES)
    config = dataclasses.replace(EvaluateConfig(), num_examples=NOISE_IMAGES)
    examples = load_evaluation_examples(config, ModelDirectory(trained))
    target = net.model.target()
    logits = target.noise_free_logits(target.features(to_float(tf.constant(examples.images))))
    deviations, margins = nearest_difference(logits, tf.constant(examples.labels), target.logit_scale)
    expected = float(tf.reduce_mean(deviations) / tf.reduce_mean(margins))
    # A deviation from 50 draws has an error of a tenth; images share the law of the noise, and not the draws.
    assert noise_over_margin(run, net) == pytest.approx(expected, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wca", "rse"])
def test_what_the_noise_adds_and_a_protocol_overstates_follow_from_the_images(name, tmp_path, tiny_config):
    """Again from examples.npz, by NumPy alone: the differences have the sign that their columns say."""
    path, baseline = tmp_path / "net", BASELINES[name]
    train(dataclasses.replace(tiny_config, defence=name), path)
    run, table = Run(ask(tmp_path, "defences")), Table("", [])
    net = load_net(run, path)
    _add_row(table, run, net, "row", baseline, at_larger=False)

    def least(directory, attacks):
        with np.load(directory / "examples.npz") as stored:
            found = dict(zip(stored["attack"].tolist(), stored["probability_correct"], strict=True))
        return np.min([found[attack] for attack in ("clean", *attacks)], axis=0), found

    noisy, silent = sorted((path / "evaluations").glob("*/examples.npz"), key=lambda file: "noise_off" in str(file))[:2]
    attacks = ["pgd", net.adaptive, baseline.protocol]
    with_noise, found = least(noisy.parent, attacks)
    without, of_twin = least(silent.parent, attacks)
    worst, _ = least(noisy.parent, [*STRONG, net.adaptive, net.square, baseline.protocol])
    shown = {column: float(table.rows["row"][column].text.split()[0]) for column in (ADDS, OVERSTATES, TWIN_OVERSTATES)}
    rounding = 0.051  # points; with noise in layers, half of the draws judge: then rows of one attack are no minimum
    if is_gaussian(net.model.target()):
        assert shown[ADDS] == pytest.approx(100 * np.mean(with_noise - without), abs=rounding)
        assert shown[OVERSTATES] == pytest.approx(100 * np.mean(found[baseline.protocol] - worst), abs=rounding)
    else:
        assert shown[ADDS] == pytest.approx(100 * np.mean(with_noise - without), abs=2)
    assert shown[TWIN_OVERSTATES] == pytest.approx(100 * np.mean(of_twin[baseline.protocol] - without), abs=rounding)


# Runs


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in EXPERIMENTS if n not in QUICK)]
)
def test_every_experiment_runs_on_digits_and_leaves_its_table_and_figures(name, directory):
    table = reproduce(ask(directory, name))
    stored = check_written(directory / name, table)
    assert stored["experiment"] == name
    assert stored["paper"] == EXPERIMENTS[name].paper
    if name == "certificates":  # the paper has no such nets
        assert any("2 epochs of 256 images" in note for note in table.notes)
    elif name != "bound":  # What is not the paper's is said: the SVMs are trained in full.
        assert any("not 600" in note and "max_train_examples" in note for note in table.notes)


def test_a_net_from_a_machine_of_another_precision_is_taken(tmp_path, capsys):
    run = Run(ask(tmp_path, "ablation"))
    path = run.model_dir("digits", "none")
    train(dataclasses.replace(run.net("digits", "none"), precision="mixed_bfloat16"), path)
    capsys.readouterr()
    assert run.trained("digits", "none") == path and "nothing to do" in capsys.readouterr().out


def test_a_second_run_trains_and_attacks_nothing_and_gives_the_same_table(directory, capsys, contents):
    first = reproduce(ask(directory, "ablation")).as_json()
    before = {path: digest for path, digest in contents(directory / "models").items() if "lock" not in path}
    capsys.readouterr()
    again = reproduce(ask(directory, "ablation")).as_json()
    assert again == first
    assert capsys.readouterr().out.count("kept in") == 3
    assert not (directory / "ablation" / "unfinished.md").exists()
    shutil.rmtree(directory / "ablation" / "rows")
    assert reproduce(ask(directory, "ablation")).as_json() == first
    assert capsys.readouterr().out.count("nothing to do") == 6  # three nets, three evaluations
    assert {p: d for p, d in contents(directory / "models").items() if "lock" not in p} == before


def test_the_table_has_the_evaluations_numbers(directory):
    table = reproduce(ask(directory, "ablation"))
    results = json.loads(
        (directory / "models" / "digits-tiny-none" / "evaluations" / "test-20" / "results.json").read_text()
    )
    [pgd] = [attack for attack in results["attacks"] if attack["name"] == "pgd"]
    assert table.rows["No Defense"]["digits pgd 8/255"].measured == pgd["accuracy"]
    assert table.rows["No Defense"]["digits clean"].measured == results["clean"]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["controls", "strong_attacks", "headline"])
def test_every_rows_numbers_are_of_its_own_evaluation(name, directory):
    table = reproduce(ask(directory, name))
    run = Run(ask(directory, name))
    for row in {"controls": CONTROLS, "strong_attacks": strong_rows(), "headline": headline.ROWS}[name]:
        asked = "-".join(["test-20", *(f"{key}={value}" for key, value in row.asked.items())])
        path = run.model_dir("digits", row.variant) / "evaluations" / asked / "results.json"
        entries = json.loads(path.read_text())["attacks"]
        attacks = {entry["name"]: entry for entry in entries if entry["epsilon"] == RADII[EPSILON]}
        for attack in ("fgsm", "pgd"):
            assert table.rows[row.label][attack].measured == attacks[attack]["accuracy"]
        if name != "controls":
            left = table.rows[row.label][WORST].measured["value"]
            suite = ("fgsm", "pgd", *BUDGETS["tiny"].suite)
            assert left <= min(attacks[a]["expected_accuracy"]["value"] for a in suite) + 1e-9


def test_a_report_directory_of_another_experiment_is_refused(directory):
    reproduce(ask(directory, "ablation"))
    before = (directory / "ablation" / "table.json").read_text()
    other = dataclasses.replace(ask(directory, "controls"), report_dir=str(directory / "ablation"))
    with pytest.raises(InputError, match="is of ablation at scale tiny: name another --report_dir"):
        reproduce(other)
    assert (directory / "ablation" / "table.json").read_text() == before


def test_a_grid_in_which_every_run_diverges_is_a_table_all_the_same(directory, monkeypatch):
    def diverge(*_):
        raise DivergedError("training diverged: the loss became NaN")

    monkeypatch.setattr("wca_tf.experiments.run.train", diverge)
    table = reproduce(dataclasses.replace(ask(directory, "grid_search"), report_dir=str(directory / "diverged")))
    assert {cell.text for row in table.rows.values() for cell in row.values()} == {"diverged"}
    assert len(table.rows) == len(GRID["tiny"])


def test_the_worst_case_is_the_least_of_the_attacks_named_for_each_image(directory):
    run = Run(ask(directory, "ablation"))
    evaluated = run.evaluated("digits", "anisotropic", ["fgsm", "pgd"])
    with np.load(evaluated.report_dir / "examples.npz") as arrays:
        probability = dict(zip(arrays["attack"].tolist(), arrays["probability_correct"], strict=True))
    both = evaluated.worst_case(["fgsm", "pgd"], 8 / 255)["value"]
    assert np.isclose(both, np.minimum.reduce([probability[n] for n in ("clean", "fgsm", "pgd")]).mean())
    assert np.isclose(
        evaluated.worst_case(["fgsm"], 8 / 255)["value"], np.minimum(probability["clean"], probability["fgsm"]).mean()
    )
    assert np.isclose(evaluated.worst_case(["pgd"], 0.5)["value"], probability["clean"].mean())


def test_a_run_of_noise_alone_trains_the_undefended_net_first(directory):
    run = Run(ask(directory, "ablation"))
    assert run.net("digits", "noise_alone").initial_weights == str(run.model_dir("digits", "none"))


@pytest.mark.parametrize(
    ("experiment", "scale", "dataset"),
    [
        ("ablation", "small", "imagenette"),
        ("ablation", "small", "folder:"),
        ("bound", "small", "cifar10"),
        ("certificates", "small", "svhn_cropped"),
        ("ablation", "tiny", "cifar10"),
        ("all", "small", "cifar10"),
    ],
)
def test_a_data_set_that_the_experiment_cannot_take_is_refused(experiment, scale, dataset):
    with pytest.raises(InputError, match=f"expected .*--dataset.*received {dataset!r}"):
        ReproduceConfig(experiment, "somewhere", scale=scale, dataset=dataset)


def test_a_data_set_of_choice_stands_in_place_of_the_experiments_own():
    own = ReproduceConfig("ablation", "somewhere")
    assert own.datasets == ("fashion_mnist",)
    chosen = dataclasses.replace(own, dataset="cifar10")
    assert Run(chosen).datasets == ("cifar10",)
    assert ReproduceConfig("certificates", "somewhere").datasets == ("mnist", "fashion_mnist", "cifar10")


def test_a_report_directory_of_another_data_set_is_refused(tmp_path):
    config = ReproduceConfig("ablation", str(tmp_path), tfds_data_dir=str(tmp_path))
    write_table(Table("title", []), tmp_path, {"experiment": "ablation", "scale": "small", "datasets": ["cifar10"]})
    with pytest.raises(InputError, match=r"is of the data \['cifar10'\]: name another --report_dir"):
        check_own(config, tmp_path / "table.json")
    check_own(dataclasses.replace(config, dataset="cifar10"), tmp_path / "table.json")


def test_what_an_attack_leaves_is_drawn_as_a_bound_up_to_the_next_radius():
    _, axes = panels(1)
    points = [(0.0, 0.9), (0.3, 0.8), (1.0, 0.2)]
    curves(axes[0], {"certified": points, "attacked": points}, "title", "radius", logarithmic=False, steps=["attacked"])
    assert [line.get_drawstyle() for line in axes[0].lines] == ["default", "steps-post"]


def test_a_table_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "table.md").write_text("prices of tables")
    with pytest.raises(InputError, match=r"table.md is of something else.*name another --report_dir"):
        check_own(ReproduceConfig("ablation", str(tmp_path)), tmp_path / "table.json")


def test_two_runs_do_not_write_into_one_report_directory(directory):
    from wca_tf.core.files import exclusive_directory

    with exclusive_directory(directory / "bound"), pytest.raises(InputError, match="in use"):
        reproduce(ask(directory, "bound"))


# What is asked


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiment": ""}, "--experiment among ablation"),
        ({"experiment": "table_5"}, "--experiment among ablation.*'table_5'"),
        ({"report_dir": ""}, "--report_dir"),
        ({"scale": "big"}, "--scale among tiny, small, paper"),
    ],
)
def test_what_is_not_there_is_refused_in_words(changes, message):
    with pytest.raises(InputError, match=message):
        ReproduceConfig(**{"experiment": "ablation", "report_dir": "x", **changes})


def test_scale_needs_mini_imagenets_folder(tmp_path):
    for name in ("cifar10", "imagenette"):
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="--mini_imagenet=DIR"):
        reproduce(ReproduceConfig("scale", str(tmp_path / "scale"), scale="small", tfds_data_dir=str(tmp_path)))


@pytest.mark.slow
def test_table_7_is_made_from_a_folder_of_images(tmp_path):
    numbers = np.random.default_rng(0)
    for split, count in (("train", 80), ("test", 5)):
        for level, name in enumerate(("bird", "cat")):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = numbers.integers(100 * level, 100 * level + 100, (90, 70, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{number}.jpg")
    where = (str(tmp_path / "scale"), str(tmp_path / "models"), "small")
    asked = {"dataset": "mini_imagenet", "mini_imagenet": str(tmp_path / "images")}
    table = reproduce(ReproduceConfig("scale", *where, **asked))
    for label, variant in NETS:
        cells = table.rows[f"mini_imagenet, {label}"]
        assert (
            "2 epochs" in cells["trained"].text and cells["clean"].paper == IMAGENET["mini_imagenet", variant][0] / 100
        )
        assert all(0 <= cells[column].measured["value"] <= 1 for column in ("clean", "fgsm 8/255", "pgd 8/255"))


def test_absent_data_are_one_line_and_leave_no_table(command_without_tensorflow, tmp_path):
    done = command_without_tensorflow(
        "reproduce", "--experiment=ablation", f"--report_dir={tmp_path}/a", f"--tfds_data_dir={tmp_path}"
    )
    assert done.code == 2
    assert "fashion_mnist" in done.err.strip().splitlines()[-1]
    assert "Traceback" not in done.err
    assert not (tmp_path / "a").exists()


def test_the_list_describes_every_experiment_and_its_command_at_once(command_without_tensorflow):
    done = command_without_tensorflow("reproduce", "--list")
    assert done.code == 0
    for name, experiment in EXPERIMENTS.items():
        assert f"bin/reproduce --experiment={name} " in done.out
        assert experiment.paper in done.out


# Settings


def test_settings_at_scale_paper_are_those_of_configs(root):
    files = {"cifar10_wide": "cifar10_wide_resnet34_10", "digits": None}
    for dataset in PAPER:
        stem = files.get(dataset, dataset)
        for variant in ("none", "anisotropic") if stem else ():
            asked = dataclasses.asdict(TrainConfig(**train_changes(dataset, variant, "paper")))
            written = flagfile(root / "configs" / f"{stem}_{variant}.flags")
            different = {k for k in asked if asked[k] != written[k]} - ({"dataset"} if "mini" in dataset else set())
            assert not different, (dataset, variant, different)


def flagfile(path):
    """The TrainConfig that a flagfile says."""
    values = absl_flags.FlagValues()
    for field in dataclasses.fields(TrainConfig):
        define = {bool: absl_flags.DEFINE_bool, int: absl_flags.DEFINE_integer, float: absl_flags.DEFINE_float}
        define.get(type(field.default), absl_flags.DEFINE_string)(field.name, field.default, "", flag_values=values)
    values(["train", f"--flagfile={path}"])
    return {field.name: values[field.name].value for field in dataclasses.fields(TrainConfig)}


def test_a_share_near_one_is_told_by_what_is_left():
    assert number_text(COMMON, 0.99994) == "1 − 6.0e-05" and number_text(COMMON, 0.5) == "0.5"
    assert number_text(RATIO, 0.99994) == "1"


def test_the_grid_is_the_papers():
    assert GRID["paper"] == GRID["small"] == (1e-1, 1e-2, 1e-3, 1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scale", BUDGETS)
def test_every_variant_is_a_configuration_at_every_scale(variant, scale):
    config = TrainConfig(**train_changes("fashion_mnist", variant, scale))
    given = VARIANTS[variant]["defence"]  # a net to certify has more options, which depend on the data
    assert config.defence.startswith(given)
    assert variant.startswith("certified") or config.parsed_defence == parse_defence(given)
    differ = differences(config, "fashion_mnist", variant)
    assert (differ == []) == (scale == "paper" and variant not in OWN_RECIPES)
    kept = VARIANTS[variant].get("initial_weights", "").startswith("rival")  # with 0 epochs at every scale
    assert scale == "paper" or kept or any(d.startswith("epochs") and d.endswith("not 600") for d in differ)


def test_the_papers_numbers_are_shares_and_rows_are_its_own():
    for dataset in ABLATION_NUMBERS:
        for row in ablation_rows(dataset):
            assert len(row.paper) == 3
            assert all(0 < value < 1 for value in row.paper)
    assert [row.paper for row in ablation_rows("digits")] == [()] * 3
    labels = [row.label for row in CONTROLS]
    assert len(set(labels)) == len(labels)
    # The controls' first two rows are the ablation's of CIFAR-10.
    first, _, last = ablation_rows("cifar10")
    for row, same in zip(CONTROLS, (first, last), strict=False):
        np.testing.assert_allclose(row.paper, same.paper)


def test_the_table_of_strong_attacks_has_every_net_of_ablation_and_controls_once():
    rows = strong_rows()
    nets = [(row.variant, tuple(row.asked)) for row in rows]
    assert len(set(nets)) == len(nets)
    wanted = {row.variant for row in CONTROLS} | {row.variant for row in ablation_rows("cifar10")}
    assert {variant for variant, _ in nets} == wanted


# Tables


def test_a_table_shows_ours_with_its_interval_and_the_papers_in_brackets():
    table = Table("A | B", [])
    table.add("row|one", "clean", {"value": 0.5, "low": 0.4, "high": 0.62}, 0.933)
    table.add("row|one", "angle", text="22.5 degrees")
    table.add("two", "clean", None, 0.1)
    table.notes = ["a note"]
    lines = table.markdown().splitlines()
    assert lines[4] == "| | clean | angle |"
    assert lines[6] == "| row\\|one | 50.0 ± 11.0 (93.3) | 22.5 degrees |"
    assert lines[7] == "| two | (10.0) | – |"
    assert lines[-1] == "- a note"
    assert table.as_json()["rows"]["two"]["clean"] == {"paper": 0.1}
    assert Cell().shown() == "–"


@pytest.mark.parametrize("angle", [0.0, 10.0, 44.0, 46.0, 80.0])
def test_angles_are_to_the_nearest_axis_of_the_noise(angle):
    turn = math.radians(30)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    covariance = rotation @ np.diag([4.0, 1.0]) @ rotation.T
    radians = turn + math.radians(angle)
    weights = 3 * np.array([[math.cos(radians), -math.cos(radians)], [math.sin(radians), -math.sin(radians)]])
    np.testing.assert_allclose(angles_to_axes(weights, covariance), min(angle, 90 - angle), atol=1e-5)


# Nets and times


def test_a_heading_says_which_net_of_how_many_and_when_all_will_be_done(capsys):
    times = NetTimes(4)
    times.begin("first")
    times.training["first"] = 3600.0
    times.add_kept({"nets": 1, "training_seconds": 1500, "attack_seconds": 300})  # of an earlier run
    for name in ("second", "first", "third"):
        times.begin(name)
    assert capsys.readouterr().out.splitlines() == [
        "== net 1 of 4: first",
        "== net 2 of 3: second; about 1 h 30 min left",
        "== net 1 of 3: first",
        "== net 3 of 3: third; about 45 min left",
    ]


def test_a_net_beyond_the_expected_number_is_counted_alone(capsys):
    times = NetTimes(1)
    times.begin("one")
    times.training["one"] = 100.0
    times.begin("two")
    assert capsys.readouterr().out.splitlines() == ["== net 1 of 1: one", "== net 2: two"]


def test_the_cost_is_of_all_runs_of_the_command(directory):
    reproduce(ask(directory, "ablation"))
    stored = json.loads((directory / "ablation" / "table.json").read_text())["cost"]
    assert stored["nets"] == 3
    lines = [
        json.loads(line)["seconds"]
        for variant in ("none", "isotropic", "anisotropic")
        for line in (directory / "models" / f"digits-tiny-{variant}" / "metrics.jsonl").read_text().splitlines()
    ]
    assert len(lines) == 6
    assert stored["training_seconds"] == pytest.approx(sum(lines), abs=0.5)
    evaluations = (directory / "models").glob("digits-tiny-*/evaluations/test-20/results.json")
    attacks = [attack for path in evaluations for attack in json.loads(path.read_text())["attacks"]]
    asked = [attack["seconds"] for attack in attacks if attack["name"] in ("fgsm", "pgd")]
    assert stored["attack_seconds"] == pytest.approx(sum(asked), abs=0.5)
    run = Run(ask(directory, "ablation"))
    run.evaluated("digits", "none", ["square:queries=2000"])  # another experiment's
    reproduce(ask(directory, "ablation"))  # trains nothing
    assert json.loads((directory / "ablation" / "table.json").read_text())["cost"] == stored


def test_the_best_corrected_form_of_the_alignment_term_is_not_per_class():
    left = {PAPERS: 0.9, "per class (paper), penalty, free": 0.8, "centred, penalty, free": 0.4, WELL_POSED: 0.5}
    assert best_corrected({label: {"left": value} for label, value in left.items()}) == WELL_POSED


def test_a_form_with_a_decay_is_not_the_one_that_kept_most_of_those_without():
    left = {PAPERS: 0.4, "centred, penalty, free": 0.5, "centred, penalty, free, decay": 0.6}
    forms = {label: {"left": value} for label, value in left.items()}
    assert most_left(forms) == best_corrected(forms) == "centred, penalty, free"


@pytest.mark.parametrize("values", [(0.86, 0.875), (1e-5, 3.0)])
def test_the_numbers_of_a_logarithmic_axis_are_plain_text(values, tmp_path):
    figure, [axis] = panels(1)
    axis.plot((1, 2), values)
    axis.set_ylim(*values)
    axis.set_yscale("log")
    plain_numbers(axis.yaxis)
    save(figure, tmp_path, "figure")
    shown = [label.get_text() for label in axis.get_yticklabels()]
    assert len(shown) > 1
    assert all(float(text) > 0 for text in shown)


def test_a_bar_chart_shows_only_the_rows_that_have_a_number(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(charts, "save", lambda figure, *_: drawn.append(figure))
    table = Table("title", [])
    table.add("both", "clean", {"value": 0.5}, 0.9)
    table.add("ours", "clean", {"value": 0.5})
    table.add("all seeds", "clean", text="mean 50.0")
    bar_chart(table, tmp_path, "chart", ("paper", "here"))
    shown = [[label.get_text() for label in axis.get_xticklabels()] for axis in drawn[0].axes]
    assert shown == [["both"], ["both", "ours"]]


# Rows that are kept


def fill(table):
    table.add("row", "clean", {"value": 0.5, "low": 0.4, "high": 0.6}, 0.9)
    table.add("row", "note", text="some words")
    return {"points": [[0.0, 0.5]]}


def never(table):
    raise AssertionError("made again")


def kept(directory, fill, name="a row, 8/255", variant="none", **changes):
    """Ask for the rows of a net in a fresh run; return the table, what figures need, and the run's cost."""
    run, table = Run(ask(directory, "headline", **changes), NetTimes(6)), Table("title", ["clean", "other"])
    run.report_dir.mkdir(exist_ok=True)
    more = kept_rows(run, table, name, [run.net("digits", variant)], fill)
    return table, more, run.times


def test_rows_that_were_kept_are_not_made_again(tmp_path, capsys):
    first, more, _ = kept(tmp_path, fill)
    table, again, times = kept(tmp_path, never)
    assert table.as_json() == first.as_json()
    assert more == again == {"points": [[0.0, 0.5]]}
    assert table.rows["row"]["clean"].shown() == "50.0 ± 10.0 (90.0)"
    assert str(tmp_path / "headline" / "rows" / "a_row_8_255.json") in capsys.readouterr().out
    assert times.expected == 6


@pytest.mark.parametrize("error", [DivergedError, NonFiniteError])
def test_a_net_that_diverges_leaves_a_row_that_says_so_and_is_kept(tmp_path, error, capsys):
    def diverge(table):
        table.add("row", "other", text="half a row")
        raise error("training diverged: NaN")

    table, more, _ = kept(tmp_path, diverge)
    assert more is None and "NaN" in capsys.readouterr().out
    assert {row: {c: cell.text for c, cell in cells.items()} for row, cells in table.rows.items()} == {
        "a row, 8/255": {"clean": "diverged"}
    }
    again, more, _ = kept(tmp_path, never)
    assert more is None and again.as_json() == table.as_json()


def test_rows_follow_from_the_net_that_a_net_starts_from_too(directory):
    run = Run(ask(directory, "controls"))
    assert run.nets("digits", "noise_alone") == [run.net("digits", "none"), run.net("digits", "noise_alone")]
    assert run.nets("digits", "none") == [run.net("digits", "none")]


def test_the_table_so_far_is_written_after_each_row(tmp_path):
    table, *_ = kept(tmp_path, fill)
    page = tmp_path / "headline" / "unfinished.md"
    assert page.read_text() == f"Not finished: the rows so far.\n\n{table.markdown()}"


def test_kept_rows_count_in_the_cost_and_not_among_the_nets_to_come(tmp_path, capsys):
    def train(table):
        times = run.times
        times.training["net"] = 30.0
        times.attacks[tmp_path, "pgd", 0.1] = 12.0
        return fill(table)

    run, table = Run(ask(tmp_path, "headline"), NetTimes(6)), Table("title", [])
    run.report_dir.mkdir()
    run.times.training["of another row"] = 7.0
    kept_rows(run, table, "row", [run.net("digits", "none")], train)
    *_, times = kept(tmp_path, never, "row")
    assert times.cost() == {"nets": 1, "training_seconds": 30, "attack_seconds": 12}
    times.begin("another")
    assert "== net 2 of 6: another; about 4 min left" in capsys.readouterr().out


def test_a_net_of_kept_rows_that_another_row_needs_too_counts_once(tmp_path):
    def train(table):
        run.times.training["net"] = 30.0
        return fill(table)

    for name in ("first", "second"):
        run, table = Run(ask(tmp_path, "headline"), NetTimes(6)), Table("title", [])
        run.report_dir.mkdir(exist_ok=True)
        kept_rows(run, table, name, [run.net("digits", "none")], train)  # of a run that was killed after this row
    run = Run(ask(tmp_path, "headline"), NetTimes(6))
    for name in ("first", "second"):
        kept_rows(run, table, name, [run.net("digits", "none")], never)
    assert run.times.cost() == {"nets": 1, "training_seconds": 30, "attack_seconds": 0}


def test_the_nets_of_rows_of_an_earlier_version_count_too():
    times = NetTimes(6)
    times.add_kept({"nets": 2, "training_seconds": 30, "attack_seconds": 12})
    assert times.cost() == {"nets": 2, "training_seconds": 30, "attack_seconds": 12}
    assert times.expected == 4


def test_rows_of_other_nets_or_attacks_are_made_again(tmp_path, monkeypatch):
    kept(tmp_path, fill)
    for changed in ({"variant": "isotropic"}, {"variant": "none"}):
        with pytest.raises(AssertionError, match="made again"):
            kept(tmp_path, never, **changed)
        kept(tmp_path, fill, **changed)
    monkeypatch.setitem(BUDGETS, "tiny", dataclasses.replace(BUDGETS["tiny"], num_examples=7))
    with pytest.raises(AssertionError, match="made again"):
        kept(tmp_path, never)
    monkeypatch.undo()
    monkeypatch.setattr(ATTACKS["pgd"].kind, "version", 99)
    with pytest.raises(AssertionError, match="made again"):
        kept(tmp_path, never)


def test_the_figure_has_a_panel_for_the_gradients_of_committed_rows(root):
    """They counted gradients of exactly zero; rows of today have another number, and another panel."""
    rows = root / "docs" / "results" / "training_length" / "rows"
    numbers = [json.loads(path.read_text())["more"] for path in rows.iterdir()]
    of_gradients = {each for each in training_length.PANELS if "gradient" in each}
    assert len(of_gradients) == 2 and numbers and all(of_gradients & set(each) for each in numbers if each)


def test_rows_from_before_an_attack_and_an_option_of_training_are_kept(tmp_path):
    path = tmp_path / "headline" / "rows" / "a_row_8_255.json"
    kept(tmp_path, fill)
    stored = json.loads(path.read_text())
    [net] = stored["settings"]["nets"]
    assert net.pop("temperature") == TrainConfig.temperature
    assert stored["settings"]["algorithms"].pop("square")
    path.write_text(json.dumps(stored))
    kept(tmp_path, never)
    stored["settings"]["algorithms"]["removed since"] = 1  # of no attack of today
    path.write_text(json.dumps(stored))
    kept(tmp_path, never)
    net.pop("epochs")  # not at its default
    path.write_text(json.dumps(stored))
    with pytest.raises(AssertionError, match="made again"):
        kept(tmp_path, never)
    kept(tmp_path, fill)
    stored["settings"]["nets"].append(net)  # rows of two nets
    path.write_text(json.dumps(stored))
    with pytest.raises(AssertionError, match="made again"):
        kept(tmp_path, never)


def test_rows_of_an_older_adaptive_count_only_where_it_is_the_same(tmp_path, monkeypatch):
    kept(tmp_path, fill)
    path = tmp_path / "headline" / "rows" / "a_row_8_255.json"
    stored = json.loads(path.read_text())
    for older, experiments in ((5, ()), (4, ("headline",))):
        stored["settings"]["algorithms"]["adaptive"] = older
        path.write_text(json.dumps(stored))
        monkeypatch.setattr(kept_rows_module, "ADAPTIVE_4_COUNTS", experiments)
        kept(tmp_path, never)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="made again"):  # 4 does not count in this experiment
        kept(tmp_path, never)
    stored["settings"]["algorithms"]["adaptive"] = 5
    path.write_text(json.dumps(stored))
    monkeypatch.setattr(kept_rows_module, "NOISE_IN_THE_HEAD", ())  # as for a net with noise in its layers
    with pytest.raises(AssertionError, match="made again"):
        kept(tmp_path, never)


def test_a_net_that_is_trained_again_in_less_time_costs_its_new_time():
    times = NetTimes(2)
    times.add_kept({"nets": 1, "training_seconds": 90, "attack_seconds": 5, "trained": {"net": 90.0}})
    before = copy.deepcopy(times)
    times.training["net"] = 40.0
    cost = times.cost_since(before)
    assert cost == {"nets": 1, "training_seconds": 40, "attack_seconds": 0, "trained": {"net": 40.0}}


def test_rows_of_an_older_n_pixel_count_but_where_it_follows_the_papers_rule(tmp_path, monkeypatch):
    kept(tmp_path, fill)
    path = tmp_path / "headline" / "rows" / "a_row_8_255.json"
    stored = json.loads(path.read_text())
    stored["settings"]["algorithms"] |= {"n_pixel": 3, "judgement": 4}
    path.write_text(json.dumps(stored))
    kept(tmp_path, never)
    monkeypatch.setattr(kept_rows_module, "BY_THE_PAPERS_RULE", ("headline",))
    with pytest.raises(AssertionError, match="made again"):
        kept(tmp_path, never)


def test_rows_do_not_depend_on_attacks_that_they_do_not_use(tmp_path):
    def kept_with(attacks, fill):
        run = Run(ask(tmp_path, "headline"), NetTimes(6))
        kept_rows(run, Table("title", []), "row", [run.net("digits", "none")], fill, attacks=attacks)

    (tmp_path / "headline").mkdir()
    kept_with(list(ATTACKS), fill)
    path = tmp_path / "headline" / "rows" / "row.json"
    stored = json.loads(path.read_text())
    stored["settings"]["algorithms"]["adaptive"] = 3
    path.write_text(json.dumps(stored))
    kept_with(["pgd"], never)
    with pytest.raises(AssertionError, match="made again"):
        kept_with(["pgd", "adaptive"], never)


def test_rows_are_kept_wherever_the_nets_and_data_are(tmp_path):
    kept(tmp_path, fill, tfds_data_dir="/here")
    kept(tmp_path, never, tfds_data_dir="/there")


def test_rows_from_a_machine_with_bfloat16_are_kept(tmp_path):
    kept(tmp_path, fill)
    path = tmp_path / "headline" / "rows" / "a_row_8_255.json"
    stored = json.loads(path.read_text())
    [net] = stored["settings"]["nets"]
    assert "precision" not in net
    net["precision"] = "mixed_bfloat16"  # as earlier versions wrote it
    path.write_text(json.dumps(stored))
    kept(tmp_path, never)


@pytest.mark.parametrize(
    "flags, precision",
    [
        ("flags\t\t: fma avx512_bf16 amx_bf16 amx_tile\n", "mixed_bfloat16"),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fma avx512_bf16\n", "mixed_bfloat16"),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fma avx512f\n", "float32"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fma avx512_bf16\n", "float32"),
        (None, "float32"),
    ],
)
def test_small_nets_train_in_bfloat16_where_the_cpu_is_fast_at_it(flags, precision, tmp_path):
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(flags)
    assert fast_precision(tmp_path / "cpuinfo") == precision


def test_the_notes_of_a_table_say_how_small_nets_choose_their_precision(tmp_path):
    for dataset, variant, chosen in (("mnist", "certified_none", True), ("fashion_mnist", "none", False)):
        config = dataclasses.replace(ask(tmp_path, "certificates"), scale="small", dataset=dataset)
        notes = Run(config).notes(dataset, [("", variant)], [])
        assert any("bfloat16" in note for note in notes) == chosen


@pytest.mark.parametrize("text", ["[]", "nothing", '{"settings": null}'])
def test_broken_rows_are_one_line(text, tmp_path):
    kept(tmp_path, fill)
    path = tmp_path / "headline" / "rows" / "a_row_8_255.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        kept(tmp_path, never)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEEPING)
def test_an_experiment_goes_on_from_its_rows_where_its_nets_are_gone(name, directory, tmp_path, monkeypatch):
    first = reproduce(ask(directory, name))
    shutil.copytree(directory / name / "rows", tmp_path / name / "rows")
    monkeypatch.setattr(Run, "trained", lambda *_, **__: pytest.fail("trained"))
    again = reproduce(ask(tmp_path, name))
    assert again.as_json() == first.as_json()
    assert {path.name for path in (tmp_path / name).glob("*.png")} == {
        path.name for path in (directory / name).glob("*.png")
    }
    costs = [json.loads((where / name / "table.json").read_text())["cost"] for where in (directory, tmp_path)]
    assert costs[0] == pytest.approx(costs[1], abs=len(first.rows))  # each row's seconds are rounded


# All experiments


@pytest.fixture
def two_experiments(monkeypatch):
    """All experiments are two that take seconds."""
    for module in ("reproduce", "config", "index_page"):
        chosen = {name: EXPERIMENTS[name] for name in ("ablation", "bound")}
        monkeypatch.setattr(f"wca_tf.experiments.{module}.EXPERIMENTS", chosen)


def all_of(directory, **changes):
    asked = {"scale": "tiny", **changes}
    return ReproduceConfig("all", str(directory / "all"), str(directory / "models"), **asked)


def test_all_makes_every_experiment_and_a_page_of_their_tables(two_experiments, directory, capsys):
    text = reproduce_all(all_of(directory)).read_text()
    assert "=== experiment 2 of 2: bound, Figure 2" in capsys.readouterr().out
    table = json.loads((directory / "all" / "ablation" / "table.json").read_text())
    accuracy = table["rows"]["No Defense"]["digits clean"]["measured"]["value"]
    assert f"<td>{100 * accuracy:.1f} ±" in text and "2 of 2 done" in text
    for figure in (directory / "all").glob("*/*.svg"):
        assert f'src="{figure.parent.name}/{figure.name}"' in text


def test_all_at_small_has_tables_of_the_paper_on_cifar10_beside_fashion_mnist(tmp_path):
    asked = each_experiment(all_of(tmp_path, scale="small"))
    assert asked["ablation"].datasets == ("fashion_mnist",) and asked["ablation_cifar10"].datasets == ("cifar10",)
    assert len({one.report_dir for one in asked.values()}) == len(asked) > len(EXPERIMENTS)
    assert {one.experiment for one in asked.values()} == set(EXPERIMENTS)
    assert list(each_experiment(all_of(tmp_path))) == list(EXPERIMENTS)  # at tiny, a table each


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_number_of_nets_is_told_for_each_data_set(name):
    experiment = EXPERIMENTS[name]
    assert len(experiment.nets) in (1, len(experiment.small))
    assert experiment.number_of_nets(experiment.small) == sum(experiment.nets)
    assert all(experiment.number_of_nets((dataset,)) <= sum(experiment.nets) for dataset in experiment.choice)


def test_an_experiment_that_fails_is_named_at_the_end_and_on_the_page(two_experiments, directory, tmp_path):
    config = dataclasses.replace(all_of(directory), report_dir=str(tmp_path / "all"))
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "ablation").write_text("a file where its directory should be")
    with pytest.raises(InputError, match="1 of 2 experiments failed, see .*index.html: ablation"):
        reproduce_all(config)
    text = (tmp_path / "all" / "index.html").read_text()
    assert "failed: " in text and "1 of 2 done" in text
    assert '<section id="bound">' in text  # the others run


def test_all_refuses_the_tables_of_another_scale_before_it_runs_any(two_experiments, tmp_path):
    (tmp_path / "all" / "bound").mkdir(parents=True)
    (tmp_path / "all" / "bound" / "table.json").write_text('{"experiment": "bound", "scale": "small"}')
    with pytest.raises(InputError, match="is of bound at scale small"):
        reproduce_all(all_of(tmp_path))
    assert not (tmp_path / "all" / "ablation").exists()


def test_one_experiment_is_asked_for_where_one_is_made(tmp_path):
    with pytest.raises(InputError, match="expected one experiment, received all: reproduce_all"):
        reproduce(all_of(tmp_path))


@pytest.mark.parametrize("text", ['{"rows": {}}', "[]", '{"rows": {"a": {"b": {"other": 1}}}}'])
def test_a_table_that_is_none_is_one_line(text, tmp_path):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(InputError, match="expected a table of bin/reproduce"):
        load_table(tmp_path)


def test_a_table_is_the_same_from_its_file(tmp_path):
    table = Table("A table", [])
    table.add("row", "clean", {"value": 0.5, "low": 0.4, "high": 0.6}, 0.9)
    table.add("row", "words", text="a text")
    write_table(table, tmp_path, {"experiment": "ablation"})
    assert load_table(tmp_path) == table


def test_all_without_any_data_is_one_line(fails_in_one_line, tmp_path):
    told = fails_in_one_line(tmp_path, "reproduce", "--experiment=all", "--report_dir=x", f"--tfds_data_dir={tmp_path}")
    assert "fashion_mnist" in told
    assert not (tmp_path / "x").exists()


def test_an_experiment_whose_data_are_absent_is_skipped_and_keeps_its_table(two_experiments, directory, tmp_path):
    """At --scale=small `ablation` needs Fashion-MNIST, `bound` MNIST; a directory of that name counts as present."""
    (tmp_path / "mnist").mkdir()
    config = all_of(tmp_path, scale="small", tfds_data_dir=str(tmp_path))
    absent = absent_data(config)
    assert list(absent) == ["ablation", "ablation_cifar10"] and "fashion_mnist" in absent["ablation"]
    reproduce(dataclasses.replace(ask(directory, "ablation"), report_dir=str(tmp_path / "all" / "ablation")))
    page = index_page(tmp_path / "all", each_experiment(config), {"ablation": f"skipped: {absent['ablation']}"})
    assert "skipped: expected TFDS data" in page and '<section id="ablation">' in page and "to come" in page


def test_the_row_of_all_seeds_has_the_columns_that_every_seed_has():
    table, labels = Table("", []), ["net", "net, seed 1", "net, seed 2"]
    for label, value in zip(labels, (0.5, 0.52, 0.48), strict=True):
        table.add(label, "clean", {"value": value, "low": 0.0, "high": 1.0})
    table.add("net", "noise off", {"value": 0.4, "low": 0.0, "high": 1.0})  # the other seeds have no such number
    table.add("net, seed 2", "epochs", text="2 of 2")
    add_all_seeds(table, "net", labels, ["clean", "noise off", "epochs"])
    assert {name: cell.text for name, cell in table.rows["net, 3 seeds"].items()} == {
        "clean": "mean 50.0, each 50.0, 52.0, 48.0"
    }
