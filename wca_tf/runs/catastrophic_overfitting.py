"""Detection of catastrophic overfitting in fast adversarial training (Wong et al., ICLR 2020).

With attacks of one step, a net may learn within an epoch to resist these attacks alone. PGD then breaks it.
"""

from typing import Any

import keras
import numpy as np

from wca_tf.attacks import BallAttack, parse_attack
from wca_tf.data.examples import Examples
from wca_tf.distribution.cluster import is_chief
from wca_tf.nets.targets import AnyTarget

NUM_EXAMPLES = 256
PART = 32  # images attacked at a time: with noise inside the net, each has several draws in memory
# EoT, and the same draws in every epoch: else the noise of the net would hide the fall, or make one.
PROBE = "pgd:steps=10:relative_step_size=0.25:eot_samples=10"
MAX_FALL = 0.2  # of the accuracy under PGD, from its highest (the authors' code: 20 points)
METRIC = "robust_accuracy"


class CatastrophicOverfitting(keras.callbacks.Callback):
    """A callback that attacks 256 training images by PGD after each epoch, and ends a run that overfits.

    The metric `robust_accuracy` is the mean P(correct) of these images. Where it falls by more than 20 points below its
    highest value, training stops and the epoch is not kept. This callback comes before the one that writes the files.

    Args:
        training: the training images.
        attack: the attack of adversarial training, whose norm the probe has.
        epsilon: its radius.
        lines: the metrics of the epochs so far; a resumed run has some.
    """

    def __init__(self, training: Examples, attack: BallAttack, epsilon: float, lines: list[dict[str, float]]) -> None:
        super().__init__()
        first = training.take(slice(0, NUM_EXAMPLES))
        self.images, self.labels = first.images, first.labels
        self.indices = np.arange(len(first))
        self.target: AnyTarget | None = None
        self.probe = parse_attack(f"{PROBE}:norm={attack.norm}")
        self.epsilon = epsilon
        self.lines = lines
        self.found = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.target = self.target or self.model.target()  # one target, so that the attack is traced once
        parts = [slice(first, first + PART) for first in range(0, len(self.labels), PART)]
        found = [
            self.probe(
                self.target, self.images[part], self.labels[part], epsilon=self.epsilon, indices=self.indices[part]
            ).probability_correct
            for part in parts
        ]
        accuracy = float(np.mean(np.concatenate(found)))
        highest = max((line.get(METRIC, 0.0) for line in self.lines), default=0.0)
        if logs is not None:
            logs[METRIC] = accuracy
        if accuracy >= highest - MAX_FALL:
            return
        self.found = True
        self.model.stop_training = True
        if is_chief():
            print(
                f"catastrophic overfitting in epoch {epoch + 1}: PGD on {len(self.labels)} training images leaves "
                f"{100 * accuracy:.1f} %, and left {100 * highest:.1f} % before; training ends with epoch {epoch}. "
                "Try a smaller --learning_rate, or an attack of several steps"
            )
