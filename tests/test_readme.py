import re

import keras
import numpy as np
import pytest


@pytest.fixture
def readme(root):
    return (root / "README.md").read_text()


def test_the_python_in_the_readme_runs(readme):
    [code] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    rng = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
    names = {"model": model, "images": rng.random((4, 8, 8, 1), np.float32), "labels": rng.integers(0, 3, 4)}
    exec(code, names)
    [worst] = names["report"]["worst_case"]
    assert worst["epsilon"] == 8 / 255
    assert {row["name"] for row in names["report"]["attacks"]} == {"fgsm", "adaptive"}


def test_files_that_the_readme_names_exist(readme, root):
    names = re.findall(r"(?<![\w./])(?:bin|configs|docs|benchmarks)/[\w./]+\w", readme)
    assert len(names) > 8
    for name in names:
        assert (root / name).exists(), name


def test_the_readme_fits_in_120_lines(readme):
    assert len(readme.splitlines()) <= 120 and max(map(len, readme.splitlines())) <= 180
