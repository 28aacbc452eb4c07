"""The code's shape may change, its numbers may not: golden.py again, beside what it gave."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from golden import PARTS, machine

HERE = Path(__file__).parent
QUICK = ("export",)
TOLERANCE = 1e-4  # on another machine, whose sums round otherwise


def leaves(value, path=""):
    """(path, number or text) of everything in nested objects and lists."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{path}/{key}")
    else:
        yield path, value


def differences(found, golden, exact):
    """What differs, as text: everything to the bit, or numbers by more than the tolerance."""
    found, golden = dict(leaves(found)), dict(leaves(golden))
    lines = [f"{path} is in one alone" for path in found.keys() ^ golden.keys()]
    for path in found.keys() & golden.keys():
        one, other = found[path], golden[path]
        numbers = isinstance(one, float) and isinstance(other, float) and not exact
        same = math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE) if numbers else one == other
        if not same and not (path.endswith("sha256") and not exact):
            lines.append(f"{path}: {one}, was {other}")
    return sorted(lines)


@pytest.mark.parametrize("part", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PARTS])
def test_golden_numbers_are_what_they_were(part, tmp_path):
    subprocess.run([sys.executable, HERE / "golden.py", tmp_path, part], check=True, timeout=600)
    found, golden = (json.loads((path / f"{part}.json").read_text()) for path in (tmp_path, HERE / "golden"))
    assert differences(found["numbers"], golden["numbers"], exact=golden["machine"] == machine()) == []


def test_a_difference_is_seen_to_the_bit_here_and_beyond_the_tolerance_elsewhere():
    golden = {"a": [1.0, None], "sha256": "x"}
    assert differences(golden, golden, exact=True) == []
    nearly = {"a": [1.0 + 1e-15, None], "sha256": "x"}
    assert differences(nearly, golden, exact=True) == ["/a/0: 1.000000000000001, was 1.0"]
    assert differences({"a": [1.0 + 1e-5, None], "sha256": "y"}, golden, exact=False) == []
    assert len(differences({"a": [1.001, 0.0], "sha256": "y"}, golden, exact=False)) == 2
    assert differences({"sha256": "x"}, golden, exact=False) == ["/a/0 is in one alone", "/a/1 is in one alone"]
