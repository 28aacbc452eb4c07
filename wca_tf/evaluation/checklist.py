"""Do the numbers rest on obfuscated gradients? Criteria, each computed on the model, with its evidence.

The five of the paper (section 4.5, after Athalye et al., ICML 2018, and He et al., CVPR 2019), and those of Carlini et
al. (2019). Passing all does not prove robustness; failing one says that the attacks' numbers cannot be trusted. The
paper's first may say so of its own PGD alone, which is why it is asked again of a longer one. All compare mean
P(correct) on the same images, at the first epsilon of the evaluation.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks import Attack, BallAttack, parse_attack
from wca_tf.config import EvaluateConfig, norms_of
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.evaluation.accuracy import JUDGING_ALGORITHM, percent
from wca_tf.evaluation.attacking import CLEAN_TRIAL, Settings, Trial, run_attacks
from wca_tf.evaluation.fixed_draws import attack_fixed_draws
from wca_tf.evaluation.outcomes import CLEAN, Outcome
from wca_tf.evaluation.self_test import as_criterion, run_self_test
from wca_tf.nets.targets import AnyTarget, answers_alike, has_noise, is_gaussian

# Raise it with every change of what is checked or how: a list of another number is made again.
CHECKLIST_ALGORITHM = 4
IMAGES = 100
FEWEST = 50  # of fewer, the tolerance would be more than 4 points
# How much lower a mean of P(correct) must be to count as lower: two images of a hundred, or of fewer.
IMAGES_LOWER = 2
# Images whose cross-entropy gradient is exactly zero, as a share: a plain net has none.
ZERO_GRADIENTS = 0.01

ONE_STEP, PAPERS = "fgsm", "pgd"  # the paper's, with its parameters
STANDARD = "pgd:steps=40"
ADAPTIVE = ("margin", "z_margin")
DOUBLED = {STANDARD: "pgd:steps=80", "margin": "margin:steps=80", "z_margin": "z_margin:steps=80"}
UNBOUNDED = "pgd:steps=20"  # the paper's
# Must each be able to find what is there. Square where it is asked for: its 5,000 queries would be the longest part.
NEEDED = (ONE_STEP, PAPERS, STANDARD, *ADAPTIVE)


@dataclasses.dataclass(frozen=True)
class Searches:
    """The checklist's attacks without gradients, as written: its longest part. Less than these is for trials alone."""

    square: str = "square"
    random_sampling: str = "random_sampling"
    n_pixel: str = "n_pixel:objective=margin:population=100:generations=80"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the criteria look at.

    Attributes:
        searches: the attacks without gradients, as written.
        norm: of the radii.
        outcomes: by attack as written here and radius; the radius of an attack without one is None.
        fixed_draws: of the standard attack that knows the draw, one for each draw; none where no draw can be known.
        random: P(correct) under random points, of the images that `held` names.
        epsilon: the evaluation's.
        largest: a radius that leaves an attack unbounded.
        one_pixel: the radius from which on the ball holds as much distortion, in l2, as any change of one pixel.
        num_classes: C.
        has_noise: whether the net has any.
        repeatable: whether the seed decides it.
    """

    searches: Searches
    norm: str
    outcomes: dict[tuple[str, float | None], Outcome]
    fixed_draws: list[Outcome]
    random: np.ndarray
    epsilon: float
    largest: float
    one_pixel: float
    num_classes: int
    has_noise: bool = False
    repeatable: bool = True

    def probability(self, name: str, epsilon: float | None = None) -> np.ndarray:
        """P(correct) per image under an attack, at the evaluation's epsilon unless another is given."""
        radius = self.epsilon if epsilon is None else epsilon
        key = (name, radius) if (name, radius) in self.outcomes else (name, None)
        return self.outcomes[key].judgement.probability_correct

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
    attacks: list[Attack],
    settings: Settings,
    records: Path,
    searches: Searches,
) -> list[dict[str, Any]]:
    """Return [{"criterion", "passed" (None where it does not apply), "evidence", "epsilon"}]; resume from `records`.

    The last is the self-test, of `attacks` and of those that the criteria need: its "attacks". It also has
    the whole list's "searches" and "algorithm".
    """
    norm, epsilon = _norm_and_epsilon(config)
    some = examples.take(slice(0, IMAGES))
    height, width, channels = some.image_shape
    largest = 1.0 if norm == "linf" else math.sqrt(height * width * channels)
    one_pixel = 1 / math.sqrt(height * width) if norm == "linf" else math.sqrt(channels)
    trials = _trials(target, epsilon, largest, searches, norm, config.eot_samples)
    outcomes = run_attacks(target, list(trials.values()), some, settings, records)
    by_attack = dict(zip(trials, outcomes, strict=True))
    standard, random = (_written(name, norm, config.eot_samples) for name in (STANDARD, searches.random_sampling))
    evidence = Evidence(
        searches,
        norm,
        by_attack,
        attack_fixed_draws(target, standard, epsilon, some, settings, records / "fixed_draw"),
        _on_held(target, Trial(random, epsilon), some, held(by_attack, epsilon), settings, records),
        epsilon,
        largest,
        one_pixel,
        len(examples.class_names),
        has_noise(target),
        answers_alike(target, to_float(tf.constant(some.images[:4]))),
    )
    checklist = []
    for criterion, judge in CRITERIA.items():
        passed, said = judge(evidence)
        checklist.append({"criterion": criterion, "passed": passed, "evidence": said})
    needed = [trial.attack for (name, radius), trial in trials.items() if name in NEEDED and radius == epsilon]
    tested = list({attack.name: attack for attack in (*attacks, *needed) if attack}.values())
    results = run_self_test(target, tested, epsilon, examples, settings.seed)
    last = {**as_criterion(results), "attacks": [attack.name for attack in tested], **made_by(searches)}
    return [{**item, "epsilon": epsilon} for item in (*checklist, last)]


def has_checklist(stored: list[dict[str, Any]], config: EvaluateConfig, searches: Searches) -> bool:
    """Whether a checklist is the one that `run_checklist` would make.

    It has its epsilon, its searches, its algorithms, and all attacks in its self-test.
    """
    if not stored or stored[0].get("epsilon") != checklist_epsilon(config):
        return False
    if any(stored[-1].get(key) != value for key, value in made_by(searches).items()):
        return False
    return all(name in stored[-1].get("attacks", ()) for name in (a.name for a in config.parsed_attacks))


def made_by(searches: Searches) -> dict[str, Any]:
    """Return what a checklist depends on, besides the net and the images: it is made again when this changes."""
    texts = (ONE_STEP, PAPERS, *DOUBLED, "transfer", *dataclasses.astuple(searches))
    algorithms = {text.split(":")[0]: parse_attack(text).algorithm for text in texts}
    return {
        "searches": dataclasses.asdict(searches),
        "algorithm": CHECKLIST_ALGORITHM,
        "judged_by": JUDGING_ALGORITHM,
        "algorithms": dict(sorted(algorithms.items())),
    }


def _norm_and_epsilon(config: EvaluateConfig) -> tuple[str, float]:
    return (norms_of(config.parsed_attacks) or ["linf"])[0], checklist_epsilon(config)


def checklist_epsilon(config: EvaluateConfig) -> float:
    """The first epsilon above 0, at which the checklist is computed."""
    return next(epsilon for epsilon in config.parsed_epsilons if epsilon > 0)


def _trials(
    target: AnyTarget, epsilon: float, largest: float, searches: Searches, norm: str, eot_samples: int
) -> dict[tuple[str, float | None], Trial]:
    """What the criteria need, by the attack as written here and its radius."""
    names = [ONE_STEP, PAPERS, STANDARD, "margin", DOUBLED[STANDARD], DOUBLED["margin"]]
    names.append(searches.square)
    if is_gaussian(target):
        names += ["z_margin", DOUBLED["z_margin"]]
    if target.noise_free_logits:
        names.append("transfer")
    keys: list[tuple[str, float | None]] = [*((name, epsilon) for name in names), (searches.n_pixel, None)]
    keys += [(STANDARD, epsilon / 2), (STANDARD, min(2 * epsilon, largest)), (UNBOUNDED, largest)]
    trials: dict[tuple[str, float | None], Trial] = {(CLEAN, 0.0): CLEAN_TRIAL}
    for name, radius in keys:
        trials[name, radius] = Trial(_written(name, norm, eot_samples), radius)
    return trials


def _written(name: str, norm: str, eot_samples: int) -> Attack:
    """Return the attack in the evaluation's norm."""
    attack = parse_attack(name, eot_samples=eot_samples)
    if isinstance(attack, BallAttack) and norm != attack.norm:
        return parse_attack(f"{name}:norm={norm}", eot_samples=eot_samples)
    return attack


def held(outcomes: dict[tuple[str, float | None], Outcome], epsilon: float) -> np.ndarray:
    """Return the numbers of the images that the net gets right, clean and under the standard attack, in most draws."""
    left = [outcomes[key].judgement.probability_correct for key in ((CLEAN, 0.0), (STANDARD, epsilon))]
    return np.flatnonzero(np.min(left, axis=0) >= 0.5)


def _on_held(
    target: AnyTarget, random: Trial, examples: Examples, held: np.ndarray, settings: Settings, records: Path
) -> np.ndarray:
    """Return P(correct) under random points of the images that are held; the others would say nothing."""
    if not len(held):
        return np.zeros(0)
    own = records / f"held-{zlib.crc32(held.tobytes()):08x}"  # other images are other records
    return run_attacks(target, [random], examples.take(held), settings, own)[0].judgement.probability_correct


def _not_lower(evidence: Evidence, weaker: str, stronger: str) -> Verdict:
    """Whether the attack that should be weaker leaves no less than the one that should be stronger."""
    left, right = evidence.mean(weaker), evidence.mean(stronger)
    return left >= right - evidence.tolerance, f"{weaker} leaves {percent(left)} %, {stronger} {percent(right)} %"


def _papers_one_step(evidence: Evidence) -> Verdict:
    """FGSM against a PGD of which steps times step size is epsilon: it reaches no corner but from its own side."""
    passed, said = _not_lower(evidence, ONE_STEP, PAPERS)
    if passed or not _one_step(evidence)[0] or evidence.norm != "linf":
        return passed, said
    return passed, f"{said}: probably since ten steps of a tenth of epsilon, begun at random, end short of a corner"


def _one_step(evidence: Evidence) -> Verdict:
    return _not_lower(evidence, ONE_STEP, STANDARD)


def _square(evidence: Evidence) -> Verdict:
    if not evidence.repeatable:
        return None, "no seed decides the net's noise, so that Square's proposals cannot meet the same draws"
    return _not_lower(evidence, evidence.searches.square, STANDARD)


def _pixels(evidence: Evidence) -> Verdict:
    """A changed pixel that is farther away than the ball allows says nothing when it finds more than the ball has."""
    passed, said = _not_lower(evidence, evidence.searches.n_pixel, STANDARD)
    if passed or evidence.epsilon >= evidence.one_pixel:
        return passed, said
    return None, f"{said}, but a changed pixel is farther away, in l2, than this epsilon allows"


def _unbounded(evidence: Evidence) -> Verdict:
    left, chance = evidence.mean(UNBOUNDED, evidence.largest), 1 / evidence.num_classes
    return (
        left <= chance,
        f"{UNBOUNDED} at {evidence.largest:.4g} leaves {percent(left)} %, chance is {percent(chance)} %",
    )


def _random(evidence: Evidence) -> Verdict:
    """On images that the net mostly gets right under PGD, no random point is mostly wrong."""
    found, images = int((evidence.random < 0.5).sum()), len(evidence.random)
    points = parse_attack(evidence.searches.random_sampling).passes
    said = f"{points:,} points bring {found} of the {images} images that {STANDARD} leaves at P(correct) ≥ ½ below it"
    return found == 0, f"{said} (the paper: 1,000 points, on images that FGSM brings to an error)"


def _budget(evidence: Evidence) -> Verdict:
    radii = sorted({evidence.epsilon / 2, evidence.epsilon, min(2 * evidence.epsilon, evidence.largest)})
    left = [evidence.mean(STANDARD, radius) for radius in radii]
    falls = all(after <= before + evidence.tolerance for before, after in zip(left, left[1:], strict=False))
    said = ", ".join(f"{percent(share)} % at {radius:.4g}" for radius, share in zip(radii, left, strict=True))
    lower = left[-1] < left[0] - evidence.tolerance or left[0] <= evidence.tolerance
    return falls and lower, f"{STANDARD} leaves {said}"


def _fixed_draw(evidence: Evidence) -> Verdict:
    """By the mean over draws: of one draw, the mean over images deviates by about as much as the tolerance."""
    if not evidence.fixed_draws:
        return None, "no seed decides the net's noise" if evidence.has_noise else "the net has no noise"
    left = np.array([outcome.judgement.probability_correct.mean() for outcome in evidence.fixed_draws])
    known, error = float(left.mean()), float(left.std(ddof=1)) / math.sqrt(len(left))
    unknown = evidence.mean(STANDARD)
    said = (
        f"{STANDARD} leaves {percent(known)} % when it knows the draw (mean of {len(left)} draws, "
        f"standard error {percent(error)}), {percent(unknown)} % when it does not"
    )
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
    "one-step attacks are no better than iterative ones (paper, 1: FGSM against its PGD-10)": _papers_one_step,
    "black-box attacks are no better than white-box ones (paper, 2: Square)": _square,
    "black-box attacks are no better than white-box ones (paper, 2: pixels)": _pixels,
    "unbounded attacks reach chance (paper, 3)": _unbounded,
    "random sampling finds nothing that the attack misses (paper, 4)": _random,
    "a larger budget brings more success (paper, 5)": _budget,
    "one-step attacks are no better than iterative ones (FGSM against PGD-40)": _one_step,
    "an attack that knows the draw succeeds no less (Carlini et al.)": _fixed_draw,
    "gradients are not zero": _zero_gradients,
    "twice the steps do not help (Carlini et al.)": _more_steps,
    "adaptive attacks are no better than the standard one (Carlini et al.)": _adaptive,
    "transfer from the noise-free net is no better than the standard attack (Carlini et al.)": _transfer,
}
