"""Training steps in torch, in the peers' worker: the authors' recipe on the equal net, and ART's adversarial training.

The authors' recipe (github.com/peustr/WCA-net): one draw of MultivariateNormal a batch, cross-entropy minus the
logarithm of the sum of w_iᵀ Sigma w_i, and Adam with weight decay on the noise and the classifier alone.
"""

import time
from typing import Any

import numpy as np
import torch
from art.attacks.evasion import ProjectedGradientDescent
from art.defences.trainer import AdversarialTrainer
from art.estimators.classification import PyTorchClassifier
from torch import nn
from torch.distributions import MultivariateNormal

from benchmarks.suite.plan import ADVERSARIAL_EPSILON, NUM_CLASSES
from benchmarks.suite.process import Job
from benchmarks.suite.torch_nets import Arrays, TorchNet

LEARNING_RATE, WEIGHT_DECAY, PGD_STEPS = 1e-4, 1e-4, 10


class AuthorsNet(nn.Module):
    """The net with the authors' noise: L of uniform numbers, of which the lower triangle counts."""

    def __init__(self, net: TorchNet) -> None:
        super().__init__()
        self.net = net
        size = net.classifier.in_features
        self.scale = nn.Parameter(torch.rand(size, size))
        self.register_buffer("centre", torch.zeros(size))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Nothing keeps the authors' diagonal positive; the torch of their time did not look, and samples all the same.
        noise = MultivariateNormal(self.centre, scale_tril=self.scale.tril(), validate_args=False).rsample()
        return self.net.classifier(self.net.features(images) + noise)

    def alignment(self) -> torch.Tensor:
        weight, scale = self.net.classifier.weight, self.scale.tril()
        return torch.log((weight @ (scale @ scale.T) @ weight.T).diagonal().sum())


def prepare(job: dict[str, Any], arrays: Arrays) -> Job:
    """Make ready `steps` steps of `batch` random images."""
    random, count = np.random.default_rng(0), job["batch"] * job["steps"]
    height, width, channels = arrays["images"].shape[1:]
    images = random.integers(0, 256, (count, channels, height, width), np.uint8)
    labels = random.integers(0, NUM_CLASSES, count)
    torch.manual_seed(0)
    net = TorchNet(job["net"], arrays).train()
    return (by_art if job["adversarial"] else by_the_authors)(net, job, images, labels)


def by_the_authors(net: TorchNet, job: dict[str, Any], images: np.ndarray, labels: np.ndarray) -> Job:
    model = AuthorsNet(net)
    decayed = [model.scale, *net.classifier.parameters()]
    rest = [*net.backbone.parameters(), *net.bottleneck.parameters()]
    groups = [{"params": rest}, {"params": decayed, "weight_decay": WEIGHT_DECAY}]
    optimizer = torch.optim.Adam(groups, lr=LEARNING_RATE)
    inputs, targets = torch.tensor(images).split(job["batch"]), torch.tensor(labels).split(job["batch"])
    bfloat16 = job["precision"] == "mixed_bfloat16"

    def run() -> float:
        started = time.perf_counter()
        for batch, wanted in zip(inputs, targets, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
                logits = model(batch.float() / 255)
            loss = nn.functional.cross_entropy(logits.float(), wanted) - model.alignment()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - started

    return Job(run, times_itself=True)


def by_art(net: TorchNet, job: dict[str, Any], images: np.ndarray, labels: np.ndarray) -> Job:
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    options = {"optimizer": optimizer, "clip_values": (0, 1), "device_type": "cpu"}
    classifier = PyTorchClassifier(net, nn.CrossEntropyLoss(), images.shape[1:], NUM_CLASSES, **options)
    step = {"eps": ADVERSARIAL_EPSILON, "eps_step": ADVERSARIAL_EPSILON / 10, "max_iter": PGD_STEPS}
    attack = ProjectedGradientDescent(classifier, num_random_init=1, batch_size=job["batch"], verbose=False, **step)
    trainer = AdversarialTrainer(classifier, attack, ratio=1.0)
    inputs = images.astype(np.float32) / 255
    return Job(lambda: trainer.fit(inputs, labels, batch_size=job["batch"], nb_epochs=1))
