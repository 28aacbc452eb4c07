"""Weight-Covariance Alignment in TensorFlow: stochastic nets, and attacks that measure their robustness.

Each name is imported when it is first used. Commands can then report a wrong flag before TensorFlow is loaded.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "AnisotropicNoise": "wca_tf.defences.wca.noise",
    "IsotropicNoise": "wca_tf.defences.wca.noise",
    "WCANet": "wca_tf.defences.wca.net",
    "InputError": "wca_tf.core.errors",
    "DataConfig": "wca_tf.data.config",
    "TrainConfig": "wca_tf.runs.config",
    "EvaluateConfig": "wca_tf.evaluation.config",
    "ExportConfig": "wca_tf.serving.config",
    "harden": "wca_tf.defences.wca.hardening",
    "build_backbone": "wca_tf.nets.backbones",
    "parse_attack": "wca_tf.attacks",
    "Attack": "wca_tf.attacks",
    "BallAttack": "wca_tf.attacks",
    "train": "wca_tf.runs.training",
    "evaluate": "wca_tf.evaluation.api",
    "evaluate_model_dir": "wca_tf.evaluation.api",
    "compare_evaluations": "wca_tf.comparison.compare",
    "Report": "wca_tf.evaluation.report_object",
    "Measure": "wca_tf.evaluation.measures.measure",
    "register_measure": "wca_tf.evaluation.measures.registry",
    "Examples": "wca_tf.data.examples",
    "load_examples": "wca_tf.data.sources",
    "load_model": "wca_tf.runs.model_dir",
    "ModelDirectory": "wca_tf.runs.model_dir",
    "make_seed": "wca_tf.core.seeds",
    "parse_defence": "wca_tf.defences",
    "Defence": "wca_tf.defences",
    "NetRequest": "wca_tf.defences",
    "LayerFactory": "wca_tf.nets.backbones",
    "StochasticClassifier": "wca_tf.nets.classifier",
    "BottleneckNet": "wca_tf.nets.bottleneck_net",
    "NoisyNet": "wca_tf.nets.noisy_net",
    "HeadNoiseTarget": "wca_tf.nets.targets",
    "option": "wca_tf.core.options",
    "export": "wca_tf.serving.export",
    "export_model_dir": "wca_tf.serving.export",
    "target_of": "wca_tf.nets.keras_target",
    "RandomNetTarget": "wca_tf.nets.random_net_target",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'wca_tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
