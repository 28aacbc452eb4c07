"""What attacks leave of nets that pick one of several linear nets at random, beside the optimum by linear programs.

    .venv/bin/python benchmarks/mixtures.py [--attacks=pgd:steps=40,bounded,adaptive] [--out FILE.json] [--only NAME]

The members' logits differ in scale by up to 1000, and each margin is 40 % of what the ball allows. An attack that
follows a mean over draws of an unbounded score follows the member with the largest logits. Nets with a random
temperature, with noise that depends on the image, and with heavy-tailed noise have no known optimum: there the
comparison is `bounded` with four times its steps and ten starts. P(correct) of members is exact, that of other nets
from 2,000 draws.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.optimize import linprog

from wca_tf.attacks import parse_attack
from wca_tf.core import files
from wca_tf.core.seeds import make_seed
from wca_tf.nets.sampled_target import SampledTarget

EPSILON, SHARE_OF_REACH, IMAGES = 0.1, 0.4, 20
ATTACKS = "pgd:steps=40,pgd:objective=expected_margin:steps=40,bounded,adaptive"
STRONG = "bounded:steps=160:class_steps=80:restarts=10"
JUDGING_DRAWS = 2000
DRAWS = 4096  # the number of different draws that a net has, for each image
HEAVY = "heavy tails in features"


@dataclasses.dataclass(frozen=True)
class Members:
    """Linear nets, one of which answers at random.

    Attributes:
        weights: [K, D, C].
        biases: [K, C].
        images: [N, D] in [0, 1], of class 0.
    """

    weights: np.ndarray
    biases: np.ndarray
    images: np.ndarray

    @property
    def pixels(self) -> tf.Tensor:
        side = round(self.images.shape[1] ** 0.5)
        return tf.constant(self.images.reshape(-1, side, side, 1), tf.float32)

    def probability_correct(self, pixels: Any) -> np.ndarray:
        """Return the share of members that give class 0, [N]."""
        images = np.asarray(pixels, np.float64).reshape(len(pixels), -1)
        logits = np.einsum("nd,kdc->nkc", images, self.weights) + self.biases
        return (logits[..., 0] > logits[..., 1:].max(axis=-1)).mean(axis=1)


def make_members(scales: tuple[float, ...], classes: int = 2, side: int = 4, seed: int = 0) -> Members:
    """Return members whose margins at each image are 40 % of what the ball of radius 0.1 allows, times their scale."""
    random, count, pixels = np.random.default_rng(seed), len(scales), side * side
    weights = random.standard_normal((count, pixels, classes))
    gains = weights[..., 1:] - weights[..., :1]  # of each rival
    biases = np.zeros((count, classes))
    biases[:, 1:] = -SHARE_OF_REACH * EPSILON * np.abs(gains).sum(axis=1) - gains.sum(axis=1) / 2
    rows = gains.transpose(0, 2, 1).reshape(-1, pixels)
    offsets = random.uniform(-0.3, 0.3, (IMAGES, pixels))
    offsets -= np.linalg.lstsq(rows, rows @ offsets.T, rcond=None)[0].T  # no margin changes along these
    sizes = np.array(scales)
    images = np.clip(0.5 + offsets, 0, 1)
    return Members(weights * sizes[:, np.newaxis, np.newaxis], biases * sizes[:, np.newaxis], images)


def optimum(members: Members) -> np.ndarray:
    """Return the least share of members that a point of the ball leaves right, [N], by linear programs."""
    return np.array([_optimum_of(members, image) for image in members.images])


def _optimum_of(members: Members, image: np.ndarray) -> float:
    count, classes = members.biases.shape
    for size in range(count, 0, -1):
        for chosen in itertools.combinations(range(count), size):
            if any(_can_fool(members, image, chosen, aims) for aims in _aims(size, classes)):
                return 1 - size / count
    return 1.0


def _aims(size: int, classes: int) -> Iterator[tuple[int, ...]]:
    return itertools.product(range(1, classes), repeat=size)


def _can_fool(members: Members, image: np.ndarray, chosen: tuple[int, ...], aims: tuple[int, ...]) -> bool:
    """Return whether a point of the ball makes all chosen members give the class that is aimed at."""
    gains = np.array([members.weights[k, :, c] - members.weights[k, :, 0] for k, c in zip(chosen, aims, strict=True)])
    constants = np.array([members.biases[k, c] - members.biases[k, 0] for k, c in zip(chosen, aims, strict=True)])
    sizes = np.abs(gains).sum(axis=1)
    gains, constants = gains / sizes[:, np.newaxis], constants / sizes
    bounds = [*zip(np.maximum(image - EPSILON, 0), np.minimum(image + EPSILON, 1), strict=True), (None, None)]
    # The largest t with gains · x + constants ≥ t for each chosen member.
    rows = np.column_stack([-gains, np.ones(len(chosen))])
    found = linprog(np.r_[np.zeros(len(image)), -1], A_ub=rows, b_ub=constants, bounds=bounds, method="highs")
    return found.status == 0 and -found.fun > 1e-4 * EPSILON


def members_target(members: Members, temperatures: np.ndarray | None = None) -> SampledTarget:
    """Return the target: in each draw each image has a member of its own, and a temperature where some are given."""
    weights, biases = (tf.constant(values, tf.float32) for values in (members.weights, members.biases))
    chosen = np.random.default_rng(1).integers(len(biases), size=(DRAWS, IMAGES))
    sizes = np.ones((DRAWS, IMAGES)) if temperatures is None else temperatures

    def logits(images: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        every = tf.einsum("bd,kdc->bkc", tf.reshape(images, [len(images), -1]), weights) + biases
        # A product with ones and zeros: its gradient is quicker than that of a gather.
        one_hot = tf.one_hot(tf.cast(noise[..., 0], tf.int32), len(biases)) * noise[..., 1:]
        return tf.einsum("sbk,bkc->sbc", one_hot, every)

    return target_of_draws(logits, np.stack([chosen, sizes], axis=-1))


def target_of_draws(logits: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], noise: np.ndarray) -> SampledTarget:
    """Return the target of a net (images, noise [S, B, R]) -> logits [S, B, C]; noise is a table [4096, N, R]."""
    table = tf.constant(noise, tf.float32)

    def several(images: tf.Tensor, seeds: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        rows = tf.bitwise.bitwise_and(tf.bitwise.bitwise_xor(seeds[:, 0], seeds[:, 1]), DRAWS - 1)
        return logits(images, tf.gather(tf.gather(table, rows), numbers, axis=1))

    def one(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return several(images, seed[tf.newaxis], tf.range(len(images)))[0]

    return SampledTarget(one, 1000, logits_of_draws=several, per_image_noise=True)


def smooth_target(kind: str, classes: int = 3, seed: int = 0) -> SampledTarget:
    """Return a net of 16 features of tanh, with noise whose size depends on the image, or heavy-tailed in features."""
    random = np.random.default_rng(seed)
    inner, outer = random.standard_normal((16, 16)), random.standard_normal((16, classes))
    into, out, along = (tf.constant(each, tf.float32) for each in (inner, outer, random.standard_normal((16, 1))))

    def logits(images: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(images - 0.5, [len(images), -1])
        features = tf.tanh(flat @ into)
        if kind == HEAVY:
            return tf.einsum("sbf,fc->sbc", features + 0.3 * noise, out)
        return features @ out + tf.exp(2 * flat @ along) * noise[..., :classes]

    shape = (DRAWS, IMAGES, 16)
    return target_of_draws(logits, random.standard_t(3, shape) if kind == HEAVY else random.standard_normal(shape))


@dataclasses.dataclass(frozen=True)
class Case:
    """A net, its images of some labels, and how to judge it.

    Attributes:
        name: of the row.
        target: the net.
        pixels: [N, H, W, 1].
        labels: [N].
        members: the linear members that answer; `None` for other nets.
    """

    name: str
    target: SampledTarget
    pixels: tf.Tensor
    labels: np.ndarray
    members: Members | None = None

    def left_by(self, text: str, seed: int = 0) -> np.ndarray:
        """Return P(correct) [N] under an attack."""
        indices = np.arange(IMAGES)
        found = parse_attack(text).run(self.target, self.pixels, self.labels, EPSILON, indices, seed)
        return self.judged(found.images)

    def judged(self, pixels: tf.Tensor) -> np.ndarray:
        if self.members is not None:
            return self.members.probability_correct(pixels)
        logits = self.target.logits(pixels, make_seed(1234), JUDGING_DRAWS, tf.range(IMAGES))
        return np.mean(np.argmax(logits, axis=-1) == self.labels, axis=0)


def of_members(name: str, scales: tuple[float, ...], classes: int = 2, side: int = 4, seed: int = 0) -> Case:
    members = make_members(scales, classes, side, seed)
    return Case(name, members_target(members), members.pixels, np.zeros(IMAGES, np.int64), members)


def of_temperature(name: str, temperatures: np.ndarray, classes: int) -> Case:
    """Return four equal members whose logits are multiplied by random positive numbers; these change no answer."""
    members = make_members((1.0,) * 4, classes)
    target = members_target(members, np.abs(temperatures))
    return Case(name, target, members.pixels, np.zeros(IMAGES, np.int64), members)


def of_smooth(kind: str) -> Case:
    target = smooth_target(kind)
    pixels = tf.constant(np.random.default_rng(5).uniform(0.2, 0.8, (IMAGES, 4, 4, 1)), tf.float32)
    logits = target.logits(pixels, make_seed(0), JUDGING_DRAWS, tf.range(IMAGES))
    return Case(kind, target, pixels, np.argmax(np.mean(logits, axis=0), axis=-1))


def log_normal() -> np.ndarray:
    return np.exp(2 * np.random.default_rng(2).standard_normal((DRAWS, IMAGES)))


def student() -> np.ndarray:
    return np.random.default_rng(2).standard_t(3, (DRAWS, IMAGES))


CASES: dict[str, Callable[[str], Case]] = {
    "2 members, 1:1, C = 2": lambda name: of_members(name, (1, 1)),
    "2 members, 4:1, C = 2": lambda name: of_members(name, (4, 1)),
    "2 members, 30:1, C = 2": lambda name: of_members(name, (30, 1)),
    "2 members, 1000:1, C = 2": lambda name: of_members(name, (1000, 1)),
    "2 members, 30:1, C = 3": lambda name: of_members(name, (30, 1), 3),
    "2 members, 1000:1, C = 3": lambda name: of_members(name, (1000, 1), 3),
    "2 members, 30:1, C = 10": lambda name: of_members(name, (30, 1), 10, 8),
    "4 members, 27:9:3:1, C = 2": lambda name: of_members(name, (27, 9, 3, 1)),
    "4 members, 1000:100:10:1, C = 2": lambda name: of_members(name, (1000, 100, 10, 1)),
    "4 members, 1:1:1:1, C = 2": lambda name: of_members(name, (1, 1, 1, 1)),
    "4 members, 27:9:3:1, C = 3": lambda name: of_members(name, (27, 9, 3, 1), 3),
    "8 members, equal, C = 2": lambda name: of_members(name, (1,) * 8),
    "8 members, 128:1, C = 2": lambda name: of_members(name, tuple(2.0**k for k in range(8))),
    "8 members, 1000:1, C = 2": lambda name: of_members(name, tuple(np.geomspace(1000, 1, 8))),
    "temperature, log-normal, C = 2": lambda name: of_temperature(name, log_normal(), 2),
    "temperature, log-normal, C = 3": lambda name: of_temperature(name, log_normal(), 3),
    "temperature, Student's t, C = 2": lambda name: of_temperature(name, student(), 2),
    "noise that depends on the image": lambda name: of_smooth(name),
    HEAVY: lambda name: of_smooth(name),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", default=ATTACKS, help="attacks as in bin/evaluate --attacks")
    parser.add_argument("--only", default="", help="the nets whose name begins so")
    parser.add_argument("--out", help="write the figures to this JSON file")
    arguments = parser.parse_args()
    rows = []
    for name, make in CASES.items():
        if name.startswith(arguments.only):
            case = make(name)
            least = best_known(case)
            left = {text: 100 * float(case.left_by(text).mean()) for text in arguments.attacks.split(",")}
            rows.append({"net": name, "least": least, "left": left})
            print(
                f"{name:34s} least {least:5.1f}", *(f"| {text} {share:.1f}" for text, share in left.items()), flush=True
            )
    if arguments.out:
        files.write_json(arguments.out, {"epsilon": EPSILON, "images": IMAGES, "rows": rows})


def best_known(case: Case) -> float:
    """Return the optimum in per cent; where linear programs are too many or do not apply, what `STRONG` leaves."""
    if case.members is not None and case.members.biases.shape[1] <= 3:
        return 100 * float(optimum(case.members).mean())
    return 100 * float(case.left_by(STRONG).mean())


if __name__ == "__main__":
    main()
