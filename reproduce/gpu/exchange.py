"""Write the jobs of jax_training.py, and make directories of bin/train from what it trained.

    python -m reproduce.gpu.exchange export TFDS_DATA_DIR JOBS
    python -m reproduce.gpu.exchange import TFDS_DATA_DIR JOBS TRAINED MODELS_DIR

A net that was imported is evaluated like any other: bin/reproduce --models_dir=MODELS_DIR finds it trained.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from reproduce.nets import Net
from wca_tf.core import files
from wca_tf.data.examples import Examples
from wca_tf.data.sources import load_examples
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.model_files import save_model
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.new_model import new_model

OPTIONS = ("filters", "strides", "padding", "use_bias", "momentum", "epsilon", "activation", "scale")
CONSTANT = ("gamma", "beta", "moving_mean", "moving_variance")  # the script makes them itself
TRAINED_WITH = "JAX 0.11.2 on one NVIDIA H200 (reproduce/gpu/jax_training.py)"
_TERM = "regularizer={}:features=free:alignment_weight=1"
_PAPERS = f"wca:alignment=per_class:{_TERM.format('penalty')}"
_BOUNDED = [f"wca:alignment={form}:{_TERM.format('constraint')}:max_variance=16" for form in ("per_class", "centred")]
_SEEDS: tuple[dict[str, Any], ...] = ({}, {"seed": 1}, {"seed": 2})
# (variant, changes to its TrainConfig) of bin/reproduce --scale=small on CIFAR-10.
NETS: list[tuple[str, dict[str, Any]]] = [
    *[
        (name, {})
        for name in (
            "resnet18_none_at",
            "resnet18_wca_at",
            "ctrw_at",
            "smoothing_at",
            "constraint",
            "certified_smoothing",
        )
    ],
    *[(name, seed) for name in ("none_at", "at", "ct_at", "none", "isotropic", "anisotropic") for seed in _SEEDS],
    *[("aligned_none", seed) for seed in _SEEDS],
    *[("aligned_wca", {"defence": form, **seed}) for form in (_PAPERS, *_BOUNDED) for seed in _SEEDS],
    ("aligned_none_at", {}),
    *[("aligned_wca_at", {"defence": form}) for form in (_PAPERS, *_BOUNDED)],
    ("anisotropic", {"epochs": 32}),
    ("airbench_none", {"epochs": 24}),
    ("resnet18_none_at", {"epochs": 8}),
    ("resnet18_none_at", {"epochs": 30}),
    ("resnet18_none_at", {"optimizer": "adam", "learning_rate": 1e-3}),
    ("resnet18_none_at", {"epochs": 30, "adversarial_attack": "pgd:steps=2:relative_step_size=0.5"}),
    ("resnet18_none_at", {"epochs": 20, "adversarial_attack": "pgd:steps=10:relative_step_size=0.25"}),
]


def main() -> None:
    """Run the command of the arguments."""
    if len(sys.argv) != {"export": 4, "import": 6}.get(sys.argv[1] if sys.argv[1:] else ""):
        raise SystemExit(__doc__)
    command, data_dir, jobs, *places = sys.argv[1:]
    models_dir = Path(places[1] if places else "")
    every = load_examples(_config(Net("cifar10", "none"), data_dir), "train")
    if command == "export":
        Path(jobs).mkdir(parents=True, exist_ok=True)
        np.savez(Path(jobs) / "cifar10.npz", images=every.images, labels=every.labels)
    for variant, changes in NETS:
        net = Net("cifar10", variant).but(**changes)
        config, path = _config(net, data_dir), models_dir / net.training("small")
        training, _ = every.split_validation(config.validation_split, config.seed)
        if command == "export":
            write_job(Path(jobs), path.name, config, new_model(config, training), len(training))
        elif Path(places[0], f"{path.name}.bin").exists() and not ModelDirectory(path).last.exists():
            model = new_model(config, training)
            take_trained(Path(jobs), Path(places[0]), path, config, model, training)


def _config(net: Net, data_dir: str) -> TrainConfig:
    return TrainConfig(tfds_data_dir=data_dir, strategy="one_device", **net.config("small"))


def write_job(jobs: Path, name: str, config: TrainConfig, model: StochasticClassifier, num_examples: int) -> None:
    """Write a net's architecture, settings and start: what the script does not make itself."""
    defence, weights, attacked = config.parsed_defence, weights_of(model), config.adversarial != "none"
    arrays = {key: weight.numpy() for key, weight in weights.items() if key.split("/")[-1] not in CONSTANT}
    arrays = {key: array for key, array in arrays.items() if not (key.endswith("/kernel") and array.ndim == 4)}
    if "noise/scale_vector" in arrays and defence.options()["covariance"] == "anisotropic":
        places = tf.range(1.0, arrays["noise/scale_vector"].size + 1)
        arrays["_triangle"] = tfp.math.fill_triangular(places).numpy().astype(np.int32)
    files.write_json(
        jobs / f"{name}.json",
        {
            "name": name,
            "config": dataclasses.asdict(config),
            "defence": type(defence).__name__,
            "options": defence.options(),
            "attack": config.parsed_adversarial_attack.options() if attacked else None,
            "epsilon": config.parsed_adversarial_epsilon if attacked else 0.0,
            "steps": num_examples // config.batch_size,
            "pixel_mean": model.pixel_mean,
            "pixel_std": model.pixel_std,
            "has_bottleneck": hasattr(model, "bottleneck"),
            "bottleneck_activation": getattr(model, "bottleneck_activation", None),
            "temperature": getattr(model, "temperature", 1.0),
            "weight_decay": getattr(model, "weight_decay", 0.0),
            "backbone_decay": getattr(model, "backbone_decay", 0.0),
            "architecture": architecture(model.backbone),
            "shapes": {key: list(weight.shape) for key, weight in weights.items()},
            "trainable": {key: bool(weight.trainable) for key, weight in weights.items()},
        },
    )
    np.savez_compressed(jobs / f"{name}.npz", **arrays)


def architecture(backbone: Any) -> dict[str, Any]:
    """Return the layers of a functional Keras model, in order, each with its inputs and options."""
    layers = []
    for layer in backbone.layers:
        is_input = type(layer).__name__ == "InputLayer"
        inputs = [] if is_input else [each._keras_history.operation.name for each in tf.nest.flatten(layer.input)]
        config = layer.get_config()
        described = {"name": layer.name, "kind": type(layer).__name__, "inputs": inputs, "dtype": layer.compute_dtype}
        described["weights"] = [weight.path.split("/")[-1] for weight in layer.weights]
        layers.append({**described, **{option: config[option] for option in OPTIONS if option in config}})
    return {"layers": layers, "output": backbone.output._keras_history.operation.name}


def weights_of(model: Any) -> dict[str, Any]:
    """Return the weights by "layer/weight", the random stream's aside."""
    parts = [(layer.name, layer) for layer in model.backbone.layers]
    parts += [(name, getattr(model, name, None)) for name in ("bottleneck", "noise", "classifier")]
    weights = [(name, weight) for name, part in parts if part for weight in part.weights]
    named = [(f"{name}/{weight.path.split('/')[-1]}", weight) for name, weight in weights]
    return {name: weight for name, weight in named if not name.endswith("random_state")}


def take_trained(
    jobs: Path, trained: Path, path: Path, config: TrainConfig, model: StochasticClassifier, training: Examples
) -> None:
    """Write a directory of bin/train with the weights and metrics of a net that the script trained."""
    job = files.read_json(jobs / f"{path.name}.json")
    lowered = {layer["name"] for layer in job["architecture"]["layers"] if layer["dtype"] == "bfloat16"}
    stored, position = (trained / f"{path.name}.bin").read_bytes(), 0
    # In order: Keras numbers layers anew in each process.
    for (name, shape), weight in zip(job["shapes"].items(), weights_of(model).values(), strict=True):
        low = len(shape) == 4 and name.split("/")[0] in lowered
        dtype = np.dtype(ml_dtypes.bfloat16 if low else np.float32)
        size = int(np.prod(shape)) * dtype.itemsize
        weight.assign(np.frombuffer(stored[position : position + size], dtype).astype(np.float32).reshape(shape))
        position += size
    if position != len(stored):
        raise SystemExit(f"expected {position} bytes of weights for {path.name}, received {len(stored)}")
    directory = ModelDirectory(path)
    path.mkdir(parents=True, exist_ok=True)
    directory.write_config(config, training, model)
    files.write_json(directory.config, {**directory.read_config(), "trained_with": TRAINED_WITH})
    directory.write_metrics(files.read_json_lines(trained / f"{path.name}.jsonl"))
    save_model(model, directory.best)
    save_model(model, directory.last)


if __name__ == "__main__":
    main()
