"""Nets in `.keras` files. A file imports no module that the caller has not named (core/own_modules.py)."""

import functools
from collections.abc import Iterable
from pathlib import Path

import keras

from wca_tf.core import files
from wca_tf.core.errors import InputError, UnnamedModuleError, one_line
from wca_tf.core.keras_graph import all_layers
from wca_tf.core.own_modules import import_classes, import_modules
from wca_tf.core.paths import expand_user
from wca_tf.nets.adapter import adapt
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.inference_copy import inference_copy
from wca_tf.nets.targets import AnyTarget

BEST = "model.keras"  # of the files that a training run leaves, the net of the best epoch


def save_model(model: StochasticClassifier, path: Path) -> None:
    """Write a `.keras` file, with the optimizer's state and the random stream's, atomically."""
    files.write_atomically(path, model.save)


def load_model(path: str | Path, modules: Iterable[str] = ()) -> StochasticClassifier:
    """Read a `.keras` file.

    Args:
        path: the file. It imports nothing but modules of this package and of Keras.
        modules: modules of your own, with classes that the file needs. They are imported first.

    Raises:
        InputError: the file is absent or truncated, has no `StochasticClassifier`, or needs a module that is neither
            imported nor among `modules`; or one of these cannot be imported.
    """
    import_modules(modules)
    path = Path(path)
    if not path.is_file():
        raise InputError(f"expected a trained model {path}: there is none")
    try:
        import_classes(path)
        model = keras.models.load_model(path)
    except UnnamedModuleError:
        raise
    except Exception as error:  # Keras passes on any error of its zip, JSON and HDF5 readers
        raise InputError(
            f"expected a complete .keras file in {path}, which cannot be read: {one_line(error)}"
        ) from None
    if not isinstance(model, StochasticClassifier):
        raise InputError(
            f"expected a net that bin/train made in {path}, received {type(model).__name__}: keras.saving.load_model "
            "reads it, after import wca_tf.keras_classes"
        )
    return model


def load_for_inference(path: Path, modules: Iterable[str] = ()) -> StochasticClassifier:
    """Return the net of a `.keras` file as it answers; the arguments and errors are those of `load_model`.

    A net with Lipschitz features that trained in bfloat16 answers in float32, in which its constant holds.
    """
    model = load_model(path, modules)
    lipschitz = isinstance(model, BottleneckNet) and model.lipschitz_bottleneck
    lowered = lipschitz and any(layer.compute_dtype != "float32" for layer in all_layers(model.backbone))
    return inference_copy(model, "float32") if lowered else model


def target_in(model_dir: str | Path) -> AnyTarget:
    """Return the target of the net that `bin/train` left in a directory; raise InputError when there is no net.

    It is the same object as long as the file is the same, so that attacks trace once.
    """
    best = expand_user(str(model_dir)) / BEST
    return _target_in(best, best.stat().st_mtime_ns if best.exists() else 0)


@functools.lru_cache(maxsize=4)
def _target_in(best: Path, changed: int) -> AnyTarget:
    return adapt(load_for_inference(best))
