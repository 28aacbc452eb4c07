"""Per-image outcomes as the numbers of results.json."""

from typing import Any

import numpy as np

from wca_tf.evaluation.outcomes import Outcome
from wca_tf.evaluation.worst_case import WORST_CASE_ALGORITHM, least_probability
from wca_tf.gaussian.intervals import mean_with_interval
from wca_tf.nets.judge import Judgement


def summarise(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return `attacks` and `worst_case` of results.json. The first of `outcomes` is the outcome of the clean images."""
    attacked = outcomes[1:]
    radii = dict.fromkeys((o.norm, o.epsilon) for o in attacked if o.epsilon is not None)
    return {
        "attacks": [_summary(outcome) for outcome in attacked],
        "worst_case": [
            {
                "norm": norm,
                "epsilon": epsilon,
                **{name: worst[name] for name in ("expected_accuracy", "n_query_accuracy")},
                "algorithm": WORST_CASE_ALGORITHM,
            }
            for norm, epsilon in radii
            for worst in [worst_case(outcomes, norm, epsilon).numbers()]
        ],
    }


def worst_case(outcomes: list[Outcome], norm: str | None, epsilon: float) -> Judgement:
    """Return the judgement of each image in the worst case over the clean image and all attacks at a radius.

    Attacks without a radius are left out, because they have no epsilon.
    """
    clean, *attacked = outcomes
    return least_probability(
        [clean.judgement, *(o.judgement for o in attacked if (o.norm, o.epsilon) == (norm, epsilon))]
    )


def _summary(outcome: Outcome) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "name": outcome.name,
        "norm": outcome.norm,
        "epsilon": outcome.epsilon,
        "config": outcome.config,
        **outcome.judgement.numbers(),
        "probability_error": float(outcome.judgement.probability_error.max()),
        "no_useful_gradient_share": None,
        "distortion": {norm: _distortion(getattr(outcome, norm), outcome.found) for norm in ("linf", "l2", "l0")},
        "found": None if np.isnan(outcome.found).any() else mean_with_interval(outcome.found),
        "generations": None,
        "parts": outcome.judgement.parts,
        "seconds": round(outcome.seconds, 2),
        "passes": None,
    }
    if not np.isnan(outcome.forward_passes).any():
        both = {"forward": outcome.forward_passes, "backward": outcome.backward_passes}
        numbers["passes"] = {way: round(float(passes.mean()), 2) for way, passes in both.items()}
    if not np.isnan(outcome.generations).any():
        names = ("mean", "median", "min", "max")
        numbers["generations"] = {name: float(getattr(np, name)(outcome.generations)) for name in names}
    if not np.isnan(outcome.useless_gradients).any():
        numbers["no_useful_gradient_share"] = float(outcome.useless_gradients.mean())
    if not np.isnan(outcome.target_probability).any():
        numbers["target_rate"] = mean_with_interval(outcome.target_probability)
    return numbers


def _distortion(distances: np.ndarray, found: np.ndarray) -> dict[str, float | None]:
    """Return the mean and the median of distances [N]; `None` means infinity.

    An image that was not `found` is infinitely far away. To compare minimum-norm attacks, use the median distance, not
    the success rate.
    """
    distances = np.where(found == 0, np.inf, distances)
    numbers = {"mean": distances.mean(), "median": np.median(distances)}
    return {name: float(number) if np.isfinite(number) else None for name, number in numbers.items()}
