"""The public names of the package, for editors and type checkers; `__init__.py` loads each at its first use."""

from .attacks import Attack, BallAttack, parse_attack
from .attacks.radii import as_radius
from .comparison.compare import compare_evaluations
from .core.errors import DivergedError, InputError
from .core.machine import fast_precision
from .core.options import option
from .core.seeds import make_seed
from .data.config import DataConfig
from .data.examples import Examples
from .data.preflight import check_dataset_present
from .data.sources import load_examples
from .defences import Defence, NetRequest, parse_defence
from .defences.wca.hardening import harden
from .defences.wca.head import WCAHead
from .defences.wca.net import WCANet
from .defences.wca.noise import AnisotropicNoise, IsotropicNoise
from .evaluation.api import evaluate, evaluate_model_dir
from .evaluation.config import EvaluateConfig
from .evaluation.measures.criteria import CRITERIA
from .evaluation.measures.measure import Measure
from .evaluation.measures.registry import register_measure
from .evaluation.record import Evaluation
from .evaluation.runner import load_evaluation_examples
from .nets.adapter import adapt
from .nets.backbones import build_backbone
from .nets.backbones.layer_factory import LayerFactory
from .nets.bottleneck_net import BottleneckNet
from .nets.classifier import StochasticClassifier
from .nets.function_net import FunctionNet
from .nets.mixture_net import MixtureNet
from .nets.model_files import load_model
from .nets.noisy_net import NoisyNet
from .nets.sampled_target import SampledTarget
from .nets.targets import GaussianLogitsTarget
from .runs.config import TrainConfig
from .runs.model_dir import ModelDirectory
from .runs.training import train
from .serving.config import ExportConfig
from .serving.export import export, export_model_dir

__version__: str
__all__ = [
    "__version__",
    "AnisotropicNoise",
    "Attack",
    "BallAttack",
    "BottleneckNet",
    "CRITERIA",
    "DataConfig",
    "Defence",
    "DivergedError",
    "EvaluateConfig",
    "Evaluation",
    "Examples",
    "ExportConfig",
    "FunctionNet",
    "GaussianLogitsTarget",
    "InputError",
    "IsotropicNoise",
    "LayerFactory",
    "Measure",
    "MixtureNet",
    "ModelDirectory",
    "NetRequest",
    "NoisyNet",
    "SampledTarget",
    "StochasticClassifier",
    "TrainConfig",
    "WCAHead",
    "WCANet",
    "adapt",
    "as_radius",
    "build_backbone",
    "check_dataset_present",
    "compare_evaluations",
    "evaluate",
    "evaluate_model_dir",
    "export",
    "export_model_dir",
    "fast_precision",
    "harden",
    "load_evaluation_examples",
    "load_examples",
    "load_model",
    "make_seed",
    "option",
    "parse_attack",
    "parse_defence",
    "register_measure",
    "train",
]
