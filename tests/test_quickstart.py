"""bin/quickstart after installation: two nets trained, attacked, exported, and compared in one table."""

import subprocess
import sys

import pytest
from evaluation_nets import read_strictly


def quickstart(environment, root, *arguments, cwd):
    command = [sys.executable, "-m", "wca_tf.cli.quickstart", *arguments]
    variables = {**environment, "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_quickstart_ends_with_one_table_of_both_nets(command_environment, root, tmp_path):
    done = quickstart(command_environment, root, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ending = done.stdout[done.stdout.rindex("digits test, 200 images") :].splitlines()
    assert [line.split()[0] for line in ending[1:4]] == ["net", "undefended", "wca"]
    work = tmp_path / "runs" / "quickstart"
    [group] = read_strictly(work / "compared" / "comparison.json")
    none, wca = group["rows"]
    assert min(row["clean"]["value"] for row in (none, wca)) > 0.9
    assert wca["worst_case"]["value"] < wca["protocol"]["value"] and wca["queries"]["value"] < none["queries"]["value"]
    assert f"keeps {100 * wca['worst_case']['value']:.1f} %" in ending[5]
    assert (work / "served" / "digits" / "1" / "saved_model.pb").is_file()
    again = quickstart(command_environment, root, cwd=tmp_path)
    assert again.returncode == 0 and again.stdout.splitlines()[-7:] == done.stdout.splitlines()[-7:]
    assert again.stdout.count("nothing to do") == 4


def test_a_wrong_flag_of_quickstart_is_one_line(command_environment, root, tmp_path):
    done = quickstart(command_environment, root, "--work=here", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "'work'" in done.stderr
    assert list(tmp_path.iterdir()) == []
