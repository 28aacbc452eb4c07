"""Is what a command needs on disk? Asked before TensorFlow is imported, so that a slip is answered at once."""

import re
import socket
from collections.abc import Iterable
from pathlib import Path

from wca_tf.attacks import Attack
from wca_tf.attacks.declarations import Transfer
from wca_tf.config import DataConfig, TrainConfig, expand
from wca_tf.errors import InputError


def check_dataset_present(config: DataConfig) -> None:
    """Raise InputError when the dataset's files are not where the configuration says."""
    if config.dataset == "digits":
        return
    if config.dataset.startswith("folder:"):
        path = config.dataset.removeprefix("folder:")
        if not path or not expand(path).is_dir():
            raise InputError(f"expected a folder of class folders, received {path!r}, which is none")
        return
    name = config.dataset.split("/")[0].split(":")[0]
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise InputError(f"expected digits, a TFDS name or folder:PATH as --dataset, received {config.dataset!r}")
    directory = expand(config.tfds_data_dir)
    if (directory / name).is_dir():
        return
    if not config.download:
        raise InputError(
            f"expected TFDS data of {name!r} in {directory}, which has none: name their place with --tfds_data_dir, "
            "or fetch them with --download"
        )
    _check_network(name)


def _check_network(dataset: str) -> None:
    """Fail at once without a network, where TFDS alone retries for minutes."""
    try:
        socket.getaddrinfo("storage.googleapis.com", 443)
    except OSError:
        raise InputError(f"cannot download {dataset}: there is no network") from None


def check_model_present(model_dir: str | None) -> Path:
    """The directory that --model_dir names; raises InputError unless bin/train has left a model there."""
    path = expand(model_dir or "")
    for name in ("config.json", "model.keras"):
        if not model_dir or not (path / name).is_file():
            raise InputError(f"expected --model_dir=DIR with a {name}, made by bin/train; received {path}")
    return path


def check_source_present(config: TrainConfig) -> None:
    """Raise InputError when a net that training needs is not there: to start from, or to attack in the net's place."""
    if config.adversarial != "none":
        check_sources_present([config.parsed_adversarial_attack])
    if config.initial_weights and not (expand(config.initial_weights) / "model.keras").is_file():
        raise InputError(f"expected a trained net in --initial_weights={config.initial_weights}: there is none")


def check_sources_present(attacks: Iterable[Attack]) -> None:
    """Raise InputError when a net that one of the attacks transfers from is not there."""
    for attack in attacks:
        if not isinstance(attack, Transfer) or not attack.source:
            continue
        if not (expand(attack.source) / "model.keras").is_file():
            raise InputError(f"expected a trained model in {attack.source}, the source of {attack.name}: there is none")
