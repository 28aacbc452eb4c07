"""A net with a planted adversarial image (Zimmermann et al., NeurIPS 2022).

It has the features of a given net, and a new linear read-out that errs at one point within an attack's reach. The
read-out gives the clean image and many random points within reach the same class, and one such point another class. The
net's features, their gradients, the size of its logits and their noise do not change. An error within reach is known to
exist.
"""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from wca_tf.attacks.n_pixel import paint
from wca_tf.core.seeds import make_seed
from wca_tf.nets.targets import AnyTarget, GaussianLogitsTarget, is_gaussian

# The number of random points to which the read-out gives the clean image's class.
POINTS = 500
# Random points lie within this share of the reach, and the planted image at its edge.
INNER = 0.9
CLASSES = 4  # two more than needed, since DLR looks at the third and fourth; their logits are never near
BEHIND = -10.0  # the logits of these two, in units of margin + noise
TRIES = 20
# The number of draws that measure the margin and the noise of a net where each draw costs a pass.
MEASURING_DRAWS = 50

Reach = tuple[str, float]  # ("linf" or "l2", radius) or ("pixels", how many)


class PlantedNet:
    """The net's features under a read-out that is fitted again for each image.

    One object serves all images, so that graphs are reused.

    Attributes:
        features: images [B, H, W, channels] -> [B, D], the input of the read-out.
        margin: the margin of the given net: the mean over draws of its best logit minus the next; the median over
            images.
        noise: the noise of the given net: the standard deviation of that difference over draws; the median over images,
            0 without noise.
        target: the net that attacks see. At a clean image with a planted error, the difference of its logits of classes
            0 and 1 has mean `margin` and standard deviation `noise`.
    """

    def __init__(self, target: AnyTarget, images: tf.Tensor) -> None:
        """Measure margin and noise on `images` [B, H, W, channels]."""
        self.features = _features(target)
        self.margin, self.noise = _margin_and_noise(target, images)
        self._weight = tf.Variable(tf.zeros([1]), shape=[None], trainable=False)
        self._bias = tf.Variable(0.0, trainable=False)
        # A net's fixed draw may differ for each place in a batch. Each image is processed alone, as in the attack.
        self._of_many = self.features if is_gaussian(target) else self._one_by_one
        # Independent noise on each class, so that the difference of two logits has standard deviation `noise`.
        logit_scale = self.noise / math.sqrt(2) * tf.eye(CLASSES)
        self.target = GaussianLogitsTarget(self.features, self.read_out, logit_scale)

    def _one_by_one(self, images: tf.Tensor) -> tf.Tensor:
        return tf.concat([self.features(images[i : i + 1]) for i in range(len(images))], axis=0)

    def read_out(self, features: tf.Tensor) -> tf.Tensor:
        """Return noise-free logits [B, 4]: −score / 2, score / 2, and two logits far below.

        The score is above 0 at the planted image alone. At the clean image it is −`margin`.
        """
        score = tf.linalg.matvec(features, self._weight) + self._bias
        rest = tf.fill([tf.shape(score)[0], CLASSES - 2], BEHIND * (self.margin + self.noise))
        return tf.concat([tf.stack([-score / 2, score / 2], axis=1), rest], axis=1)

    def features_of(self, points: tf.Tensor) -> np.ndarray:
        """Return the features [N, D] of points [N, H, W, channels], in float64."""
        return np.asarray(self._of_many(points).numpy(), np.float64)

    def assign(self, weight: np.ndarray, bias: float) -> None:
        """Set the score to features · weight + bias."""
        self._weight.assign(tf.constant(weight, tf.float32))
        self._bias.assign(bias)


class PlantingSite:
    """The planted images around a clean image [1, H, W, channels].

    Attacks with the same reach have the same planted image. It is fitted once.
    """

    def __init__(self, net: PlantedNet, image: tf.Tensor, index: int, seed: int) -> None:
        self.net = net
        self.image = image
        self.index = index
        self.seed = seed
        self._fitted: dict[Reach, tuple[tf.Tensor, np.ndarray, float] | None] = {}

    def plant(self, reach: Reach) -> tf.Tensor | None:
        """Make the net give another class to a point within reach, and return the point [1, H, W, channels].

        Return `None` where the features, or the net's logits, do not tell points apart.
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
            # An attack on few pixels searches blindly. An extreme point gives it an error that it can find.
            fitted = _fit_read_out(self.net.features_of(points), self.net.margin, extreme=reach[0] == "pixels")
            if fitted is not None:
                best, weight, bias = fitted
                return points[best : best + 1], weight, bias
        return None


def _fit_read_out(features: np.ndarray, margin: float, extreme: bool) -> tuple[int, np.ndarray, float] | None:
    """Return (index of the planted point, weight, bias) from features [1 + POINTS + 1, D], first the clean image's.

    The score features · weight + bias is −`margin` at the clean image. It is 0 midway between the planted point and the
    nearest other point, and negative on the side of the other points. The planted point is the last point. With
    `extreme`, it is the point farthest out along the direction in which the features vary most. Return `None` where the
    features do not tell the point apart.
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
    """Return the input of the read-out: the features; for noise anywhere, the logits under one fixed draw."""
    if is_gaussian(target):
        return target.features
    fixed = target.with_fixed_draw(make_seed(0))

    @tf.function(jit_compile=False)
    def features(images: tf.Tensor) -> tf.Tensor:
        return fixed.logits(images, make_seed(0), 1)[0]

    return features


def _margin_and_noise(target: AnyTarget, images: tf.Tensor) -> tuple[float, float]:
    """Return the mean and the standard deviation over draws of the best logit minus the next.

    Both are medians over images.
    """
    logits = target.logits(target.features(images), make_seed(0), target.cheap_draws or MEASURING_DRAWS)
    logits = np.asarray(logits.numpy(), np.float64)
    rows = np.arange(len(images))
    next_best, best = np.argsort(logits.mean(axis=0), axis=1).T[-2:]
    difference = logits[:, rows, best] - logits[:, rows, next_best]
    return float(np.median(difference.mean(axis=0))), float(np.median(difference.std(axis=0)))


def _draw(reach: Reach, image: tf.Tensor, random: np.random.Generator) -> tf.Tensor:
    """Return [1 + POINTS + 1, H, W, channels]: an image, random points within its reach, and a point at the edge.

    Where the reach is a number of pixels, the last point is random too.
    """
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
