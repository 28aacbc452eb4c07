"""A check that the dataset is on disk, before TensorFlow is imported, so that a wrong flag is reported at once."""

import re
import socket

from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user
from wca_tf.data.config import DataConfig


def check_dataset_present(config: DataConfig) -> None:
    """Raise InputError when the dataset is not where the configuration says, and cannot be downloaded."""
    if config.dataset == "digits":
        return
    if config.dataset.startswith("folder:"):
        path = config.dataset.removeprefix("folder:")
        if not path or not expand_user(path).is_dir():
            raise InputError(f"expected a folder of class folders, received {path!r}, which is not a directory")
        return
    name = config.dataset.split("/")[0].split(":")[0]
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise InputError(f"expected digits, a TFDS name or folder:PATH as --dataset, received {config.dataset!r}")
    directory = expand_user(config.tfds_data_dir)
    if (directory / name).is_dir():
        return
    if not config.download:
        raise InputError(
            f"expected TFDS data of {name!r} in {directory}, which are absent: give their directory with "
            "--tfds_data_dir, or fetch them with --download"
        )
    _check_network(name)


def _check_network(dataset: str) -> None:
    """Raise InputError at once when there is no network; TFDS alone would retry for minutes."""
    try:
        socket.getaddrinfo("storage.googleapis.com", 443)
    except OSError:
        raise InputError(f"cannot download {dataset}: there is no network") from None
