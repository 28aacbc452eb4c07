"""Weight-Covariance Alignment in TensorFlow: stochastic nets, and attacks that measure their robustness.

Each public name, of `__init__.pyi`, is imported when it is first used. Commands can then report a wrong flag before
TensorFlow is loaded.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
