"""`bin/compare`: nets side by side only where they met the same images, the same radius and the same attacks."""

import dataclasses
import html
import json
import re
import shutil
import subprocess

import keras
import numpy as np
import pytest
from evaluation_nets import arrays, dense_net, digits, read_strictly, with_layers

import wca_tf
from wca_tf.attacks import parse_attack
from wca_tf.attacks.radii import Radius
from wca_tf.comparison.compare import compare_evaluations
from wca_tf.comparison.groups import AUTHORS_OWN
from wca_tf.comparison.page import as_page
from wca_tf.comparison.tables import as_json, as_markdown, as_text, finding
from wca_tf.core.errors import InputError
from wca_tf.defences import declaration_of, defence_names, parse_defence
from wca_tf.evaluation.outcomes import PER_IMAGE, load_outcome, save_outcome
from wca_tf.evaluation.record import Evaluation

HOSTILE = '<script>alert("1")</script>|x'


def evaluated(directory, name, model=None, first=0, **options):
    test = digits(4)[1].take(slice(first, first + 20))
    asked = {"attacks": "fgsm,pgd:steps=2,pgd", "epsilons": "0.1,0.2", "eot_samples": 2, **options}
    wca_tf.evaluate(model or dense_net(4), test.images, test.labels, report_dir=directory, name=name, **asked)
    return directory


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    directory = tmp_path_factory.mktemp("reports")
    noisy = with_layers(dense_net(4))
    return {
        "plain": evaluated(directory / "plain", "plain"),
        "other": evaluated(directory / "other", HOSTILE, noisy, attacks="fgsm,pgd", epsilons="0.1"),
        "images": evaluated(directory / "images", "plain", first=20, attacks="pgd"),
        "draws": evaluated(directory / "draws", "plain", attacks="pgd", eot_samples=3),
        "fgsm": evaluated(directory / "fgsm", "plain", attacks="fgsm"),
    }


def test_the_worst_case_is_over_the_attacks_that_all_nets_met(reports):
    both, alone = compare_evaluations([reports["plain"], reports["other"]])
    assert [row.net for row in both.rows] == ["plain", HOSTILE] and [row.net for row in alone.rows] == ["plain"]
    assert both.radius == Radius(0.1, "linf") and alone.radius == Radius(0.2, "linf")
    stored = arrays(reports["plain"])
    shared = [
        row
        for row, name in enumerate(stored["attack"])
        if name == "clean" or (name in ("fgsm", "pgd") and stored["epsilon"][row] == 0.1)
    ]
    expected = stored["probability_correct"][shared].min(axis=0)
    assert both.rows[0].worst_case["value"] == pytest.approx(expected.mean())
    assert both.rows[0].queries["value"] == pytest.approx((expected**100).mean())
    [note] = both.notes
    assert "pgd:steps=2 (plain)" in note and "no other net beside it" in alone.notes[0]


def test_a_comparison_shows_itself_in_a_terminal_and_in_a_notebook(reports):
    compared = compare_evaluations([reports["plain"], reports["other"]])
    assert repr(compared) == as_text(compared)
    shown = compared._repr_html_()
    assert shown.count("<table>") == 2 and "<script>" not in shown and "left out" in shown


def test_numbers_are_those_of_the_evaluation(reports):
    [row] = compare_evaluations([reports["plain"]])[0].rows
    results = read_strictly(reports["plain"] / "results.json")
    [pgd] = [entry for entry in results["attacks"] if (entry["name"], entry["epsilon"]) == ("pgd", 0.1)]
    assert row.clean == results["clean"]["expected_accuracy"] and row.protocol == pgd["accuracy"]
    assert row.worst_case == results["worst_case"][0]["expected_accuracy"]
    assert row.overstated == pytest.approx(pgd["expected_accuracy"]["value"] - row.worst_case["value"])


def test_the_gain_over_the_first_net_is_paired_over_the_images(reports):
    first, other = compare_evaluations([reports["plain"], reports["other"]])[0].rows
    assert first.gain is None
    worst = []
    for name in ("plain", "other"):
        stored = arrays(reports[name])
        shared = [
            row
            for row, attack in enumerate(stored["attack"])
            if attack == "clean" or (attack in ("fgsm", "pgd") and stored["epsilon"][row] == 0.1)
        ]
        worst.append(stored["probability_correct"][shared])
    assert other.gain["value"] == pytest.approx(other.worst_case["value"] - first.worst_case["value"])
    pairs = worst[1].min(axis=0) - worst[0].min(axis=0)
    spread = (np.sum((pairs - pairs.mean()) ** 2) + 2) / (len(pairs) + 1)  # with two more pairs, of 1 and −1
    half = 1.96 * (spread / len(pairs)) ** 0.5
    assert other.gain["high"] - other.gain["value"] == pytest.approx(half, rel=1e-3)
    same = compare_evaluations([reports["plain"], copied(reports["plain"], "again")])[0].rows[1].gain
    assert same["value"] == 0 and same["high"] == -same["low"] > 0


def test_files_of_evaluations_are_compared_as_their_directories(reports, tmp_path):
    paths = [tmp_path / "plain.zip", tmp_path / "other.zip"]
    for path, name in zip(paths, ("plain", "other"), strict=True):
        Evaluation.read(reports[name]).save(path)
    ours, theirs = (as_json(compare_evaluations(each)) for each in (paths, [reports["plain"], reports["other"]]))
    for group in (*ours, *theirs):
        for row in group["rows"]:
            row.pop("report")
    assert ours == theirs


def copied(report, name):
    return shutil.copytree(report, report.parent / name, dirs_exist_ok=True)


def test_other_images_are_another_group(reports):
    groups = compare_evaluations([reports["plain"], reports["images"]])
    assert [len(group.rows) for group in groups] == [1, 1, 1, 1]
    assert all("no other net beside it" in group.notes[-1] for group in groups)


def test_other_images_in_memory_have_another_name(reports):
    names = {group.data for group in compare_evaluations([reports["plain"], reports["images"]])}
    assert len(names) == 2 and all(name.startswith("images in memory, 20 images (") for name in names)


def test_nets_that_were_attacked_with_another_seed_are_told(reports, tmp_path):
    directory = changed(reports["other"], tmp_path / "seed", lambda results: results["config"].update(seed=3))
    both, _ = compare_evaluations([reports["plain"], directory])
    assert "attacked and judged with different seeds: 0, 3" in both.notes


def changed(report, directory, change):
    """A copy of a report whose evaluation.json is changed."""
    shutil.copytree(report, directory)
    described = read_strictly(directory / "evaluation.json")
    change(described)
    (directory / "evaluation.json").write_text(json.dumps(described))
    return directory


def test_the_authors_own_attack_is_a_protocol_that_differs_from_net_to_net(reports, tmp_path):
    def trained_as(name, defence):
        training = {"defence": defence, "adversarial": "none"}
        told = {"training": training, "authors_attack": parse_defence(defence).protocol}
        return changed(reports["plain"], tmp_path / name, lambda results: results.update(told))

    nets = [trained_as(name, name) for name in ("wca", "se_snn", "ctrw", "smoothing")]
    group = compare_evaluations(nets)[0]
    one_draw = [row.one_draw for row in group.rows]
    assert one_draw[0][AUTHORS_OWN] == one_draw[0]["pgd"] and one_draw[1][AUTHORS_OWN] == one_draw[1]["fgsm"]
    assert AUTHORS_OWN not in one_draw[2] and AUTHORS_OWN not in one_draw[3]
    assert group.notes == ["not attacked by the attack of its authors, single_draw: ctrw"]
    assert finding(group, AUTHORS_OWN).startswith("The authors' own attack overstates")
    assert "the authors&#39; own attack, one draw" in as_page([group], tmp_path)


@pytest.mark.parametrize("name", sorted(set(defence_names()) - {"smoothing"}))  # its authors attack nothing
def test_the_attack_of_a_defences_authors_is_named_as_results_name_it(name):
    protocol = declaration_of(name).protocol
    assert protocol and parse_attack(protocol).name == protocol


def test_nets_without_an_attack_in_common_are_refused(reports):
    with pytest.raises(InputError, match="pgd with different eot_samples"):
        compare_evaluations([reports["plain"], reports["draws"]])
    with pytest.raises(InputError, match="plain .fgsm.: fgsm"):
        compare_evaluations([reports["draws"], reports["fgsm"]])


def test_attacks_that_saw_a_net_in_another_precision_are_others(reports, tmp_path):
    precision = {"attack_precision": "mixed_bfloat16"}
    directory = changed(reports["draws"], tmp_path / "bfloat16", lambda results: results["config"].update(precision))
    with pytest.raises(InputError, match="pgd with different attack_precision$"):
        compare_evaluations([reports["draws"], directory])


def test_nets_of_the_same_name_get_the_names_of_their_directories(reports):
    group = compare_evaluations([reports["plain"], reports["fgsm"]])[0]
    assert [row.net for row in group.rows] == ["plain (plain)", "plain (fgsm)"]
    assert group.rows[0].protocol is None and group.rows[0].overstated is None
    assert "Not every net was attacked by the usual protocol" in finding(group) and " – " in as_text([group])


def test_an_evaluation_without_a_radius_is_refused(reports, tmp_path):
    """C&W alone has none: the table would have no row of it."""
    searched = evaluated(tmp_path / "cw", "cw", attacks="cw:steps=2:searches=1")
    for asked in ([searched], [reports["plain"], searched]):
        with pytest.raises(InputError, match="attacks with a radius in .*cw, received none"):
            compare_evaluations(asked, tmp_path / "comparison")
    assert not (tmp_path / "comparison").exists()


def test_a_directory_given_twice_or_without_an_evaluation_is_refused(reports, tmp_path):
    with pytest.raises(InputError, match="twice"):
        compare_evaluations([reports["plain"], reports["plain"] / ".." / "plain"])
    with pytest.raises(InputError, match="there is none"):
        compare_evaluations([tmp_path])
    (tmp_path / "results.json").write_text('{"schema": 2}')
    with pytest.raises(InputError, match="schema 3"):
        compare_evaluations([tmp_path])
    (tmp_path / "evaluation.json").write_text('{"schema": 2}')
    with pytest.raises(InputError, match="schema 3"):
        compare_evaluations([tmp_path])


@pytest.mark.parametrize(
    "change",
    [{"attacks": 3}, {"attacks": [{}]}, {"training": []}, {"config": None}, {"images_sha256": {}}, {"model": {}}],
    ids=str,
)
def test_broken_contents_are_one_line(reports, tmp_path, change):
    directory = changed(reports["plain"], tmp_path / "broken", lambda described: described.update(change))
    with pytest.raises(InputError, match="cannot be read") as raised:
        compare_evaluations([directory])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("change", ["none", "broken", "short"])
def test_an_evaluation_without_all_records_is_refused(reports, tmp_path, change):
    directory = copied(reports["plain"], tmp_path / "changed")
    [path] = (directory / "records").glob("fgsm-0.1-*")
    outcome = load_outcome(path.parent, "fgsm", Radius(0.1, "linf"))
    if change == "none":
        path.unlink()
    elif change == "broken":
        path.write_bytes(path.read_bytes()[:100])
    else:
        numbers = {name: getattr(outcome, name)[:5] for name in PER_IMAGE}
        save_outcome(dataclasses.replace(outcome, **numbers), path.parent)
    with pytest.raises(InputError, match="a finished evaluation.*without all images of fgsm: run it again"):
        compare_evaluations([directory])


def test_the_page_has_a_row_for_each_net_and_links_to_its_report(reports, tmp_path):
    groups = compare_evaluations([reports["plain"], reports["other"]], tmp_path / "compared here")
    page = (tmp_path / "compared here" / "comparison.html").read_text()
    rows = re.findall(r"<tr data-data=.*?</tr>", page, re.DOTALL)
    assert len(rows) == sum(len(group.rows) for group in groups) == 3
    links = re.findall(r'<a href="([^"]*)">', page)
    assert all((tmp_path / "compared here" / html.unescape(link)).resolve().is_file() for link in links)
    drawn = sum(len(group.rows[0].one_draw) for group in groups)  # a figure for each protocol
    assert len(links) == 3 and "<script>alert" not in page and page.count("<svg") == drawn
    assert not re.search(r'(src|href)="(https?:)?//', page)  # nothing is fetched
    for found, row in zip(rows, (row for group in groups for row in group.rows), strict=True):
        protocols = json.loads(re.search(r"data-protocols='(.*?)'", found)[1])
        assert {name: shown["value"] for name, shown in protocols.items()} == {
            name: number["value"] for name, number in row.one_draw.items()
        }
        assert all(np.isclose(p["above"], row.overstated_by(name)) for name, p in protocols.items())
    assert all(f'<option value="{name}">' in page for name in groups[0].rows[0].one_draw)


def test_the_command_prints_the_table_and_writes_three_files(command, reports, tmp_path):
    directories = f"{reports['plain']},{reports['other']}"
    done = command("compare", f"--evaluations={directories}", "--report_dir=compared", cwd=tmp_path)
    assert done.code == 0 and done.err == "", done.err
    groups = compare_evaluations([reports["plain"], reports["other"]])
    assert done.out.startswith(as_text(groups))
    written = read_strictly(tmp_path / "compared" / "comparison.json")
    assert written[0]["rows"][0]["worst_case"] == groups[0].rows[0].worst_case
    assert (tmp_path / "compared" / "comparison.md").read_text() == as_markdown(groups)
    assert "\\|x" in as_markdown(groups)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--report_dir=r",), "--evaluations"),
        (("--evaluations=absent", "--report_dir=r"), "absent"),
        (("--evaluations=absent,", "--report_dir=r", "stray"), "stray"),
    ],
)
def test_a_wrong_command_ends_at_once_with_one_line(fails_in_one_line, tmp_path, arguments, told):
    assert told in fails_in_one_line(tmp_path, "compare", *arguments)


def test_the_finding_names_the_net_that_is_overstated_most(reports):
    group = compare_evaluations([reports["plain"], reports["other"]])[0]
    low, high = ({**group.rows[0].worst_case, "value": value} for value in (0.1, 0.3))
    rows = [
        dataclasses.replace(group.rows[0], net="a", expected={"pgd": high}, worst_case=high),
        dataclasses.replace(group.rows[0], net="b", expected={"pgd": high}, worst_case=low),
    ]
    told = finding(dataclasses.replace(group, rows=rows))
    assert told == (
        "The usual protocol overstates b most: in the mean over draws it says 30.0 %, where the worst case leaves "
        "10.0 %."
    )
    assert np.isclose(rows[1].overstated, 0.2)
    by_fgsm = [dataclasses.replace(row, expected={"pgd": high, "fgsm": low}) for row in rows]
    told = finding(dataclasses.replace(group, rows=by_fgsm), "fgsm")
    assert told == "fgsm overstates no net: it leaves no more than the worst case."
    assert finding(dataclasses.replace(group, rows=rows), "fgsm") == "Not every net was attacked by fgsm."
    told = finding(dataclasses.replace(group, rows=rows[:1]))
    assert told == "The usual protocol overstates no net: it leaves no more than the worst case."


# The page in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
USE = """<pre id="seen"></pre><script>
addEventListener("load", () => {
  const table = document.getElementById("nets"), rows = () => [...table.tBodies[0].rows];
  const cells = (column) => rows().filter((row) => !row.hidden).map((row) => row.cells[column].textContent.trim());
  const choose = (select, value) => { select.value = value; select.dispatchEvent(new Event("change")); };
  const shown = () => [...document.querySelectorAll("figure")].filter((each) => !each.hidden).length;
  const seen = {all: cells(0).length, figures: shown()};
  table.querySelectorAll("thead button")[3].click();
  seen.down = rows().map((row) => Number(row.cells[3].dataset.value));
  table.querySelectorAll("thead button")[3].click();
  seen.up = rows().map((row) => Number(row.cells[3].dataset.value));
  choose(document.querySelector("[data-filter=epsilon]"), "0.2");
  seen.filtered = cells(7);
  choose(document.querySelector("[data-filter=epsilon]"), "");
  choose(document.getElementById("protocol"), "fgsm");
  seen.head = table.querySelectorAll("thead button")[2].textContent;
  seen.fgsm = rows().map((row) => [Number(row.cells[2].dataset.value), Number(row.cells[6].dataset.value)]);
  const findings = [...document.querySelectorAll("span[data-protocol]")];
  seen.finding = findings.filter((each) => !each.hidden).map((each) => each.textContent);
  seen.labels = [...document.querySelectorAll("figure")].filter((e) => !e.hidden).map((e) => e.dataset.protocol);
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_the_page_sorts_filters_and_changes_its_protocol_in_a_browser(reports, tmp_path):
    groups = compare_evaluations([reports["plain"], reports["other"]], tmp_path / "compared")
    page = tmp_path / "compared" / "comparison.html"
    page.write_text(page.read_text().replace("</body>", USE))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([CHROMIUM, *options, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    seen = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    rows = [row for group in groups for row in group.rows]
    worst = sorted(row.worst_case["value"] for row in rows)
    assert seen["all"] == len(rows) == 3 and seen["down"] == worst[::-1] and seen["up"] == worst
    assert seen["filtered"] == ["0.2"] and seen["head"] == "fgsm, one draw" and seen["figures"] == 2
    by_fgsm = {(row.one_draw["fgsm"]["value"], row.overstated_by("fgsm")) for row in rows}
    assert {tuple(pair) for pair in seen["fgsm"]} == by_fgsm
    assert seen["finding"] == [finding(group, "fgsm") for group in groups] and seen["labels"] == ["fgsm", "fgsm"]


# Parts of an evaluation


@keras.saving.register_keras_serializable("tests")
class AlwaysDropout(keras.layers.Dropout):
    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Two parts of an evaluation and the whole, of a net with noise that 20 images share."""
    directory, test = tmp_path_factory.mktemp("parts"), digits(4)[1].take(slice(0, 50))
    net = with_layers(dense_net(4), before=[AlwaysDropout(0.2)])
    asked = {"attacks": "fgsm,pgd:steps=2,pgd", "epsilons": "0.1", "eot_samples": 2, "name": "net"}
    for name, shard in (("whole", ""), ("second", "2/2"), ("first", "1/2")):
        wca_tf.evaluate(net, test.images, test.labels, report_dir=directory / name, shard=shard, **asked)
    return directory


def test_parts_of_an_evaluation_are_the_whole(parts):
    [merged], [whole] = (
        group.rows
        for group in (
            *compare_evaluations([parts / "second", parts / "first"]),
            *compare_evaluations([parts / "whole"]),
        )
    )
    assert dataclasses.replace(merged, report=whole.report) == whole
    both = compare_evaluations([parts / "whole", parts / "first", parts / "second"])[0]
    assert [row.gain["value"] for row in both.rows[1:]] == [0.0]
    first, second = (arrays(parts / name)["index"].tolist() for name in ("first", "second"))
    assert first == [*range(21)] and second == [*range(21, 50)]  # 50 images are in blocks of 3


def test_a_missing_part_is_one_line(parts):
    with pytest.raises(InputError, match="all 2 parts of an evaluation, each once; received 2/2"):
        compare_evaluations([parts / "second"])


def test_a_part_without_images_is_one_line(tmp_path):
    with pytest.raises(InputError, match="at most 1 parts.*received 1/99 of 20 images"):
        evaluated(tmp_path / "part", "part", shard="1/99")


@pytest.mark.parametrize("shard", ["3/2", "0/2", "1", "a/b", "1/-1"])
def test_a_wrong_part_is_one_line(fails_in_one_line, tmp_path, shard):
    assert "--shard=i/n" in fails_in_one_line(tmp_path, "evaluate", f"--shard={shard}", "--model_dir=x")


def test_the_checklist_needs_all_images(fails_in_one_line, tmp_path):
    assert "checklist" in fails_in_one_line(tmp_path, "evaluate", "--shard=1/2", "--checklist", "--model_dir=x")
