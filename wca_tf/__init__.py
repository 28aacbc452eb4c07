"""Weight-Covariance Alignment in TensorFlow: stochastic nets, and attacks that say what they are worth.

Names are imported when they are first used, so that commands answer a wrong flag before TensorFlow is loaded.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "AnisotropicNoise": "wca_tf.defences.wca.noise",
    "IsotropicNoise": "wca_tf.defences.wca.noise",
    "WCANet": "wca_tf.defences.wca.net",
    "InputError": "wca_tf.errors",
    "DataConfig": "wca_tf.config",
    "TrainConfig": "wca_tf.config",
    "EvaluateConfig": "wca_tf.config",
    "ExportConfig": "wca_tf.config",
    "harden": "wca_tf.defences.wca.hardening",
    "build_backbone": "wca_tf.backbones",
    "parse_attack": "wca_tf.attacks",
    "Attack": "wca_tf.attacks",
    "BallAttack": "wca_tf.attacks",
    "train": "wca_tf.training",
    "evaluate": "wca_tf.evaluation.runner",
    "evaluate_model": "wca_tf.evaluation.runner",
    "export": "wca_tf.serving.export",
    "export_model_dir": "wca_tf.serving.export",
    "target_of": "wca_tf.keras_target",
    "RandomNetTarget": "wca_tf.nets.targets",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'wca_tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
