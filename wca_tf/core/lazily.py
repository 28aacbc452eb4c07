"""Libraries that load at their first use: a wrong flag is answered before TensorFlow loads.

Modules that such a flag reaches take the libraries from here, and use none of them at their top level: no constant, no
decorator, no base class, and, with `from __future__ import annotations`, no annotation.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

import lazy_loader


class _Keras(ModuleType):
    """Keras as `lazy_loader` would load it, but absent from `sys.modules` until then.

    TensorFlow looks for it there while it loads itself. It would load Keras then, which needs the whole TensorFlow.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("keras"), name)


if TYPE_CHECKING:  # mypy sees no module in what `load` returns
    import keras
    import numpy as np
    import tensorflow as tf
else:
    keras = _Keras("keras")
    np, tf = map(lazy_loader.load, ("numpy", "tensorflow"))
# Their names are in no annotation.
scipy: Any = lazy_loader.load("scipy")
tfds: Any = lazy_loader.load("tensorflow_datasets")
tfp: Any = lazy_loader.load("tensorflow_probability")

__all__ = ["keras", "np", "scipy", "tf", "tfds", "tfp"]
