import copy
import dataclasses
import html.parser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import keras
import matplotlib
import numpy as np
import pytest
import tensorflow as tf

from wca_tf.attacks import kind_of, parse_attack
from wca_tf.attacks.radii import Radius
from wca_tf.core.options import identity
from wca_tf.defences.wca.net import WCANet
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.planted_examples import checked_radius
from wca_tf.evaluation.measures.registry import format_results, measures
from wca_tf.evaluation.plan import trials_of
from wca_tf.evaluation.record import Evaluation
from wca_tf.evaluation.report import commands, figures
from wca_tf.evaluation.report import page as report_page
from wca_tf.evaluation.report.attack_table import attack_table
from wca_tf.evaluation.report.page import render, write_report
from wca_tf.evaluation.report.sections import UPPER_BOUND, gradient_warnings
from wca_tf.evaluation.report.tables import escape_markdown
from wca_tf.evaluation.runner import evaluate, evaluate_model
from wca_tf.nets.model_files import load_model
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.runs.config import TrainConfig

CONFIG = EvaluateConfig(
    attacks="fgsm,pgd,z_margin:steps=2,square:queries=3,cw:steps=3:searches=1,cw:confidence=1:steps=3:searches=1",
    epsilons="8/255,0.3",
    eot_samples=50,
    num_examples=10,
)
CHEAP = dataclasses.replace(CONFIG, attacks="fgsm,square:queries=2", epsilons="0.1", eot_samples=2)
SECTIONS = ["table", "gallery", "checklist", "conventions", "distortion", "queries", "noise", "numbers", "reproduce"]
WITHOUT_NOISE = [name for name in SECTIONS if name != "conventions"]
CHECKLIST = [
    {"criterion": "one step", "passed": True, "evidence": "fgsm leaves 12.3 %", "epsilon": 0.3},
    {"criterion": "zero gradients", "passed": False, "evidence": "on 45 of 100 images", "epsilon": 0.3},
    {"criterion": "fixed draw", "passed": None, "evidence": "no noise", "epsilon": 0.3, "attacks": ["fgsm"]},
]
HOSTILE = '<script>alert("1")</script>|`*_[x](http://evil.example)\n# $\\frac{ \x00\udcff 日本 & \u202e'
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(html.parser.HTMLParser):
    """What a page consists of: tables as texts of cells, attributes, ids, tags, and the text of each section."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text()
        self.rows, self.attributes, self.tags, self.texts = {}, [], [], {}
        self.table = self.section = None
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("section", "header"):
            self.section = attributes["id"]
        if tag == "table":
            self.table = attributes.get("id", attributes.get("class"))
            self.rows[self.table] = []
        if tag == "tr":
            self.rows[self.table].append([])
        if tag in ("td", "th"):
            self.rows[self.table][-1].append("")
        if tag in ("small", "br") and self.table:
            self.rows[self.table][-1][-1] += " "

    def handle_endtag(self, tag):
        if tag == "table":
            self.table = None

    def handle_data(self, data):
        self.texts[self.section] = self.texts.get(self.section, "") + data
        if self.table and self.rows[self.table] and self.rows[self.table][-1]:
            self.rows[self.table][-1][-1] += data.strip("\n")

    def values(self, *names):
        return [value for name, value in self.attributes if name in names]


def assert_loads_nothing(page):
    assert not {"script", "iframe", "object", "embed", "base"} & set(page.tags)
    for value in page.values("src", "href", "xlink:href", "srcset", "action"):
        assert value.startswith(("#", "data:")), value
    assert not re.search(r"@import|url\((?!#)", page.source)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def assert_ids_are_unique(page):
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for reference in re.findall(r"url\(#([^)]*)\)", page.source) + [v[1:] for v in page.values("href") if v[0] == "#"]:
        assert reference in ids


def sections_of(page):
    return [value for name, value in page.attributes if name == "id" and value in SECTIONS]


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    return evaluate(CONFIG, trained, directory), directory


@pytest.fixture(scope="module")
def parts(evaluated, trained):
    """What write_report is given, to be changed by a test, and the net: (results, outcomes, described, model)."""
    results, directory = evaluated
    read = Evaluation.read(directory)
    described, outcomes = read.described, [read.clean, *read.attacks]
    results = json.loads((directory / "results.json").read_text())
    return results, outcomes, described, load_model(trained / "model.keras")


def test_an_upper_bound_is_called_one_in_table_page_and_card(parts, tmp_path):
    results, *others = parts
    assert "≤" not in attack_table(results)
    changed = copy.deepcopy(results)
    changed["worst_case"][0]["n_query_accuracy"]["100"] |= {"value": 0.652, "upper_bound": True}
    write(tmp_path, changed, *others)
    page, card = ((tmp_path / name).read_text() for name in ("report.html", "model_card.md"))
    assert "≤\u00a065.2" in attack_table(changed) and "≤\u00a065.2" in page and "| ≤\u00a065.2 [" in card
    assert UPPER_BOUND in page and UPPER_BOUND in card and UPPER_BOUND in format_results(changed)


def test_attacks_without_useful_gradients_on_over_5_percent_are_named(parts, tmp_path):
    results, *others = parts
    assert not gradient_warnings(results)
    changed = copy.deepcopy(results)
    for row in changed["attacks"]:
        row["no_useful_gradient_share"] = {"fgsm": 0.88, "pgd": 0.05, "z_margin:steps=2": 1.0}.get(row["name"])
    first, second = gradient_warnings(changed)
    assert first.startswith("No useful gradient: fgsm on 88.0 % of the images.") and "objective=ce_exact" in first
    assert second.startswith("No useful gradient: z_margin:steps=2 on 100.0 % of the images.")
    assert second.endswith("use square, which needs no gradient.")
    write(tmp_path, changed, *others)
    summary = Page(tmp_path / "report.html").texts["summary"]
    card, lines = (tmp_path / "model_card.md").read_text(), format_results(changed)
    for warning in (first, second):
        assert warning in summary and f"**{warning}**" in card and warning in lines


@pytest.fixture
def page(evaluated):
    return Page(evaluated[1] / "report.html")


def write(path, results, outcomes, described, model=None):
    """Write the report of a net, as an evaluation does."""
    named = [measure for measure in measures() if measure.name in results]
    sections = [section for measure in named if (section := measure.section(results))]
    write_report(path, results, outcomes, described, sections)


def shown(number):
    return f"{100 * number['value']:.1f} [{100 * number['low']:.1f}, {100 * number['high']:.1f}]"


def percent(value):
    value = value["value"] if isinstance(value, dict) else value
    return "–" if value is None else f"{100 * value:.1f}"


def expected_row(attack):
    return [
        attack["name"],
        kind_of(parse_attack(attack["name"])),
        shown(attack["accuracy"]),
        shown(attack["expected_accuracy"]),
        percent(attack["noise_free_accuracy"]),
        percent(attack["n_query_accuracy"]["10"]),
        percent(attack["n_query_accuracy"]["100"]),
        percent(attack["no_useful_gradient_share"]),
    ]


def test_the_table_shows_the_numbers_of_results_json(evaluated, page):
    results, directory = evaluated
    assert results == json.loads((directory / "results.json").read_text())
    rows = {tuple(row[:2]): row for row in page.rows["radii"]}
    at = []
    for row in page.rows["radii"][1:]:
        if row[0].startswith("ε"):
            at.append((row[0], []))
        elif at:
            at[-1][1].append(row)
    assert (
        rows["clean", "–"][2:7]
        == expected_row({**results["clean"], "name": "pgd", "config": {}, "no_useful_gradient_share": None})[2:7]
    )
    assert [title for title, _ in at] == ["ε = 8/255", "ε = 0.3"]
    for (_, block), worst in zip(at, results["worst_case"], strict=True):
        attacks = [attack for attack in results["attacks"] if attack["epsilon"] == worst["epsilon"]]
        assert [row[:8] for row in block[:-1]] == [expected_row(attack) for attack in attacks]
        assert [row[8] for row in block[:-1]] == [f"{attack['seconds']:.1f}" for attack in attacks]
        assert block[-1][:4] == ["worst case", "per image", "–", shown(worst["expected_accuracy"])]
        assert block[-1][5:7] == [percent(worst["n_query_accuracy"][n]) for n in ("10", "100")]
    free = [attack for attack in results["attacks"] if attack["epsilon"] is None]
    assert [row[:8] for row in page.rows["free"][1:]] == [expected_row(attack) for attack in free]
    for row, attack in zip(page.rows["free"][1:], free, strict=True):
        medians = [attack["distortion"][norm]["median"] for norm in ("l2", "l0")]
        assert row[8:10] == ["∞" if median is None else f"{median:.3g}" for median in medians]
        assert row[10] == percent(attack["found"])
        assert row[11] == (f"{attack['generations']['median']:g}" if attack["generations"] else "–")


def test_the_headline_sets_what_the_noise_adds_and_the_papers_protocol_beside_the_worst_case(evaluated, page):
    results, _ = evaluated
    text = " ".join(page.texts["summary"].split())
    assert text.count("worst case over 4 attacks") == 2 and "left at ε = 8/255" in text and "UNFINISHED" not in text
    assert text.count("the paper’s protocol: fgsm") + text.count("the paper’s protocol: pgd") == 2
    for worst, twin in zip(results["worst_case"], results["noise_off"]["radii"], strict=True):
        paper = [a for a in results["attacks"] if a["epsilon"] == worst["epsilon"] and a["name"] in ("fgsm", "pgd")]
        numbers = [worst["expected_accuracy"], min((a["accuracy"] for a in paper), key=lambda n: n["value"])]
        for number in (*numbers, results["clean"]["expected_accuracy"]):
            assert f"{percent(number)} %" in text and shown(number).partition(" ")[2] in text
        adds = twin["noise_adds"]
        assert f"{100 * adds['value']:+.1f}".replace("-", "−") in text
        assert f"noise off: {percent(twin['worst_case'])} %" in text


def test_the_first_table_has_the_worst_case_with_and_without_the_noise(evaluated, page):
    results, _ = evaluated
    rows = page.rows["left"]
    assert [row[0] for row in rows].count("the same net without its noise") == 2
    for worst, twin in zip(results["worst_case"], results["noise_off"]["radii"], strict=True):
        place = [row[:2] for row in rows].index(["worst case", shown(worst["expected_accuracy"])])
        assert rows[place + 1][1] == shown(twin["worst_case"])


def test_conventions_of_others_are_a_table_with_definitions(evaluated, page):
    rows = page.rows["counted"]
    assert rows[0] == ["convention", "ε = 8/255", "ε = 0.3"]
    named = {row["name"]: row for row in evaluated[0]["conventions"][1]["rows"]}
    for row in rows[1:]:
        [name] = [name for name in named if row[0].startswith(name)]
        assert row[2] == shown(named[name]["number"]) and named[name]["definition"] in row[0]


def test_all_sections_are_there_in_order(page):
    assert sections_of(page) == SECTIONS
    assert page.tags.count("svg") > 10 and page.values("name").count("viewport") == 1
    assert "--checklist" in page.texts["checklist"]


def test_nothing_is_loaded_and_ids_are_unique(page):
    assert_loads_nothing(page)
    assert_ids_are_unique(page)
    assert len(page.source) < 3e6


def test_the_gallery_tells_probabilities_before_and_after(parts, page):
    results, outcomes, described, _ = parts
    strongest = min(outcomes[5:9], key=lambda o: o.judgement.probability_correct.mean())
    assert strongest.radius.epsilon == 0.3
    before, after = outcomes[0].judgement.probability_correct, strongest.judgement.probability_correct
    text = " ".join(page.texts["gallery"].split())
    assert np.all(strongest.flips[: strongest.flips.sum()])  # those that flip come first
    for i in strongest.shown:
        name = described["class_names"][strongest.labels[i]]
        assert f"{name}: {100 * before[i]:.1f} % → {100 * after[i]:.1f} %" in text
    assert page.tags.count("img") == 2 * 8 * 3
    assert f"{strongest.name} at ε = 0.3" in text and "cw" in text


def test_the_noise_section_has_the_models_own_numbers(parts, page):
    model = parts[3]
    weights, scale = model.classifier.kernel.numpy(), model.noise.scale_tril.numpy()
    values = np.linalg.eigvalsh(scale @ scale.T)
    quotients = np.diag(weights.T @ scale @ scale.T @ weights) / np.sum(weights**2, axis=0)
    text = " ".join(page.texts["noise"].split())
    covariance = weights.T @ scale @ scale.T @ weights
    variances = np.diag(covariance)
    differences = np.sqrt(variances[:, np.newaxis] + variances - 2 * covariance)[~np.eye(len(variances), dtype=bool)]
    common = 100 * covariance.sum() / (len(variances) * variances.sum())
    assert f"{common:.1f} % of the logits’ variance is common to all classes" in text
    counted = (
        differences.min(),
        differences.max(),
        np.sqrt(variances).mean(),
        np.median(parts[1][0].judgement.z_margin),
    )
    for value in (quotients.min(), quotients.max(), values.max(), values.mean(), *counted):
        assert f"{value:.3g}" in text
    assert "T-shirt" not in text and all(name in text for name in parts[2]["class_names"])


def flags_of(command):
    program, *flags = shlex.split(command.replace("\\\n", ""))
    named = dict(flag.removeprefix("--").split("=", 1) for flag in flags if "=" in flag)
    return program, named, [flag for flag in flags if "=" not in flag]


def configured(config_class, named):
    types = {field.name: type(field.default) for field in dataclasses.fields(config_class)}
    return config_class(**{name: types[name](value) for name, value in named.items() if name in types})


def test_the_commands_say_what_was_run(evaluated, trained, tiny_config):
    results, _ = evaluated
    program, named, _ = flags_of(commands.train_command(results))
    assert (program, named["model_dir"]) == ("bin/train", str(trained.resolve()))
    assert configured(TrainConfig, named) == tiny_config
    [command] = commands.evaluate_commands(results)
    program, named, switches = flags_of(command)
    assert program == "bin/evaluate" and not switches and "modules" not in named
    again = configured(EvaluateConfig, named)
    assert trials_of(again) == trials_of(CONFIG) and identity(again) == identity(CONFIG)


def test_the_command_names_the_modules_that_a_net_needs(evaluated):
    results = {**evaluated[0], "modules": ["toy", "toy_net"]}
    [command] = commands.evaluate_commands(results)
    assert flags_of(command)[1]["modules"] == "toy,toy_net"


def test_attacks_that_differ_by_radius_take_several_commands(evaluated):
    results = json.loads(evaluated[0].to_json())
    results["checklist"] = CHECKLIST
    removed = results["attacks"].pop(0)
    plans = [flags_of(command) for command in commands.evaluate_commands(results)]
    planned = [attack for _, named, _ in plans for attack in trials_of(configured(EvaluateConfig, named))]
    expected = [(attack["name"], attack["epsilon"]) for attack in results["attacks"]]
    assert sorted(map(str, [(p.name, p.radius and p.radius.epsilon) for p in planned])) == sorted(map(str, expected))
    assert [switches for *_, switches in plans] == [[], ["--checklist"]]
    assert checked_radius(configured(EvaluateConfig, plans[1][1])).epsilon == 0.3
    assert (removed["name"], removed["epsilon"]) not in expected


@pytest.mark.parametrize(("checked", "runs"), [(0.03, 1), (0.3, 1), (0.1, 2)])
def test_the_checklist_is_made_at_its_radius_again(evaluated, checked, runs):
    """Radii with the same attacks, of which one had the checklist; or a run of attacks without a radius had it."""
    results = json.loads(evaluated[0].to_json())
    for attack in results["attacks"]:
        attack["epsilon"] = {8 / 255: 0.03}.get(attack["epsilon"], attack["epsilon"])
    results["checklist"] = [{**item, "epsilon": checked} for item in CHECKLIST]
    plans = [flags_of(command) for command in commands.evaluate_commands(results)]
    assert len(plans) == runs
    [named] = [named for _, named, switches in plans if switches]
    assert checked_radius(configured(EvaluateConfig, named)).epsilon == checked
    planned = [attack for _, named, _ in plans for attack in trials_of(configured(EvaluateConfig, named))]
    expected = [(attack["name"], attack["epsilon"]) for attack in results["attacks"]]
    assert sorted(map(str, [(p.name, p.radius and p.radius.epsilon) for p in planned])) == sorted(map(str, expected))


@pytest.mark.parametrize(("epsilon", "text"), [(0.1, "0.1"), (8 / 255, "8/255"), (1.0, "1"), (0.123456789012, None)])
def test_radii_are_written_to_the_bit(epsilon, text):
    assert text is None or Radius(epsilon).text == text
    config = EvaluateConfig(epsilons=Radius(epsilon).text)
    assert config.parsed_radii == (Radius(epsilon),)


def test_where_data_are_is_left_out(parts, tmp_path):
    results, outcomes, described, model = parts
    training = {**results["training"], "dataset": "fashion_mnist", "tfds_data_dir": "/home/somebody/secret"}
    write(tmp_path, {**results, "training": training, "dataset": "fashion_mnist"}, outcomes, described, model)
    for name in ("report.html", "model_card.md"):
        text = (tmp_path / name).read_text()
        assert "--tfds_data_dir=DIR" in text and "somebody" not in text


def test_the_checklist_and_unfinished_training_are_told(parts, tmp_path):
    results, *rest = parts
    state = {**results["model"], "training_complete": False}
    write(tmp_path, {**results, "checklist": CHECKLIST, "model": state}, *rest)
    page = Page(tmp_path / "report.html")
    assert [row[0] for row in page.rows["words"][1:]] == [item["criterion"] for item in CHECKLIST]
    assert [row[1] for row in page.rows["words"][1:]] == ["✓ passed", "✗ failed", "not applicable"]
    assert [row[2] for row in page.rows["words"][1:]] == [item["evidence"] for item in CHECKLIST]
    assert "UNFINISHED" in page.texts["summary"] and "1 failed" in page.texts["summary"]
    card = (tmp_path / "model_card.md").read_text()
    assert "UNFINISHED" in card and "1 passed, 1 failed, 1 not applicable" in card and "on 45 of 100 images" in card


def test_the_card_has_the_worst_case_with_its_interval(evaluated):
    results, directory = evaluated
    card = re.sub(" +", " ", (directory / "model_card.md").read_text())  # cells are padded
    for worst in results["worst_case"]:
        assert (
            f"| {shown(worst['expected_accuracy'])} (4 attacks) | {shown(worst['n_query_accuracy']['100'])} |" in card
        )
    assert shown(results["clean"]["accuracy"]) in card and results["model"]["sha256"] in card
    assert "white box" in card and "at most ε in l∞; ε was 8/255, 0.3." in card


def hostile(parts):
    """The same evaluation with every name that a user decides as bad as can be."""
    results, outcomes, described, model = parts
    results = json.loads(json.dumps(results))
    results |= {"dataset": HOSTILE, "model_dir": HOSTILE, "checklist": [{**CHECKLIST[1], "evidence": HOSTILE}]}
    results["training"]["dataset"] = f"folder:{HOSTILE}"
    results["attacks"][0]["name"] = f"transfer:source={HOSTILE}"
    results["attacks"][0]["config"]["norm"] = "linf"
    outcomes = [outcomes[0], dataclasses.replace(outcomes[1], name=results["attacks"][0]["name"]), *outcomes[2:]]
    names = [f"{i} {HOSTILE}" for i in range(len(described["class_names"]))]
    results["noise"]["class_names"] = names
    return results, outcomes, {**described, "class_names": names}, model


def test_hostile_names_are_only_text(parts, tmp_path):
    write(tmp_path, *hostile(parts))
    page = Page(tmp_path / "report.html")
    assert_loads_nothing(page)
    assert_ids_are_unique(page)
    assert sections_of(page) == SECTIONS
    assert '<script>alert("1")</script>|`*_[x](http://evil.example)' in page.texts["gallery"]
    assert page.rows["radii"][3][0].startswith("transfer:source=<script>")
    card = (tmp_path / "model_card.md").read_text()
    assert not re.search("[\u202a-\u202e\x00]", page.source + card)
    outside = re.sub(r"^(`{3,})\n.*?\n\1$", "", card, flags=re.DOTALL | re.MULTILINE)
    assert "<" not in outside and "[x](" not in outside.replace("\\[x\\](", "")
    tables = re.findall(r"(?:^\|.*\n)+", outside, re.MULTILINE)
    assert [{len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()} for table in tables] == [{5}, {7}]
    assert len(re.findall(r"^# ", outside, re.MULTILINE)) == 1 and len(re.findall(r"^## ", outside, re.MULTILINE)) == 8


def test_a_fence_is_longer_than_what_it_holds():
    fenced = report_page.fenced("a\n````\n# b <c>")
    assert str(fenced) == "`````\na\n````\n# b <c>\n`````"
    assert escape_markdown("a|b*c_d _e_ <i> [x](y) `z`\n# $") == (
        "a\\|b\\*c_d \\_e\\_ &lt;i&gt; \\[x\\](y) \\`z\\` \\# \\$"
    )


def test_a_template_that_misses_something_raises():
    with pytest.raises(Exception, match="undefined"):
        render("model_card.md.j2")


@pytest.mark.parametrize("failing", ["report.html.j2", "model_card.md.j2"])
def test_a_failing_report_leaves_the_old_one(parts, tmp_path, monkeypatch, failing):
    write(tmp_path, *parts)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(template, **context):
        if template == failing:
            raise OSError("no space left")
        return "new"

    monkeypatch.setattr(report_page, "render", fail)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path, *parts)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"report.html", "model_card.md"}


def test_a_report_is_the_same_again_and_leaves_the_style_alone(parts, tmp_path):
    settings = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"axes.grid": True, "text.color": "red", "figure.facecolor": "black"}):
        write(tmp_path, *parts)
    first = (tmp_path / "report.html").read_bytes()
    write(tmp_path, *parts)
    assert (tmp_path / "report.html").read_bytes() == first
    assert dict(matplotlib.rcParams) == settings


def linear(shape, classes=3):
    net = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(classes)])
    net.layers[-1].kernel.assign(np.random.default_rng(0).normal(size=net.layers[-1].kernel.shape))
    return net


def some_images(shape, count=6):
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (count, *shape), np.uint8), rng.integers(0, 3, count)


@pytest.mark.parametrize("shape", [(6, 5, 1), (5, 6, 3), (5, 5, 4), (120, 100, 3)])
def test_any_keras_net_on_images_of_any_shape(shape, tmp_path):
    results = evaluate_model(linear(shape), *some_images(shape), CHEAP, tmp_path, name="<b>net</b> | 1")
    page = Page(tmp_path / "report.html")
    assert_loads_nothing(page)
    assert sections_of(page) == WITHOUT_NOISE
    assert "The net has no noise" in page.texts["noise"]
    assert "training of this net is not known" in page.texts["reproduce"]
    assert "<b>net</b> | 1" in page.texts["summary"] and "wca_tf.evaluate(" in page.texts["reproduce"]
    assert "free" not in page.rows and results["training"] is None
    assert page.tags.count("img") == 6 * 3


def test_images_that_are_not_changed_are_shown_so(tmp_path):
    shape = (5, 5, 1)
    config = dataclasses.replace(CHEAP, attacks="fgsm", epsilons="0", num_examples=1)
    evaluate_model(linear(shape), *some_images(shape, count=1), config, tmp_path)
    page = Page(tmp_path / "report.html")
    assert "the change × 1 around" in page.texts["gallery"] and "fgsm (0 of 1 changed)" in page.texts["distortion"]
    assert figures.picture(np.full((*shape[:2], 1), 0.5)) in page.values("src")
    assert "1 image given" in page.texts["summary"]


def test_only_attacks_without_a_radius(tmp_path):
    shape = (5, 5, 1)
    config = dataclasses.replace(CHEAP, attacks="cw:steps=5:searches=2,n_pixel:population=5:generations=2")
    evaluate_model(linear(shape), *some_images(shape), config, tmp_path)
    page = Page(tmp_path / "report.html")
    assert sections_of(page) == WITHOUT_NOISE
    assert "No attack with a radius" in page.texts["summary"] and "No attack with a radius" in page.texts["table"]
    assert len(page.rows["radii"]) == 2 and len(page.rows["free"]) == 3
    assert "without a radius" in (tmp_path / "model_card.md").read_text()


def test_estimated_numbers_of_a_net_with_noise_anywhere(tmp_path):
    shape = (5, 5, 3)
    net = linear(shape)
    target = SampledTarget(lambda images, seed: net(images + 0.3 * tf.random.stateless_normal(tf.shape(images), seed)))
    results = evaluate_model(target, *some_images(shape), dataclasses.replace(CHEAP, attacks="fgsm"), tmp_path)
    page = Page(tmp_path / "report.html")
    assert results["clean"]["noise_free_accuracy"] is None
    assert page.rows["radii"][1][3] == page.rows["radii"][3][3] == "–"
    assert "estimated from 200 draws" in page.texts["numbers"] and "Up to n = 200" in page.texts["queries"]


def test_targeted_attacks_show_how_often_the_target_is_reached(tmp_path):
    shape = (5, 5, 1)
    config = dataclasses.replace(CHEAP, attacks="fgsm,pgd:targeted=true:steps=2")
    results = evaluate_model(linear(shape), *some_images(shape), config, tmp_path)
    page = Page(tmp_path / "report.html")
    assert [row[7] for row in page.rows["radii"][3:5]] == ["–", percent(results["attacks"][1]["target_rate"])]
    assert {len(row) for row in page.rows["radii"] if not row[0].startswith("ε")} == {10}


def test_the_undefended_net_says_that_it_has_no_noise(trained_undefended, tmp_path):
    evaluate(CHEAP, trained_undefended, tmp_path)
    page = Page(tmp_path / "report.html")
    assert "The net has no noise" in page.texts["noise"]
    card = (tmp_path / "model_card.md").read_text()
    assert "Defence none" in card and "It has no noise" in card and "distribution of the noise" not in card


def test_a_hundred_classes_of_large_images_make_a_small_file(tmp_path):
    backbone = keras.Sequential([keras.Input((224, 224, 3)), keras.layers.GlobalAveragePooling2D()])
    model = WCANet(backbone, num_classes=100, feature_dim=256)
    model(np.zeros((1, 224, 224, 3), np.float32))
    images = np.random.default_rng(0).random((10, 224, 224, 3), np.float32)
    evaluate_model(model, images, np.arange(10), CHEAP, tmp_path, class_names=tuple(f"class {i}" for i in range(100)))
    assert (tmp_path / "report.html").stat().st_size < 3e6
    assert (tmp_path / "measures" / "noise.json").stat().st_size < 1e6


def test_pictures_and_short_names():
    assert figures.picture(np.ones((2, 2, 1), np.float32)).startswith("data:image/png;base64,")
    assert figures.shorten("short") == "short" and len(figures.shorten("a" * 99)) == figures.MAX_NAME_LENGTH
    assert figures.shorten("\x00\u202e\udcff 日") == "\ufffd\ufffd\ufffd 日"


MEASURE = """<script>
addEventListener("load", () => {
  const images = [...document.images];
  const size = document.documentElement;
  const seen = e => e.getBoundingClientRect().height > 0;
  const out = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, pre, svg") &&
    e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80));
  parent.postMessage(JSON.stringify({
    errors: window.failures, width: size.scrollWidth, viewport: innerWidth, images: images.length, out,
    broken: images.filter(image => !image.naturalWidth).length,
    sections: [...document.querySelectorAll("section")].filter(seen).map(e => e.id),
    plots: [...document.querySelectorAll(".plot svg")].map(e => e.getBoundingClientRect().width),
    smallest: Math.min(...[...document.querySelectorAll(".plot text")].map(e => e.getBoundingClientRect().height)),
    loaded: performance.getEntriesByType("resource").map(e => e.name).filter(name => !name.startsWith("data:")),
  }), "*");
});
</script>"""
CATCH = """<script>window.failures = [];
addEventListener("error", e => window.failures.push(String(e.message || e.target.outerHTML)), true);</script>"""
FRAME = """<!doctype html><body style="margin:0"><pre id="measured"></pre><script>
addEventListener("message", e => document.getElementById("measured").textContent = e.data);</script>
<iframe src="copy.html" style="border:0;width:{}px;height:{}px"></iframe>"""


def measure(directory, source, width, height):
    """What Chromium makes of a report in a window of this size."""
    (directory / "copy.html").write_text(
        source.replace("<head>", f"<head>{CATCH}").replace("</body>", f"{MEASURE}</body>")
    )
    (directory / "frame.html").write_text(FRAME.format(width, height))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
    options += [f"--user-data-dir={directory / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *options, f"--window-size={max(width, 500)},{height}", (directory / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    [measured] = re.findall(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
    assert measured, done.stderr[-2000:]
    return json.loads(html.unescape(measured)), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)], ids=["phone", "desktop"])
@pytest.mark.parametrize("names", ["usual", "hostile"])
def test_it_opens_in_a_browser(parts, tmp_path, width, height, names):
    changed = parts if names == "usual" else hostile(parts)
    write(tmp_path, *changed)
    seen, console = measure(tmp_path, (tmp_path / "report.html").read_text(), width, height)
    assert console == [] and seen["errors"] == [] and seen["loaded"] == []
    assert seen["viewport"] == width and seen["width"] <= width and seen["out"] == []
    assert seen["images"] == 48 and seen["broken"] == 0
    assert seen["sections"] == SECTIONS
    assert all(200 < plot <= width for plot in seen["plots"]) and len(seen["plots"]) > 10
    assert seen["smallest"] > 8


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_the_browser_test_sees_what_is_broken(parts, tmp_path):
    write(tmp_path, *parts)
    source = (tmp_path / "report.html").read_text()
    broken = (
        '<p style="width:600px">wide</p><img src="data:image/png;base64,AAAA"><script>console.log(missing)</script>'
    )
    seen, console = measure(tmp_path, source.replace("</header>", f"{broken}</header>"), 390, 844)
    assert seen["width"] > 390 and seen["out"] and seen["broken"] == 1
    assert len(seen["errors"]) == 2 and console


def test_templates_are_part_of_the_package():
    names = {"report.html.j2", "model_card.md.j2", "comparison.html.j2", "style.css.j2"}
    assert {path.name for path in Path(report_page.TEMPLATES).iterdir()} == names
