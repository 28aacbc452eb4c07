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
# With noise inside the net, these choose by counts of draws: on another machine a last bit turns a draw, and a choice.
CHOOSE_BY_DRAWS = ("pgd_restarts", "apgd_ce", "apgd_dlr", "auto_rand", "square", "bounded", "adaptive")


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


def without_choices(numbers):
    """The numbers of the clean images, and of the attacks that choose nothing by counted draws."""
    kept = {}
    for norm, found in numbers.items():
        rows = [n for n, attack in enumerate(found["attacks"]) if attack["name"].split(":")[0] not in CHOOSE_BY_DRAWS]
        images = {key: [found["images"][key][n] for n in (0, *(row + 1 for row in rows))] for key in found["images"]}
        kept[norm] = {"clean": found["clean"], "attacks": [found["attacks"][n] for n in rows], "images": images}
    return kept


@pytest.mark.parametrize("part", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PARTS])
def test_golden_numbers_are_what_they_were(part, tmp_path):
    subprocess.run([sys.executable, HERE / "golden.py", tmp_path, part], check=True, timeout=600)
    found, golden = (json.loads((path / f"{part}.json").read_text()) for path in (tmp_path, HERE / "golden"))
    exact = golden["machine"] == machine()
    numbers = [found["numbers"], golden["numbers"]]
    if part == "attacks_noise_inside" and not exact:
        numbers = list(map(without_choices, numbers))
    assert differences(*numbers, exact=exact) == []


def test_another_machine_compares_each_attack_that_chooses_nothing_by_draws():
    golden, found = (json.loads((HERE / "golden" / "attacks_noise_inside.json").read_text())["numbers"] for _ in "ab")
    names = [attack["name"].split(":")[0] for attack in golden["linf"]["attacks"]]
    for name in ("apgd_ce", "adaptive"):
        found["linf"]["images"]["probability_correct"][1 + names.index(name)][0] += 0.1  # the first row is of no attack
    assert differences(without_choices(found), without_choices(golden), exact=False) == []
    found["linf"]["images"]["probability_correct"][1 + names.index("transfer")][0] += 0.1
    assert len(differences(without_choices(found), without_choices(golden), exact=False)) == 1


def test_a_difference_is_seen_to_the_bit_here_and_beyond_the_tolerance_elsewhere():
    golden = {"a": [1.0, None], "sha256": "x"}
    assert differences(golden, golden, exact=True) == []
    nearly = {"a": [1.0 + 1e-15, None], "sha256": "x"}
    assert differences(nearly, golden, exact=True) == ["/a/0: 1.000000000000001, was 1.0"]
    assert differences({"a": [1.0 + 1e-5, None], "sha256": "y"}, golden, exact=False) == []
    assert len(differences({"a": [1.001, 0.0], "sha256": "y"}, golden, exact=False)) == 2
    assert differences({"sha256": "x"}, golden, exact=False) == ["/a/0 is in one alone", "/a/1 is in one alone"]
