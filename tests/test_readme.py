import re

import pytest


@pytest.fixture
def readme(root):
    return (root / "README.md").read_text()


NUMBER = re.compile(r"[+−]?\d+\.\d+")
ROUNDING = 6  # points: another CPU rounds otherwise, and trains another net


def test_the_python_call_of_the_readme_prints_its_table(readme):
    code, printed = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", readme, re.DOTALL).groups()
    names: dict = {}
    exec(code, names)
    lines = {NUMBER.split(line)[0].strip(): line for line in str(names["report"]).splitlines()}
    for line in printed.splitlines():
        found = lines[NUMBER.split(line)[0].strip()]
        here, there = ([float(text.replace("−", "-")) for text in NUMBER.findall(each)] for each in (line, found))
        assert here == pytest.approx(there, abs=ROUNDING), found


def test_files_that_the_readme_names_exist(readme, root):
    names = re.findall(r"(?<![\w./])(?:bin|configs|docs|benchmarks)/[\w./]+\w", readme)
    assert len(names) > 8
    for name in names:
        assert (root / name).exists(), name


def test_the_readme_fits_in_120_lines(readme):
    assert len(readme.splitlines()) <= 120 and max(map(len, readme.splitlines())) <= 130


def test_the_readme_has_700_words_of_prose_at_most(readme):
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", readme, flags=re.DOTALL))
    assert len(text.split()) <= 700
