"""Weight-Covariance Alignment in TensorFlow: stochastic nets, and attacks that measure their robustness.

Each public name, of `__init__.pyi`, is imported when it is first used. Commands can then report a wrong flag before
TensorFlow is loaded.
"""

import sys

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]

if (
    "keras" in sys.modules
):  # keras.saving.load_model then knows the nets of this package; else Keras is not loaded for it
    import wca_tf.keras_classes  # noqa: F401
