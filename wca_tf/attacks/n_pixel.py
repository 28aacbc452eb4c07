"""The n-pixel attack (Su et al., IEEE TEC 2019): a black box, by differential evolution of a few pixels."""

import dataclasses
import functools

import tensorflow as tf

from wca_tf.attacks.attack import Attack
from wca_tf.attacks.batch import Batch, per_image
from wca_tf.attacks.checks import check_result
from wca_tf.attacks.evolution import DifferentialEvolution
from wca_tf.attacks.gradients import drawn_for, mean_over_draws
from wca_tf.attacks.objectives import survival_of
from wca_tf.attacks.target import Target, open_rows
from wca_tf.errors import InputError
from wca_tf.seeds import fold_in

# Candidate images in memory at a time.
IMAGES_PER_PASS = 1000
OBJECTIVES = ("probability", "margin")


@dataclasses.dataclass(frozen=True)
class NPixel(Attack):
    """Changes at most `pixels` pixels, to any colour, to make the label improbable (or the target probable).

    Attributes:
        pixels: n.
        objective: what is minimised. "probability" is the paper's protocol (section 4.1): the label's softmax
            probability, averaged over draws; an image is done when its P(correct), over the same draws, is at most
            `bound`, or when its population has converged, which a net whose softmax saturates does at once. "margin" is
            the margin of logits, averaged over draws; every image gets all generations.
        population, generations, crossover, mutation: see `DifferentialEvolution` (paper: 400, 1000, 0.7, 0.5).
        bound: an image is lost when its P(correct) is at most this; of no use to objective "margin".
    """

    pixels: int = 1
    objective: str = "probability"
    population: int = 400
    generations: int = 1000
    crossover: float = 0.7
    mutation: float = 0.5
    bound: float = dataclasses.field(default=0.01, metadata={"zero": True, "largest": 1.0})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in OBJECTIVES:
            raise InputError(f"n_pixel expects an objective among {', '.join(OBJECTIVES)}; received {self.objective!r}")
        self._evolution()

    @property
    def climbed(self) -> None:
        return None  # it has an objective, and no gradient

    @property
    def passes(self) -> int:
        return self.population * (self.generations + 1)

    def check_reach(self, adversarial: tf.Tensor, images: tf.Tensor) -> None:
        check_result(adversarial, images, "l0", self.pixels)

    def _evolution(self) -> DifferentialEvolution:
        search = DifferentialEvolution(self.population, self.generations, self.crossover, self.mutation)
        return dataclasses.replace(search, tolerance=None) if self.objective == "margin" else search

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return self.search(target, batch, epsilon, seed)[0]

    def search(
        self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        channels = batch.images.shape[3]

        def energy(candidates: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            shape = tf.shape(candidates)[:2]
            vectors = tf.reshape(candidates, [-1, candidates.shape[2]])
            owners = tf.repeat(rows, shape[1])
            energies, solved = self._judge(target, batch, vectors, owners, fold_in(seed, 1))
            return tf.reshape(energies, shape), tf.reshape(solved, shape)

        rows_of = functools.partial(open_rows, target)
        evolved = self._evolution().minimise(
            energy, self.pixels * (2 + channels), batch.indices, fold_in(seed, 0), rows_of
        )
        untouched, lost = self._outcome(target, batch, batch.images, fold_in(seed, 1))
        better = (evolved.solved & ~lost) | ((evolved.solved | ~lost) & (evolved.energy < untouched))
        painted = tf.where(per_image(better), paint(batch.images, evolved.best), batch.images)
        return painted, {"generations": evolved.generations}

    def _judge(
        self, target: Target, batch: Batch, vectors: tf.Tensor, owners: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (energy [R], whether solved [R]) of the images of `owners` [R] painted by `vectors`, in parts."""
        count = tf.shape(vectors)[0]
        parts = -(-count // IMAGES_PER_PASS)
        energies, solves = tf.TensorArray(tf.float32, parts), tf.TensorArray(tf.bool, parts)
        for part in tf.range(parts):
            chosen = slice(part * IMAGES_PER_PASS, (part + 1) * IMAGES_PER_PASS)
            some = batch.take(owners[chosen])
            energy, solved = self._outcome(target, some, paint(some.images, vectors[chosen]), seed)
            energies, solves = energies.write(part, energy), solves.write(part, solved)
        return energies.concat(), solves.concat()

    def _outcome(self, target: Target, batch: Batch, images: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (energy [R], whether it is solved [R]) of perturbed images [R, ...] of `batch`."""
        features, indices = target.features(images), drawn_for(batch, self.eot_samples)

        def part(target: Target, draws: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            logits = target.logits(features, seed, draws, indices)
            held, margin = survival_of(logits, batch)
            return margin if self.objective == "margin" else _energy(logits, batch), held

        energy, held = mean_over_draws(part, target, self.eot_samples)
        return energy, (held <= self.bound) & (self.objective != "margin")


def _energy(logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """P(label) [R], or 1 − P(target), by softmax, averaged over the draws of logits [S, R, C]."""
    classes = batch.labels if batch.targets is None else batch.targets
    chosen = tf.one_hot(classes, logits.shape[-1])
    probability = tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(logits) * chosen, axis=-1), axis=0)
    return probability if batch.targets is None else 1 - probability


def paint(images: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Images [R, H, W, channels] with pixels set as vectors [R, n (2 + channels)] in [0, 1] say: row, column, colour.

    Of two on the same place the later one counts.
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
