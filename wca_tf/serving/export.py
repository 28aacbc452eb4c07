"""export(model, ...): a SavedModel version that TF Serving, or any runtime with a Session, loads.

export_dir/
    1/                                       a version; TF Serving serves the highest
        saved_model.pb, variables/, ...      the signatures (signatures.py) and the weights they use
        assets.extra/
            tf_serving_warmup_requests       what TF Serving replays when it loads the version (warm_up.py)
            manifest.json                    where it comes from, how it draws, and the SHA-256 of every other file
    .lock                                    held while a version is written
"""

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from wca_tf import files
from wca_tf.config import ExportConfig, expand
from wca_tf.errors import InputError, one_line
from wca_tf.model_dir import ModelDirectory, load_model, versions
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.serving import warm_up
from wca_tf.serving.exact import num_points
from wca_tf.serving.signatures import MAX_SAMPLES, Signatures
from wca_tf.serving.versions import new_version

SCHEMA = 2
MANIFEST = Path("assets.extra", "manifest.json")
NOISE_POLICY = (
    "a fresh draw for every {whom}, from a generator that each process seeds anew; no random state is in these files, "
    "and no request can set one"
)


def export(
    model: StochasticClassifier,
    export_dir: str | Path,
    *,
    image_shape: Sequence[int],
    class_names: Sequence[str],
    version: int = 1,
    config: Mapping[str, Any] | None = None,
    model_sha256: str | None = None,
) -> Path:
    """Write a version of `model` below `export_dir`, complete or not at all.

    Args:
        model: a built net, trained or restored; it stays as it is.
        export_dir: the base directory that TF Serving watches; made when absent.
        image_shape: (H, W, channels) of the uint8 images to be served, channels 1 or 3.
        class_names: a name for each class, in the order of the logits.
        version: 1 or more; the directory's name.
        config: for the manifest: what the net was trained with, as JSON values.
        model_sha256: for the manifest: of the file that the net was read from.

    Returns:
        `export_dir`/`version`.

    Raises:
        InputError: an argument out of its range; weights that are NaN or Inf; a version that exists; another export to
            the same directory at the same time.
    """
    shape = _check(model, image_shape, class_names, version)
    signatures = Signatures(model, shape, tuple(class_names))
    manifest = {
        "schema": SCHEMA,
        "version": version,
        "image_shape": list(shape),
        "class_names": list(class_names),
        "signatures": list(signatures.endpoints),
        **_describe_noise(signatures),
        "config": _json_values(config),
        "model_sha256": model_sha256,
        "versions": versions(),
    }
    path = expand(str(export_dir))
    with new_version(path, version) as directory:
        try:
            signatures.archive().write_out(str(directory), verbose=False)
        except tf.errors.ResourceExhaustedError:
            raise OSError(errno.ENOSPC, "no space left to write", str(path / str(version))) from None
        extra = (directory / MANIFEST).parent
        extra.mkdir()
        warm_up.write_warm_up(extra / warm_up.FILE, shape, signatures.has_exact)
        written = sorted(file for file in directory.rglob("*") if file.is_file())
        checksums = {str(file.relative_to(directory)): files.sha256(file) for file in written}
        files.write_json(directory / MANIFEST, {**manifest, "files": checksums})
    return path / str(version)


def export_model_dir(config: ExportConfig) -> Path:
    """`export` of what bin/train left in a directory: its best epoch, with its classes and configuration."""
    directory = ModelDirectory(expand(config.model_dir))
    stored = directory.read_config()
    directory.train_config()  # imports a defence of the user's own
    dataset = stored.get("dataset", {})
    if not {"image_shape", "class_names"} <= set(dataset):
        raise InputError(f"expected the dataset's image_shape and class_names in {directory.config}")
    return export(
        load_model(directory.best),
        expand(config.export_dir),
        image_shape=dataset["image_shape"],
        class_names=dataset["class_names"],
        version=config.version,
        config=stored["config"],
        model_sha256=files.sha256(directory.best),
    )


def _check(
    model: StochasticClassifier, image_shape: Sequence[int], class_names: Sequence[str], version: int
) -> tuple[int, int, int]:
    """The image shape as a tuple; raises InputError for arguments that are none."""
    if not isinstance(model, StochasticClassifier):
        raise InputError(f"expected a net that bin/train makes, received {type(model).__name__}")
    if not model.built:
        raise InputError("expected a trained model, received one that has not been built")
    if type(version) is not int or version < 1:
        raise InputError(f"expected a version of 1 or more, received {version!r}")
    sizes = list(image_shape) if isinstance(image_shape, (list, tuple)) else []
    if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f"expected image_shape (height, width, channels), received {image_shape!r}")
    if image_shape[2] not in (1, 3):
        raise InputError(f"expected images of 1 or 3 channels, received {image_shape[2]}")
    if len(class_names) != model.num_classes or not all(isinstance(name, str) for name in class_names):
        raise InputError(f"expected {model.num_classes} class names, received {list(class_names)!r}")
    height, width, channels = image_shape
    return height, width, channels


def _describe_noise(signatures: Signatures) -> dict[str, Any]:
    """How the export draws, for the manifest."""
    model, noisy = signatures.model, signatures.sampler.has_noise
    whom = "image of every request" if signatures.sampler.own_draws else "request, which its images share"
    integrated = noisy and signatures.has_exact and model.num_classes > 2
    return {
        "defence": model.defence,
        "noise": NOISE_POLICY.format(whom=whom) if noisy else "none",
        "max_n_samples": MAX_SAMPLES,
        "exact_points": num_points(model.num_classes) if integrated else None,  # None: a closed form, or no `exact`
    }


def _json_values(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """`config` as it will be read back; raises InputError when it is no JSON."""
    try:
        return None if config is None else json.loads(json.dumps(dict(config), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"expected config of JSON values: {one_line(error)}") from None
