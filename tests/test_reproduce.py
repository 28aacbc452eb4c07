"""bin/reproduce: declarations, the engine, the evidence, and the pages that are made from it."""

import hashlib
import re
import shutil

import numpy as np
import pytest

import wca_tf
from reproduce import bound, certificates, main, readings
from reproduce.alignment import declare as declare_alignment
from reproduce.budgets import ATTACKS, PARTS, part_options, written
from reproduce.contours import angles_to_axes
from reproduce.engine import Engine, Need, duration
from reproduce.evidence import Evidence
from reproduce.experiments import EXPERIMENTS, check_names, datasets_of
from reproduce.nets import SCALES, VARIANTS, Net, settings
from reproduce.pages import markdown, notes, write_page
from reproduce.paper_numbers import ABLATION, CONTROLS, IMAGENET, STRONGER, WIDE
from reproduce.study import Study
from reproduce.tables import Cell, Chosen, Missing, Row, Site, Table
from wca_tf import EvaluateConfig, InputError, TrainConfig
from wca_tf.attacks import parse_attack

QUICK = ("ablation", "bound")  # seconds each; the others train more nets


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduce")


def study_in(directory, dry=False):
    evidence = Evidence(directory / "evidence", "tiny")
    data = {"tfds_data_dir": "", "download": False}
    return Study(evidence, Engine(evidence, directory / "models", data, dry=dry))


def run(directory, name):
    """Run an experiment on digits; return the text of its page."""
    study = study_in(directory)
    for dataset in datasets_of(name, "tiny"):
        experiment = EXPERIMENTS[name]
        if experiment.measure:
            experiment.measure(study, dataset)
        filled = [study.fill(table) for table in experiment.declare(dataset, "tiny")]
        page = main._write(study, name, dataset, filled, directory / "pages")
    return page, (directory / "pages" / f"{page}.md").read_text()


@pytest.fixture(scope="module")
def ablation(directory):
    return run(directory, "ablation")


NETS = [Net("digits", variant) for variant in ("none", "isotropic", "anisotropic")]


# Experiments


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in EXPERIMENTS if n not in QUICK)]
)
def test_every_experiment_runs_on_digits_and_has_all_its_numbers(name, directory):
    page, text = run(directory, name)
    assert text.startswith("# ") and "| --" not in text
    assert "Not measured" not in text, text
    for picture in re.findall(r"\((\w+\.svg)\)\]", text):
        assert "<svg" in (directory / "pages" / picture).read_text()
    assert f"bin/reproduce --experiment={name}" in text


def test_a_second_run_trains_and_attacks_nothing_and_makes_the_same_page(directory, ablation, capsys):
    capsys.readouterr()
    assert run(directory, "ablation") == ablation
    assert "== net" not in capsys.readouterr().out


def test_the_evidence_makes_the_page_where_the_nets_are_gone(directory, ablation, tmp_path, monkeypatch):
    shutil.copytree(directory / "evidence", tmp_path / "evidence")
    monkeypatch.setattr(wca_tf, "train", None)
    assert run(tmp_path, "ablation") == ablation
    assert not (tmp_path / "models").exists()


def test_the_table_has_the_numbers_of_its_own_evaluations(directory, ablation):
    study = study_in(directory)
    [table] = EXPERIMENTS["ablation"].declare("digits", "tiny")
    filled = study.fill(table)
    for row, net in zip(table.rows, NETS, strict=True):
        results = study.evidence.evaluation(net, "judged").results
        assert filled.cells[row.label]["clean"] == Cell.of(results["clean"]["accuracy"])
        [pgd] = [each for each in results["attacks"] if each["name"] == "pgd"]
        assert filled.cells[row.label]["PGD"] == Cell.of(pgd["accuracy"])


def test_evidence_of_other_weights_is_made_again_whole(directory, ablation, tmp_path, capsys):
    shutil.copytree(directory / "evidence", tmp_path / "evidence")
    study, net = study_in(tmp_path), NETS[0]
    other = net.of_seed(3)
    shutil.move(tmp_path / "evidence" / net.name("tiny"), tmp_path / "evidence" / other.name("tiny"))
    study.engine.provide([Need(other, "judged", "margin:steps=2", "8/255")])
    evaluation = study.evidence.evaluation(other, "judged")
    assert {each.name for each in evaluation.attacks} == {"fgsm", "pgd", "margin:steps=2"}
    weights = hashlib.sha256((tmp_path / "models" / other.training("tiny") / "model.keras").read_bytes())
    assert evaluation.described["model"]["sha256"] == weights.hexdigest()


def test_evidence_of_other_weights_or_settings_is_not_shown(directory, ablation, tmp_path):
    shutil.copytree(directory / "evidence", tmp_path / "evidence")
    table = Table("t", [Row("net", (NETS[0],))], [readings.clean()])
    ours, other = (tmp_path / "evidence" / net.name("tiny") / "judged.zip" for net in NETS[:2])
    shutil.copy(other, ours)
    assert study_in(tmp_path, dry=True).fill(table).missing == [f"{NETS[0].name('tiny')}, judged"]
    assert not study_in(tmp_path).engine.is_there(NETS[0], [Need(NETS[0], "judged", "fgsm", "8/255")])
    path = tmp_path / "evidence" / "trainings.jsonl"
    path.write_text(path.read_text().replace('"epochs": 2,', '"epochs": 3,'))
    assert study_in(tmp_path, dry=True).fill(table).missing == [NETS[0].training("tiny")]


def test_a_choice_among_candidates_of_which_one_is_missing_is_missing(directory, ablation):
    choice = Chosen((NETS[0], NETS[0].of_seed(7)), lambda sites: 0)
    filled = study_in(directory, dry=True).fill(Table("t", [Row("net", (choice,))], [readings.trained()]))
    assert filled.missing == [NETS[0].of_seed(7).training("tiny")]


def test_two_runs_keep_each_others_lines(directory, ablation, tmp_path):
    one, other = (Evidence(tmp_path, "tiny") for _ in range(2))
    assert one.trainings == other.trainings == {}
    for evidence, net in ((one, NETS[0]), (other, NETS[1])):
        evidence.add_training(net, wca_tf.ModelDirectory(directory / "models" / net.training("tiny")))
    assert set(Evidence(tmp_path, "tiny").trainings) == {net.training("tiny") for net in NETS[:2]}


@pytest.mark.parametrize("line", ["nothing", "[]", '{"net": "digits-tiny-none"}'])
def test_a_broken_line_of_a_training_is_one_line(tmp_path, line):
    (tmp_path / "trainings.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="expected .*in each line of .*trainings.jsonl"):
        Evidence(tmp_path, "tiny").training(NETS[0])


def test_an_older_version_of_an_attack_is_not_taken(directory, ablation, monkeypatch):
    study = study_in(directory)
    kind = type(parse_attack("fgsm"))
    assert study.evidence.has(NETS[0], "judged", "fgsm", "8/255")
    monkeypatch.setattr(kind, "version", kind.version + 1)
    assert not study.evidence.has(NETS[0], "judged", "fgsm", "8/255")
    filled = study_in(directory, dry=True).fill(EXPERIMENTS["ablation"].declare("digits", "tiny")[0])
    assert any("which is not today's" in note for note in notes(filled))


def test_a_net_that_diverges_has_a_row_that_says_so(tmp_path):
    net = Net("digits", "none").but(learning_rate=1e30, optimizer="nesterov")
    study = study_in(tmp_path)
    filled = study.fill(Table("t", [Row("net", (net,))], [readings.clean(), readings.one_draw("fgsm", "FGSM")]))
    assert {cell.shown() for cell in filled.cells["net"].values()} == {"diverged"}
    assert study.evidence.training(net)["diverged"]


def test_what_the_evidence_lacks_is_a_dash_and_a_note(directory, ablation):
    study = study_in(directory, dry=True)
    table = Table("t", [Row("net", (NETS[2],))], [readings.clean(), readings.one_draw("square", "Square")])
    filled = study.fill(table)
    assert filled.cells["net"]["Square"].shown() == "–" and filled.cells["net"]["clean"].value is not None
    assert notes(filled)[-1].startswith("Not measured: 1 of")


def test_a_page_describes_a_training_once_and_that_of_the_baseline_alone(directory, ablation, tmp_path):
    study, rows = study_in(directory, dry=True), [Row(net.variant, (net,)) for net in NETS[:2]]
    tables = [Table(name, rows, [readings.trained()], baseline=base) for name, base in (("t", ""), ("u", "none"))]
    both, alone = (study.fill(table) for table in tables)
    of_both, of_one = ([note for note in notes(filled) if "Trained as in" in note] for filled in (both, alone))
    assert "isotropic" in "".join(of_both) and "isotropic" not in "".join(of_one) and len(of_one) == 1
    write_page("page", "What.", "bin/reproduce", [alone, alone], tmp_path)
    text = (tmp_path / "page.md").read_text()
    assert text.count("Trained as in") == 1 and text.count("Each net was trained once") == 1


def test_a_chosen_net_is_the_one_that_its_choice_names(directory, ablation):
    study = study_in(directory)
    choice = Chosen(tuple(NETS[:2]), lambda sites: [site.net for site in sites].index(NETS[1]))
    filled = study.fill(Table("t", [Row("net", (choice,))], [readings.trained()]))
    assert filled.nets["net"] == [NETS[1]]


def test_a_net_starts_from_the_net_that_it_names(tmp_path):
    study, net = study_in(tmp_path), Net("digits", "noise_alone")
    assert net.starts_from("tiny") == Net("digits", "none")
    study.engine.provide([Need(net)])
    assert study.evidence.is_trained(net) and study.evidence.is_trained(Net("digits", "none"))


# Readings


@pytest.fixture(scope="module")
def judged(directory):
    """(the study, the net with anisotropic noise) under three attacks, judged with its noise and without."""
    study, net = study_in(directory), NETS[2]
    study.engine.provide([Need(net, "judged", attack, "8/255") for attack in ("fgsm", "pgd", "margin:steps=5")])
    return study, net


def cell_of(judged, reading, **row):
    study, net = judged
    filled = study.fill(Table("t", [Row("net", (net,), **row)], [reading]))
    return filled.cells["net"][reading.name]


def test_the_worst_case_is_the_least_over_all_attacks_of_each_image(judged):
    evaluation = judged[0].evidence.evaluation(judged[1], "judged")
    at = [evaluation.clean, *evaluation.attacks]
    least = np.min([each.judgement.probability_correct for each in at], axis=0)
    assert cell_of(judged, readings.worst_case(("pgd",))).value == pytest.approx(least.mean())
    hundred = readings.worst_case(("pgd",), 100, "100 queries")
    assert cell_of(judged, hundred).value == pytest.approx(np.mean(least**100))


def test_what_the_noise_adds_is_the_paired_difference(judged):
    worst = cell_of(judged, readings.worst_case(("pgd",))).value
    off = cell_of(judged, readings.noise_off(("pgd",))).value
    adds = cell_of(judged, readings.noise_adds(("pgd",)))
    assert adds.value == pytest.approx(worst - off) and adds.signed and adds.low <= adds.value <= adds.high


def test_a_gain_is_over_the_attacks_that_both_nets_met(judged):
    study, net = judged
    gain = cell_of(judged, readings.gain_over(NETS[0], ("fgsm", "pgd")))
    worst = [study.evidence.evaluation(each, "judged").worst_case(["fgsm", "pgd"], "8/255") for each in (net, NETS[0])]
    assert gain.value == pytest.approx(np.mean(worst[0].probability_correct - worst[1].probability_correct))
    assert cell_of((study, NETS[0]), readings.gain_over(NETS[0], ("fgsm", "pgd"))).shown() == "–"


def test_an_attack_overstates_by_its_distance_to_the_worst_case(judged):
    found = cell_of(judged, readings.overstates("pgd", ("margin:steps=5",)))
    expected = cell_of(judged, readings.expected("pgd")).value - cell_of(judged, readings.worst_case(("pgd",))).value
    assert found.value == pytest.approx(expected)


def test_rows_of_several_seeds_have_the_mean_and_the_range(directory, ablation):
    study = study_in(directory)
    filled = study.fill(Table("t", [Row("nets", tuple(NETS))], [readings.clean()]))
    values = [study.evidence.evaluation(net, "judged")["clean"]["accuracy"]["value"] for net in NETS]
    cell = filled.cells["nets"]["clean"]
    assert cell.value == pytest.approx(np.mean(values)) and (cell.low, cell.high) == (min(values), max(values))
    assert markdown(filled)[-1].startswith("| nets (3 seeds) |")


def test_a_row_of_several_seeds_keeps_the_sign_of_an_upper_bound(directory, ablation):
    bound_of = readings.Reading("b", lambda site: Cell(0.5, is_upper_bound=site.net == NETS[1]), ("fgsm",))
    filled = study_in(directory).fill(Table("t", [Row("nets", tuple(NETS))], [bound_of]))
    assert filled.cells["nets"]["b"].shown() == "≤ 50.0 ± 0.0"


def test_a_gain_is_over_the_net_of_the_same_seed():
    needs = readings.gain_over(NETS[0], ("fgsm",)).needs(study_in(main.COMMITTED), Row("net"), NETS[2].of_seed(1))
    assert [need.net for need in needs] == [NETS[2].of_seed(1), NETS[0].of_seed(1)]


def test_the_interval_of_a_cell_is_as_wide_as_its_longer_side():
    assert Cell(0.0, 0.0, 0.008).shown() == "0.0 ± 0.8"
    assert Cell(0.006, 0.002, 0.017).shown() == "0.6 ± 1.1"


# Declarations


def test_the_papers_numbers_are_percentages_of_its_own_tables():
    numbers = [*CONTROLS.values(), *STRONGER.values(), *WIDE.values(), *IMAGENET.values()]
    numbers += [row for rows in ABLATION.values() for row in rows]
    assert all(0 <= value <= 100 for row in numbers for value in row)
    assert {len(row) for row in (*STRONGER.values(), *WIDE.values())} == {9}
    assert ABLATION["cifar10"][2] == CONTROLS["penalty"]


@pytest.mark.parametrize("scale", SCALES)
def test_every_declaration_names_rows_columns_and_the_papers_cells_once(scale):
    for experiment in EXPERIMENTS.values():
        for dataset in dict.fromkeys((*experiment.datasets(scale), *experiment.choice)):
            for table in experiment.declare(dataset, scale):
                labels, columns = [row.label for row in table.rows], [column.name for column in table.columns]
                assert len(set(labels)) == len(labels) and len(set(columns)) == len(columns), table.title
                assert {key[1] for key in table.paper} <= set(columns), table.title
                assert {key[0] for key in table.paper} <= set(labels) or dataset == "digits", table.title


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_variant_is_a_configuration_at_every_scale(variant, scale):
    sets = ("digits",) if variant.startswith(("certified", "quickstart")) else ("digits", "fashion_mnist", "cifar10")
    for dataset in sets:
        TrainConfig(**settings(dataset, variant, scale))


@pytest.mark.parametrize("scale", SCALES)
def test_every_attack_and_part_of_the_budgets_is_a_configuration(scale):
    for part in PARTS:
        for name in (*ATTACKS[scale], "fgsm"):
            EvaluateConfig(attacks=written(name, scale, part), **part_options(part, scale))


def test_options_of_a_declaration_are_added_to_the_budgets():
    assert written("cw:confidence=5", "tiny") == ATTACKS["tiny"]["cw"] + ":confidence=5"
    assert written("multi_targeted:steps=100", "small") == "multi_targeted:steps=100"
    assert written("adaptive", "small", "few") == "adaptive:steps=20:apgd_steps=40:queries=200"
    assert written("adaptive", "small") == "adaptive"


def test_the_forms_of_the_alignment_term_are_chosen_on_validation_images():
    [table, _] = declare_alignment("fashion_mnist", "small")
    chosen = [row.nets[0] for row in table.rows if isinstance(row.nets[0], Chosen)]
    assert len(chosen) == 15 and {each.attack for each in chosen} == {"adaptive"}
    assert {len(each.candidates) for each in chosen} == {4}


@pytest.mark.parametrize("angle", [0.0, 10.0, 44.0, 46.0, 80.0])
def test_angles_are_to_the_nearest_axis_of_the_noise(angle):
    radians = np.radians(angle)
    weights = np.array([[np.cos(radians)], [np.sin(radians)]]) * 3
    [found] = angles_to_axes(weights, np.diag([4.0, 1.0]))
    assert found == pytest.approx(min(angle, 90 - angle))


def test_an_attack_below_theorem_1s_bound_is_an_error():
    point = {"pgd": 0.5, "optimum": 0.4, "certified": 0.3, "theorem_1": 0.2}
    bound.check_bound([[point]])
    with pytest.raises(RuntimeError, match="bound is violated"):
        bound.check_bound([[{**point, "optimum": 0.25}]])


# Pages and the command


def test_the_papers_numbers_stand_in_a_column_of_their_own(directory, ablation):
    study = study_in(directory)
    table = Table("t", [Row("net", (NETS[0],))], [readings.clean()], {("net", "clean"): 0.714})
    head, _, row = markdown(study.fill(table))
    assert head == "| | clean | clean, paper |" and row.endswith("| 71.4 |")


def test_the_time_left_is_that_of_the_nets_to_come(directory, ablation, capsys):
    made = study_in(directory).engine
    made.expected, made.seconds, made.begun = 4, 600.0, ["a"]
    made._announce("b")
    assert capsys.readouterr().out == "== net 2 of 4: b; about 30 min left\n"
    assert duration(7500) == "2 h 5 min"


def test_the_nets_to_come_are_those_of_all_tables_that_the_evidence_lacks(directory, ablation):
    tables = [table for name in ("ablation", "defences") for table in EXPERIMENTS[name].declare("digits", "tiny")]
    names = study_in(directory).nets_to_come(tables)
    assert not {net.name("tiny") for net in NETS} & names
    assert {Net("digits", f"baseline_{name}").name("tiny") for name in ("wca", "rse", "decay", "none_at")} <= names


@pytest.mark.parametrize(
    ("experiment", "scale", "dataset"), [("ablation", "tiny", "cifar10"), ("bound", "small", "cifar10")]
)
def test_a_data_set_that_the_experiment_cannot_take_is_refused(experiment, scale, dataset):
    with pytest.raises(InputError, match="expected no --dataset"):
        datasets_of(experiment, scale, dataset)


def test_an_unknown_experiment_or_scale_is_one_line(command_without_tensorflow):
    with pytest.raises(InputError, match="among tiny, small, paper"):
        check_names("ablation", "large")
    for arguments in (("--experiment=none",), ("--experiment=ablation", "--tfds_data_dir=nowhere")):
        done = command_without_tensorflow("reproduce", *arguments)
        assert done.code == 2 and done.err.startswith("error: expected ") and done.err.count("\n") == 1


def test_the_list_describes_every_experiment_at_once(command_without_tensorflow):
    done = command_without_tensorflow("reproduce", "--list")
    assert done.code == 0
    for name, experiment in EXPERIMENTS.items():
        assert f"{name}: {experiment.what} ({experiment.paper})" in done.out


def test_one_of_several_experiments_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(main, "_run", lambda study, name, *_: made.append(name) if name == "bound" else 1 / 0)
    monkeypatch.setattr(main, "import_tensorflow", lambda: None)
    given = {"models_dir": str(tmp_path), "scale": "tiny", "dataset": "", "evidence_dir": "", "pages_dir": ""}
    given |= {"tfds_data_dir": "", "download": False, "mini_imagenet": ""}
    monkeypatch.setattr(main, "FLAGS", type("Flags", (), given))
    with pytest.raises(InputError, match="1 of 2 experiments failed: ablation on digits: division by zero"):
        main.run_experiments(["ablation", "bound"])
    assert made == ["bound"]


def test_the_committed_pages_are_made_of_the_committed_evidence(root, tmp_path):
    names = main.make_tables(main.COMMITTED, tmp_path)
    assert {"fashion_mnist", "quickstart", "ablation"} <= set(names)
    for path in tmp_path.iterdir():
        committed = root / "docs" / "results" / path.name
        assert path.read_bytes() == committed.read_bytes(), f"run bin/reproduce --tables: {path.name} differs"


def test_a_vote_on_fewer_images_than_are_judged_is_missing(root, tmp_path):
    net, part = Net("cifar10", "certified_smoothing").but(defence="smoothing:deviation=0.25"), "certified_votes"
    committed = root / "reproduce" / "evidence"
    shutil.copy(committed / "trainings.jsonl", tmp_path)
    full, few = Evidence(committed, "small"), Evidence(tmp_path, "small")
    evaluation = wca_tf.Evaluation.read(committed / net.name("small") / f"{part}.zip")
    evaluation.results["certificates"]["votes"]["images"] = 20
    few.add_evaluation(net, part, evaluation)
    assert certificates._seconds_an_image(Site(Study(full, None), net, part, (), None)).text == "16.0"
    with pytest.raises(Missing, match="all images"):
        certificates._seconds_an_image(Site(Study(few, None), net, part, (), None))
