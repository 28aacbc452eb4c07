"""The n-pixel attack (Su et al., IEEE TEC 2019): a black box, by differential evolution of a few pixels."""

from __future__ import annotations

import dataclasses
import functools

from wca_tf.attacks.attack import BOUND, Attack
from wca_tf.attacks.checks import check_result
from wca_tf.attacks.evolution import DifferentialEvolution
from wca_tf.attacks.gradients import mean_over_draws, noise_indices, score_images
from wca_tf.attacks.objectives import score_logits
from wca_tf.core.lazily import tf
from wca_tf.core.options import option
from wca_tf.core.seeds import fold_in
from wca_tf.nets.batch import Batch, per_image
from wca_tf.nets.mixture_target import mean_of_draws
from wca_tf.nets.targets import Target, active_rows

# Candidate images in memory at a time.
IMAGES_PER_PASS = 1000
CONVERGED = 0.01  # SciPy's tolerance, which is the paper's criterion of convergence


@dataclasses.dataclass(frozen=True)
class NPixel(Attack):
    """At most `pixels` pixels in any colour, by differential evolution: a black box.

    Objective "probability" is the paper's protocol (section 4.1): the label's softmax probability, averaged over draws.
    The search for an image ends when its P(correct), over the same draws and over others, is at most `stop_at`, or when
    its population has converged. On a net whose softmax saturates, the population converges at once. Objective "margin"
    is the margin of logits, averaged over draws; every image gets all generations.
    """

    version = 4  # 3 did not confirm by other draws that an image is lost

    pixels: int = option(1, "n, the largest number of pixels that change", maximum=100)
    objective: str = option("probability", "the quantity to minimise", choices=("probability", "margin"))
    population: int = option(400, "number of candidates for each image", minimum=4, quick=20)
    generations: int = option(1000, "largest number of generations of the evolution", quick=10)
    crossover: float = option(0.7, "the probability that a coordinate is the mutant's", minimum=0, maximum=1)
    mutation: float = option(0.5, "the weight of the difference of two candidates")
    stop_at: float = option(0.01, BOUND + "; not used by objective=margin", minimum=0, maximum=1)

    @property
    def gradient_objective(self) -> None:
        return None  # it has an objective, and no gradient

    @property
    def passes(self) -> int:
        return self.population * (self.generations + 1)

    def check_reach(self, adversarial: tf.Tensor, images: tf.Tensor, epsilon: float) -> None:
        check_result(adversarial, images, "l0", self.pixels)

    def perturb(
        self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        channels = batch.images.shape[3]

        def energy(candidates: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            shape = tf.shape(candidates)[:2]
            vectors = tf.reshape(candidates, [-1, candidates.shape[2]])
            owners = tf.repeat(rows, shape[1])
            energies, solved = _judge(self, target, batch, vectors, owners, fold_in(seed, 1))
            return tf.reshape(energies, shape), tf.reshape(solved, shape)

        evolution = DifferentialEvolution(
            self.population,
            self.generations,
            self.crossover,
            self.mutation,
            tolerance=None if self.objective == "margin" else CONVERGED,
        )
        rows_of = functools.partial(active_rows, target)
        evolved = evolution.minimise(energy, self.pixels * (2 + channels), batch.indices, fold_in(seed, 0), rows_of)
        untouched, lost = _outcome(self, target, batch, batch.images, fold_in(seed, 1))
        better = (evolved.solved & ~lost) | ((evolved.solved | ~lost) & (evolved.energy < untouched))
        painted = tf.where(per_image(better), paint(batch.images, evolved.best), batch.images)
        return painted, {"generations": evolved.generations}


def _judge(
    attack: NPixel, target: Target, batch: Batch, vectors: tf.Tensor, owners: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (energy [R], whether it is solved [R]) of the images of `owners` [R], painted by `vectors`.

    The images are painted in parts of `IMAGES_PER_PASS`.
    """
    count = tf.shape(vectors)[0]
    parts = -(-count // IMAGES_PER_PASS)
    energies, solves = tf.TensorArray(tf.float32, parts), tf.TensorArray(tf.bool, parts)
    for part in tf.range(parts):
        chosen = slice(part * IMAGES_PER_PASS, (part + 1) * IMAGES_PER_PASS)
        some = batch.take(owners[chosen])
        energy, solved = _outcome(attack, target, some, paint(some.images, vectors[chosen]), seed)
        energies, solves = energies.write(part, energy), solves.write(part, solved)
    return energies.concat(), solves.concat()


def _outcome(
    attack: NPixel, target: Target, batch: Batch, images: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (energy [R], whether it is solved [R]) of perturbed images [R, ...] of `batch`.

    Many candidates are tried on the same draws, so that one seems to solve its problem by luck. Other draws confirm it.
    """
    features, indices = target.features(images), noise_indices(batch, attack.eot_samples)

    def part(target: Target, draws: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = target.logits(features, seed, draws, indices)
        p_correct, margin = score_logits(target, logits, batch)
        return margin if attack.objective == "margin" else _energy(target, logits, batch), p_correct

    energy, p_correct = mean_over_draws(part, target, attack.eot_samples)
    solved = (p_correct <= attack.stop_at) & (attack.objective != "margin")
    if tf.reduce_any(solved):
        most = max(attack.eot_samples, target.cheap_draws)
        solved &= score_images(target, features, batch, fold_in(seed, 1), most).p_correct <= attack.stop_at
    return energy, solved


def _energy(target: Target, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """Return P(label) [R], or 1 − P(target), by softmax, averaged over the draws of logits [S, R, C]."""
    classes = batch.labels if batch.targets is None else batch.targets
    chosen = tf.one_hot(classes, logits.shape[-1])
    probability = mean_of_draws(target, tf.reduce_sum(tf.nn.softmax(logits) * chosen, axis=-1))
    return probability if batch.targets is None else 1 - probability


def paint(images: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Return images [R, H, W, channels] with pixels set by vectors [R, n (2 + channels)] in [0, 1].

    A vector has the row, the column and the colour of each of n pixels. Where two pixels are in the same place, the
    later one counts.
    """
    height, width, channels = images.shape[1:]
    count = tf.shape(images)[0]
    places = tf.reshape(vectors, [count, -1, 2 + channels])
    size = tf.constant([height, width], tf.float32)
    at = tf.cast(tf.minimum(places[..., :2] * size, size - 1), tf.int32)
    for pixel in range(places.shape[1] or vectors.shape[1] // (2 + channels)):
        where = tf.concat([tf.range(count)[:, tf.newaxis], at[:, pixel]], axis=1)
        images = tf.tensor_scatter_nd_update(images, where, places[:, pixel, 2:])
    return images
