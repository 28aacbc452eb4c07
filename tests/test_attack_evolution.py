"""Differential evolution: known minima, the paper's criterion of convergence, and problems that do not meet."""

import math

import numpy as np
import pytest
import tensorflow as tf

from wca_tf.attacks.evolution import DifferentialEvolution
from wca_tf.core.seeds import make_seed

DIMENSIONS = 3


def evolution_of(population, generations, crossover=0.7, mutation=0.5, tolerance=0.01):
    return DifferentialEvolution(population, generations, crossover, mutation, tolerance)


# Each problem has its minimum, 0, at a place of its own.
MINIMA = np.random.default_rng(0).uniform(0.2, 0.8, (5, DIMENSIONS)).astype(np.float32)


def sphere(candidates, rows, minima=MINIMA):
    return tf.reduce_sum(tf.square(candidates - tf.gather(minima, rows)[:, tf.newaxis]), axis=2)


def rastrigin(candidates, rows):
    """On [-5.12, 5.12], with a local minimum at every whole number."""
    x = 10.24 * (candidates - tf.gather(MINIMA, rows)[:, tf.newaxis])
    return tf.reduce_sum(tf.square(x) + 10 * (1 - tf.cos(2 * math.pi * x)), axis=2)


def below(function, bound):
    """The function, and a candidate solves when it is at most `bound`."""

    def energy(candidates, rows):
        values = function(candidates, rows)
        return values, values <= bound

    return energy


def minimise(evolution, energy, indices=range(5), seed=1):
    return tf.function(evolution.minimise)(energy, DIMENSIONS, tf.constant(list(indices)), make_seed(seed))


@pytest.mark.parametrize(("function", "crossover"), [(sphere, 0.7), (rastrigin, 0.2)])
def test_known_minima_of_several_problems(function, crossover):
    """The populations close in by a constant factor a generation: far below a neighbouring minimum, which is 1.

    Rastrigin's function is a sum over coordinates, for which little crossover is the known choice.
    """
    evolution = evolution_of(60, 150, crossover=crossover, mutation=0.7, tolerance=1e-9)
    evolved = minimise(evolution, below(function, -1.0))
    np.testing.assert_allclose(evolved.best, MINIMA, rtol=0, atol=1e-3)
    assert np.all(evolved.energy < 1e-3) and not np.any(evolved.solved)
    np.testing.assert_allclose(evolved.energy, function(evolved.best[:, tf.newaxis], tf.range(5))[:, 0], atol=1e-7)


class Recorder:
    """An energy that keeps what it was asked, eagerly."""

    def __init__(self, function, bound=-1.0):
        self.energy, self.asked = below(function, bound), []

    def __call__(self, candidates, rows):
        self.asked.append((candidates.numpy(), rows.numpy()))
        return self.energy(candidates, rows)

    def minimise(self, evolution, indices=range(5), seed=1):
        return evolution.minimise(self, DIMENSIONS, tf.constant(list(indices)), make_seed(seed))


def test_the_start_is_a_latin_hypercube():
    """One candidate in each of N equal parts of every coordinate, in an order of its own."""
    recorder = Recorder(sphere)
    recorder.minimise(evolution_of(20, 1))
    start, rows = recorder.asked[0]
    assert start.shape == (5, 20, DIMENSIONS) and rows.tolist() == [0, 1, 2, 3, 4]
    strata = np.floor(start * 20).astype(int)
    np.testing.assert_array_equal(np.sort(strata, axis=1), np.broadcast_to(np.arange(20)[:, np.newaxis], start.shape))
    orders = {tuple(strata[problem, :, axis]) for problem in range(5) for axis in range(DIMENSIONS)}
    assert len(orders) == 15
    within = (start * 20 - strata).ravel()  # uniform within its part: a mean of 300 numbers, deviation 1/√12
    assert abs(within.mean() - 0.5) < 5 / math.sqrt(12 * 300)


@pytest.mark.parametrize("minima", [np.zeros((5, 3), np.float32), np.ones((5, 3), np.float32)], ids=["0", "1"])
def test_trials_stay_in_the_unit_cube(minima):
    """With a minimum at the cube's corner and long steps, where mutants often leave it."""
    recorder = Recorder(lambda candidates, rows: sphere(candidates, rows, minima))
    evolved = recorder.minimise(evolution_of(12, 30, mutation=1.5, tolerance=1e-9))
    asked = np.concatenate([candidates.ravel() for candidates, _ in recorder.asked])
    assert asked.min() >= 0 and asked.max() <= 1
    assert np.all(evolved.energy < 0.1)


def test_trials_are_crossed_mutants_of_the_best():
    """best + F (one − another), or the parent's coordinate; one coordinate at least is not the parent's."""
    recorder = Recorder(sphere)
    recorder.minimise(evolution_of(6, 1, crossover=1e-9, mutation=0.5))
    (parents, _), (trials, _) = recorder.asked
    # 4 of 5 mutants' coordinates and all redrawn ones differ from the parent's; crossover of 0 leaves the forced one.
    assert np.all((trials != parents).sum(axis=2) == 1)
    recorder = Recorder(sphere)
    recorder.minimise(evolution_of(6, 1, crossover=1.0, mutation=0.5))
    (parents, _), (trials, _) = recorder.asked
    for problem in range(5):
        best = parents[problem][np.argmin(sphere(parents, np.arange(5))[problem])]
        for number, trial in enumerate(trials[problem]):
            others = [p for p in range(6) if p != number]
            mutants = [
                best + 0.5 * (parents[problem, one] - parents[problem, another])
                for one in others
                for another in others
                if one != another
            ]
            # A mutant that leaves the cube is drawn again in that coordinate alone.
            inside = [np.abs(np.where((m < 0) | (m > 1), 0, trial - m)).max() for m in mutants]
            assert min(inside) < 1e-6


@pytest.mark.parametrize("tolerance", [0.01, 0.5])
def test_convergence_is_the_papers(tolerance):
    """A problem ends with its first evolved population with std ≤ tolerance |mean|: replayed step by step."""
    offset = lambda candidates, rows: 1 + sphere(candidates, rows)  # noqa: E731
    recorder = Recorder(offset)
    evolved = recorder.minimise(evolution_of(10, 40, tolerance=tolerance))
    populations = offset(recorder.asked[0][0], np.arange(5)).numpy()
    converged_after = np.full(5, -1)
    for generation, (trials, rows) in enumerate(recorder.asked):
        if generation:
            populations[rows] = np.minimum(populations[rows], offset(trials, rows))
        for row in rows:
            deviation, mean = populations[row].std(), abs(populations[row].mean())
            assert abs(deviation - tolerance * mean) > 1e-6  # not a matter of rounding
            if generation and deviation <= tolerance * mean:
                assert converged_after[row] == -1
                converged_after[row] = generation
        left = np.flatnonzero(converged_after == -1)
        if generation + 1 < len(recorder.asked):
            assert recorder.asked[generation + 1][1].tolist() == left.tolist()
    assert np.all(converged_after >= 0) and len(set(converged_after)) > (1 if tolerance == 0.01 else 0)
    np.testing.assert_array_equal(evolved.generations, converged_after)
    np.testing.assert_allclose(evolved.energy, populations.min(axis=1), rtol=1e-6)


def test_a_solved_problem_spends_nothing_more():
    """Problem 2 is solved from the start, problem 4 never."""
    bounds = tf.constant([0.01, 0.001, 9.0, 0.0001, -1.0])

    def energy(candidates, rows):
        values = sphere(candidates, rows)
        return values, values <= tf.gather(bounds, rows)[:, tf.newaxis]

    recorder = Recorder(sphere)
    recorder.energy = energy
    evolved = recorder.minimise(evolution_of(20, 40, tolerance=1e-9))
    assert evolved.solved.numpy().tolist() == [True, True, True, True, False]
    assert np.all(evolved.energy[:4] <= bounds[:4])
    asked = np.array([sum(row in rows for _, rows in recorder.asked) for row in range(5)])
    np.testing.assert_array_equal(asked, 1 + evolved.generations.numpy())
    assert asked[2] == 1 and asked[4] == 41 and 1 < asked[0] < asked[3] < 41


def test_the_best_solves_where_any_does():
    """Though another has less energy: solved here is what lies above one half."""

    def energy(candidates, rows):
        values = sphere(candidates, rows)
        return values, candidates[..., 0] > 0.95

    evolved = minimise(evolution_of(10, 20, tolerance=1e-9), energy)
    assert np.any(evolved.solved)
    np.testing.assert_array_equal(evolved.best[:, 0] > 0.95, evolved.solved)


def test_a_problem_does_not_depend_on_the_others():
    """To the bit: the same index and seed are the same problem, alone, in another order, among others that end."""
    evolution, energy = evolution_of(20, 30), below(rastrigin, 2.0)
    together = minimise(evolution, energy)
    order = [3, 0, 4]
    some = minimise(evolution, lambda candidates, rows: energy(candidates, tf.gather(order, rows)), order)
    for name in ("best", "energy", "solved", "generations"):
        np.testing.assert_array_equal(getattr(some, name), getattr(together, name).numpy()[order])
    others = minimise(evolution, energy, seed=2), minimise(evolution, energy, range(5, 10))
    for other in others:
        assert np.all(np.any(other.best != together.best, axis=1))


def test_problems_of_one_index_are_one():
    same = lambda candidates, rows: below(sphere, -1.0)(candidates, 0 * rows)  # noqa: E731
    evolved = minimise(evolution_of(10, 5), same, [7, 7, 8])
    np.testing.assert_array_equal(evolved.best[0], evolved.best[1])
    assert np.any(evolved.best[0] != evolved.best[2])
