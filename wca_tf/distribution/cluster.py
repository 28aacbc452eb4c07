"""TF_CONFIG, which tells a process the machines of a multi-worker run and its own place among them.

This module does not import TensorFlow.
"""

import dataclasses
import json
import os
import re

from wca_tf.core.errors import InputError

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker")
STRATEGY_HELP = (
    "devices: one_device; mirrored: all GPUs of this machine; multi_worker: the machines that TF_CONFIG names; auto: "
    "TF_CONFIG's machines where it is set, else all GPUs (docs/howto/train.md). Not part of a run: it may change "
    "on resuming"
)
EXAMPLE = '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'
HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_joined: list["Cluster"] = []


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The place of a process among workers.

    Attributes:
        num_workers: the number of processes that train or attack together.
        is_chief: whether this process is the one that writes files.
    """

    num_workers: int
    is_chief: bool


def read_cluster() -> Cluster | None:
    """Return TF_CONFIG's cluster, or `None` where TF_CONFIG is not set.

    Raises:
        InputError: a faulty TF_CONFIG, which would make TensorFlow wait for ever.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = {job: list(hosts) for job, hosts in config["cluster"].items()}
        job, index = config["task"]["type"], config["task"]["index"]
        hosts = jobs[job]
        here = hosts[index] if type(index) is int and 0 <= index < len(hosts) else None  # True is an int
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"expected TF_CONFIG as {EXAMPLE}, received {text!r}") from None
    every = [host for job in jobs.values() for host in job]
    if not set(jobs) <= {"chief", "worker"} or len(jobs.get("chief", [])) > 1:
        raise InputError(f"expected workers, and at most one chief, in TF_CONFIG; received {', '.join(jobs)}")
    if here is None:
        raise InputError(f"expected a task index from 0 to {len(hosts) - 1} in TF_CONFIG, received {index!r}")
    if len(set(every)) < len(every) or not all(isinstance(host, str) and _has_port(host) for host in every):
        raise InputError(
            f"expected a different host:port for each worker in TF_CONFIG, received {', '.join(map(str, every))}"
        )
    return Cluster(len(every), job == "chief" or ("chief" not in jobs and index == 0))


def _has_port(host: str) -> bool:
    """Return whether a text is host:port, with a port from 1 to 65535; [...]:port for an address of IPv6."""
    name, _, port = host.rpartition(":")
    return bool(HOST.fullmatch(name)) and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535


def join(cluster: Cluster) -> None:
    """Record that this process has become one of the cluster's workers."""
    _joined.append(cluster)


def has_joined() -> bool:
    """Return whether this process has joined a cluster."""
    return bool(_joined)


def is_chief() -> bool:
    """Return whether this process writes and prints: it is the chief of the cluster it has joined, or works alone."""
    return all(cluster.is_chief for cluster in _joined)


def cluster_of(strategy: str) -> Cluster | None:
    """Return the cluster that a `--strategy` takes from TF_CONFIG, or `None` if TF_CONFIG is not set or not used."""
    return read_cluster() if strategy in ("auto", "multi_worker") else None


def would_be_chief(strategy: str) -> bool:
    """Return whether this process is the one that prints, by TF_CONFIG alone.

    This is for work that does not need to join the cluster.
    """
    cluster = cluster_of(strategy)
    return cluster is None or cluster.is_chief


def check_strategy(strategy: str) -> None:
    """Raise InputError when TF_CONFIG is faulty, or when a strategy needs it and it is not set."""
    if cluster_of(strategy) is None and strategy == "multi_worker":
        raise InputError(f"expected TF_CONFIG with --strategy=multi_worker, as {EXAMPLE}")
