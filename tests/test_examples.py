"""Every file of examples/ runs as a user runs it, and says what it is for."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
SAYS = {
    "certify_linear": ["epsilon 0.1: the best attack leaves"],
    "judge_dropout": ["clean:", "PGD on 1 draw a step leaves", "PGD on 10 draws a step leaves"],
    "train_attack_export": ["none: clean", "wca: clean", "exported:"],
}


LONG = ("train_attack_export",)  # a minute; what it calls has tests of its own


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=[pytest.mark.slow] * (p.stem in LONG), id=p.stem) for p in EXAMPLES]
)
def test_an_example_runs(path, root, command_environment, tmp_path):
    environment = {**command_environment, "PYTHONPATH": str(root), "TF_NUM_INTRAOP_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for text in SAYS[path.stem]:
        assert text in done.stdout
