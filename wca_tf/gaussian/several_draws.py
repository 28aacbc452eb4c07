"""The chance that several draws of a net are all right, P(correct)ⁿ, from a few draws of each image, without bias."""

from __future__ import annotations

import functools

from wca_tf.core.lazily import np, scipy

JACKKNIFE_GROUPS = 20


def all_correct(hits: np.ndarray, queries: int) -> np.ndarray:
    """Return [N]: the mean over all choices of n = `queries` draws among J of the probability that every draw is a hit.

    For hits of 0 and 1 it is the share of the choices in which every draw is a hit.

    Args:
        hits: bool [N, J], whether each draw gives the label of each image; or the probability that it does.
        queries: n.
    """
    if hits.dtype == bool:
        return all_correct_by_count(hits.shape[1], queries)[hits.sum(axis=1)]
    return symmetric_means(hits, queries)[queries]


def symmetric_means(hits: np.ndarray, most: int) -> np.ndarray:
    """Return [`most` + 1, N]: `all_correct` of hits that are probabilities, for n from 0 to `most`.

    They are the elementary symmetric polynomials of the draws, each over its number of terms.
    """
    return _with_draws(_of_no_draws(len(hits), most), 0, hits)


def _of_no_draws(images: int, most: int) -> np.ndarray:
    means = np.zeros((most + 1, images))
    means[0] = 1
    return means


def _with_draws(means: np.ndarray, before: int, hits: np.ndarray) -> np.ndarray:
    """Return the symmetric means of `before` draws, after more draws [N, J] are added."""
    means = means.copy()
    for draw, values in enumerate(hits.T, start=before + 1):
        last = min(len(means) - 1, draw)
        share = np.arange(1, last + 1)[:, np.newaxis] / draw
        means[1 : last + 1] = means[1 : last + 1] * (1 - share) + means[:last] * values * share
    return means


@functools.cache
def all_correct_by_count(draws: int, queries: int) -> np.ndarray:
    """Return [draws + 1]: `all_correct` of an image with 0, 1, ... hits."""
    correct, left = np.arange(draws + 1)[:, np.newaxis], np.arange(queries)
    shares: np.ndarray = np.prod(np.clip(correct - left, 0, None) / np.maximum(draws - left, 1), axis=1)
    shares.setflags(write=False)  # every caller gets the same array
    return shares


def means_without_draws(hits: np.ndarray, queries: int) -> np.ndarray:
    """Return the mean of P(correct)ⁿ without each group of draws, for a jackknife; arguments as for `all_correct`."""
    draws = hits.shape[1]
    groups = np.array_split(np.arange(draws), min(JACKKNIFE_GROUPS, draws))
    if hits.dtype != bool:
        return _means_without_groups(hits, groups, queries)
    counts = hits.sum(axis=1)
    left = [(draws - len(group), counts - hits[:, group].sum(axis=1)) for group in groups]
    return np.array([all_correct_by_count(number, queries)[count].mean() for number, count in left])


def _means_without_groups(hits: np.ndarray, groups: list[np.ndarray], queries: int) -> np.ndarray:
    """Return the mean of P(correct)ⁿ without each group, from the symmetric means of all draws before and after it."""
    nothing, draws = _of_no_draws(len(hits), queries), hits.shape[1]
    before, after = [nothing], [nothing]
    for group, behind in zip(groups[:-1], groups[:0:-1], strict=True):
        before.append(_with_draws(before[-1], group[0], hits[:, group]))
        after.append(_with_draws(after[-1], draws - behind[-1] - 1, hits[:, behind]))
    taken = np.arange(queries + 1)  # of the draws before the group, among the n
    found = []
    for group, first, last in zip(groups, before, reversed(after), strict=True):
        rest = draws - len(group)
        weights = scipy.stats.hypergeom.pmf(taken, rest, group[0], queries) if queries <= rest else 0 * taken
        found.append(weights @ (first * last[::-1]).mean(axis=1))
    return np.array(found)
