import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prediction_server import served

import wca_tf
from wca_tf.attacks.attack import Attack
from wca_tf.attacks.names import ATTACKS
from wca_tf.core.options import assignment, options_of, with_tables
from wca_tf.defences.tables import markdown_table

# Every page with Python, but for README.md (test_readme.py).
YOUR_OWN, SERVING = PAGES = ("docs/howto/your_own_model.md", "docs/serving.md")
HOW_TO = tuple(f"docs/howto/add_a{what}.md" for what in ("_backbone", "_dataset", "_defence", "n_attack"))
QUICK = ("docs/concepts.md", *HOW_TO)
LONG = (
    "docs/howto/own_net.md",
    "docs/howto/judge_a_defence.md",
    "docs/howto/train.md",
    "docs/howto/certify.md",
    "docs/tutorial.md",
)
OF_FRAMEWORKS = "docs/howto/judge_a_torch_net.md"  # test_frameworks.py runs it


def python_blocks(root, page):
    """The page's Python, block by block."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (root / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    return blocks


def run_block(page, number, block, names):
    exec(compile(block, f"{page}, block {number}", "exec"), names)


@pytest.fixture(scope="module")
def run_page(root, tmp_path_factory):
    """run_page(PAGE): (the names that the page's Python leaves behind, the directory it ran in)."""

    def run(page):
        directory = tmp_path_factory.mktemp("docs")
        names = {"__name__": Path(page).stem}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(directory)
            for number, block in enumerate(python_blocks(root, page), start=1):
                run_block(page, number, block, names)
        return names, directory

    return run


@pytest.fixture(scope="module")
def ran(run_page):
    return run_page(YOUR_OWN)


@pytest.mark.slow
def test_the_page_about_your_own_model_runs_from_top_to_bottom(ran):
    names, directory = ran
    distance = np.abs(names["result"].images - names["images"]).max()
    assert 0 < distance <= 8 / 255 + 1e-6  # rounding of x + δ
    results = names["report"]
    assert (directory / "report" / "report.html").is_file()
    assert [attack["name"] for attack in results["attacks"]] == ["fgsm", "pgd", "margin:steps=10", "square:queries=50"]
    assert results["dataset"] == "cnn with dropout"


@pytest.mark.slow
def test_what_the_page_says_of_such_a_net_is_so(ran):
    results = ran[0]["report"]
    clean = results["clean"]
    assert clean["expected_accuracy"]["value"] > 0.5  # it was trained
    assert clean["noise_free_accuracy"] is None
    assert clean["probability_error"] > 0  # an estimate
    n_query = [number["value"] for number in clean["n_query_accuracy"].values()]
    assert n_query[0] >= n_query[1] >= n_query[2]
    # Square's 50 queries may find nothing; the mean of 50 estimates from 200 draws is then as good as the clean one.
    noise = {"square:queries=50": 4 * 0.5 / (50 * 200) ** 0.5}
    left = {a["name"]: a["expected_accuracy"]["value"] - noise.get(a["name"], 0) for a in results["attacks"]}
    assert all(value < clean["expected_accuracy"]["value"] for value in left.values()), left
    first, again = ran[0]["first"], ran[0]["again"]
    np.testing.assert_array_equal(first, again)


@pytest.mark.slow
def test_the_page_about_your_own_model_trains_attacks_saves_and_exports_a_wca_net(ran):
    names, directory = ran
    classifier, net, images = names["classifier"], names["net"], names["images"][:100]
    assert (directory / "export" / "1" / "saved_model.pb").is_file()
    np.testing.assert_allclose(names["loaded"].features(images), net.features(images), atol=1e-5)
    clean, worst = {}, {}
    for name in ("undefended", "hardened"):
        results = json.loads((directory / "reports" / name / "results.json").read_text())
        clean[name] = results["clean"]["expected_accuracy"]["value"]
        worst[name] = results["worst_case"][0]["expected_accuracy"]["value"]
    test = names["test"].take(slice(0, 100))
    right = classifier.predict(test.images / np.float32(255), verbose=0).argmax(axis=1) == test.labels
    assert clean["undefended"] == pytest.approx(right.mean())  # what it was hardened from stayed as it was
    assert clean["hardened"] > 0.8
    assert all(worst[name] < clean[name] for name in clean)


@pytest.mark.slow
def test_the_page_about_serving_exports_a_net_and_its_clients_get_answers(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "serving"}
    first, *others = python_blocks(root, SERVING)
    run_block(SERVING, 1, first, names)
    with served(tmp_path / "served" / "digits" / "1", "digits") as addresses:
        for number, block in enumerate(others, start=2):
            for written, here in {"localhost:8500": addresses.grpc, "localhost:8501": addresses.rest}.items():
                block = block.replace(written, here)
            run_block(SERVING, number, block, names)
    labels = [str(label) for label in names["test"].labels[:3]]
    assert names["by_column"]["class_name"] == [name.decode() for name in names["averaged"]["class_name"]] == labels
    error = 6 * 0.5 / 1000**0.5
    np.testing.assert_allclose(names["averaged"]["probabilities"], names["exact"]["probabilities"], atol=error)
    np.testing.assert_allclose(names["by_column"]["probabilities"], names["exact"]["probabilities"], atol=error)
    one, other = names["by_row"]
    assert one["logits"] != other["logits"]


@pytest.mark.parametrize("page", [*QUICK, *(pytest.param(page, marks=pytest.mark.slow) for page in LONG)])
def test_the_page_runs_from_top_to_bottom(run_page, page):
    run_page(page)


def test_the_table_of_defences_is_that_of_their_declarations(root):
    """Else run python -m wca_tf.defences.tables."""
    text = (root / "docs/defences.md").read_text()
    assert with_tables(text, {"defences": markdown_table()}) == text


def test_the_catalogue_of_attacks_is_made_from_their_declarations_alone(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "docs")
    hooks = importlib.import_module("hooks")
    text = (root / "docs/reference/catalogue.md").read_text()
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/catalogue.md"))
    made = hooks.on_page_markdown(text, page=page, config=None, files=None)
    for name, named in ATTACKS.items():
        [row] = [line for line in made.splitlines() if line.startswith(f"| `{name}` | {named.description} |")]
        assert named.source in row and row not in text
        for option, field in options_of(named.kind).items():
            value = named.defaults.get(option, field.default)
            if value != field.default or option not in options_of(Attack):
                assert f"`{assignment(option, value)}`" in row
            assert f"| `{option}` | {field.metadata['help']}" in made
    other = SimpleNamespace(file=SimpleNamespace(src_uri="attacks.md"))
    assert hooks.on_page_markdown(text, page=other) == text


def resolves(dotted):
    """Whether a dotted name is a module, or something in one."""
    for count in range(dotted.count(".") + 1, 0, -1):
        module, *names = ".".join(dotted.split(".")[:count]), *dotted.split(".")[count:]
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for name in names:
            found = getattr(found, name, None)
        return found is not None
    return False


def test_names_of_this_package_in_readme_and_docs_exist(root):
    for path in (root / "README.md", *(root / "docs").rglob("*.md")):
        text = re.sub(r"wca_tf[\w.]*\.(md|json|html|png)", "", path.read_text())
        for name in set(re.findall(r"\bwca_tf(?:\.\w+)+", text)) - {"wca_tf.nets.backbones.small_cnn"}:  # yours to add
            assert resolves(name), f"{path.relative_to(root)}: {name}"


def test_the_citation_is_of_this_version(root):
    assert f'\nversion: "{wca_tf.__version__}"\n' in (root / "CITATION.cff").read_text()


def test_the_other_pages_have_no_python_that_is_not_run(root):
    """A page with Python blocks belongs in this file, or in test_readme.py."""
    pages = {str(path.relative_to(root)) for path in (root / "docs").rglob("*.md") if "```python" in path.read_text()}
    assert pages == {*PAGES, *QUICK, *LONG, OF_FRAMEWORKS}
