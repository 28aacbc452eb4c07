import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from wca_tf.core import seeds

BY_INDEX = [seeds.normal_by_index, seeds.uniform_by_index]
SEED = seeds.make_seed(3)


def draw_many(by_index, count=2000, width=50):
    """`count` rows of `width` numbers, in a graph for speed."""
    return tf.function(lambda: by_index(SEED, tf.range(count), (width,)))().numpy()


def test_make_seed_puts_the_number_first_and_keeps_a_seed():
    assert seeds.make_seed(7).numpy().tolist() == [7, 0]
    assert seeds.make_seed(tf.constant([4, 5])).numpy().tolist() == [4, 5]
    assert seeds.make_seed(7).dtype == tf.int32


@pytest.mark.parametrize("by_index", BY_INDEX)
def test_a_row_does_not_depend_on_its_batch(by_index):
    indices = np.array([5, 0, 17, 123_456, 2, 9], np.int32)
    rows = by_index(SEED, tf.constant(indices), (4, 3)).numpy()
    assert rows.shape == (6, 4, 3)
    assert rows.dtype == np.float32
    for row, index in zip(rows, indices, strict=True):
        assert np.array_equal(row, by_index(SEED, tf.constant([index]), (4, 3))[0])
    order = np.random.default_rng(0).permutation(6)
    assert np.array_equal(by_index(SEED, tf.constant(indices[order]), (4, 3)), rows[order])


@pytest.mark.parametrize("by_index", BY_INDEX)
def test_graph_and_eager_rows_are_equal(by_index):
    graph = tf.function(
        lambda indices: by_index(SEED, indices, (5,)), input_signature=[tf.TensorSpec([None], tf.int32)]
    )
    for indices in (tf.constant([3]), tf.constant([1, 2, 3])):
        assert np.array_equal(graph(indices), by_index(SEED, indices, (5,)))


@pytest.mark.parametrize("by_index", BY_INDEX)
def test_rows_differ_between_indices_and_between_seeds(by_index):
    rows = draw_many(by_index, 500, 3)
    assert len(np.unique(rows, axis=0)) == 500
    other = by_index(seeds.make_seed(4), tf.range(3), (3,)).numpy()
    assert not np.any(other == rows[:3])


@pytest.mark.parametrize("by_index", BY_INDEX)
def test_an_index_that_occurs_twice_gives_the_same_row_twice(by_index):
    rows = by_index(SEED, tf.constant([8, 8]), (6,)).numpy()
    assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize(
    "by_index, law", [(seeds.normal_by_index, stats.norm()), (seeds.uniform_by_index, stats.uniform())]
)
def test_numbers_follow_their_law(by_index, law):
    numbers = draw_many(by_index).astype(np.float64)
    mean, variance, kurtosis = (float(value) for value in law.stats("mvk"))
    # Five standard errors of the mean and of the variance of n numbers.
    assert abs(numbers.mean() - mean) < 5 * np.sqrt(variance / numbers.size)
    assert abs(numbers.var() - variance) < 5 * variance * np.sqrt((kurtosis + 2) / numbers.size)
    assert stats.kstest(numbers.ravel(), law.cdf).pvalue > 1e-5


@pytest.mark.parametrize("by_index", BY_INDEX)
def test_neighbouring_indices_and_neighbouring_columns_are_uncorrelated(by_index):
    rows = draw_many(by_index).astype(np.float64)
    for first, second in [(rows[:-1], rows[1:]), (rows[:, :-1], rows[:, 1:])]:
        correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(first.size)  # the standard error is 1 / sqrt(n)


def test_uniform_numbers_stay_below_one():
    numbers = draw_many(seeds.uniform_by_index)
    assert numbers.min() >= 0
    assert numbers.max() < 1


@pytest.mark.parametrize("by_index", BY_INDEX)
def test_no_indices_give_no_rows(by_index):
    none = tf.zeros([0], tf.int32)
    assert tf.function(by_index)(SEED, none, (3, 2)).shape == (0, 3, 2)
    assert by_index(SEED, none, (3, 2)).shape == (0, 3, 2)


def test_fold_in_gives_a_different_seed_for_every_sequence():
    sequences = [(), *((i,) for i in range(30)), *((i, j) for i in range(30) for j in range(30)), (0, 0, 0), (1, 2, 3)]
    folded = {tuple(seeds.fold_in(SEED, *sequence).numpy()) for sequence in sequences}
    assert len(folded) == len(sequences)


def test_fold_in_of_several_numbers_is_folding_in_one_after_the_other():
    assert np.array_equal(seeds.fold_in(SEED, 6, 7), seeds.fold_in(seeds.fold_in(SEED, 6), 7))
    assert np.array_equal(seeds.fold_in(SEED, tf.constant(6)), seeds.fold_in(SEED, 6))
    assert seeds.fold_in(SEED, 6).dtype == tf.int32


def test_fold_in_depends_on_both_parts_of_the_seed():
    folded = {tuple(seeds.fold_in(tf.constant([i, j]), 1).numpy()) for i in range(10) for j in range(10)}
    assert len(folded) == 100
