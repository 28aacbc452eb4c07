"""What the tests of attacks share: images of six pixels, linear nets whose optima are known, and quick parameters."""

import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf

from wca_tf.attacks import ATTACKS, Attack, parse_attack, quick_text
from wca_tf.attacks.balls import BALLS
from wca_tf.nets.batch import Batch
from wca_tf.nets.targets import GaussianLogitsTarget

SHAPE = (2, 3, 1)
PIXELS = math.prod(SHAPE)
EPSILON = 0.1
NORMS = tuple(BALLS)
# Rounding of sums of steps to float32, on pixels in [0, 1].
PIXEL_TOLERANCE = 1e-6

# Every attack with the options that make it quick on six pixels.
QUICK = {name: quick_text(name) for name in ATTACKS}
IN_A_BALL = [name for name in ATTACKS if ATTACKS[name].kind.has_radius]
# Every attack with a norm where it has the choice.
WITH_NORMS = [
    *(f"{QUICK[name]}:norm={norm}" for name, norm in itertools.product(IN_A_BALL, NORMS)),
    *(QUICK[name] for name in ATTACKS if not ATTACKS[name].kind.has_radius),
]


@dataclasses.dataclass(frozen=True)
class At:
    """An attack at a radius, which tests call in one way whether it has one or not."""

    attack: Attack
    epsilon: float | None = None

    def __getattr__(self, name):
        return getattr(self.attack, name)

    def replace(self, **options):
        return At(dataclasses.replace(self.attack, **options), self.epsilon)


def build_attack(text, epsilon=None, eot_samples=50):
    """The attack that a text names, at a radius."""
    return At(parse_attack(text, eot_samples=eot_samples), epsilon)


def flatten(images):
    return tf.reshape(images, [-1, math.prod(images.shape[1:])])


def linear_target(weights, scale=None, bias=0.0):
    """Features are the pixels; logits are features @ weights [F, C] + bias, with noise of scale [C, D]."""
    weights = tf.constant(weights, tf.float32)
    scale = tf.zeros([weights.shape[1], 1]) if scale is None else tf.constant(scale, tf.float32)
    return GaussianLogitsTarget(flatten, lambda features: features @ weights + bias, scale)


def counting_target():
    """A linear net of four classes that always answers 0, and the number of rows that passed its features."""
    counted = tf.Variable(0, dtype=tf.int64)

    def features(images):
        counted.assign_add(tf.shape(images, out_type=tf.int64)[0])
        return flatten(images)

    weights, favour = tf.constant(normal(PIXELS, 4, seed=1)), tf.constant([100.0, 0, 0, 0])
    return GaussianLogitsTarget(features, lambda rows: rows @ weights + favour, tf.zeros([4, 1])), counted


def tanh_target(seed=20, classes=4, scale=0.0):
    """A net that is not linear: 8 features of tanh."""
    inner, outer = tf.constant(normal(PIXELS, 8, seed=seed)), tf.constant(normal(8, classes, seed=seed + 1))
    noise = tf.constant(scale * normal(classes, 5, seed=seed + 2), tf.float32)
    return GaussianLogitsTarget(
        lambda images: tf.tanh(flatten(images) @ inner), lambda features: features @ outer, noise
    )


def random_images(count, seed=0, shape=SHAPE, low=0.0, high=1.0):
    return tf.constant(np.random.default_rng(seed).uniform(low, high, (count, *shape)), tf.float32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def predictions(target, images):
    """The classes of the net without its noise."""
    return tf.argmax(target.noise_free_logits(target.features(tf.convert_to_tensor(images))), axis=1).numpy()


def batch_of(images, labels, targets=None):
    """A batch of examples 0, 1, 2, ..."""
    images = tf.convert_to_tensor(images)
    labels, indices = tf.constant(np.asarray(labels), tf.int64), tf.range(len(images), dtype=tf.int64)
    return Batch(images, labels, indices, None if targets is None else tf.constant(targets, tf.int64))


def run(attack, target, images, labels, seed=0, indices=None, targets=None):
    """The images of an attack, or of an attack at a radius, on examples 0, 1, 2, ... unless `indices` says which."""
    return perturbed_by(attack, target, images, labels, seed, indices, targets).images


def perturbed_by(attack, target, images, labels, seed=0, indices=None, targets=None):
    """What `run` has the images of."""
    indices = np.arange(len(images)) if indices is None else indices
    at = attack if isinstance(attack, At) else At(attack)
    return at.attack.run(target, images, labels, at.epsilon, indices, seed, targets)


def zero_gradients_of(attack, target, images, labels, seed=0, targets=None):
    """Where the attack's gradient is zero in every pixel; `None` for an attack without gradients."""
    found = gradient_found(attack, target, images, labels, seed, targets)
    return found and found.zero


def useless_gradients_of(attack, target, images, labels, seed=0, targets=None):
    """Where the attack's gradient is zero, or float32 loses the term of the label."""
    return gradient_found(attack, target, images, labels, seed, targets).useless


def gradient_found(attack, target, images, labels, seed=0, targets=None):
    """What is known of the attack's gradient at the clean images."""
    attack = attack.attack if isinstance(attack, At) else attack
    return attack.check_gradient(target, images, labels, seed, targets)


def perturbations(adversarial, images):
    """[B, pixels], exact differences."""
    return (np.asarray(adversarial, np.float64) - np.asarray(images, np.float64)).reshape(len(images), -1)


def ascent_direction(weights, labels):
    """Gradient of h_other − h_label for the first two classes, [B, *SHAPE]."""
    difference = (weights[:, 1] - weights[:, 0]).reshape(SHAPE)
    return np.where(np.reshape(labels, [-1, 1, 1, 1]) == 0, difference, -difference)


def seeded_net(images, seed):
    """Noise on the pixels, as by a GaussianNoise layer, inside a net that is not linear."""
    noisy = images + 0.2 * tf.random.stateless_normal(tf.shape(images), seed)
    return tf.tanh(flatten(noisy) @ normal(PIXELS, 8, seed=10)) @ normal(8, 3, seed=11)
