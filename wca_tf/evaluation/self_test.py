"""Can an attack find what is there? An adversarial image is planted, and every attack must find it or another.

Zimmermann et al. (NeurIPS 2022): on the net's own features a new linear read-out is fitted that calls the clean image
and many random points within the attack's reach one class, and one such point another. The net's gradients, step sizes
and saturation stay what they are, and an error in reach is known to exist: an attack that misses it is too weak, or the
net's features hide from it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from wca_tf.attacks import build_attack, entry_of
from wca_tf.attacks.attack import Attack, BallAttack
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.carlini_wagner import CarliniWagner
from wca_tf.attacks.n_pixel import NPixel, paint
from wca_tf.attacks.random_sampling import RandomSampling
from wca_tf.attacks.target import HeadNoiseTarget, RandomNetTarget
from wca_tf.attacks.transfer import Transfer
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.errors import InputError
from wca_tf.progress import progress_bar
from wca_tf.seeds import fold_in, make_seed, normal_by_index, uniform_by_index

# Random points that the read-out calls the clean image's class.
POINTS = 500
IMAGES = 10
# An attack passes when it finds so large a share.
NEEDED = 0.9
# Random points reach this far, the planted image all the way.
INNER = 0.9
CLASSES = 4  # two more than needed, never near: DLR looks at the third and fourth
FAR = -10.0
TRIES = 20


@dataclasses.dataclass(frozen=True)
class SelfTest:
    """What an attack found of what was planted.

    Attributes:
        attack: as written.
        found: images on which it found an error in its reach.
        planted: images on which there was one.
        passed: whether that is enough; None for an attack that cannot know what is planted.
    """

    attack: str
    found: int
    planted: int
    passed: bool | None


def run_self_test(
    target: HeadNoiseTarget | RandomNetTarget,
    names: list[str],
    epsilon: float,
    examples: Examples,
    eot_samples: int = 50,
    seed: int = 0,
) -> list[SelfTest]:
    """Plant an adversarial image near each of the first 10 images, for each attack, and count those found.

    Raises:
        InputError: features that do not change within reach, so that nothing can be planted.
    """
    planted = PlantedNet(target)
    some = examples.take(slice(0, IMAGES))
    images = to_float(tf.constant(some.images))
    results = []
    with progress_bar(len(names) * len(some), "planted images") as progress:
        for name in names:
            attack = build_attack(name, epsilon if entry_of(name).has_radius else None, eot_samples)
            if isinstance(attack, CarliniWagner):  # the planted image is an error by a margin of 1, not by any kappa
                attack = dataclasses.replace(attack, confidence=0.0)
            progress.set_description(name, refresh=False)
            found = 0
            if _can_find(attack):
                for index in range(len(some)):
                    found += _finds(attack, planted, images[index : index + 1], index, epsilon, make_seed(seed))
                    progress.update(1)
            passed = found >= NEEDED * len(some) if _can_find(attack) else None
            results.append(SelfTest(name, found, len(some), passed))
    return results


def format_self_test(results: list[SelfTest]) -> str:
    """A line per attack."""
    verdict = {True: "pass", False: "FAIL", None: "not applicable: it cannot know of what is planted"}
    width = max(len(result.attack) for result in results)
    lines = [f"{r.attack.ljust(width)}  found {r.found} of {r.planted} planted  {verdict[r.passed]}" for r in results]
    return "\n".join(lines)


class PlantedNet:
    """The net's features under a read-out that is fitted anew for each image; one object, so that graphs are reused."""

    def __init__(self, target: HeadNoiseTarget | RandomNetTarget) -> None:
        self.features = _features(target)
        self._weight = tf.Variable(tf.zeros([1]), shape=[None], trainable=False)
        self._bias = tf.Variable(0.0, trainable=False)
        self.target = HeadNoiseTarget(self.features, self.read_out, tf.zeros([CLASSES, 1]))

    def read_out(self, features: tf.Tensor) -> tf.Tensor:
        """[B, 4]: ∓half the score, which is 1 at the planted image and −1 or less at the others."""
        score = tf.linalg.matvec(features, self._weight) + self._bias
        rest = tf.fill([tf.shape(score)[0], CLASSES - 2], FAR)
        return tf.concat([tf.stack([-score / 2, score / 2], axis=1), rest], axis=1)

    def plant(self, image: tf.Tensor, reach: Callable[[int], tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
        """Fit the read-out to `image` [1, ...]; returns the planted image."""
        for attempt in range(TRIES):
            inner, planted = reach(attempt)
            around = self.features(tf.concat([image, inner], axis=0)).numpy().astype(np.float64)
            there = self.features(planted).numpy().astype(np.float64)
            fitted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
            fitted.fit(np.concatenate([around, there, there]), [0] * len(around) + [1, 1])
            weight = fitted.coef_[0]
            high, highest = float(there[0] @ weight), float((around @ weight).max())
            if high > highest + 1e-9 * abs(high):
                scale = 2 / (high - highest)
                self._weight.assign(tf.constant(scale * weight, tf.float32))
                self._bias.assign(-scale * (high + highest) / 2)
                return planted
        raise InputError(
            "nothing can be planted: the net's features do not tell points within the attack's reach apart"
        )


def _features(target: HeadNoiseTarget | RandomNetTarget) -> Callable[[tf.Tensor], tf.Tensor]:
    """What the read-out reads: the features, or for noise anywhere the logits of one fixed draw."""
    if isinstance(target, HeadNoiseTarget):
        return target.features
    fixed = target.with_fixed_draw(make_seed(0))
    return lambda images: fixed.logits(images, make_seed(0), 1)[0]


def _can_find(attack: Attack) -> bool:
    """Not one that looks at another net, nor random points, which the planted image is chosen to be out of."""
    return not (isinstance(attack, RandomSampling) or (isinstance(attack, Transfer) and attack.source is not None))


def _finds(attack: Attack, net: PlantedNet, image: tf.Tensor, index: int, epsilon: float, seed: tf.Tensor) -> bool:
    """Whether the attack finds an error of the planted net, as near as the planted one."""
    planted = net.plant(image, lambda attempt: _reach(attack, image, index, epsilon, fold_in(seed, attempt)))
    adversarial = attack(
        net.target, image, np.array([0]), np.array([index]), fold_in(seed, TRIES), [1] if attack.targeted else None
    )
    wrong = int(tf.argmax(net.read_out(net.features(adversarial))[0])) != 0
    if isinstance(attack, BallAttack | NPixel):  # checked to be in reach
        return wrong
    near, far = (float(BALLS["l2"].distance(x - image)[0]) for x in (adversarial, planted))
    return wrong and near <= far


def _reach(
    attack: Attack, image: tf.Tensor, index: int, epsilon: float, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """(random points [POINTS, ...] within the attack's reach of an image, one at its edge)."""
    places = tf.range(POINTS + 1) + index * (POINTS + 1)
    many = tf.repeat(image, POINTS + 1, axis=0)
    if isinstance(attack, NPixel):
        vectors = uniform_by_index(seed, places, (attack.pixels * (2 + image.shape[3]),))
        points = paint(many, vectors)
        return points[:-1], points[-1:]
    if isinstance(attack, BallAttack) and attack.norm == "linf":
        change = attack.epsilon * (2 * uniform_by_index(seed, places, image.shape[1:]) - 1)
        edge = attack.epsilon * tf.sign(change[-1:])
    else:
        dimensions = float(np.prod(image.shape[1:]))
        radius = attack.epsilon if isinstance(attack, BallAttack) else epsilon * np.sqrt(dimensions)
        direction = normal_by_index(seed, places, image.shape[1:])
        change = radius * direction / BALLS["l2"].distance(direction)[:, tf.newaxis, tf.newaxis, tf.newaxis]
        edge = change[-1:]
    inner = tf.clip_by_value(many[:-1] + INNER * change[:-1], 0.0, 1.0)
    return inner, tf.clip_by_value(image + edge, 0.0, 1.0)


def as_criterion(results: list[SelfTest]) -> dict[str, Any]:
    """The self-test as a line of the checklist."""
    tested = [result for result in results if result.passed is not None]
    evidence = ", ".join(f"{result.attack} {result.found}/{result.planted}" for result in tested)
    passed = all(result.passed for result in tested) if tested else None
    return {"criterion": "every attack finds a planted adversarial image", "passed": passed, "evidence": evidence}
