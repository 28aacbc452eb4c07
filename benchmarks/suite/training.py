"""Training steps of wca_tf as `bin/train` has them: `fit` on random images, in wca_tf's worker."""

import itertools
import time
from typing import Any

import keras
import numpy as np

from benchmarks.suite.nets import IMAGE_SHAPES
from benchmarks.suite.plan import ADVERSARIAL_EPSILON
from benchmarks.suite.process import Job
from wca_tf import Examples, StochasticClassifier, TrainConfig, parse_attack
from wca_tf.data.batches import training_batches
from wca_tf.defences.adversarial_training import AdversarialTraining
from wca_tf.runs.training import new_model

MAX_RUNS = 1000


class Stopwatch(keras.callbacks.Callback):
    """Seconds from the end of an epoch's first step, so without making its iterator, to the end of its last."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.perf_counter()
        if batch == 0:
            self.first = now
        self.seconds = now - self.first


def prepare(job: dict[str, Any]) -> Job:
    """Make ready `steps` steps of `batch` images; an epoch has one more, which is not timed."""
    batch, steps, epochs = job["batch"], job["steps"], itertools.count()
    examples = random_examples(job["net"], batch * (steps + 1))
    model = untrained(job, examples)
    if job["adversarial"]:
        model.adversary = AdversarialTraining(parse_attack("pgd"), ADVERSARIAL_EPSILON, mixed=False)

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
    """Make the net of a job, as `bin/train` starts it."""
    told = {"backbone": job["net"], "batch_size": job["batch"], "epochs": MAX_RUNS}
    return new_model(TrainConfig(defence=job["defence"], precision=job["precision"], **told), examples)


def random_examples(net: str, count: int) -> Examples:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, *IMAGE_SHAPES[net]), np.uint8)
    return Examples(images, random.integers(0, 10, count), tuple("0123456789"))
