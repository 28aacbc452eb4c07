"""An evaluation in one file: a zip archive of its record, without the images."""

import contextlib
import dataclasses
import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wca_tf.core import files
from wca_tf.evaluation.measures.measure import MEASURES
from wca_tf.evaluation.outcomes import RECORDS, SHOWN, Outcome, save_outcome


def pack(path: Path, described: Mapping[str, Any], outcomes: Sequence[Outcome], measured: Mapping[str, Any]) -> None:
    """Write evaluation.json, the records without their images, and the values of measures into a zip archive.

    Args:
        path: the file.
        described: the contents of evaluation.json.
        outcomes: the outcome of the clean images, then of each attack.
        measured: the records of measures as JSON, by name.
    """
    texts = {f"{MEASURES}/{name}.json": measured[name] for name in sorted(measured)} | {"evaluation.json": described}
    with tempfile.TemporaryDirectory() as folder:
        for outcome in outcomes:
            save_outcome(_without_images(outcome), Path(folder))
        records = sorted(Path(folder).glob("*.npz"))

        def write(target: str) -> None:
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, value in texts.items():  # a ZipInfo has the same date in every file
                    archive.writestr(_info(name), json.dumps(value, sort_keys=True, allow_nan=False))
                for record in records:
                    archive.writestr(_info(f"{RECORDS}/{record.name}"), record.read_bytes())

        files.write_atomically(path, write)


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Unpack an archive of `pack` for the time of a context; yield the folder."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)  # it keeps every file below the folder
        yield Path(folder)


def _without_images(outcome: Outcome) -> Outcome:
    return dataclasses.replace(outcome, **{name: getattr(outcome, name)[:0] for name in SHOWN})


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info
