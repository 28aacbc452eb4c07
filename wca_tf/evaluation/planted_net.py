"""A net with a planted adversarial image: its own features under a linear read-out that errs at one point in reach.

Zimmermann et al. (NeurIPS 2022). The read-out calls the clean image and many random points within an attack's reach one
class, and one such point another. The net's features, their gradients, the size of its logits and their noise stay
what they are, and an error in reach is known to exist.
"""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from wca_tf.attacks.n_pixel import paint
from wca_tf.nets.targets import AnyTarget, HeadNoiseTarget, is_gaussian
from wca_tf.seeds import make_seed

# Random points that the read-out calls the clean image's class.
POINTS = 500
# Random points reach this far, the planted image all the way.
INNER = 0.9
CLASSES = 4  # two more than needed, never near: DLR looks at the third and fourth
FAR = -10.0  # their logits, in units of the margin and its noise
TRIES = 20
# Draws that tell the margin and the noise of a net each of whose draws is a pass.
MEASURING_DRAWS = 50

Reach = tuple[str, float]  # ("linf" or "l2", radius) or ("pixels", how many)


class PlantedNet:
    """The net's features under a read-out that is fitted anew for each image; one object, so that graphs are reused.

    Attributes:
        features: images [B, H, W, channels] -> [B, D], what the read-out reads.
        margin: the net's own: by how much the mean over draws of its best logit is above the next; the images' median.
        noise: the net's own: the deviation over draws of that difference; the images' median, 0 without noise.
        target: what attacks see. Its logits of classes 0 and 1 differ by `margin` at a clean image whose error is
            planted, give or take `noise`.
    """

    def __init__(self, target: AnyTarget, images: tf.Tensor) -> None:
        """Measure margin and noise on `images` [B, H, W, channels]."""
        self.features = _features(target)
        self.margin, self.noise = _margin_and_noise(target, images)
        self._weight = tf.Variable(tf.zeros([1]), shape=[None], trainable=False)
        self._bias = tf.Variable(0.0, trainable=False)
        # A net's fixed draw may be another for each place in a batch: each image is looked at alone, as when attacked.
        self._of_many = self.features if is_gaussian(target) else self._one_by_one
        # Independent noise on each class, so that each difference of two deviates by `noise`.
        logit_scale = self.noise / math.sqrt(2) * tf.eye(CLASSES)
        self.target = HeadNoiseTarget(self.features, self.read_out, logit_scale)

    def _one_by_one(self, images: tf.Tensor) -> tf.Tensor:
        return tf.concat([self.features(images[i : i + 1]) for i in range(len(images))], axis=0)

    def read_out(self, features: tf.Tensor) -> tf.Tensor:
        """Return noise-free logits [B, 4]: ∓half the score, which is above 0 at the planted image alone; two far ones.

        At the clean image the score is −`margin`.
        """
        score = tf.linalg.matvec(features, self._weight) + self._bias
        rest = tf.fill([tf.shape(score)[0], CLASSES - 2], FAR * (self.margin + self.noise))
        return tf.concat([tf.stack([-score / 2, score / 2], axis=1), rest], axis=1)

    def features_of(self, points: tf.Tensor) -> np.ndarray:
        """Return the features [N, D] of points [N, H, W, channels], in float64."""
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
        """Have the net call a point in reach another class.

        Return it [1, H, W, channels], or None where the features, or the net's logits, tell no points apart.
        """
        if reach not in self._fitted:
            self._fitted[reach] = self._fit(reach) if self.net.margin > 0 else None
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
            fitted = _fit_read_out(self.net.features_of(points), self.net.margin, extreme=reach[0] == "pixels")
            if fitted is not None:
                best, weight, bias = fitted
                return points[best : best + 1], weight, bias
        return None


def _fit_read_out(features: np.ndarray, margin: float, extreme: bool) -> tuple[int, np.ndarray, float] | None:
    """Return (which point is planted, weight, bias) from features [1 + POINTS + 1, D], the first the clean image's.

    The score features · weight + bias is −`margin` at the clean image; it is 0 midway between the planted point and the
    nearest of the others, on whose side it is negative. The planted point is the last; with `extreme` the one farthest
    out along the direction in which the features vary most. None where the features tell none apart.
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
    boundary = (high + highest) / 2
    scale = margin / (boundary - scores[0])
    return best, scale * weight, -scale * boundary


def _features(target: AnyTarget) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return what the read-out reads: the features, or for noise anywhere the logits of one fixed draw."""
    if is_gaussian(target):
        return target.features
    fixed = target.with_fixed_draw(make_seed(0))

    @tf.function(jit_compile=False)
    def features(images: tf.Tensor) -> tf.Tensor:
        return fixed.logits(images, make_seed(0), 1)[0]

    return features


def _margin_and_noise(target: AnyTarget, images: tf.Tensor) -> tuple[float, float]:
    """Return the medians over images of the mean and of the deviation, over draws, of best logit less the next."""
    logits = target.logits(target.features(images), make_seed(0), target.cheap_draws or MEASURING_DRAWS)
    logits = np.asarray(logits.numpy(), np.float64)
    rows = np.arange(len(images))
    next_best, best = np.argsort(logits.mean(axis=0), axis=1).T[-2:]
    difference = logits[:, rows, best] - logits[:, rows, next_best]
    return float(np.median(difference.mean(axis=0))), float(np.median(difference.std(axis=0)))


def _draw(reach: Reach, image: tf.Tensor, random: np.random.Generator) -> tf.Tensor:
    """Return [1 + POINTS + 1, H, W, channels]: an image, random points within reach of it, and one at the edge."""
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
