"""A test for obfuscated gradients: `checklist` of results.json, a list of criteria with their evidence.

Each criterion (criteria.py) is computed on the model, at the first radius of the evaluation that is above 0. Passing
all criteria does not prove robustness. Failing one means that the attacks' numbers cannot be trusted.
"""

import dataclasses
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks import parse_attack
from wca_tf.core.errors import InputError
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.judging import JUDGING_ALGORITHM
from wca_tf.evaluation.measures.criteria import (
    CRITERIA,
    DOUBLED,
    ONE_STEP,
    PAPERS,
    STANDARD,
    UNBOUNDED,
    Evidence,
    Searches,
    held,
)
from wca_tf.evaluation.measures.fixed_draws import attack_fixed_draws
from wca_tf.evaluation.measures.measure import Evaluation, Measure
from wca_tf.evaluation.measures.planted_examples import (
    as_criterion,
    checked_radius,
    in_norm,
    is_complete_for,
    of_results,
)
from wca_tf.evaluation.outcomes import CLEAN
from wca_tf.evaluation.trials import CLEAN_TRIAL, Settings, Trial, run_attacks
from wca_tf.nets.targets import AnyTarget, answers_alike, has_noise, is_gaussian

# Increase it with every change of the checks. A stored list with another number is made again.
CHECKLIST_ALGORITHM = 6
IMAGES = 100
MIN_IMAGES = 50  # with fewer, the tolerance would be more than 4 points


class Checklist(Measure):
    """The criteria, and whether every attack finds a planted adversarial image.

    Args:
        searches: the checklist's attacks without gradients, which take the longest; `None` for the default.
    """

    keys = ("checklist",)
    follows_attacks = False  # `is_complete` knows the attacks

    def __init__(self, searches: Searches | None = None) -> None:
        self.searches = searches or Searches()

    def is_asked(self, config: EvaluateConfig) -> bool:
        return config.checklist

    def absent(self) -> dict[str, Any]:
        return {"checklist": []}

    def check(self, evaluation: Evaluation) -> None:
        if len(evaluation.examples) < MIN_IMAGES:
            raise InputError(f"the checklist expects {MIN_IMAGES} images or more, received {len(evaluation.examples)}")

    def is_complete(self, stored: dict[str, Any], config: EvaluateConfig) -> bool:
        """Return whether the stored checklist has the radius, searches, algorithms and attacks that are asked for."""
        items, (_, epsilon) = stored.get("checklist"), checked_radius(config)
        if not items or items[0].get("epsilon") != epsilon or not is_complete_for(stored, config):
            return False
        return all(items[-1].get(key) == value for key, value in made_by(self.searches).items())

    def is_valid(self, stored: dict[str, Any]) -> bool:
        items = stored.get("checklist")
        return isinstance(items, list) and all(
            isinstance(item, dict)
            and item.get("passed", "") in (True, False, None)
            and all(isinstance(item.get(key), str) for key in ("criterion", "evidence"))
            and type(item.get("epsilon")) in (int, float)
            for item in items
        )

    def lines(self, results: dict[str, Any]) -> list[str]:
        items, verdict = results["checklist"], {True: "pass", False: "FAIL", None: "n/a "}
        lines = [f"  {verdict[item['passed']]}  {item['criterion']}: {item['evidence']}" for item in items]
        return [f"checklist, at epsilon {items[0]['epsilon']:.4g}", *lines] if lines else []

    def measure(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return {"checklist": [{"criterion", "passed", "evidence", "epsilon"}]}.

        "passed" is `None` where the criterion does not apply. The last criterion, on planted examples, also has the
        items of `made_by`.
        """
        _, epsilon = checked_radius(evaluation.config)
        evidence = self._evidence(evaluation)
        items = []
        for criterion, judge in CRITERIA.items():
            passed, said = judge(evidence)
            items.append({"criterion": criterion, "passed": passed, "evidence": said})
        items.append({**as_criterion(of_results(evaluation.results)), **made_by(self.searches)})
        return {"checklist": [{**item, "epsilon": epsilon} for item in items]}

    def _evidence(self, evaluation: Evaluation) -> Evidence:
        """Return the evidence for the criteria. The attacks that they need continue from their records."""
        target, config, settings = evaluation.target, evaluation.config, evaluation.settings
        norm, epsilon = checked_radius(config)
        some, records = evaluation.examples.take(slice(0, IMAGES)), evaluation.directory / "checklist"
        height, width, channels = some.image_shape
        largest = 1.0 if norm == "linf" else math.sqrt(height * width * channels)
        one_pixel = 1 / math.sqrt(height * width) if norm == "linf" else math.sqrt(channels)
        trials = self._trials(target, norm, epsilon, largest, config.eot_samples)
        outcomes = run_attacks(target, list(trials.values()), some, settings, records)
        by_attack = dict(zip(trials, outcomes, strict=True))
        standard, random = (
            in_norm(name, norm, config.eot_samples) for name in (STANDARD, self.searches.random_sampling)
        )
        return Evidence(
            self.searches,
            norm,
            by_attack,
            attack_fixed_draws(target, standard, epsilon, some, settings, records / "fixed_draw"),
            _on_held(target, Trial(random, epsilon), some, held(by_attack, epsilon), settings, records),
            epsilon,
            largest,
            one_pixel,
            len(some.class_names),
            has_noise(target),
            answers_alike(target, to_float(tf.constant(some.images[:4]))),
        )

    def _trials(
        self, target: AnyTarget, norm: str, epsilon: float, largest: float, eot_samples: int
    ) -> dict[tuple[str, float | None], Trial]:
        """Return the attacks that the criteria need. The key is (the attack as written in criteria.py, its radius)."""
        names = [ONE_STEP, PAPERS, STANDARD, "margin", DOUBLED[STANDARD], DOUBLED["margin"], self.searches.square]
        if is_gaussian(target):
            names += ["z_margin", DOUBLED["z_margin"]]
        if target.noise_free_logits:
            names.append("transfer")
        keys: list[tuple[str, float | None]] = [*((name, epsilon) for name in names), (self.searches.n_pixel, None)]
        keys += [(STANDARD, epsilon / 2), (STANDARD, min(2 * epsilon, largest)), (UNBOUNDED, largest)]
        trials: dict[tuple[str, float | None], Trial] = {(CLEAN, 0.0): CLEAN_TRIAL}
        for name, radius in keys:
            trials[name, radius] = Trial(in_norm(name, norm, eot_samples), radius)
        return trials


def made_by(searches: Searches) -> dict[str, Any]:
    """Return the searches and the versions that a checklist depends on, besides the net and the images.

    When they change, the checklist is made again.
    """
    texts = (ONE_STEP, PAPERS, *DOUBLED, "transfer", *dataclasses.astuple(searches))
    algorithms = {text.split(":")[0]: parse_attack(text).algorithm for text in texts}
    return {
        "searches": dataclasses.asdict(searches),
        "algorithm": CHECKLIST_ALGORITHM,
        "judged_by": JUDGING_ALGORITHM,
        "algorithms": dict(sorted(algorithms.items())),
    }


def _on_held(
    target: AnyTarget, random: Trial, examples: Examples, held: np.ndarray, settings: Settings, records: Path
) -> np.ndarray:
    """Return P(correct) of the images `held` under random points. Other images would give no evidence."""
    if not len(held):
        return np.zeros(0)
    own = records / f"held-{zlib.crc32(held.tobytes()):08x}"  # other images need other records
    return run_attacks(target, [random], examples.take(held), settings, own)[0].judgement.probability_correct
