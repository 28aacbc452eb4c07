"""What Expectation over Transformation costs: PGD-10 on the mean of 50 draws, here and elsewhere, in one run.

    .venv/bin/python benchmarks/eot.py [--images 64] [--out FILE.json] [--smoke]

Times five attacks on one untrained LeNet++ (28x28, D=32, C=10, anisotropic noise) with 2 threads: wca_tf without noise,
wca_tf with EoT-50, wca_tf with a pass per draw, and, on a torch net of the same weights, torchattacks' EOTPGD and
Foolbox's EoT wrapper with LinfPGD. Prints seconds, and ratios with their bounds, each met or missed. About 5 minutes on
2 idle cores; --smoke takes seconds and its figures mean nothing. `bin/test --slow` installs the peers, to .peers.
"""

import argparse
import dataclasses
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from wca_tf.attacks.projected_gradient import ProjectedGradient
from wca_tf.attacks.target import HeadNoiseTarget, RandomNetTarget
from wca_tf.backbones import build_backbone
from wca_tf.files import write_json
from wca_tf.keras_target import target_of
from wca_tf.model import WCANet

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / ".peers"))  # at the end, so that the versions of .venv win
try:
    import foolbox
    import torch
    import torchattacks
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed; run bin/test --slow, which fills .peers")

THREADS = 2
EPSILON = 8 / 255
STEP_SIZE = EPSILON / 10
IMAGE_SHAPE = (28, 28, 1)
BUSY = 0.7  # load average before the run
LOGIT_TOLERANCE = 1e-4  # of the largest logit
# (this contender, over that one, at most)
BOUNDS = (
    ("wca_tf EoT", "wca_tf deterministic", 1.05),
    ("wca_tf EoT", "TensorFlow repeat", 1 / 30),
    ("wca_tf EoT", "torchattacks EOTPGD", 1 / 40),
    ("wca_tf EoT", "Foolbox EoT", 1 / 40),
)
FAST = ("wca_tf deterministic", "wca_tf EoT")

Attack = Callable[[int], np.ndarray]  # number of steps -> adversarial images [B, H, W, channels]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is measured; `rounds` of the fast contenders, `slow_runs` of the others."""

    images: int = 64
    draws: int = 50
    steps: int = 10
    rounds: int = 7
    slow_runs: int = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=Settings.images, help="images attacked at a time")
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    parser.add_argument("--smoke", action="store_true", help="4 images, 3 draws, 2 steps: shows only that it runs")
    arguments = parser.parse_args()
    settings = Settings(arguments.images)
    if arguments.smoke:
        settings = Settings(images=4, draws=3, steps=2, rounds=3, slow_runs=1)
        print("smoke: these figures mean nothing")
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    torch.set_num_threads(THREADS)
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"warning: the machine is busy (load {load:.1f}); torch's threads suffer most, which flatters wca_tf")
    result = measure(settings)
    if arguments.out:
        write_json(arguments.out, {"smoke": arguments.smoke, "load_at_start": load, **result})


def measure(settings: Settings) -> dict[str, Any]:
    """Check that the nets are equal, time every contender, print the table; returns what goes into the JSON file."""
    keras.utils.set_random_seed(0)
    torch.manual_seed(0)
    images = np.random.default_rng(0).random((settings.images, *IMAGE_SHAPE), np.float32)
    labels = np.random.default_rng(1).integers(0, 10, settings.images)
    model = random_model()
    net = TorchNet(model).eval()
    difference = logit_difference(model, net, images)
    attacks = {
        **tensorflow_attacks(model, images, labels, settings.draws),
        **torch_attacks(net, images, labels, settings.draws),
    }
    for name, attack in attacks.items():
        check_adversarial(name, attack(1), images)  # also the warm-up: the number of steps is no part of a trace
    seconds = time_all(attacks, settings)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    passes = one_gradient(medians, net, images, labels, settings)
    for name, median in medians.items():
        print(f"{name:22} {median:9.3f} s   median of {len(seconds[name])}")
    return {
        "settings": dataclasses.asdict(settings),
        "epsilon": EPSILON,
        "threads": THREADS,
        "versions": versions(),
        "logit_difference": difference,
        "seconds": seconds,
        "medians": medians,
        "one_gradient": passes,
        "ratios": [judge(seconds, medians, *bound) for bound in BOUNDS],
    }


def random_model() -> WCANet:
    """An untrained WCA-Net with a random full covariance."""
    model = WCANet(build_backbone("lenet_plus_plus", IMAGE_SHAPE), num_classes=10, feature_dim=32)
    model.build((None, *IMAGE_SHAPE))
    vector = model.noise.scale_vector
    vector.assign_add(tf.random.stateless_normal(vector.shape, [1, 2], stddev=0.1))
    return model


def tensorflow_attacks(model: WCANet, images: np.ndarray, labels: np.ndarray, draws: int) -> dict[str, Attack]:
    exact = target_of(model)
    noise_free = HeadNoiseTarget(model.features, model.classifier, tf.zeros_like(exact.logit_scale))
    # One draw's activations in memory at a time, as in the peers' loops.
    repeat = RandomNetTarget(
        lambda x, seed: model.classifier(model.noise(model.features(x), seed=seed)), draws_per_pass=1
    )
    indices = np.arange(len(images))

    def attack(target: Any, eot_samples: int, steps: int) -> np.ndarray:
        projected = ProjectedGradient(EPSILON, steps=steps, eot_samples=eot_samples)
        return projected(target, images, labels, indices, 0).numpy()

    return {
        "wca_tf deterministic": functools.partial(attack, noise_free, 1),
        "wca_tf EoT": functools.partial(attack, exact, draws),
        "TensorFlow repeat": functools.partial(attack, repeat, draws),
    }


class TorchNet(torch.nn.Module):
    """The same net in torch, images [B, channels, H, W]; noise is added when `noisy`."""

    def __init__(self, model: WCANet) -> None:
        super().__init__()
        layers = [torch_layer(layer) for layer in model.backbone.layers if layer.weights]
        self.backbone = torch.nn.Sequential(*layers, torch.nn.Flatten())
        # Keras flattens height, width, channels; torch channels, height, width.
        height, width, channels = model.backbone.layers[-1].input.shape[1:]
        kernel = model.bottleneck.kernel.numpy().reshape(height, width, channels, -1).transpose(2, 0, 1, 3)
        self.bottleneck = torch_dense(kernel.reshape(-1, kernel.shape[-1]), model.bottleneck.bias.numpy())
        self.classifier = torch_dense(model.classifier.kernel.numpy(), model.classifier.bias.numpy())
        self.register_buffer("scale_tril", torch.tensor(model.noise.scale_tril.numpy()))
        self.noisy = True

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.bottleneck(self.backbone(images))
        if self.noisy:
            features = features + torch.randn_like(features) @ self.scale_tril.T
        return self.classifier(features)


def torch_layer(layer: keras.layers.Layer) -> torch.nn.Module:
    weights = [torch.tensor(weight) for weight in layer.get_weights()]
    if isinstance(layer, keras.layers.PReLU):
        copy = torch.nn.PReLU(weights[0].numel())
        copy.load_state_dict({"weight": weights[0].flatten()})
        return copy
    kernel = weights[0].permute(3, 2, 0, 1)
    copy = torch.nn.Conv2d(kernel.shape[1], kernel.shape[0], kernel.shape[2:])
    copy.load_state_dict({"weight": kernel, "bias": weights[1]})
    return copy


def torch_dense(kernel: np.ndarray, bias: np.ndarray) -> torch.nn.Linear:
    dense = torch.nn.Linear(*kernel.shape)
    dense.load_state_dict({"weight": torch.tensor(kernel.T.copy()), "bias": torch.tensor(bias)})
    return dense


def torch_attacks(net: TorchNet, images: np.ndarray, labels: np.ndarray, draws: int) -> dict[str, Attack]:
    inputs, targets = torch.tensor(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)
    wrapped = foolbox.models.ExpectationOverTransformationWrapper(
        foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu"), n_steps=draws
    )
    criterion = foolbox.criteria.Misclassification(targets)

    def by_torchattacks(steps: int) -> np.ndarray:
        attack = torchattacks.EOTPGD(net, eps=EPSILON, alpha=STEP_SIZE, steps=steps, eot_iter=draws)
        return attack(inputs, targets).permute(0, 2, 3, 1).numpy()

    def by_foolbox(steps: int) -> np.ndarray:
        attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP_SIZE, steps=steps)
        # `run`, not the call, which also judges the result by another 50 passes.
        return attack.run(wrapped, inputs, criterion, epsilon=EPSILON).permute(0, 2, 3, 1).numpy()

    return {"torchattacks EOTPGD": by_torchattacks, "Foolbox EoT": by_foolbox}


def logit_difference(model: WCANet, net: TorchNet, images: np.ndarray) -> float:
    """Largest difference of the two nets' noise-free logits, over the largest logit; raises when they are not equal."""
    expected = model.classifier(model.features(images)).numpy()
    net.noisy = False
    with torch.no_grad():
        received = net(torch.tensor(images).permute(0, 3, 1, 2)).numpy()
    net.noisy = True
    difference = float(np.abs(received - expected).max() / np.abs(expected).max())
    if not difference <= LOGIT_TOLERANCE:
        raise RuntimeError(f"the torch net is not the Keras net: noise-free logits differ by {difference:.1e}")
    print(f"noise-free logits of the Keras and the torch net agree to {difference:.1e}")
    return difference


def check_adversarial(name: str, adversarial: np.ndarray, images: np.ndarray) -> None:
    """Raise unless every image moved, and stayed in its ball."""
    distances = np.abs(adversarial - images).max(axis=(1, 2, 3))
    if not (distances.min() > 0 and distances.max() <= EPSILON + 1e-6):
        raise RuntimeError(f"{name} moved images by {distances.min()} to {distances.max()}, epsilon {EPSILON}")


def time_all(attacks: dict[str, Attack], settings: Settings) -> dict[str, list[float]]:
    """Seconds of each run: the fast contenders alternate, in turned order every other round, then the slow ones."""
    slow = [name for name in attacks if name not in FAST]
    schedule = [name for i in range(settings.rounds) for name in FAST[:: 1 if i % 2 == 0 else -1]]
    seconds: dict[str, list[float]] = {name: [] for name in attacks}
    for name in schedule + slow * settings.slow_runs:
        start = time.perf_counter()
        attacks[name](settings.steps)
        seconds[name].append(time.perf_counter() - start)
    return seconds


def one_gradient(
    medians: dict[str, float], net: TorchNet, images: np.ndarray, labels: np.ndarray, settings: Settings
) -> dict[str, float]:
    """Seconds of one pass forward and back by either library: where they differ much, the ratios are not about EoT."""
    single = torch_attacks(net, images, labels, draws=1)["torchattacks EOTPGD"]
    seconds = time_all({"torch": single}, dataclasses.replace(settings, rounds=0, slow_runs=settings.rounds))["torch"]
    passes = {
        "TensorFlow": medians["wca_tf deterministic"] / settings.steps,
        "torch": statistics.median(seconds) / settings.steps,
    }
    print(f"one pass, forward and back: TensorFlow {passes['TensorFlow']:.4f} s, torch {passes['torch']:.4f} s")
    return passes


def judge(
    seconds: dict[str, list[float]], medians: dict[str, float], name: str, other: str, bound: float
) -> dict[str, Any]:
    """Print a ratio with its bound: the median of the rounds' ratios, or, beside a slow contender, of the medians."""
    ratio = medians[name] / medians[other]
    if other in FAST:
        ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds[other], strict=True))
    shown, limit = (f"{ratio:.3f}", f"{bound:g}") if bound > 1 else (f"1/{1 / ratio:.1f}", f"1/{1 / bound:.0f}")
    print(f"{name} / {other}: {shown}, bound {limit}: {'met' if ratio <= bound else 'missed'}")
    return {"name": name, "over": other, "ratio": ratio, "bound": bound, "met": ratio <= bound}


def versions() -> dict[str, str]:
    packages = ("tensorflow", "keras", "numpy", "torch", "torchattacks", "foolbox")
    return {"python": sys.version.split()[0], **{package: metadata.version(package) for package in packages}}


if __name__ == "__main__":
    main()
