"""Per-image outcomes as the numbers of results.json."""

from typing import Any

import numpy as np

from wca_tf.attacks import entry_of
from wca_tf.evaluation.accuracy import Number, mean_with_interval
from wca_tf.evaluation.outcomes import Outcome


def summarise(outcomes: list[Outcome]) -> dict[str, Any]:
    """The parts of results.json that are about numbers: clean, attacks, worst_case; the clean images come first."""
    clean, *attacked = outcomes
    epsilons = list(dict.fromkeys(outcome.epsilon for outcome in attacked if outcome.epsilon is not None))
    return {
        "clean": {**clean.judgement.numbers(), "probability_error": float(clean.judgement.probability_error.max())},
        "attacks": [_summary(outcome) for outcome in attacked],
        "worst_case": [
            {"epsilon": epsilon, "expected_accuracy": mean_with_interval(worst_case(outcomes, epsilon))}
            for epsilon in epsilons
        ],
    }


def worst_case(outcomes: list[Outcome], epsilon: float) -> np.ndarray:
    """Per image, the smallest P(correct) [N] over the clean image and all attacks at `epsilon`."""
    clean, *attacked = outcomes
    chosen = [clean, *(outcome for outcome in attacked if outcome.epsilon == epsilon)]
    return np.min([outcome.judgement.probability_correct for outcome in chosen], axis=0)


def _summary(outcome: Outcome) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "name": outcome.name,
        "epsilon": outcome.epsilon,
        "config": outcome.config,
        **outcome.judgement.numbers(),
        "probability_error": float(outcome.judgement.probability_error.max()),
        "zero_gradient_share": None,
        "distortion": {norm: _distortion(getattr(outcome, norm)) for norm in ("linf", "l2", "l0")},
        "seconds": round(outcome.seconds, 2),
    }
    if entry_of(outcome.name).uses_gradients and not np.isnan(outcome.zero_gradients).any():
        numbers["zero_gradient_share"] = float(outcome.zero_gradients.mean())
    if not np.isnan(outcome.target_probability).any():
        numbers["target_rate"] = mean_with_interval(outcome.target_probability)
    return numbers


def _distortion(distances: np.ndarray) -> Number:
    """Mean and median; the median of a minimum-norm attack is what to compare, not its success."""
    return {"mean": float(distances.mean()), "median": float(np.median(distances))}
