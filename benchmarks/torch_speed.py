"""PGD on a ResNet-18 in PyTorch: wca_tf's time over that of a bare loop in PyTorch, on images of 32×32 pixels.

    .venv/bin/python benchmarks/torch_speed.py --tfds_data_dir=DIR [--images=32] [--steps=10] [--rounds=5]

`kept` is `adapt(module)`, which keeps the forward graph for its gradient; `functions` is a FunctionNet of two pure
functions, whose pullback makes the forward pass again. The three take turns in one process. The least time of all
rounds counts, of the process (CPU) and of the clock.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from torch import nn

import wca_tf
from wca_tf.nets.adapter import adapt

RADIUS = 8 / 255


class Block(nn.Module):
    """Two convolutions and a skip connection."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        skip = (nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.skip = nn.Sequential(*(skip if before != after else ()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(images) + self.skip(images))


def resnet18() -> nn.Module:
    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for before, after in zip(widths, widths[1:], strict=False)
        for block in (Block(before, after, 1 + (before != after)), Block(after, after, 1))
    ]
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)).eval()


def bare_loop(net: nn.Module, images: np.ndarray, labels: np.ndarray, steps: int) -> None:
    """PGD as its users write it."""
    clean, classes = torch.tensor(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)
    moved = (clean + torch.empty_like(clean).uniform_(-RADIUS, RADIUS)).clamp(0, 1)
    for _ in range(steps):
        moved.requires_grad_()
        loss = nn.functional.cross_entropy(net(moved), classes, reduction="sum")
        [gradient] = torch.autograd.grad(loss, moved)
        moved = moved.detach() + RADIUS / 10 * gradient.sign()
        moved = torch.minimum(torch.maximum(moved, clean - RADIUS), clean + RADIUS).clamp(0, 1)


def as_functions(net: nn.Module) -> wca_tf.FunctionNet:
    def logits(images: np.ndarray, seed: int) -> Any:
        with torch.no_grad():
            return net(torch.tensor(images).permute(0, 3, 1, 2).contiguous()).numpy()

    def pullback(images: np.ndarray, seed: int, upstream: np.ndarray) -> Any:
        pixels = torch.tensor(images).permute(0, 3, 1, 2).contiguous().requires_grad_()
        [gradient] = torch.autograd.grad(net(pixels), pixels, torch.tensor(upstream))
        return gradient.permute(0, 2, 3, 1).numpy()

    return wca_tf.FunctionNet(logits, pullback, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tfds_data_dir", default=wca_tf.TrainConfig.tfds_data_dir)
    for name, default in {"images": 32, "steps": 10, "rounds": 5, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = wca_tf.TrainConfig(dataset="cifar10", tfds_data_dir=arguments.tfds_data_dir)
    examples = wca_tf.load_examples(config, "test", arguments.images)
    images, labels, net = examples.images.astype(np.float32) / 255, examples.labels, resnet18()
    attack = wca_tf.parse_attack(f"pgd:steps={arguments.steps}")

    def through(target: Any) -> Callable[[], Any]:
        indices = np.arange(len(images))
        return lambda: attack.run(target, tf.constant(images), labels, RADIUS, indices, 0)

    contenders: dict[str, Callable[[], Any]] = {
        "bare": lambda: bare_loop(net, images, labels, arguments.steps),
        "kept": through(adapt(net, images.shape[1:])),
        "functions": through(adapt(as_functions(net), images.shape[1:])),
    }
    clocks = {"CPU": time.process_time, "clock": time.perf_counter}
    least = {name: dict.fromkeys(clocks, float("inf")) for name in contenders}
    for turn in range(arguments.rounds + 1):
        for name, run in contenders.items():
            before = {clock: read() for clock, read in clocks.items()}
            run()
            for clock, read in clocks.items() if turn else ():  # the first call makes graphs
                least[name][clock] = min(least[name][clock], read() - before[clock])
    for name, times in least.items():
        parts = (
            f"{seconds:7.2f} s of {clock}, {seconds / least['bare'][clock]:.2f}" for clock, seconds in times.items()
        )
        print(f"{name:10s}" + "; ".join(parts), flush=True)


if __name__ == "__main__":
    main()
