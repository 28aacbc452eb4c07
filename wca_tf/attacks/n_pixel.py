"""The n-pixel attack (Su et al., IEEE TEC 2019): a black box, by differential evolution of a few pixels."""

import dataclasses

import tensorflow as tf

from wca_tf.attacks.attack import Attack
from wca_tf.attacks.batch import Batch, per_image
from wca_tf.attacks.checks import check_result
from wca_tf.attacks.evolution import DifferentialEvolution
from wca_tf.attacks.gradients import mean_over_draws
from wca_tf.attacks.objectives import survival_of
from wca_tf.attacks.target import Target
from wca_tf.seeds import fold_in

# Candidate images in memory at a time.
IMAGES_PER_PASS = 1000


@dataclasses.dataclass(frozen=True)
class NPixel(Attack):
    """Changes at most `pixels` pixels, to any colour, to make the label improbable (or the target probable).

    The energy is the label's softmax probability, averaged over draws. An image is done when its P(correct), over the
    same draws, is at most `bound`, or its population has converged (paper, section 4.1).

    Attributes:
        pixels: n.
        population, generations, crossover, mutation: see `DifferentialEvolution` (paper: 400, 1000, 0.7, 0.5).
        bound: an image is lost when its P(correct) is at most this.
    """

    pixels: int = 1
    population: int = 400
    generations: int = 1000
    crossover: float = 0.7
    mutation: float = 0.5
    bound: float = dataclasses.field(default=0.01, metadata={"zero": True, "largest": 1.0})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._evolution()

    @property
    def passes(self) -> int:
        return self.population * (self.generations + 1)

    def check_reach(self, adversarial: tf.Tensor, images: tf.Tensor) -> None:
        check_result(adversarial, images, "l0", self.pixels)

    def _evolution(self) -> DifferentialEvolution:
        return DifferentialEvolution(self.population, self.generations, self.crossover, self.mutation)

    def perturb(self, target: Target, batch: Batch, epsilon: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        channels = batch.images.shape[3]

        def energy(candidates: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            shape = tf.shape(candidates)[:2]
            vectors = tf.reshape(candidates, [-1, candidates.shape[2]])
            owners = tf.repeat(rows, shape[1])
            probability, held = self._judge(target, batch, vectors, owners, fold_in(seed, 1))
            return tf.reshape(probability, shape), tf.reshape(held <= self.bound, shape)

        evolved = self._evolution().minimise(energy, self.pixels * (2 + channels), batch.indices, fold_in(seed, 0))
        untouched, held = self._outcome(target, batch, batch.images, fold_in(seed, 1))
        lost = held <= self.bound
        better = (evolved.solved & ~lost) | ((evolved.solved | ~lost) & (evolved.energy < untouched))
        return tf.where(per_image(better), paint(batch.images, evolved.best), batch.images)

    def _judge(
        self, target: Target, batch: Batch, vectors: tf.Tensor, owners: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(energy [R], survival [R]) of the images of `owners` [R] painted by `vectors`, a part at a time."""
        count = tf.shape(vectors)[0]
        parts = -(-count // IMAGES_PER_PASS)
        energies, survivals = tf.TensorArray(tf.float32, parts), tf.TensorArray(tf.float32, parts)
        for part in tf.range(parts):
            chosen = slice(part * IMAGES_PER_PASS, (part + 1) * IMAGES_PER_PASS)
            some = batch.take(owners[chosen])
            energy, survival = self._outcome(target, some, paint(some.images, vectors[chosen]), seed)
            energies, survivals = energies.write(part, energy), survivals.write(part, survival)
        return energies.concat(), survivals.concat()

    def _outcome(self, target: Target, batch: Batch, images: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(energy [R], survival [R]) of perturbed images [R, ...] of `batch`."""
        features = target.features(images)

        def part(target: Target, draws: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            logits = target.logits(features, seed, draws)
            return _energy(logits, batch), survival_of(logits, batch)[0]

        energy, survival = mean_over_draws(part, target, self.eot_samples)
        return energy, survival


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
