"""export(model, ...): a SavedModel version that TF Serving, or any runtime with a Session, loads.

export_dir/
    1/                                       a version; TF Serving serves the highest
        saved_model.pb, variables/, ...      the signatures (signatures.py) and the weights they use
        assets.extra/
            tf_serving_warmup_requests       requests that TF Serving replays when it loads the version (warm_up.py)
            manifest.json                    the model's origin, how it draws, and the SHA-256 of every other file
    .lock                                    held while a version is written
"""

import errno
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from wca_tf.core import files
from wca_tf.core.errors import InputError, one_line
from wca_tf.core.options import check_value, options_of
from wca_tf.core.own_modules import import_modules
from wca_tf.core.paths import expand_user
from wca_tf.core.seeds import make_seed
from wca_tf.gaussian.class_probabilities import num_points
from wca_tf.nets.adapter import adapt
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.targets import calls_agree
from wca_tf.runs.model_dir import ModelDirectory, versions
from wca_tf.serving import warm_up
from wca_tf.serving.adapted_net import AdaptedNet
from wca_tf.serving.config import MANIFEST, ExportConfig
from wca_tf.serving.samplers import Exportable
from wca_tf.serving.signatures import MAX_SAMPLES, Signatures
from wca_tf.serving.versions import new_version

SCHEMA = 2
NOISE_POLICY = (
    "a fresh draw for every {whom}, from a generator that each process seeds anew; no random state is in these files, "
    "and no request can set one"
)


def export(
    model: keras.Model,
    export_dir: str | Path,
    *,
    image_shape: Sequence[int],
    class_names: Sequence[str] | None = None,
    version: int = 1,
    max_image_pixels: int = ExportConfig.max_image_pixels,
    export_random: str = ExportConfig.export_random,
    shorter_side: int = 0,
    config: Mapping[str, Any] | None = None,
    model_sha256: str | None = None,
    training_complete: bool | None = None,
    **net_options: Any,
) -> Path:
    """Write a version of `model` below `export_dir`, complete or not at all.

    Args:
        model: a built net, trained or restored, or any Keras classifier that `adapt` takes. It stays as it is.
        export_dir: the base directory that TF Serving watches; made when absent.
        image_shape: (H, W, channels) of the uint8 images to be served, channels 1 or 3.
        class_names: a name for each class, in the order of the logits; `None` for the numbers of the classes.
        version: the directory's name, a whole number of 1 or more.
        max_image_pixels: the largest number of pixels of a file in a request of `image_bytes`; a file of more is an
            error of that request.
        export_random: "normal", or "uniform" for runtimes without a kernel of normal numbers, such as OpenVINO.
        shorter_side: `--shorter_side` of the training: what the shorter side of a file in a request of `image_bytes`
            gets before the centre is cut out; 0 stretches files.
        config: for the manifest: the configuration of the training, as JSON values.
        model_sha256: for the manifest: the SHA-256 of the file that the net was read from.
        training_complete: for the manifest: whether the training was complete; `None` where it is not known.
        net_options: `pixel_range`, `outputs`, `output` and `training` of `adapt`, for other nets than those of this
            package.

    Returns:
        `export_dir`/`version`.

    Raises:
        InputError: an argument is out of its range; weights are NaN or Inf; the version exists; another process is
            exporting to the same directory.
    """
    shape = _check_shape(image_shape, version)
    _check_shorter_side(shorter_side, shape, max_image_pixels)
    net = _known(model, shape, **net_options)
    names = tuple(map(str, range(net.num_classes))) if class_names is None else tuple(class_names)
    if len(names) != net.num_classes or not all(isinstance(name, str) for name in names):
        raise InputError(f"expected {net.num_classes} class names, received {list(names)!r}")
    check_value("export_random", export_random, options_of(ExportConfig)["export_random"])
    signatures = Signatures(net, shape, names, max_image_pixels, export_random, shorter_side)
    _check_noise_follows_seed(net, shape)
    manifest = {
        "schema": SCHEMA,
        "version": version,
        "image_shape": list(shape),
        "shorter_side": shorter_side,
        "class_names": list(names),
        "signatures": list(signatures.endpoints),
        **_describe_noise(signatures),
        "random": export_random,
        "config": _json_values(config),
        "model_sha256": model_sha256,
        "training_complete": training_complete,
        "versions": versions(),
    }
    path = expand_user(str(export_dir))
    with new_version(path, version) as directory:
        try:
            signatures.archive().write_out(str(directory), verbose=False)
        except (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError):  # a full disk, a limit of a file's size
            raise OSError(errno.ENOSPC, "no space left to write", str(path / str(version))) from None
        extra = (directory / MANIFEST).parent
        extra.mkdir()
        warm_up.write_warm_up(extra / warm_up.FILE, shape, signatures.has_exact)
        written = sorted(file for file in directory.rglob("*") if file.is_file())
        checksums = {str(file.relative_to(directory)): files.sha256(file) for file in written}
        files.write_json(directory / MANIFEST, {**manifest, "files": checksums})
    return path / str(version)


def export_model_dir(config: ExportConfig, modules: Iterable[str] = ()) -> Path:
    """Export the best epoch of a model that bin/train left in a directory, with its classes and configuration.

    Args:
        config: the directory, and where the version goes.
        modules: modules of your own that the directory needs. It imports no others.

    Raises:
        InputError: as `export`, or the directory needs another module.
    """
    import_modules(modules)
    directory = ModelDirectory(expand_user(config.model_dir))
    stored = directory.read_config()
    training = directory.train_config()  # raises where a module is not named
    dataset = stored.get("dataset", {})
    if not {"image_shape", "class_names"} <= set(dataset):
        raise InputError(f"expected the dataset's image_shape and class_names in {directory.config}")
    sha256, complete = files.sha256(directory.best), directory.last.exists()
    model = directory.load_best()
    if files.sha256(directory.best) != sha256:
        raise InputError(f"{directory.path} is being trained, and its model has just changed: export it again")
    if not complete:
        print(
            f"UNFINISHED: {directory.path} is at epoch {len(directory.read_metrics())} of {stored['config']['epochs']}"
        )
    return export(
        model,
        expand_user(config.export_dir),
        image_shape=dataset["image_shape"],
        class_names=dataset["class_names"],
        version=config.version,
        max_image_pixels=config.max_image_pixels,
        export_random=config.export_random,
        shorter_side=training.shorter_side,
        config=stored["config"],
        model_sha256=sha256,
        training_complete=complete,
    )


def _check_shape(image_shape: Sequence[int], version: int) -> tuple[int, int, int]:
    """Return the image shape as a tuple; raise InputError for a shape or a version that is not valid."""
    if type(version) is not int or version < 1:
        raise InputError(f"expected a version of 1 or more, received {version!r}")
    sizes = list(image_shape) if isinstance(image_shape, (list, tuple)) else []
    if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f"expected image_shape (height, width, channels), received {image_shape!r}")
    height, width, channels = image_shape
    if channels not in (1, 3):
        raise InputError(f"expected images of 1 or 3 channels, received {channels}")
    return height, width, channels


def _check_shorter_side(shorter_side: int, image_shape: tuple[int, int, int], max_image_pixels: int) -> None:
    """Raise InputError for a shorter side that the images do not fit into, or of more pixels than files may have."""
    height, width, _ = image_shape
    if not shorter_side:
        return
    if type(shorter_side) is not int or height != width or shorter_side < height:
        raise InputError(
            f"expected a shorter_side of 0, or square images and a shorter_side of theirs or more, received "
            f"{shorter_side!r} with images of {height} x {width}"
        )
    if shorter_side**2 > max_image_pixels:
        raise InputError(
            f"expected max_image_pixels of {shorter_side**2} or more for a shorter_side of {shorter_side}, received "
            f"{max_image_pixels}"
        )


def _known(model: Any, image_shape: tuple[int, int, int], **net_options: Any) -> Exportable:
    """Return the net to export; raise InputError where the model is none."""
    if isinstance(model, keras.Model) and not isinstance(model, StochasticClassifier):
        net = adapt(model, image_shape, **net_options).net
        return net.headed or AdaptedNet(net)
    if not isinstance(model, StochasticClassifier):
        raise InputError(f"expected a Keras model, received {type(model).__name__}")
    if net_options:
        raise InputError(f"expected no {', '.join(net_options)} for a net of this package, which knows its pixels")
    if not model.has_noise_free_logits:
        raise InputError(f"expected a net with noise_free_logits, received {type(model).__name__}")
    if not model.built:
        raise InputError("expected a trained model, received one that has not been built")
    return model


def _check_noise_follows_seed(model: Exportable, image_shape: tuple[int, int, int]) -> None:
    """Raise InputError for a net with other noise, whose random state would be in the files."""
    images = tf.random.stateless_uniform([2, *image_shape], [0, 0])
    for logits in (model.noise_free_logits, functools.partial(model.logits, seed=make_seed(0))):
        if not calls_agree(functools.partial(logits, images), 1e-4, 1e-5):
            raise InputError("expected a net whose noise follows from its seed, received one that answers differently")


def _describe_noise(signatures: Signatures) -> dict[str, Any]:
    """Return how the export draws, for the manifest."""
    model, noisy = signatures.model, signatures.sampler.has_noise
    whom = "image of every request" if signatures.sampler.per_image_noise else "request, which its images share"
    integrated = noisy and signatures.has_exact and model.num_classes > 2
    return {
        "defence": model.defence,
        "noise": NOISE_POLICY.format(whom=whom) if noisy else "none",
        "max_n_samples": MAX_SAMPLES,
        "exact_points": num_points(model.num_classes) if integrated else None,  # None: a closed form, or no `exact`
    }


def _json_values(config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `config` as it will be read back; raise InputError when its values are not JSON."""
    try:
        return None if config is None else json.loads(json.dumps(dict(config), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"expected config of JSON values: {one_line(error)}") from None
