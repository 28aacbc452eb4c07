"""Golden numbers: what tiny trainings, attacks and an export give. No change of the code's shape may change them.

    .venv/bin/python tests/golden.py tests/golden

writes a file for each part; further arguments name the parts to write. They are made anew only together with a new
algorithm number, which says that results have changed.
"""

import dataclasses
import functools
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"  # sums in one order
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # of `reproduce`, which is not installed

import keras
import numpy as np
import tensorflow as tf

import wca_tf
from wca_tf.core.seeds import fold_in
from wca_tf.defences.wca.net import WCANet
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.runner import evaluate_model
from wca_tf.nets.bottleneck_net import BottleneckNet
from wca_tf.nets.model_files import load_model
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.model_dir import ModelDirectory
from wca_tf.runs.training import train

# Training

TINY = TrainConfig(image_size=25, max_train_examples=64, batch_size=32, epochs=2, learning_rate=1e-4, seed=5)
OFFICIAL = "reproduce.official:WCAOfficial"
VARIANTS = {
    "anisotropic": {},
    "isotropic": {"defence": "wca:covariance=isotropic"},
    "none": {"defence": "none", "learning_rate_schedule": "constant"},
    "constraint": {"defence": "wca:regularizer=constraint:max_weight_norm=0.5:max_variance=0.5"},
    "official": {"defence": OFFICIAL},
    "official_isotropic": {"defence": f"{OFFICIAL}:covariance=isotropic"},
    "at": {"adversarial": "at"},
    "ct_at": {"adversarial": "ct_at", "adversarial_epsilon": "0.1"},
    "official_at": {"defence": OFFICIAL, "adversarial": "at"},
    "cosine": {"learning_rate_schedule": "cosine", "augmentation": "crop_flip"},
    # The directory of that variant.
    "noise_alone": {"defence": "wca:noise_alone=true", "initial_weights": "none"},
}


def trained_weights(variant, directory):
    """What a variant's training leaves: its losses, a digest of its weights, and five numbers of each of them."""
    changes = dict(VARIANTS[variant])
    if "initial_weights" in changes:
        changes["initial_weights"] = str(directory / changes["initial_weights"])
    train(dataclasses.replace(TINY, **changes), directory / variant)
    found = ModelDirectory(directory / variant)
    weights = [np.asarray(weight) for weight in load_model(found.last).weights]
    return {
        "losses": [{key: line[key] for key in ("loss", "ce", "penalty", "val_loss")} for line in found.read_metrics()],
        "sha256": hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest(),
        "weights": [[float(number) for number in five_numbers(weight)] for weight in weights],
    }


def five_numbers(values):
    """Mean, deviation, and the first, middle and last number."""
    flat = values.astype(np.float64).ravel()
    return flat.mean(), flat.std(), flat[0], flat[len(flat) // 2], flat[-1]


# Attacks

SHAPE, CLASSES, WIDTH, IMAGES = (6, 6, 1), 4, 8, 6
LINF = (
    "fgsm",
    "bim:steps=3",
    "pgd:steps=3",
    "pgd:steps=3:targeted=true",
    "pgd_restarts:restarts=2:steps=3",
    "margin:steps=3",
    "apgd_ce:steps=5",
    "apgd_dlr:steps=5",
    "auto_rand:steps=3:eot_samples=4",
    "transfer:steps=3",
    "transfer:source_objective=dlr:steps=3",
    "square:queries=12",
    "square:queries=12:resample_noise=true",
    "random_sampling:points=12",
    "bounded:steps=3:class_steps=2:restarts=2",
    "adaptive:steps=3:apgd_steps=3:class_steps=2:bounded_steps=2:restarts=2:queries=8",
    "cw:steps=6:searches=2:learning_rate=0.05:initial_constant=0.1",
    "n_pixel:population=8:generations=3",
    "n_pixel:objective=margin:population=8:generations=3",
)
L2 = ("pgd:steps=3:norm=l2", "apgd_ce:steps=5:norm=l2", "square:queries=12:norm=l2")
GAUSSIAN_LOGITS = ("z_margin:steps=3", "z_margin:steps=3:restarts=2")
NETS = ("wca", "none", "noise_inside")


def numbers(*shape, seed, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


IMAGE_VALUES = np.random.default_rng(0).random((IMAGES, *SHAPE), np.float32)
INNER = numbers(np.prod(SHAPE), WIDTH, seed=1, scale=0.4)
MIDDLE = numbers(WIDTH, WIDTH, seed=2, scale=0.5)
OUTER = numbers(WIDTH, CLASSES, seed=3)


def tanh_net():
    layers = [keras.Input(SHAPE), keras.layers.Flatten(), keras.layers.Dense(WIDTH, "tanh", use_bias=False)]
    net = keras.Sequential(layers)
    net.set_weights([INNER])
    return net


def golden_net(name):
    """A net under attack, and the labels that it gives the images without its noise."""
    if name == "noise_inside":

        def logits(images, seed):
            hidden = tf.tanh(tf.reshape(images, [-1, INNER.shape[0]]) @ INNER)
            noise = 0 if seed is None else 0.3 * tf.random.stateless_normal([WIDTH], fold_in(seed, 7))
            return tf.tanh(hidden @ MIDDLE + noise) @ OUTER

        net = SampledTarget(logits, noise_free_logits=lambda images: logits(images, None))
        return net, np.argmax(logits(tf.constant(IMAGE_VALUES), None), axis=1)
    net = (WCANet if name == "wca" else BottleneckNet)(tanh_net(), CLASSES, feature_dim=WIDTH)
    net.build((None, *SHAPE))
    net.bottleneck.set_weights([MIDDLE, np.zeros(WIDTH, np.float32)])
    net.classifier.set_weights([OUTER, numbers(CLASSES, seed=4, scale=0.1)])
    if name == "wca":
        net.noise.scale_vector.assign(numbers(*net.noise.scale_vector.shape, seed=5, scale=0.2))
    return net, np.argmax(net.classifier(net.features(IMAGE_VALUES)), axis=1)


def attacked(name, directory):
    """The numbers of results.json of every attack on a net, and P(correct) of every image."""
    net, labels = golden_net(name)
    found = {}
    for norm, texts in (("linf", LINF + GAUSSIAN_LOGITS * (name != "noise_inside")), ("l2", L2)):
        config = EvaluateConfig(
            ",".join(texts), "0.1" if norm == "linf" else "0.4", eot_samples=6, num_examples=0, noise_off=False
        )
        report = directory / f"{name}_{norm}"
        results = evaluate_model(net, IMAGE_VALUES, labels, config, report)
        with np.load(report / "examples.npz") as stored:
            images = {key: stored[key].tolist() for key in ("probability_correct", "linf", "l2")}
        found[norm] = {
            "clean": without_timing(results["clean"]),
            "attacks": [without_timing(attack) for attack in results["attacks"]],
            "worst_case": [without_timing(worst) for worst in results["worst_case"]],
            "images": images,
        }
    return found


def without_timing(entry):
    return {key: value for key, value in entry.items() if key not in ("seconds", "config", "norm")}


# Export


def exported(directory):
    """What the signatures answer that have no noise of their own."""
    net, _ = golden_net("wca")
    names = tuple(str(number) for number in range(CLASSES))
    path = wca_tf.export(net, directory / "export", image_shape=SHAPE, class_names=names)
    loaded = tf.saved_model.load(str(path))
    images = tf.constant(np.round(255 * IMAGE_VALUES).astype(np.uint8))
    answers = {}
    for name in ("noise_free", "exact"):
        answers[name] = {
            key: value.numpy().tolist()
            for key, value in loaded.signatures[name](images=images).items()
            if value.dtype.is_floating
        }
    return answers


def machine():
    """What decides rounding: the processor and the libraries."""
    processor = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith(("model name", "flags", "CPU part"))
    ]
    told = f"{sorted(set(processor))} {tf.__version__} {keras.__version__} {np.__version__}"
    return hashlib.sha256(told.encode()).hexdigest()


def training(*variants):
    """Return a part's maker: the weights of some variants, the first of which the others may need."""

    def make(directory):
        return {variant: trained_weights(variant, directory) for variant in variants}

    return make


PARTS = {
    "training": training("anisotropic", "constraint"),
    "training_variants": training("isotropic", "none", "noise_alone", "cosine"),
    "training_official": training("official", "official_isotropic", "official_at"),
    "training_adversarial": training("at", "ct_at"),
    **{f"attacks_{name}": functools.partial(attacked, name) for name in NETS},
    "export": exported,
}


def main(out, *parts):
    for part in parts or PARTS:
        with tempfile.TemporaryDirectory() as directory:
            golden = {"machine": machine(), "numbers": PARTS[part](Path(directory))}
        Path(out).mkdir(exist_ok=True)
        (Path(out) / f"{part}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
