"""What square, cw and n_pixel cost, here and elsewhere, in one run.

    .venv/bin/python benchmarks/attacks.py [--model_dir DIR] [--out docs/results/attacks.json] [--smoke]

Times each attack on LeNet++ (28x28, without noise; untrained, or the net in DIR), and its peers on a torch net of the
same weights, with 2 threads and in turns: square beside as many bare forward passes of the same images and beside
ART's; cw beside Foolbox's and ART's; a generation of n_pixel with 400 candidates beside SciPy's differential evolution,
with a pass for each candidate, compiled or by a plain call of the Keras net, and vectorised. Prints medians, and ratios
with their bounds. Images keep their label, so that no attack ends early. --smoke takes a minute and its figures mean
nothing. The peers go to .peers: `bin/test --slow` installs them.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import eot  # first: it puts .peers on the path
import keras
import numpy as np
import scipy.optimize
import tensorflow as tf
import torch

from wca_tf.attacks import build_attack
from wca_tf.attacks.evolution import DifferentialEvolution
from wca_tf.attacks.n_pixel import NPixel, paint
from wca_tf.attacks.target import HeadNoiseTarget
from wca_tf.files import write_json
from wca_tf.keras_target import target_of
from wca_tf.model import WCANet
from wca_tf.model_dir import ModelDirectory, load_model

try:
    import foolbox
    from art.attacks import evasion
    from art.estimators.classification import PyTorchClassifier
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed; run bin/test --slow, which fills .peers")

EPSILON = 1e-4  # nothing falls, and no query is saved
LEARNING_RATE = 0.01
CONSTANT = 1.0
# (this contender, over that one, at most; None for information)
BOUNDS = (
    ("square", "square's forward passes", 1.2),
    ("square", "square, ART", None),
    ("cw", "cw, Foolbox", None),
    ("cw", "cw, ART", None),
    ("n_pixel", "n_pixel, SciPy", 0.1),
    ("n_pixel", "n_pixel, SciPy, eager Keras", None),
    ("n_pixel, 1 image", "n_pixel, SciPy", None),
    ("n_pixel, 1 image", "n_pixel, SciPy vectorised", None),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much is measured. SciPy evolves one image at a time."""

    rounds: int = 3
    square_images: int = 64
    queries: int = 100
    cw_images: int = 16
    searches: int = 3
    steps: int = 30
    pixel_images: int = 8
    population: int = 400
    generations: int = 4


SMOKE = Settings(1, 4, 12, 2, 2, 3, 2, 20, 1)


@dataclasses.dataclass(frozen=True)
class Contender:
    """An attack to time; its seconds are divided by `share`: images, or images and generations."""

    run: Callable[[], Any]
    share: int


@dataclasses.dataclass(frozen=True)
class Endless(NPixel):
    """n_pixel whose populations never converge, so that the number of generations is known."""

    def _evolution(self) -> DifferentialEvolution:
        return dataclasses.replace(super()._evolution(), tolerance=-1.0)


@dataclasses.dataclass(frozen=True)
class Nets:
    """The same deterministic net for every library, and images with the labels that it gives them."""

    target: HeadNoiseTarget
    torch_net: torch.nn.Module
    images: np.ndarray
    labels: np.ndarray

    def margins(self, images: np.ndarray) -> np.ndarray:
        logits = self.target.noise_free_logits(self.target.features(tf.constant(images))).numpy()
        rows = np.arange(len(logits))
        label = logits[rows, self.labels[: len(logits)]]
        logits[rows, self.labels[: len(logits)]] = -np.inf
        return label - logits.max(axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_dir", type=Path, help="a LeNet++ that bin/train left here, in place of random weights")
    parser.add_argument("--out", type=Path, help="write the measurement to this JSON file")
    parser.add_argument("--smoke", action="store_true", help="a few images and steps: shows only that it runs")
    arguments = parser.parse_args()
    settings = SMOKE if arguments.smoke else Settings()
    tf.config.threading.set_intra_op_parallelism_threads(eot.THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(eot.THREADS)
    torch.set_num_threads(eot.THREADS)
    load = os.getloadavg()[0]
    if load > eot.BUSY:
        print(f"warning: the machine is busy (load {load:.1f}); torch's threads suffer most, which flatters wca_tf")
    keras.utils.set_random_seed(0)
    model = load_model(ModelDirectory(arguments.model_dir).best) if arguments.model_dir else eot.random_model()
    result = measure(make_nets(model, settings), settings)
    if arguments.out:
        source = str(arguments.model_dir or "random weights")
        write_json(arguments.out, {"smoke": arguments.smoke, "model": source, "load_at_start": load, **result})


def make_nets(model: WCANet, settings: Settings) -> Nets:
    """The nets, checked to be equal, and of 1,024 random images those that the net is surest of."""
    target = target_of(model).without_noise()
    net = torch_net(model).eval()
    images = np.random.default_rng(0).random((1024, *eot.IMAGE_SHAPE), np.float32)
    logits = target.noise_free_logits(target.features(tf.constant(images))).numpy()
    with torch.no_grad():
        received = net(to_torch(images)).numpy()
    difference = float(np.abs(received - logits).max() / np.abs(logits).max())
    if not difference <= eot.LOGIT_TOLERANCE:
        raise RuntimeError(f"the torch net is not the Keras net: logits differ by {difference:.1e}")
    ordered = np.sort(logits, axis=1)
    surest = np.argsort(ordered[:, -2] - ordered[:, -1])
    surest = surest[: max(settings.square_images, settings.cw_images, settings.pixel_images)]
    return Nets(target, net, images[surest], logits[surest].argmax(axis=1))


class Normalise(torch.nn.Module):
    """The net's own normalisation of pixels."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(1, -1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images - self.mean) / self.std


def torch_net(model: WCANet) -> torch.nn.Module:
    """The net without its noise in torch, images [B, channels, H, W]."""
    layers = [eot.torch_layer(layer) for layer in model.backbone.layers if layer.weights]
    # Keras flattens height, width, channels; torch channels, height, width.
    height, width, channels = model.backbone.layers[-1].input.shape[1:]
    kernel = model.bottleneck.kernel.numpy().reshape(height, width, channels, -1).transpose(2, 0, 1, 3)
    return torch.nn.Sequential(
        Normalise(model.pixel_mean, model.pixel_std),
        *layers,
        torch.nn.Flatten(),
        eot.torch_dense(kernel.reshape(-1, kernel.shape[-1]), model.bottleneck.bias.numpy()),
        eot.torch_dense(model.classifier.kernel.numpy(), model.classifier.bias.numpy()),
    )


def to_torch(images: np.ndarray) -> torch.Tensor:
    return torch.tensor(images).permute(0, 3, 1, 2).contiguous()


def ours(nets: Nets, attack: Any, count: int) -> Callable[[], Any]:
    images, labels = nets.images[:count], nets.labels[:count]
    return lambda: attack(nets.target, images, labels, np.arange(count), 0).numpy()


def by_art(nets: Nets, count: int, name: str, **options: Any) -> Callable[[], Any]:
    classifier = PyTorchClassifier(
        nets.torch_net, torch.nn.CrossEntropyLoss(), (1, 28, 28), 10, clip_values=(0, 1), device_type="cpu"
    )
    attack = getattr(evasion, name)(classifier, batch_size=count, verbose=False, **options)
    images, labels = to_torch(nets.images[:count]).numpy(), nets.labels[:count]
    return lambda: attack.generate(images, labels)


def square_contenders(nets: Nets, settings: Settings) -> dict[str, Contender]:
    count, queries = settings.square_images, settings.queries
    images = tf.constant(nets.images[:count])
    attack = build_attack(f"square:queries={queries}", EPSILON, eot_samples=1)

    @tf.function(jit_compile=False)
    def passes() -> tf.Tensor:
        total = tf.zeros([count, 10])
        for query in tf.range(queries):
            # Images that differ from pass to pass, so that none is taken out of the loop.
            moved = images + EPSILON * tf.cast(query, tf.float32)
            total += nets.target.logits(nets.target.features(moved), tf.constant([0, 0]), 1)[0]
        return total

    return {
        "square": Contender(ours(nets, attack, count), count),
        "square's forward passes": Contender(lambda: passes().numpy(), count),
        "square, ART": Contender(by_art(nets, count, "SquareAttack", eps=EPSILON, max_iter=queries), count),
    }


def cw_contenders(nets: Nets, settings: Settings) -> dict[str, Contender]:
    count, searches, steps = settings.cw_images, settings.searches, settings.steps
    text = f"cw:steps={steps}:searches={searches}:learning_rate={LEARNING_RATE}:initial_constant={CONSTANT}"
    model = foolbox.PyTorchModel(nets.torch_net, bounds=(0, 1), device="cpu")
    criterion = foolbox.criteria.Misclassification(torch.tensor(nets.labels[:count]))
    attack = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=searches, steps=steps, stepsize=LEARNING_RATE, initial_const=CONSTANT
    )
    inputs = to_torch(nets.images[:count])
    art = by_art(
        nets,
        count,
        "CarliniL2Method",
        binary_search_steps=searches,
        max_iter=steps,
        learning_rate=LEARNING_RATE,
        initial_const=CONSTANT,
    )
    return {
        "cw": Contender(ours(nets, build_attack(text, eot_samples=1), count), count),
        "cw, Foolbox": Contender(lambda: attack.run(model, inputs, criterion), count),
        "cw, ART": Contender(art, count),
    }


def pixel_contenders(nets: Nets, settings: Settings) -> dict[str, Contender]:
    """Seconds an image and a generation, of which the first population is one."""
    many, generations = settings.pixel_images, settings.generations
    attack = Endless(population=settings.population, generations=generations, eot_samples=1)

    @tf.function(jit_compile=False, reduce_retracing=True)
    def energy(points: tf.Tensor) -> tf.Tensor:
        images = tf.repeat(tf.constant(nets.images[:1]), tf.shape(points)[0], axis=0)
        features = nets.target.features(paint(images, points))
        return tf.nn.softmax(nets.target.logits(features, tf.constant([0, 0]), 1)[0])[:, int(nets.labels[0])]

    def evolve(vectorized: bool, energy: Callable[[tf.Tensor], tf.Tensor] = energy) -> Any:
        def by_scipy(points: np.ndarray) -> Any:
            energies = energy(tf.constant(points.T.reshape(-1, 3), tf.float32)).numpy().astype(np.float64)
            return energies if points.ndim == 2 else energies[0]

        result = scipy.optimize.differential_evolution(
            by_scipy,
            [(0, 1)] * 3,
            init=np.random.default_rng(0).random((settings.population, 3)),
            maxiter=generations,
            atol=-1,
            mutation=0.5,
            recombination=0.7,
            polish=False,
            updating="deferred",
            vectorized=vectorized,
            rng=0,
        )
        if result.nit != generations:
            raise RuntimeError(f"SciPy spent {result.nit} generations, not {generations}")

    def all_generations(count: int) -> Callable[[], Any]:
        run = ours(nets, attack, count)

        def checked() -> None:
            if (nets.margins(run()) <= 0).any():
                raise RuntimeError("an image fell to a pixel, and its generations ended early")

        return checked

    return {
        "n_pixel": Contender(all_generations(many), many * (generations + 1)),
        "n_pixel, 1 image": Contender(all_generations(1), generations + 1),
        "n_pixel, SciPy": Contender(lambda: evolve(False), generations + 1),
        "n_pixel, SciPy, eager Keras": Contender(lambda: evolve(False, energy.python_function), generations + 1),
        "n_pixel, SciPy vectorised": Contender(lambda: evolve(True), generations + 1),
    }


def measure(nets: Nets, settings: Settings) -> dict[str, Any]:
    """Time every contender in turns, print the table; returns what goes into the JSON file."""
    medians: dict[str, float] = {}
    seconds: dict[str, list[float]] = {}
    for contenders in (square_contenders, cw_contenders, pixel_contenders):
        times = time_all(contenders(nets, settings), settings.rounds)
        for name, values in times.items():
            medians[name] = statistics.median(values)
            unit = "an image and generation" if name.startswith("n_pixel") else "an image"
            print(f"{name:28} {1000 * medians[name]:10.3f} ms {unit}, median of {len(values)}")
        seconds.update(times)
    return {
        "settings": dataclasses.asdict(settings),
        "threads": eot.THREADS,
        "versions": {**eot.versions(), **{name: metadata.version(name) for name in PACKAGES}},
        "seconds": seconds,
        "medians": medians,
        "ratios": [judge(seconds, *bound) for bound in BOUNDS],
    }


PACKAGES = ("adversarial-robustness-toolbox", "scipy")


def time_all(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run over its share; in turned order every other round, after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for name in contenders:
        contenders[name].run()
    for i in range(rounds):
        for name in list(contenders)[:: 1 if i % 2 == 0 else -1]:
            start = time.perf_counter()
            contenders[name].run()
            seconds[name].append((time.perf_counter() - start) / contenders[name].share)
    return seconds


def judge(seconds: dict[str, list[float]], name: str, other: str, bound: float | None) -> dict[str, Any]:
    """Print the median of the rounds' ratios, with its bound."""
    ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds[other], strict=True))
    met = None if bound is None else ratio <= bound
    verdict = "for information" if bound is None else f"bound {bound:g}: {'met' if met else 'missed'}"
    print(f"{name} / {other}: {ratio:.3f}, {verdict}")
    return {"name": name, "over": other, "ratio": ratio, "bound": bound, "met": met}


if __name__ == "__main__":
    main()
