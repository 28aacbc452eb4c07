"""The notebook of examples/ runs from top to bottom, and is stored with what it printed."""

import nbformat
import pytest
from nbclient import NotebookClient

NAME = "attack_and_compare.ipynb"


@pytest.fixture(scope="module")
def stored(root):
    return nbformat.read(root / "examples" / NAME, as_version=4)


@pytest.fixture(scope="module")
def executed(stored, root, tmp_path_factory, monkeypatch_module):
    directory = tmp_path_factory.mktemp("notebook")
    monkeypatch_module.setenv("PYTHONPATH", str(root))
    notebook = nbformat.from_dict(stored)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(directory)}}).execute()
    return notebook, directory


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def shown(notebook):
    """What the code cells show: the text of each result."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"]


def test_the_notebook_runs_and_compares_both_nets(executed):
    notebook, directory = executed
    comparison = shown(notebook)[-1].splitlines()
    assert [line.split("  ")[0] for line in comparison[1:4]] == ["net", "plain", "with WCA noise"]
    assert (directory / "runs" / "notebook" / "compared" / "comparison.html").is_file()


def test_the_notebook_is_stored_executed_and_without_errors(stored):
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert {output.output_type for cell in code for output in cell.outputs} <= {"execute_result", "stream"}
    assert len(shown(stored)) == 4 and "with WCA noise" in shown(stored)[-1]
