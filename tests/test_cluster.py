import json
import os
import re
import subprocess
import sys

import pytest

from wca_tf.core.errors import InputError
from wca_tf.distribution import cluster
from wca_tf.distribution.cluster import Cluster, check_strategy, is_chief, read_cluster, would_be_chief

HOSTS = ["a:1", "b:1", "c:1"]


def tf_config(job="worker", index=0, **jobs):
    return json.dumps({"cluster": jobs or {"worker": HOSTS}, "task": {"type": job, "index": index}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tf_config(index=0), Cluster(3, True)),
        (tf_config(index=2), Cluster(3, False)),
        (tf_config("chief", 0, chief=["x:1"], worker=HOSTS), Cluster(4, True)),
        (tf_config("worker", 0, chief=["x:1"], worker=HOSTS), Cluster(4, False)),
        ("", None),
    ],
)
def test_a_process_finds_its_place(monkeypatch, text, expected):
    monkeypatch.setenv("TF_CONFIG", text)
    assert read_cluster() == expected
    check_strategy("auto")


@pytest.mark.parametrize(("index", "lines"), [(0, 1), (1, 0)])
def test_of_a_run_that_is_done_the_chief_alone_tells(monkeypatch, capsys, trained, tiny_config, index, lines):
    """Nobody has to be joined for that."""
    from wca_tf.runs.training import train

    monkeypatch.setenv("TF_CONFIG", tf_config(index=index))
    train(tiny_config, trained)
    assert capsys.readouterr().out.count("nothing to do") == lines
    assert would_be_chief("one_device")


def test_a_worker_is_no_chief_of_the_cluster_that_it_has_joined(monkeypatch):
    monkeypatch.setattr(cluster, "_joined", [])
    monkeypatch.setenv("TF_CONFIG", tf_config(index=2))
    assert is_chief()  # a run on one device does not care for TF_CONFIG
    cluster.join(read_cluster())
    assert not is_chief()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected TF_CONFIG as"),
        ("[]", "expected TF_CONFIG as"),
        ('{"cluster": {"worker": ["a:1"]}}', "expected TF_CONFIG as"),
        (tf_config("chief"), "expected TF_CONFIG as"),
        (tf_config(index=3), "task index from 0 to 2"),
        (tf_config(index=-1), "task index from 0 to 2"),
        (tf_config(index="0"), "task index from 0 to 2"),
        (tf_config(index=True), "task index from 0 to 2 in TF_CONFIG, received True"),
        (tf_config(worker=["a:1", "a:1"]), "a different host:port for each worker"),
        (tf_config(worker=["a", "b"]), "a different host:port for each worker"),
        (tf_config(worker=["a:1", "b:x"]), "a different host:port for each worker"),
        (tf_config(worker=["a:1", "b:99999"]), "a different host:port for each worker"),
        (tf_config(worker=["a:1", "bad host:1"]), "a different host:port for each worker"),
        (tf_config(worker=["a:1", "::1:1"]), "a different host:port for each worker"),
        (tf_config(worker=["a:"]), "a different host:port for each worker"),
        (tf_config(worker=HOSTS, ps=["d:1"]), "expected workers, and at most one chief"),
    ],
)
@pytest.mark.parametrize("strategy", ["auto", "multi_worker"])
def test_a_tf_config_that_cannot_work_is_one_line(monkeypatch, text, said, strategy):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(InputError, match=said):
        check_strategy(strategy)
    check_strategy("one_device")


def test_several_workers_need_a_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(InputError, match="expected TF_CONFIG"):
        check_strategy("multi_worker")


@pytest.mark.parametrize(("ends", "status"), [([75, 137, 0], 0), ([75, 2, 0], 2)])
def test_the_slurm_script_tells_every_task_its_place_and_starts_it_again(root, tmp_path, ends, status):
    """The script of docs/howto/train.md, with Slurm's commands and bin/train replaced by simple ones."""
    [script] = re.findall(r"```\n(#!/bin/bash.*?)```", (root / "docs" / "howto" / "train.md").read_text(), re.DOTALL)
    script = script.replace("cd /shared/wca_tf && source .venv/bin/activate", "").replace("sleep 5", "")
    (tmp_path / "bin").mkdir()
    train = tmp_path / "bin" / "train"
    train.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "from wca_tf.distribution.cluster import read_cluster\n"
        "print(read_cluster(), sys.argv[1])\n"
        "before = pathlib.Path('times')\n"
        "times = len(before.read_text()) if before.exists() else 0\n"
        "before.write_text('x' * (times + 1))\n"
        f"sys.exit({ends}[times])\n"
    )
    train.chmod(0o755)
    slurm = "scontrol() { printf 'host7\\nhost8\\n'; }; srun() { shift; SLURM_PROCID=1 \"$@\"; }\n"
    environment = {**os.environ, "PYTHONPATH": str(root), "SLURM_JOB_NODELIST": "host[7-8]"}
    done = subprocess.run(["bash", "-c", slurm + script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    told = f"{Cluster(2, False)} --flagfile=configs/cifar10_anisotropic.flags"
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines() == [told] * (ends.index(status) + 1)


def test_every_flagfile_that_the_pages_name_exists(root):
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        for name in re.findall(r"--flagfile=(configs/\S+)", page.read_text()):
            assert (root / name).is_file(), f"{page}: {name}"


def test_the_kubernetes_job_gives_every_pod_a_tf_config(root):
    job = (root / "docs" / "howto" / "train.md").read_text().split("```yaml")[1]
    [text] = re.findall(r"export (TF_CONFIG='.*)", job)
    for index in range(2):
        command = f"{text}; {sys.executable} -c 'from wca_tf.distribution.cluster import read_cluster as r; print(r())'"
        command = f"export JOB_COMPLETION_INDEX={index}; export {command}"
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
        assert done.stdout == f"{Cluster(2, index == 0)}\n", done.stderr


@pytest.mark.parametrize("host", ["host0:12345", "10.0.0.1:1", "node-1.rack_2.local:65535", "[fe80::1]:2222"])
def test_hosts_by_name_and_by_address_are_taken(monkeypatch, host):
    monkeypatch.setenv("TF_CONFIG", tf_config(worker=[host, "b:1"], index=1))
    assert read_cluster().num_workers == 2
