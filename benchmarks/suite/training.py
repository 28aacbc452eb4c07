"""Training steps of wca_tf as `bin/train` has them: `fit` on random images, in wca_tf's worker."""

import itertools
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.suite.nets import IMAGE_SHAPES
from benchmarks.suite.process import Job
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.data.batches import training_batches
from wca_tf.data.examples import Examples
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.sampled_target import SampledTarget
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.training import new_model

EPSILON = 8 / 255  # the paper's, of adversarial training
MAX_RUNS = 1000


class Stopwatch(keras.callbacks.Callback):
    """Seconds from the end of an epoch's first step, so without making its iterator, to the end of its last."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.perf_counter()
        if batch == 0:
            self.first = now
        self.seconds = now - self.first


class PassPerDraw(AdversarialTraining):
    """Adversarial training of a net whose noise could be anywhere: every draw is a pass."""

    def target(self, model: keras.Model) -> SampledTarget:
        def logits(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            return model.classifier(model.noise(model.features(images), seed=seed))

        return SampledTarget(logits, draws_per_pass=1)


def prepare(job: dict[str, Any]) -> Job:
    """`steps` steps of `batch` images; an epoch has one more, which is not timed."""
    batch, steps = job["batch"], job["steps"]
    examples = random_examples(job["net"], batch * (steps + 1))
    model = untrained(job, examples)
    if "draws" in job:
        model.adversary = PassPerDraw(ProjectedGradient(eot_samples=job["draws"]), EPSILON, mixed=False)
    elif job["adversarial"]:
        model.adversary = AdversarialTraining(ProjectedGradient(), EPSILON, mixed=False)
    epochs = itertools.count()

    def run() -> float:
        epoch, stopwatch = next(epochs), Stopwatch()
        model.fit(
            training_batches(examples, batch, epoch + 1, epoch, 0, "none"),
            steps_per_epoch=steps + 1,
            epochs=epoch + 1,
            initial_epoch=epoch,
            callbacks=[stopwatch],
            shuffle=False,
            verbose=0,
        )
        return stopwatch.seconds

    return Job(run, times_itself=True)


def untrained(job: dict[str, Any], examples: Examples) -> StochasticClassifier:
    """The net of a job, as `bin/train` starts it."""
    config = TrainConfig(
        backbone=job["net"],
        defence=job["defence"],
        precision=job["precision"],
        batch_size=job["batch"],
        epochs=MAX_RUNS,
    )
    return new_model(config, examples)


def random_examples(net: str, count: int) -> Examples:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, *IMAGE_SHAPES[net]), np.uint8)
    return Examples(images, random.integers(0, 10, count), tuple("0123456789"))
