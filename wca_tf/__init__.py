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
    "evaluate": "wca_tf.evaluation.api",
    "evaluate_model_dir": "wca_tf.evaluation.api",
    "Report": "wca_tf.evaluation.report_object",
    "Measure": "wca_tf.evaluation.measure",
    "register_measure": "wca_tf.evaluation.measures",
    "Examples": "wca_tf.data.examples",
    "load_examples": "wca_tf.data.sources",
    "load_model": "wca_tf.model_dir",
    "ModelDirectory": "wca_tf.model_dir",
    "make_seed": "wca_tf.seeds",
    "parse_defence": "wca_tf.defences",
    "Defence": "wca_tf.defences",
    "NetRequest": "wca_tf.defences",
    "LayerFactory": "wca_tf.backbones",
    "StochasticClassifier": "wca_tf.nets.classifier",
    "BottleneckNet": "wca_tf.nets.bottleneck_net",
    "NoisyNet": "wca_tf.nets.noisy_net",
    "HeadNoiseTarget": "wca_tf.nets.targets",
    "option": "wca_tf.options",
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
