import re

import numpy as np
import pytest

PAGE = "docs/any_keras_model.md"


@pytest.fixture(scope="module")
def ran(root, tmp_path_factory):
    """(the names that the page's Python leaves behind, the directory it ran in)."""
    directory = tmp_path_factory.mktemp("docs")
    blocks = re.findall(r"^```python\n(.*?)^```$", (root / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 4
    names = {"__name__": "any_keras_model"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for number, block in enumerate(blocks):
            exec(compile(block, f"{PAGE}, block {number + 1}", "exec"), names)
    return names, directory


def test_the_page_about_keras_models_runs_from_top_to_bottom(ran):
    names, directory = ran
    distance = np.abs(np.asarray(names["adversarial"]) - names["images"]).max()
    assert 0 < distance <= 8 / 255 + 1e-6  # rounding of x + δ
    results = names["results"]
    assert (directory / "report" / "report.html").is_file()
    assert [attack["name"] for attack in results["attacks"]] == names["config"].attacks.split(",")
    assert results["dataset"] == "cnn with dropout"


def test_what_the_page_says_of_such_a_net_is_so(ran):
    results = ran[0]["results"]
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


def test_the_other_pages_have_no_python_that_is_not_run(root):
    """A page with Python blocks belongs in this file, or in test_readme.py."""
    pages = {str(path.relative_to(root)) for path in (root / "docs").rglob("*.md") if "```python" in path.read_text()}
    assert pages == {PAGE}
