"""How others count what an attack leaves of a random net: one number for each convention, all from the same record.

Where P(correct) is exact, the expectation of a convention over its own draws is a closed form. Else it is estimated
from the draws of the record, without bias but for the regret of a choice, by draws that no other part of it uses.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.worst_case import worst_case
from wca_tf.gaussian.intervals import Number, design_effect_of_blocks, mean_with_interval
from wca_tf.nets.judge import Judgement

ANSWERS = 20  # of fixed AutoAttack
VERDICTS = 10  # of DiffBreak
QUERIES = 100  # ours
STAGES = ("apgd_ce", "apgd_dlr")  # the attacks of AutoAttack's version rand


class Convention(NamedTuple):
    """A convention: its name, who counts so, and its definition in a line."""

    name: str
    source: str
    definition: str


CONVENTIONS = {
    "one_answer": Convention(
        "one answer",
        "most of the literature",
        "the attack with the lowest accuracy where each image is answered once, by one draw",
    ),
    "rand": Convention(
        "AutoAttack rand",
        "Croce & Hein, ICML 2020",
        "an image counts if it is answered right once each: clean, after APGD-CE, after APGD-DLR",
    ),
    "lowest_of_20": Convention(
        "lowest mean of 20 answers",
        "fixed AutoAttack: ADDT, ICLR 2025",
        "for each image the attack with the lowest share of 20 right answers, judged by the answers that chose it",
    ),
    "single_verdict": Convention(
        "one of 10 wrong",
        "DiffBreak, NeurIPS 2025",
        "an image counts if all of 10 answers after the attack are right",
    ),
    "majority_verdict": Convention(
        "majority of 10 wrong",
        "DiffBreak, NeurIPS 2025",
        "an image counts unless more than half of 10 answers after the attack are wrong",
    ),
    "known_draw": Convention(
        "known draw", "one sampled net", "the attack knows the draw that answers; see known_draws in results.json"
    ),
    "expected": Convention("expected", "here", "the chance that one answer is right, in the worst case"),
    "queries": Convention("100 queries", "here", "the chance that 100 answers are right, in the worst case"),
}


def conventions(clean: Outcome, attacks: Sequence[Outcome], known_draw: Number | None = None) -> list[dict[str, Any]]:
    """Return a row for each convention that the attacks of a radius allow, as {"key", "number", and the convention}.

    Args:
        clean: the outcome of the clean images.
        attacks: the outcomes of the attacks at one radius.
        known_draw: the accuracy where the attack knows the draw, if it was measured.
    """
    judged = {outcome.name.split(":")[0]: outcome.judgement for outcome in attacks}
    worst = worst_case([clean, *attacks])
    one_answer = min((each.judgement.numbers()["accuracy"] for each in attacks), key=lambda number: number["value"])
    found: Mapping[str, Number | None] = {
        "one_answer": one_answer,
        "rand": _rand(clean.judgement, judged),
        "lowest_of_20": _number(lowest_mean([each.judgement for each in attacks], ANSWERS), worst),
        "single_verdict": worst.n_query_accuracy(VERDICTS),
        "majority_verdict": _number(majority_right(worst, VERDICTS), worst),
        "known_draw": known_draw,
        "expected": worst.n_query_accuracy(1),
        "queries": worst.n_query_accuracy(QUERIES),
    }
    return [
        {"key": key, **CONVENTIONS[key]._asdict(), "number": number}
        for key, number in found.items()
        if number is not None
    ]


def all_right(judgements: Sequence[Judgement]) -> np.ndarray:
    """Return P(one answer to each of several images is right) [N]; all answers have draws of their own."""
    if not judgements[0].draws:
        return np.prod([each.probability_correct for each in judgements], axis=0)
    count = len(judgements)

    def share(each: Judgement, part: int) -> np.ndarray:
        return each.hits[:, part % count :: count].mean(axis=1)

    turns = [
        np.prod([share(each, part + turn) for part, each in enumerate(judgements)], axis=0) for turn in range(count)
    ]
    return np.mean(turns, axis=0)


def lowest_mean(judgements: Sequence[Judgement], answers: int) -> np.ndarray:
    """Return the expected lowest share of right answers over attacks, each judged by `answers` answers [N].

    The answers that choose the attack judge it too: so the share is lower than P(correct) under any of the attacks.
    """
    draws = judgements[0].draws
    if not draws:  # the mean of the least of several binomials: the sum over k of P(all are k or more)
        counts = np.arange(answers)[:, np.newaxis]
        at_least = np.prod([stats.binom.sf(counts, answers, each.probability_correct) for each in judgements], axis=0)
        return at_least.sum(axis=0) / answers
    parts = [np.arange(first, first + answers) % draws for first in range(0, max(draws - answers, 0) + 1, answers)]
    shares = np.array(
        [[each.hits[:, part].mean(axis=1) for part in parts] for each in judgements]
    )  # [attacks, parts, N]
    places = np.arange(len(shares))
    turns = [shares[places, (places + turn) % len(parts)].min(axis=0) for turn in range(len(parts))]
    return np.mean(turns, axis=0)


def majority_right(judgement: Judgement, answers: int) -> np.ndarray:
    """Return P(at most half of `answers` answers are wrong) for each image [N]."""
    least = -(-answers // 2) - 1  # so many right answers are too few
    if judgement.draws and judgement.hits.dtype == bool:  # of all choices of the draws, the share
        return stats.hypergeom.sf(least, judgement.draws, judgement.hits.sum(axis=1), answers)
    return stats.binom.sf(least, answers, judgement.probability_correct)


def _rand(clean: Judgement, judged: Mapping[str, Judgement]) -> Number | None:
    stages = [judged[name] for name in STAGES if name in judged]
    return _number(all_right([clean, *stages]), stages[0]) if len(stages) == len(STAGES) else None


def _number(values: np.ndarray, judgement: Judgement) -> Number:
    """Return the mean over images, with an interval for the choice of images and the draws that an attack shares."""
    return mean_with_interval(values, design_effect_of_blocks(values, judgement.blocks))
