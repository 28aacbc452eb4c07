"""Can an attack find what is there? An adversarial image is planted, and every attack must find it or another.

Zimmermann et al. (NeurIPS 2022): on the net's own features a new linear read-out is fitted that calls the clean image
and many random points within the attack's reach one class, and one such point another. The net's gradients, step sizes
and saturation stay what they are, and an error in reach is known to exist: an attack that misses it is too weak, or the
net's features hide from it.
"""

import dataclasses
import math
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
from wca_tf.attacks.target import AnyTarget, HeadNoiseTarget, answers_alike
from wca_tf.attacks.transfer import Transfer
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.progress import progress_bar
from wca_tf.seeds import make_seed

# Random points that the read-out calls the clean image's class.
POINTS = 500
IMAGES = 10
# So many an attack may miss, a single step above all; of fewer than 10, when on some nothing can be planted, no less.
MISSED = 1
# Random points reach this far, the planted image all the way.
INNER = 0.9
CLASSES = 4  # two more than needed, never near: DLR looks at the third and fourth
FAR = -10.0
TRIES = 20

Reach = tuple[str, float]  # ("linf" or "l2", radius) or ("pixels", how many)


@dataclasses.dataclass(frozen=True)
class SelfTest:
    """What an attack found of what was planted.

    Attributes:
        attack: as written.
        found: images on which it found an error in its reach.
        planted: images on which there was one.
        passed: whether that is enough; None for an attack that cannot know what is planted, or when nothing can be:
            the net's features do not tell points within reach apart, or no seed decides its noise.
    """

    attack: str
    found: int
    planted: int
    passed: bool | None


def run_self_test(
    target: AnyTarget,
    names: list[str],
    epsilon: float,
    examples: Examples,
    eot_samples: int = 50,
    seed: int = 0,
) -> list[SelfTest]:
    """Plant an adversarial image near each of the first 10 images, for each attack, and count those found."""
    net = PlantedNet(target)
    some = examples.take(slice(0, IMAGES))
    images = to_float(tf.constant(some.images))
    # Else a read-out is not of the features that an attack meets.
    known = answers_alike(target.with_fixed_draw(make_seed(0)), images)
    attacks = {name: _build(name, epsilon, eot_samples) for name in names}
    found: dict[str, list[bool]] = {name: [] for name in names}
    with progress_bar(len(names) * len(some), "planted images") as progress:
        for index in range(len(some)):
            surroundings = Surroundings(net, images[index : index + 1], index, seed)
            for name, attack in attacks.items():
                progress.set_description(name, refresh=False)
                outcome = _finds(attack, surroundings, epsilon) if known and _can_find(attack) else None
                found[name] += [] if outcome is None else [outcome]
                progress.update(1)
    return [SelfTest(name, sum(each), len(each), _passed(each)) for name, each in found.items()]


def _build(name: str, epsilon: float, eot_samples: int) -> Attack:
    attack = build_attack(name, epsilon if entry_of(name).has_radius else None, eot_samples)
    if isinstance(attack, CarliniWagner):  # the planted image is an error by a margin of 1, not by any kappa
        attack = dataclasses.replace(attack, confidence=0.0)
    return attack


def _passed(found: list[bool]) -> bool | None:
    return any(found) and found.count(False) <= MISSED if found else None


def format_self_test(results: list[SelfTest]) -> str:
    """A line per attack."""
    verdict = {True: "pass", False: "FAIL", None: "not applicable: nothing to be found by it"}
    width = max(len(result.attack) for result in results)
    lines = [f"{r.attack.ljust(width)}  found {r.found} of {r.planted} planted  {verdict[r.passed]}" for r in results]
    return "\n".join(lines)


class PlantedNet:
    """The net's features under a read-out that is fitted anew for each image; one object, so that graphs are reused."""

    def __init__(self, target: AnyTarget) -> None:
        self.features = _features(target)
        self._weight = tf.Variable(tf.zeros([1]), shape=[None], trainable=False)
        self._bias = tf.Variable(0.0, trainable=False)
        # A net's fixed draw may be another for each place in a batch: each image is looked at alone, as when attacked.
        self._of_many = self.features if isinstance(target, HeadNoiseTarget) else self._one_by_one
        self.target = HeadNoiseTarget(self.features, self.read_out, tf.zeros([CLASSES, 1]))

    def _one_by_one(self, images: tf.Tensor) -> tf.Tensor:
        return tf.concat([self.features(images[i : i + 1]) for i in range(len(images))], axis=0)

    def read_out(self, features: tf.Tensor) -> tf.Tensor:
        """[B, 4]: ∓half the score, which is 1 at the planted image and −1 or less at the others."""
        score = tf.linalg.matvec(features, self._weight) + self._bias
        rest = tf.fill([tf.shape(score)[0], CLASSES - 2], FAR)
        return tf.concat([tf.stack([-score / 2, score / 2], axis=1), rest], axis=1)

    def features_of(self, points: tf.Tensor) -> np.ndarray:
        return np.asarray(self._of_many(points).numpy(), np.float64)

    def assign(self, weight: np.ndarray, bias: float) -> None:
        """Have the score be features · weight + bias."""
        self._weight.assign(tf.constant(weight, tf.float32))
        self._bias.assign(bias)


class Surroundings:
    """What is planted about an image [1, H, W, channels]: for attacks of one reach the same, fitted once."""

    def __init__(self, net: PlantedNet, image: tf.Tensor, index: int, seed: int) -> None:
        self.net = net
        self.image = image
        self.index = index
        self.seed = seed
        self._fitted: dict[Reach, tuple[tf.Tensor, np.ndarray, float] | None] = {}

    def plant(self, reach: Reach) -> tf.Tensor | None:
        """Have the net call a point in reach another class; returns it, or None where the features tell none apart."""
        if reach not in self._fitted:
            self._fitted[reach] = self._fit(reach)
        fitted = self._fitted[reach]
        if fitted is None:
            return None
        point, weight, bias = fitted
        self.net.assign(weight, bias)
        return point

    def _fit(self, reach: Reach) -> tuple[tf.Tensor, np.ndarray, float] | None:
        for attempt in range(TRIES):
            points = _draw(reach, self.image, np.random.default_rng((self.seed, self.index, attempt)))
            # An attack that gropes for few pixels has an error that is not a needle in a haystack.
            fitted = _fit_read_out(self.net.features_of(points), extreme=reach[0] == "pixels")
            if fitted is not None:
                best, weight, bias = fitted
                return points[best : best + 1], weight, bias
        return None


def _fit_read_out(features: np.ndarray, extreme: bool) -> tuple[int, np.ndarray, float] | None:
    """(which point is planted, weight, bias) from features [1 + POINTS + 1, D], the first the image's.

    The planted point is the last; with `extreme` the one farthest out along the direction in which the features vary
    most. None where the features tell none apart.
    """
    if extreme:
        weight = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)[2][0]
        scores = features @ weight
        weight *= np.sign(scores.max() + scores.min() - 2 * np.median(scores)) or 1.0
    else:
        analysis = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
        weight = analysis.fit(np.concatenate([features, features[-1:]]), [0] * (POINTS + 1) + [1, 1]).coef_[0]
    scores = features @ weight
    best = int(scores.argmax()) if extreme else len(scores) - 1
    high, highest = scores[best], np.delete(scores, best).max()
    if best == 0 or not high > highest + 1e-9 * abs(high):
        return None
    scale = 2 / (high - highest)
    return best, scale * weight, -scale * (high + highest) / 2


def _features(target: AnyTarget) -> Callable[[tf.Tensor], tf.Tensor]:
    """What the read-out reads: the features, or for noise anywhere the logits of one fixed draw."""
    if isinstance(target, HeadNoiseTarget):
        return target.features
    fixed = target.with_fixed_draw(make_seed(0))

    @tf.function(jit_compile=False)
    def features(images: tf.Tensor) -> tf.Tensor:
        return fixed.logits(images, make_seed(0), 1)[0]

    return features


def _can_find(attack: Attack) -> bool:
    """Not one that looks at another net, nor random points, which the planted image is chosen to be out of."""
    return not (isinstance(attack, RandomSampling) or (isinstance(attack, Transfer) and attack.source is not None))


def _finds(attack: Attack, surroundings: Surroundings, epsilon: float) -> bool | None:
    """Whether the attack finds an error of the planted net, as near as the planted one; None: nothing is planted."""
    net, image = surroundings.net, surroundings.image
    planted = surroundings.plant(_reach(attack, epsilon, image.shape[1:]))
    if planted is None:
        return None
    wanted = [1] if attack.targeted else None
    adversarial = attack(net.target, image, np.array([0]), np.array([surroundings.index]), surroundings.seed, wanted)
    wrong = int(tf.argmax(net.read_out(net.features(adversarial))[0])) != 0
    if isinstance(attack, BallAttack | NPixel):  # checked to be in reach
        return wrong
    near, far = (float(BALLS["l2"].distance(x - image)[0]) for x in (adversarial, planted))
    return wrong and near <= far


def _reach(attack: Attack, epsilon: float, shape: tuple[int, ...]) -> Reach:
    """How far an attack goes; one without a radius, as far in l2 as `epsilon` in every pixel."""
    if isinstance(attack, NPixel):
        return "pixels", attack.pixels
    if isinstance(attack, BallAttack):
        return attack.norm, attack.epsilon
    return "l2", epsilon * math.sqrt(math.prod(shape))


def _draw(reach: Reach, image: tf.Tensor, random: np.random.Generator) -> tf.Tensor:
    """[1 + POINTS + 1, ...]: an image, random points within reach of it, and one at the edge."""
    (norm, radius), shape = reach, image.shape[1:]
    many = tf.repeat(image, POINTS + 1, axis=0)
    if norm == "pixels":
        vectors = random.random((POINTS + 1, int(radius) * (2 + shape[2])), np.float32)
        return tf.concat([image, paint(many, tf.constant(vectors))], axis=0)
    if norm == "linf":
        change = radius * random.uniform(-1, 1, (POINTS + 1, *shape))
        change[-1] = radius * np.sign(change[-1])
    else:
        change = random.standard_normal((POINTS + 1, *shape))
        change *= radius / np.linalg.norm(change.reshape(POINTS + 1, -1), axis=1).reshape(-1, 1, 1, 1)
    change[:-1] *= INNER
    return tf.concat([image, tf.clip_by_value(many + tf.constant(change, tf.float32), 0.0, 1.0)], axis=0)


def as_criterion(results: list[SelfTest]) -> dict[str, Any]:
    """The self-test as a line of the checklist."""
    tested = [result for result in results if result.passed is not None]
    evidence = ", ".join(f"{result.attack} {result.found}/{result.planted}" for result in tested)
    passed = all(result.passed for result in tested) if tested else None
    return {"criterion": "every attack finds a planted adversarial image", "passed": passed, "evidence": evidence}
