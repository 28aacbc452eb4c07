import json

import pytest

from wca_tf.cluster import Cluster, check_strategy, is_chief, read_cluster
from wca_tf.errors import InputError

HOSTS = ["a:1", "b:1", "c:1"]


def tf_config(job="worker", index=0, **cluster):
    return json.dumps({"cluster": cluster or {"worker": HOSTS}, "task": {"type": job, "index": index}})


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
    assert is_chief() == (expected is None or expected.is_chief)
    check_strategy("auto")


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
        (tf_config(worker=["a:1", "a:1"]), "a different host:port for each worker"),
        (tf_config(worker=["a", "b"]), "a different host:port for each worker"),
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
