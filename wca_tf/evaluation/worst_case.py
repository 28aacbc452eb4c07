"""The worst case over attacks: each image meets the attack that is worst for it.

Where P(correct) is estimated from draws, the least of several estimates would be too low. So draws that choose never
judge. A choice from few draws may be wrong, and then the number is too high: by how much, its regret, is estimated.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize

from wca_tf.evaluation.outcomes import Outcome
from wca_tf.gaussian.intervals import QUANTILE, Number
from wca_tf.gaussian.several_draws import all_correct, all_correct_by_count, means_without_draws
from wca_tf.nets.judge import Judgement

# Increase it with every change that gives other numbers for the same judgements of attacks.
WORST_CASE_ALGORITHM = 2  # 1 gave ties to the clean image, and knew no regret
# For n queries, FOLDS n / 2 draws judge: at least one of `FOLDS` parts, and at most `MOST_JUDGING` of all draws. For
# 100 queries more than 100 must judge, with a margin for the jackknife.
FOLDS = 10
MOST_JUDGING = 0.6
# A regret above this makes the number an upper bound.
SMALL_REGRET = 0.01
# The numbers of draws after which half of what a choice can gain is gained, in parts of a mixture.
SCALES = np.array([0.0, 10.0, 40.0, 160.0, 640.0])
# Smaller shares of the choosing draws, from which the regret is extrapolated.
SHARES = (8, 4, 2, 1)


@dataclasses.dataclass(frozen=True)
class WorstByDraws(Judgement):
    """The judgement of a worst case over attacks, whose P(correct) is estimated from draws; see `least_probability`.

    Attributes:
        candidates: [attacks, N, draws], the hits under each attack.
    """

    candidates: np.ndarray
    _chosen: dict[int, "Choice"] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def hits_for(self, queries: int) -> np.ndarray:
        return self.choice(queries).hits

    def choice(self, queries: int) -> "Choice":
        """Return the choice of attacks for n = `queries`."""
        if queries not in self._chosen:
            self._chosen[queries] = choose(self.candidates, queries)
        return self._chosen[queries]

    def n_query_accuracy(self, queries: int) -> Number:
        """Return the mean of P(correct)ⁿ, whose interval includes the regret of the choice too.

        It has `upper_bound` where the regret is above `SMALL_REGRET`.
        """
        number, regret = super().n_query_accuracy(queries), self.choice(queries).regret
        number["low"] = max(number["low"] - regret, 0.0)
        return Number(number, **({"upper_bound": True} if regret > SMALL_REGRET else {}))


@dataclasses.dataclass(frozen=True)
class Choice:
    """The attacks that were chosen.

    Attributes:
        hits: [N, draws], of draws that did not choose the image's attack.
        single: whether one attack was chosen for all images.
        regret: by how much the mean of P(correct)ⁿ is too high, because few draws chose: an estimate, 0 or more.
    """

    hits: np.ndarray
    single: bool
    regret: float


def worst_case(outcomes: Sequence[Outcome]) -> Judgement:
    """Return the judgement of each image in the worst case over outcomes on the same images."""
    return least_probability([outcome.judgement for outcome in outcomes])


def least_probability(judgements: list[Judgement]) -> Judgement:
    """Return the judgement of each image in the worst case: under the attack with the lowest P(correct).

    An attack is never judged by the draws that chose it; see `choose`.

    Args:
        judgements: the judgements of the same images under each attack, by the same number of draws.
    """
    stacked = {
        field.name: np.stack([getattr(judgement, field.name) for judgement in judgements])
        for field in dataclasses.fields(Judgement)
    }
    chosen = stacked["probability_correct"].argmin(axis=0)
    least = {name: values[chosen, np.arange(len(chosen))] for name, values in stacked.items()}
    least["blocks"] = stacked["blocks"][-1]  # the last is of an attack, if there is one
    if not judgements[0].draws:
        return Judgement(**least)
    first = choose(stacked["hits"], 1)
    # `correct` is of one draw. Any of these draws will do: other draws chose its attack.
    least |= {"hits": first.hits, "probability_correct": first.hits.mean(axis=1), "correct": first.hits[:, -1]}
    return WorstByDraws(**least, candidates=stacked["hits"], _chosen={1: first})


def choose(hits: np.ndarray, queries: int) -> Choice:
    """Return the attack of each image in the worst case of n = `queries`, judged by draws that did not choose it.

    For one query, each part of the draws is judged under the attacks that all other parts choose. P(correct)ⁿ for n > 1
    cannot be of all parts together: an image whose parts choose the same attack would count more than others. There the
    first draws choose, and the others judge.

    The draws that choose also choose the attack that is best on average. It counts for all images where the choice for
    each image is judged higher by more than its error, a 95 % half-width over the draws.

    Args:
        hits: [attacks, N, draws], as for `all_correct`.
        queries: n.
    """
    draws, total = np.arange(hits.shape[2]), hits.sum(axis=2)
    if queries == 1:
        parts = np.array_split(draws, min(FOLDS, len(draws)))
    else:
        parts = [draws[-num_judging(queries, len(draws)) :]]
    found = [_by_draws(hits[:, :, judging], total) for judging in parts]
    chosen, single = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
    excess = all_correct(chosen, queries).mean() - all_correct(single, queries).mean()
    counts_for_all = excess > 0 and excess > _error_over_draws(chosen, single, queries)
    numbers = sorted({(len(draws) - len(parts[0])) // share for share in SHARES} - {0})
    regret = _regret(_gains(hits, numbers, queries), numbers, counts_for_all) if numbers else 0.0
    return Choice(single if counts_for_all else chosen, counts_for_all, regret)


def num_judging(queries: int, draws: int) -> int:
    """Return how many of the draws judge P(correct)ⁿ.

    Examples:
        >>> [num_judging(queries, 200) for queries in (1, 10, 100)]
        [20, 50, 120]
    """
    return max(1, min(max(draws // FOLDS, FOLDS * queries // 2), round(MOST_JUDGING * draws)))


def _by_draws(judging: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hits [N, draws] under the attack of each image, and under the single attack that is best.

    Args:
        judging: [attacks, N, draws], the hits of the draws that judge.
        total: [attacks, N], the number of hits of all draws; those that do not judge choose.
    """
    counts = total - judging.sum(axis=2)
    order = _best_first(counts)
    attacks, images = order[counts[order].argmin(axis=0)], np.arange(judging.shape[1])
    return judging[attacks, images], judging[order[0]]


def _best_first(counts: np.ndarray) -> np.ndarray:
    """Return the attacks in order of their hits [attacks, N]: the first, of the fewest on average, gets the ties."""
    return np.argsort(counts.sum(axis=1), kind="stable")


def _error_over_draws(hits: np.ndarray, others: np.ndarray, queries: int) -> float:
    """Return the 95 % half-width of the difference of two means of P(correct)ⁿ by the same draws, by a jackknife."""
    if hits.shape[1] < 2:
        return math.inf
    differences = means_without_draws(hits, queries) - means_without_draws(others, queries)
    return QUANTILE * math.sqrt((len(differences) - 1) * np.var(differences))


def _regret(gains: np.ndarray, numbers: list[int], single: bool) -> float:
    """Return the regret of a choice, from the gain over the single attack of choices by fewer draws.

    If the attacks' estimates and their true values are normal, the gain of a choice by m draws is B / √(1 + k / m). A
    mixture of such curves is fitted, whose B are 0 or more; more and more draws would gain the sum of all B.

    Args:
        gains: the gain of choices by each of `numbers` of draws.
        numbers: the last is the number of draws that choose.
        single: whether one attack was chosen for all images, without gain.
    """
    parts, _ = optimize.nnls(1 / np.sqrt(1 + SCALES / np.array(numbers)[:, np.newaxis]), gains)
    return max(float(parts.sum()) - (0.0 if single else float(gains[-1])), 0.0)


def _gains(hits: np.ndarray, numbers: list[int], queries: int) -> np.ndarray:
    """Return how much lower the mean of P(correct)ⁿ is under a choice for each image than under the single attack.

    It is for each of the `numbers` of draws that choose; all draws after the last of them judge. It is the mean over
    rotations of the draws.
    """
    attacks, images, draws = hits.shape
    total, rows = hits.sum(axis=2), hits.reshape(-1, draws)
    # A probability for each draw tells more than a hit, and costs more.
    rotations = FOLDS if hits.dtype == bool else 2
    turned = [np.roll(np.arange(draws), -(draws * each // rotations)) for each in range(rotations)]
    gains = np.zeros((rotations, len(numbers)))
    for rotation, counts in enumerate(_counts(rows, turned, numbers).reshape(*gains.shape, attacks, images)):
        if hits.dtype == bool:
            judged = all_correct_by_count(draws - numbers[-1], queries)[total - counts[-1].astype(int)]
        else:
            judged = all_correct(rows[:, turned[rotation][numbers[-1] :]], queries).reshape(attacks, images)
        order = _best_first(counts[-1])
        for place, count in enumerate(counts):
            choice = order[count[order].argmin(axis=0)]
            gains[rotation, place] = np.mean(judged[order[0]] - judged[choice, np.arange(images)])
    mean: np.ndarray = gains.mean(axis=0)
    return mean


def _counts(rows: np.ndarray, turned: list[np.ndarray], numbers: list[int]) -> np.ndarray:
    """Return [rotations * numbers, rows]: the hits [rows, draws] of the first draws of each order in `turned`."""
    kind = np.float32 if rows.dtype == bool else np.float64  # exact for hits
    choosing = np.zeros((len(turned) * len(numbers), rows.shape[1]), kind)
    for place, (order, number) in enumerate((order, number) for order in turned for number in numbers):
        choosing[place, order[:number]] = 1
    return choosing @ rows.astype(kind).T
