import re

import numpy as np
import pytest


@pytest.fixture
def readme(root):
    return (root / "README.md").read_text()


def test_the_python_in_the_readme_runs(readme):
    [code] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    rng = np.random.default_rng(0)
    images = rng.random((4, 28, 28, 1), np.float32)
    names = {"images": images, "labels": rng.integers(0, 10, 4)}
    exec(code, names)
    distance = np.abs(names["result"].images - images).max()
    assert 0 < distance <= 8 / 255 + 1e-6


def test_files_that_the_readme_names_exist(readme, root):
    names = re.findall(r"(?<![\w./])(?:bin|configs|docs|benchmarks)/[\w./]+\w", readme)
    assert len(names) > 8
    for name in names:
        assert (root / name).exists(), name
