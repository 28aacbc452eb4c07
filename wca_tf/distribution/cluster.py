"""TF_CONFIG, which tells a process the machines of a multi-worker run and its own place. Free of TensorFlow."""

import dataclasses
import json
import os

from wca_tf.errors import InputError

EXAMPLE = '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'


_joined: list["Cluster"] = []


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A process's place among workers.

    Attributes:
        num_workers: how many processes train or attack together.
        is_chief: whether this is the one that writes.
    """

    num_workers: int
    is_chief: bool


def read_cluster() -> Cluster | None:
    """TF_CONFIG's cluster, None where it is not set; raises InputError for what would have TensorFlow wait for ever."""
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = {job: list(hosts) for job, hosts in config["cluster"].items()}
        job, index = config["task"]["type"], config["task"]["index"]
        hosts = jobs[job]
        here = hosts[index] if isinstance(index, int) and 0 <= index < len(hosts) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"expected TF_CONFIG as {EXAMPLE}, received {text!r}") from None
    every = [host for job in jobs.values() for host in job]
    if not set(jobs) <= {"chief", "worker"} or len(jobs.get("chief", [])) > 1:
        raise InputError(f"expected workers, and at most one chief, in TF_CONFIG; received {', '.join(jobs)}")
    if here is None:
        raise InputError(f"expected a task index from 0 to {len(hosts) - 1} in TF_CONFIG, received {index!r}")
    if len(set(every)) < len(every) or not all(isinstance(host, str) and ":" in host for host in every):
        raise InputError(
            f"expected a different host:port for each worker in TF_CONFIG, received {', '.join(map(str, every))}"
        )
    return Cluster(len(every), job == "chief" or ("chief" not in jobs and index == 0))


def join(cluster: Cluster) -> None:
    """Note that this process has become one of the cluster's workers."""
    _joined.append(cluster)


def has_joined() -> bool:
    """Whether this process is one of several workers."""
    return bool(_joined)


def is_chief() -> bool:
    """Whether this process is the one that writes and prints: the chief of the cluster it has joined, or alone."""
    return all(cluster.is_chief for cluster in _joined)


def cluster_of(strategy: str) -> Cluster | None:
    """The cluster that a `--strategy` takes from TF_CONFIG, None where there is none or it takes none."""
    return read_cluster() if strategy in ("auto", "multi_worker") else None


def would_be_chief(strategy: str) -> bool:
    """Whether this process is the one that prints, by TF_CONFIG alone: for work that needs no cluster to be joined."""
    cluster = cluster_of(strategy)
    return cluster is None or cluster.is_chief


def check_strategy(strategy: str) -> None:
    """Raise InputError when TF_CONFIG is not what a strategy needs."""
    if cluster_of(strategy) is None and strategy == "multi_worker":
        raise InputError(f"expected TF_CONFIG with --strategy=multi_worker, as {EXAMPLE}")
