"""Differential evolution (Storn & Price, 1997), best/1/bin, for many problems at once as one graph.

The rules are those of SciPy's `differential_evolution(strategy="best1bin", updating="deferred")` with a constant
mutation. The search starts from a Latin hypercube. The crossover is binomial, with one coordinate forced. Coordinates
that leave the unit cube are drawn again. The criterion of convergence is SciPy's too, and the WCA paper uses it
(section 4.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from wca_tf.core.lazily import tf
from wca_tf.core.seeds import fold_in, uniform_by_index
from wca_tf.nets.batch import replace_rows

# (candidates [R, N, dimensions] in [0, 1], rows [R]) -> (energies [R, N], whether each candidate solves its problem).
Energy = Callable[..., Any]


class Evolved(NamedTuple):
    """The outcome for each problem.

    Attributes:
        best: [B, dimensions], the candidate of least energy. Where some candidates solve the problem, only these count.
        energy: [B], the energy of `best`.
        solved: [B], whether `best` solves its problem.
        generations: [B], the number of generations spent.
    """

    best: tf.Tensor
    energy: tf.Tensor
    solved: tf.Tensor
    generations: tf.Tensor


@dataclasses.dataclass(frozen=True)
class DifferentialEvolution:
    """A minimiser over the unit cube. A problem ends when it is solved, or when its population's energies agree.

    Attributes:
        population: N, candidates per problem, 4 or more.
        generations: the largest number of generations.
        crossover: the probability that a coordinate is the mutant's, in [0, 1].
        mutation: the weight of the difference of two candidates.
        tolerance: a population has converged when the standard deviation of its energies is at most this share of
            their mean's absolute value; `None`: a population never converges.
    """

    population: int
    generations: int
    crossover: float
    mutation: float
    tolerance: float | None

    def minimise(
        self,
        energy: Energy,
        dimensions: int,
        indices: tf.Tensor,
        seed: tf.Tensor,
        rows_of: Callable[[tf.Tensor], tf.Tensor] = lambda active: tf.where(active)[:, 0],
    ) -> Evolved:
        """Evolve one population per index. Runs inside a graph; `seed` and the index decide the random numbers.

        Args:
            energy: see `Energy`.
            dimensions: number of coordinates of a candidate.
            indices: whole numbers [B].
            seed: int32[2].
            rows_of: bool [B], whether each problem is open -> the problems to compute energies for, at least the open
                ones.
        """
        population = self._latin_hypercube(fold_in(seed, 0), indices, dimensions)
        energies, solves = energy(population, tf.range(tf.size(indices)))
        ended = tf.reduce_any(solves, axis=1)
        spent = tf.zeros_like(ended, tf.int32)
        generation = tf.constant(0)
        while generation < self.generations and not tf.reduce_all(ended):
            rows = rows_of(~ended)
            here = ~tf.gather(ended, rows)
            parents, theirs, solved = (tf.gather(values, rows) for values in (population, energies, solves))
            leaders = _best(parents, theirs, solved)
            trials = self._trials(parents, leaders, tf.gather(indices, rows), fold_in(seed, 1, generation))
            found, found_solves = energy(trials, tf.cast(rows, tf.int32))
            better = ((found <= theirs) | (found_solves & ~solved)) & here[:, tf.newaxis]
            theirs, solved = tf.where(better, found, theirs), tf.where(better, found_solves, solved)
            population = replace_rows(population, rows, tf.where(better[..., tf.newaxis], trials, parents))
            energies, solves = replace_rows(energies, rows, theirs), replace_rows(solves, rows, solved)
            ended = replace_rows(ended, rows, tf.reduce_any(solved, axis=1) | self._converged(theirs) | ~here)
            spent = replace_rows(spent, rows, tf.where(here, generation + 1, tf.gather(spent, rows)))
            generation += 1
        return Evolved(
            _best(population, energies, solves)[:, 0],
            tf.gather(energies, _leader(energies, solves), axis=1, batch_dims=1),
            tf.reduce_any(solves, axis=1),
            spent,
        )

    def _latin_hypercube(self, seed: tf.Tensor, indices: tf.Tensor, dimensions: int) -> tf.Tensor:
        """Return candidates [B, N, dimensions]: along each dimension, one candidate in each of N equal parts."""
        draws = uniform_by_index(seed, indices, (2, dimensions, self.population))
        ranks = tf.cast(tf.argsort(tf.argsort(draws[:, 0])), tf.float32)  # float: oneDNN complains of whole numbers
        return tf.transpose((ranks + draws[:, 1]) / self.population, [0, 2, 1])

    def _trials(self, parents: tf.Tensor, leaders: tf.Tensor, indices: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return leader + mutation · (one − another), crossed with the parent."""
        count, dimensions = parents.shape[1:]
        draws = uniform_by_index(seed, indices, (count, 2 * dimensions + 3))
        # Offsets from the parent in a ring, which give two different candidates, neither of them the parent.
        one = 1 + _whole(draws[..., 0], count - 1)
        another = 1 + _whole(draws[..., 1], count - 2)
        another += tf.cast(another >= one, tf.int32)
        ring = tf.range(count)[tf.newaxis]
        first, second = (tf.gather(parents, (ring + offset) % count, axis=1, batch_dims=1) for offset in (one, another))
        mutants = leaders + self.mutation * (first - second)
        forced = tf.one_hot(_whole(draws[..., 2], dimensions), dimensions, on_value=True, off_value=False)
        crossed = forced | (draws[..., 3 : 3 + dimensions] < self.crossover)
        trials = tf.where(crossed, mutants, parents)
        return tf.where((trials < 0) | (trials > 1), draws[..., 3 + dimensions :], trials)

    def _converged(self, energies: tf.Tensor) -> tf.Tensor:
        if self.tolerance is None:
            return tf.zeros(tf.shape(energies)[0], tf.bool)
        return tf.math.reduce_std(energies, axis=1) <= self.tolerance * tf.abs(tf.reduce_mean(energies, axis=1))


def _leader(energies: tf.Tensor, solves: tf.Tensor) -> tf.Tensor:
    """Return the place of the least energy, [B]; where some candidates solve their problem, among these only."""
    eligible = solves | ~tf.reduce_any(solves, axis=1, keepdims=True)
    return tf.argmin(tf.where(eligible, energies, energies.dtype.max), axis=1)


def _best(population: tf.Tensor, energies: tf.Tensor, solves: tf.Tensor) -> tf.Tensor:
    """Return the leader of each population, [B, 1, dimensions]."""
    return tf.gather(population, _leader(energies, solves)[:, tf.newaxis], axis=1, batch_dims=1)


def _whole(uniform: tf.Tensor, count: int) -> tf.Tensor:
    """Return whole numbers in [0, count) from numbers in [0, 1)."""
    return tf.minimum(tf.cast(uniform * tf.cast(count, tf.float32), tf.int32), count - 1)
