"""Proof against peers: the same weights, images and budgets for our attacks and for Foolbox's, ART's and SciPy's.

Every attack is judged by the same code, the Keras net's logits in NumPy. `bin/test --slow` runs this, after it has put
the peers into .peers (tests/peers.txt); a peer that is not listed in test_unsafe... is one that we trust.
"""

import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from wca_tf.attacks import build_attack
from wca_tf.attacks.evolution import DifferentialEvolution
from wca_tf.attacks.n_pixel import paint
from wca_tf.attacks.target import HeadNoiseTarget, target_of
from wca_tf.config import DataConfig
from wca_tf.data.sources import load_examples

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("TFDS_DATA_DIR", ROOT.parent / "shared" / "tfds"))
IMAGES = 1000
TRAINING_IMAGES = 20_000
EPSILON = 0.03
SLACK = 0.005  # points of accuracy, over 100, that ours may be behind
ROUNDING = 1e-4  # of a margin


@pytest.fixture(scope="module")
def peers():
    """torch, Foolbox and ART, whose dependencies are .venv's wherever it has them."""
    directory = ROOT / ".peers"
    if not directory.is_dir():
        pytest.skip(f"{directory} is absent: run bin/test --slow, which installs tests/peers.txt")
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
    import art.attacks.evasion
    import art.estimators.classification
    import foolbox
    import torch

    torch.set_num_threads(1)  # threads that wait for each other cost more than they give on so small a net
    return SimpleNamespace(torch=torch, foolbox=foolbox, art=art)


@dataclasses.dataclass(frozen=True)
class Victim:
    """A trained net as every library sees it, and images to attack."""

    model: keras.Model
    target: HeadNoiseTarget
    net: object
    images: np.ndarray
    labels: np.ndarray

    def first(self, count: int) -> "Victim":
        return dataclasses.replace(self, images=self.images[:count], labels=self.labels[:count])

    def margins(self, images: np.ndarray) -> np.ndarray:
        logits = self.model(images).numpy().astype(np.float64)
        rows = np.arange(len(images))
        label = logits[rows, self.labels]
        logits[rows, self.labels] = -np.inf
        return label - logits.max(axis=1)

    def accuracy(self, images: np.ndarray) -> float:
        return float((self.margins(images) > 0).mean())

    def attack(self, text: str, epsilon: float | None = None, seed: int = 0) -> np.ndarray:
        attack = build_attack(text, epsilon, eot_samples=1)
        return attack(self.target, self.images, self.labels, np.arange(len(self.labels)), seed).numpy()


@pytest.fixture(scope="module")
def victim(peers):
    if not (DATA / "fashion_mnist").is_dir():
        pytest.skip(f"{DATA} has no fashion_mnist: set TFDS_DATA_DIR to where it is")
    train, test = (load_examples(DataConfig("fashion_mnist", str(DATA)), split) for split in ("train", "test"))
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 5, strides=2, activation="relu"),
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(keras.optimizers.Adam(2e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    chosen = slice(TRAINING_IMAGES)
    model.fit(np.float32(train.images[chosen]) / 255, train.labels[chosen], batch_size=64, epochs=2, verbose=0)
    images = np.float32(test.images[:IMAGES]) / 255
    net = torch_net(peers.torch, model)
    with peers.torch.no_grad():
        received = net(to_torch(peers.torch, images)).numpy()
    expected = model(images).numpy()
    assert np.abs(received - expected).max() <= 1e-4
    return Victim(model, target_of(model), net, images, test.labels[:IMAGES])


def torch_net(torch, model):
    """The same net in torch, images [B, channels, H, W]."""
    *convolutions, flatten, dense = model.layers
    modules = []
    for layer in convolutions:
        kernel, bias = (torch.tensor(weight) for weight in layer.get_weights())
        copy = torch.nn.Conv2d(kernel.shape[2], kernel.shape[3], layer.kernel_size, layer.strides)
        copy.load_state_dict({"weight": kernel.permute(3, 2, 0, 1), "bias": bias})
        modules += [copy, torch.nn.ReLU()]
    # Keras flattens height, width, channels; torch channels, height, width.
    kernel, bias = dense.get_weights()
    kernel = kernel.reshape(*flatten.input.shape[1:], -1).transpose(3, 2, 0, 1).reshape(len(bias), -1)
    copy = torch.nn.Linear(kernel.shape[1], len(bias))
    copy.load_state_dict({"weight": torch.tensor(kernel), "bias": torch.tensor(bias)})
    return torch.nn.Sequential(*modules, torch.nn.Flatten(), copy).eval()


def to_torch(torch, images):
    return torch.tensor(images).permute(0, 3, 1, 2).contiguous()
