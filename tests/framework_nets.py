"""The same small CNN with the same weights in Keras, as two NumPy functions, in PyTorch and in JAX; with noise too."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
from kinds_of_nets import cnn

import wca_tf

PEERS = Path(__file__).resolve().parent.parent / ".peers"
FRAMEWORKS = ("numpy", "torch", "jax")
DEVIATION = 0.3  # of the noise of random nets, on the pixels


def imported(name):
    """A module of the environment, or of the peers that bin/test --slow installs; else the test is skipped."""
    if PEERS.is_dir() and str(PEERS) not in sys.path:
        sys.path.append(str(PEERS))
    return pytest.importorskip(name)


@functools.cache
def keras_cnn():
    return cnn()


def weights():
    """(kernel [3, 3, 1, 8], bias [8], dense [288, 10], bias [10])."""
    return [np.asarray(weight) for weight in keras_cnn().weights]


def numpy_cnn(noise=lambda images, seed: 0.0, **options):
    """The net as two functions; `noise` is added to the images."""
    kernel, bias, dense, last = weights()

    def hidden(images, seed):
        images = images + noise(images, seed)
        windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
        return np.einsum("bhwcij,ijck->bhwk", windows, kernel) + bias

    def logits(images, seed):
        return np.maximum(hidden(images, seed), 0).reshape(len(images), -1) @ dense + last

    def pullback(images, seed, upstream):
        before = hidden(images, seed)
        back = (upstream @ dense.T).reshape(before.shape) * (before > 0)
        gradient = np.zeros_like(images)
        for i in range(3):
            for j in range(3):
                gradient[:, i : i + 6, j : j + 6] += back @ kernel[i, j].T
        return gradient

    return wca_tf.FunctionNet(logits, pullback, 10, **options)


def per_image(images, seed):
    return DEVIATION * np.random.default_rng(seed).standard_normal(images.shape).astype(np.float32)


def shared(images, seed):
    return per_image(images[:1], seed)


def torch_cnn(noise=False):
    torch = imported("torch")
    kernel, bias, dense, last = map(torch.tensor, weights())

    class SmallCNN(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.last = torch.nn.Conv2d(1, 8, 3), torch.nn.Linear(288, 10)
            self.dropout = torch.nn.Dropout(0.3)

        def forward(self, images):
            if noise:
                images = images + DEVIATION * torch.randn_like(images)
            hidden = torch.relu(self.convolution(images)).permute(0, 2, 3, 1).flatten(1)
            return self.last(self.dropout(hidden))

    net = SmallCNN()
    with torch.no_grad():
        net.convolution.weight.copy_(kernel.permute(3, 2, 0, 1))
        net.convolution.bias.copy_(bias)
        net.last.weight.copy_(dense.T)
        net.last.bias.copy_(last)
    return net


def jax_cnn(noise=False):
    jax = imported("jax")
    kernel, bias, dense, last = weights()

    def logits(images):
        hidden = jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(hidden + bias).reshape(len(images), -1) @ dense + last

    if not noise:
        return logits
    return lambda images, key: logits(images + DEVIATION * jax.random.normal(key, images.shape))


def made(framework, noise=False):
    """The net in a framework, as its owner has it."""
    if framework == "numpy":
        return numpy_cnn(per_image) if noise else numpy_cnn()
    return {"torch": torch_cnn, "jax": jax_cnn}[framework](noise)
