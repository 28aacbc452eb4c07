"""Checks that the nets a command needs are on disk, before TensorFlow is imported, to report a wrong flag at once."""

from collections.abc import Iterable
from pathlib import Path

from wca_tf.attacks import Attack
from wca_tf.attacks.transfer import Transfer
from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user
from wca_tf.runs.config import TrainConfig


def check_model_present(model_dir: str | None) -> Path:
    """Return the directory that --model_dir names; raise InputError unless bin/train has left a model there."""
    path = expand_user(model_dir or "")
    for name in ("config.json", "model.keras"):
        if not model_dir or not (path / name).is_file():
            raise InputError(f"expected --model_dir=DIR with a {name}, made by bin/train; received {path}")
    return path


def check_classifier_present(model: str) -> None:
    """Raise InputError unless --model names a file, the directory of a SavedModel, or a name in a module."""
    path = expand_user(model)
    if not (path.is_file() or (path / "saved_model.pb").is_file() or all(model.partition(":"))):
        raise InputError(
            "expected --model=FILE.keras, FILE.h5, the directory of a SavedModel or module:name; "
            f"received {path}, which is not there"
        )


def check_source_present(config: TrainConfig) -> None:
    """Raise InputError when a net is absent that training starts from, or attacks in place of the trained net."""
    if config.adversarial != "none":
        check_sources_present([config.parsed_adversarial_attack])
    if config.initial_weights and not (expand_user(config.initial_weights) / "model.keras").is_file():
        raise InputError(f"expected a trained net in --initial_weights={config.initial_weights}: there is none")


def check_sources_present(attacks: Iterable[Attack]) -> None:
    """Raise InputError when a net that one of the attacks transfers from is not there."""
    for attack in attacks:
        if not isinstance(attack, Transfer) or not attack.source:
            continue
        if not (expand_user(attack.source) / "model.keras").is_file():
            raise InputError(f"expected a trained model in {attack.source}, the source of {attack.name}: there is none")
