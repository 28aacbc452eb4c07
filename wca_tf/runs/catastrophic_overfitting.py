"""Detection of catastrophic overfitting in fast adversarial training (Wong et al., ICLR 2020).

With attacks of one or two steps, a net may learn within an epoch to resist these attacks alone. PGD then breaks it.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from wca_tf.attacks import Attack, BallAttack, parse_attack
from wca_tf.core.errors import DivergedError
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.distribution.cluster import is_chief
from wca_tf.nets.targets import AnyTarget, is_exact

NUM_EXAMPLES = 256
ADVICE = "Try a smaller --learning_rate, or an attack of several steps"
PART = 32  # images attacked at a time: with noise inside the net, each has several draws in memory
# EoT, and the same draws in every epoch: else the noise of the net would hide the fall, or make one.
PROBE = "pgd:steps=10:relative_step_size=0.25:eot_samples=4"
# The number of draws that judge an image where P(correct) is not exact: 256 images have a standard error below 1 point.
JUDGING_DRAWS = 20
MAX_FALL = 0.2  # of the accuracy under PGD, from its highest (the authors' code: 20 points)
# By how much the attack of training may leave more than PGD. A net that never resisted PGD has no height to fall from.
MAX_GAP = 0.2
METRIC, OWN_METRIC = "robust_accuracy", "trained_attack_accuracy"


class CatastrophicOverfitting(keras.callbacks.Callback):
    """A callback that attacks 256 training images by PGD after each epoch, and ends a run that overfits.

    The metrics `robust_accuracy` and `trained_attack_accuracy` are the mean P(correct) of these images under PGD and
    under the attack of training. Training stops, and the epoch is not kept, in two cases:

    - PGD leaves 20 points less than its highest value.
    - PGD leaves 20 points less than the attack of training, and less than half of it.

    This callback comes before the one that writes the files.

    Args:
        training: the training images.
        attack: the attack of adversarial training, whose norm the probe has.
        epsilon: its radius.
        lines: the metrics of the epochs so far; a resumed run has some.

    Raises:
        DivergedError: the first epoch overfits, and there is no net to keep.
    """

    def __init__(self, training: Examples, attack: BallAttack, epsilon: float, lines: list[dict[str, float]]) -> None:
        super().__init__()
        first = training.take(slice(0, NUM_EXAMPLES))
        self.images, self.labels = first.images, first.labels
        self.indices = np.arange(len(first))
        self.target: AnyTarget | None = None
        self.probe = parse_attack(f"{PROBE}:norm={attack.norm}")
        self.attack = dataclasses.replace(attack, eot_samples=self.probe.eot_samples)
        self.epsilon = epsilon
        self.lines = lines
        self.found = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.target = self.target or self.model.target()  # one target, so that the attacks are traced once
        robust, own = self._accuracy(self.probe), self._accuracy(self.attack)
        highest = max((line.get(METRIC, 0.0) for line in self.lines), default=0.0)
        if logs is not None:
            logs |= {METRIC: robust, OWN_METRIC: own}
        if robust >= highest - MAX_FALL and (robust >= own - MAX_GAP or robust >= own / 2):
            return
        self.found = True
        self.model.stop_training = True
        found = (
            f"catastrophic overfitting in epoch {epoch + 1}: on {len(self.labels)} training images the attack of "
            f"training leaves {100 * own:.1f} %, and PGD {100 * robust:.1f} %"
        )
        if not self.lines:
            raise DivergedError(f"{found}. {ADVICE}")
        if is_chief():
            print(f"{found}, at best {100 * highest:.1f} % before; training ends with epoch {epoch}. {ADVICE}")

    def _accuracy(self, attack: Attack) -> float:
        """Return the mean P(correct) of the images under an attack."""
        parts = [slice(first, first + PART) for first in range(0, len(self.labels), PART)]
        return float(np.mean(np.concatenate([self._probability_correct(attack, part) for part in parts])))

    def _probability_correct(self, attack: Attack, part: slice) -> np.ndarray:
        """Return P(correct) [N] of some images under an attack, by a few draws where it is not exact."""
        images, labels, indices = self.images[part], self.labels[part], self.indices[part]
        if self.target is None or is_exact(self.target):
            return attack(self.target, images, labels, epsilon=self.epsilon, indices=indices).probability_correct
        pixels = to_float(tf.constant(images))
        attacked = attack.run(self.target, pixels, labels, self.epsilon, indices, seed=0).images
        features, seed = self.target.features(attacked), fold_in(make_seed(0), Purpose.JUDGEMENT_OF_CALL)
        logits = self.target.logits(features, seed, JUDGING_DRAWS, tf.constant(indices))
        correct: np.ndarray = np.argmax(logits, axis=2) == labels
        return correct.mean(axis=0)
