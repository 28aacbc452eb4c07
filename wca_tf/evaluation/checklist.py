"""Do the numbers rest on obfuscated gradients? Criteria, each computed on the model, with its evidence.

The five of the paper (section 4.5, after Athalye et al., ICML 2018, and He et al., CVPR 2019) and those of Carlini et
al. (2019). Passing all does not prove robustness; failing one says that the attacks' numbers cannot be trusted. All
compare mean P(correct) on the same images, at the first epsilon of the evaluation.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks import parse_attack
from wca_tf.attacks.target import AnyTarget, HeadNoiseTarget, answers_alike, has_noise
from wca_tf.config import EvaluateConfig
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.evaluation.accuracy import percent
from wca_tf.evaluation.attacking import Planned, Settings, run_attacks
from wca_tf.evaluation.outcomes import CLEAN, Outcome
from wca_tf.evaluation.self_test import as_criterion, run_self_test
from wca_tf.seeds import fold_in, make_seed

IMAGES = 100
FEWEST = 50  # of fewer, the tolerance would be more than 4 points
# How much lower a mean of P(correct) must be to count as lower: two images of a hundred, or of fewer.
IMAGES_LOWER = 2
# Images whose cross-entropy gradient is exactly zero, as a share: a plain net has none.
ZERO_GRADIENTS = 0.01

STANDARD = "pgd:steps=40"
ADAPTIVE = ("margin", "z_margin")
DOUBLED = {STANDARD: "pgd:steps=80", "margin": "margin:steps=80", "z_margin": "z_margin:steps=80"}
KNOWN_DRAW = 4  # folded into the evaluation's seed (attacking.py has the others)
UNBOUNDED = "pgd:steps=20"  # the paper's
# Must each be able to find what is there. Square where it is asked for: its 5,000 queries would be the longest part.
NEEDED = ("fgsm", STANDARD, *ADAPTIVE)


@dataclasses.dataclass(frozen=True)
class Searches:
    """The checklist's attacks without gradients, as written: its longest part. Less than these is for trials alone."""

    square: str = "square"
    random_sampling: str = "random_sampling"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the criteria look at: outcomes by attack and radius, and the attack that knows the draw."""

    searches: Searches
    outcomes: dict[tuple[str, float | None], Outcome]
    fixed_draw: Outcome | None
    epsilon: float
    largest: float
    num_classes: int
    has_noise: bool = False

    def probability(self, name: str, epsilon: float | None = None) -> np.ndarray:
        """P(correct) per image under an attack, at the evaluation's epsilon unless another is given."""
        return self.outcomes[name, self.epsilon if epsilon is None else epsilon].judgement.probability_correct

    def mean(self, name: str, epsilon: float | None = None) -> float:
        return float(self.probability(name, epsilon).mean())

    @property
    def tolerance(self) -> float:
        return IMAGES_LOWER / len(self.outcomes[CLEAN, 0.0])

    def has(self, name: str) -> bool:
        return (name, self.epsilon) in self.outcomes

    def strongest(self) -> str:
        """Of the standard and the adaptive attacks, that which leaves least."""
        return min((name for name in DOUBLED if self.has(name)), key=self.mean)


Verdict = tuple[bool | None, str]


def run_checklist(
    target: AnyTarget,
    examples: Examples,
    config: EvaluateConfig,
    names: list[str],
    settings: Settings,
    records: Path,
    searches: Searches,
) -> list[dict[str, Any]]:
    """[{"criterion", "passed" (None where it does not apply), "evidence", "epsilon"}]; resumes from `records`.

    The last is the self-test, of the attacks `names` and of those that the criteria need: its "attacks". It also has
    the whole list's "searches".
    """
    norm, epsilon = _norm_and_epsilon(config)
    some = examples.take(slice(0, IMAGES))
    largest = 1.0 if norm == "linf" else math.sqrt(math.prod(some.image_shape))
    suffix = "" if norm == "linf" else f":norm={norm}"
    planned = _planned(target, epsilon, largest, searches)
    written = [dataclasses.replace(a, name=a.name + suffix if a.name != CLEAN else CLEAN) for a in planned]
    outcomes = run_attacks(target, written, some, settings, records)
    evidence = Evidence(
        searches,
        {(attack.name, attack.epsilon): outcome for attack, outcome in zip(planned, outcomes, strict=True)},
        _attack_fixed_draw(target, Planned(STANDARD + suffix, epsilon), some, settings, records / "fixed_draw"),
        epsilon,
        largest,
        len(examples.class_names),
        has_noise(target),
    )
    checklist = []
    for criterion, judge in CRITERIA.items():
        passed, said = judge(evidence)
        checklist.append({"criterion": criterion, "passed": passed, "evidence": said})
    tested = list(dict.fromkeys([*names, *(name + suffix for name in NEEDED if evidence.has(name))]))
    results = run_self_test(target, tested, epsilon, examples, settings.eot_samples, settings.seed)
    last = {**as_criterion(results), "attacks": tested, "searches": dataclasses.asdict(searches)}
    return [{**item, "epsilon": epsilon} for item in (*checklist, last)]


def has_checklist(stored: list[dict[str, Any]], config: EvaluateConfig, searches: Searches) -> bool:
    """Whether a checklist is the one that `run_checklist` would make: its epsilon, searches and self-test's attacks."""
    if not stored or stored[0].get("epsilon") != checklist_epsilon(config):
        return False
    if stored[-1].get("searches", dataclasses.asdict(Searches())) != dataclasses.asdict(searches):
        return False
    return all(name in stored[-1].get("attacks", ()) for name, _ in config.parsed_attacks())


def _norm_and_epsilon(config: EvaluateConfig) -> tuple[str, float]:
    norms = [parameters["norm"] for _, parameters in config.parsed_attacks() if "norm" in parameters]
    return norms[0] if norms else "linf", checklist_epsilon(config)


def checklist_epsilon(config: EvaluateConfig) -> float:
    """The first epsilon above 0, at which the checklist is computed."""
    return next(epsilon for epsilon in config.parsed_epsilons() if epsilon > 0)


def _planned(target: AnyTarget, epsilon: float, largest: float, searches: Searches) -> list[Planned]:
    names = ["fgsm", STANDARD, "margin", DOUBLED[STANDARD], DOUBLED["margin"]]
    names += [searches.square, searches.random_sampling]
    if isinstance(target, HeadNoiseTarget):
        names += ["z_margin", DOUBLED["z_margin"]]
    if target.noise_free_logits:
        names.append("transfer")
    budgets = [Planned(STANDARD, radius) for radius in (epsilon / 2, min(2 * epsilon, largest))]
    at_epsilon = [Planned(name, epsilon) for name in names]
    unique = dict.fromkeys([Planned(CLEAN, 0.0), *at_epsilon, *budgets, Planned(UNBOUNDED, largest)])
    return list(unique)


def _attack_fixed_draw(
    target: AnyTarget, planned: Planned, examples: Examples, settings: Settings, records: Path
) -> Outcome | None:
    """The attack on the net under one known draw, judged under that draw; None when no draw can be known."""
    fixed = target.with_fixed_draw(fold_in(make_seed(settings.seed), KNOWN_DRAW))
    if not has_noise(target) or not answers_alike(fixed, to_float(tf.constant(examples.images[:4]))):
        return None
    return run_attacks(fixed, [planned], examples, settings, records)[0]


def _not_lower(evidence: Evidence, weaker: str, stronger: str) -> Verdict:
    """Whether the attack that should be weaker leaves no less than the one that should be stronger."""
    left, right = evidence.mean(weaker), evidence.mean(stronger)
    return left >= right - evidence.tolerance, f"{weaker} leaves {percent(left)} %, {stronger} {percent(right)} %"


def _one_step(evidence: Evidence) -> Verdict:
    return _not_lower(evidence, "fgsm", STANDARD)


def _black_box(evidence: Evidence) -> Verdict:
    return _not_lower(evidence, evidence.searches.square, STANDARD)


def _unbounded(evidence: Evidence) -> Verdict:
    left, chance = evidence.mean(UNBOUNDED, evidence.largest), 1 / evidence.num_classes
    return (
        left <= chance,
        f"{UNBOUNDED} at {evidence.largest:.4g} leaves {percent(left)} %, chance is {percent(chance)} %",
    )


def _random(evidence: Evidence) -> Verdict:
    """On images that the net mostly gets right under PGD, no random point is mostly wrong."""
    held = (evidence.outcomes[CLEAN, 0.0].judgement.probability_correct >= 0.5) & (
        evidence.probability(STANDARD) >= 0.5
    )
    name = evidence.searches.random_sampling
    found = int((evidence.probability(name)[held] < 0.5).sum())
    points, images = parse_attack(name)["points"], int(held.sum())
    said = f"{points:,} points bring {found} of the {images} images that {STANDARD} leaves at P(correct) ≥ ½ below it"
    return found == 0, said


def _budget(evidence: Evidence) -> Verdict:
    radii = sorted({evidence.epsilon / 2, evidence.epsilon, min(2 * evidence.epsilon, evidence.largest)})
    left = [evidence.mean(STANDARD, radius) for radius in radii]
    falls = all(after <= before + evidence.tolerance for before, after in zip(left, left[1:], strict=False))
    said = ", ".join(f"{percent(share)} % at {radius:.4g}" for radius, share in zip(radii, left, strict=True))
    lower = left[-1] < left[0] - evidence.tolerance or left[0] <= evidence.tolerance
    return falls and lower, f"{STANDARD} leaves {said}"


def _fixed_draw(evidence: Evidence) -> Verdict:
    if evidence.fixed_draw is None:
        return None, "no seed decides the net's noise" if evidence.has_noise else "the net has no noise"
    known = float(evidence.fixed_draw.judgement.probability_correct.mean())
    unknown = evidence.mean(STANDARD)
    said = f"{STANDARD} leaves {percent(known)} % when it knows the draw, {percent(unknown)} % when it does not"
    return known <= unknown + evidence.tolerance, said


def _zero_gradients(evidence: Evidence) -> Verdict:
    share = float(evidence.outcomes[STANDARD, evidence.epsilon].zero_gradients.mean())
    return (
        share <= ZERO_GRADIENTS,
        f"the gradient of cross-entropy is zero in every pixel on {percent(share)} % of images",
    )


def _more_steps(evidence: Evidence) -> Verdict:
    return _not_lower(evidence, DOUBLED[evidence.strongest()], evidence.strongest())


def _adaptive(evidence: Evidence) -> Verdict:
    adaptive = min((name for name in ADAPTIVE if evidence.has(name)), key=evidence.mean)
    return _not_lower(evidence, adaptive, STANDARD)


def _transfer(evidence: Evidence) -> Verdict:
    if not evidence.has("transfer"):
        return None, "no noise-free form of this net is known"
    return _not_lower(evidence, "transfer", STANDARD)


CRITERIA: dict[str, Callable[[Evidence], Verdict]] = {
    "one-step attacks are no better than iterative ones (paper, 1)": _one_step,
    "black-box attacks are no better than white-box ones (paper, 2)": _black_box,
    "unbounded attacks reach chance (paper, 3)": _unbounded,
    "random sampling finds nothing that the attack misses (paper, 4)": _random,
    "a larger budget brings more success (paper, 5)": _budget,
    "an attack that knows the draw succeeds no less (Carlini et al.)": _fixed_draw,
    "gradients are not zero": _zero_gradients,
    "twice the steps do not help (Carlini et al.)": _more_steps,
    "adaptive attacks are no better than the standard one (Carlini et al.)": _adaptive,
    "transfer from the noise-free net is no better than the standard attack (Carlini et al.)": _transfer,
}
