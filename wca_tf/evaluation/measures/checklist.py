"""A test for obfuscated gradients: `checklist` of results.json, a list of criteria with their evidence.

Each criterion (criteria.py) is computed on the model, at the first radius of the evaluation that is above 0. Passing
all criteria does not prove robustness. Failing one means that the attacks' numbers cannot be trusted.
"""

import dataclasses
import math
import zlib
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from wca_tf.attacks import Attack, parse_attack
from wca_tf.core.errors import InputError
from wca_tf.data.batches import to_float
from wca_tf.evaluation.measures.criteria import (
    ADAPTIVE,
    CRITERIA,
    DOUBLED,
    ONE_STEP,
    PAPERS,
    SHORTER,
    STANDARD,
    UNBOUNDED,
    Evidence,
    GradientFreeAttacks,
    Key,
    not_lower,
    robust_images,
)
from wca_tf.evaluation.measures.known_draws import KnownDraws, known_draws
from wca_tf.evaluation.measures.measure import Context, Measure
from wca_tf.evaluation.measures.planted_examples import (
    FoundExamples,
    PlantedExamples,
    as_criterion,
    checked_radius,
    in_norm,
)
from wca_tf.evaluation.outcomes import CLEAN, Outcome
from wca_tf.evaluation.trials import CLEAN_TRIAL, run_attacks, trial_of
from wca_tf.nets.judge import JUDGEMENT_VERSION
from wca_tf.nets.targets import AnyTarget, has_gradient, has_noise, is_gaussian, is_reproducible

CHECKLIST_VERSION = 7  # increase it with every change of the checks
IMAGES = 100
FIRST_LOOK = 20  # images after which a comparison may end; it may end again at each doubling
WRONG = 1e-4  # the probability that one look ends a comparison with the wrong verdict
MIN_IMAGES = 50  # with fewer, the tolerance would be more than 4 points


class Checklist(Measure):
    """The criteria, and whether every attack finds a planted adversarial image.

    Args:
        searches: the checklist's attacks without gradients, which take the longest; `None` for the default.
    """

    name = "checklist"
    version = CHECKLIST_VERSION

    def __init__(self, searches: GradientFreeAttacks | None = None) -> None:
        self.searches = searches or GradientFreeAttacks()

    def key(self, context: Context) -> Any:
        """Return the radius, the attacks that are tested, and the searches with their versions."""
        if not context.config.checklist:
            return None
        planted = PlantedExamples().key(context)
        return {"planted": planted, "known_draws": KnownDraws().key(context), **made_by(self.searches)}

    def check(self, context: Context) -> None:
        if len(context.examples) < MIN_IMAGES:
            raise InputError(f"the checklist expects {MIN_IMAGES} images or more, received {len(context.examples)}")
        if not has_gradient(context.target):
            raise InputError(
                "the checklist expects a net with a gradient, which most of its attacks follow; received a net without "
                "a pullback"
            )

    def lines(self, results: dict[str, Any]) -> list[str]:
        items, verdict = results["checklist"], {True: "pass", False: "FAIL", None: "n/a "}
        lines = [f"  {verdict[item['passed']]}  {item['criterion']}: {item['evidence']}" for item in items]
        return [f"checklist, at epsilon {items[0]['epsilon']:.4g}", *lines] if lines else []

    def measure(self, context: Context) -> Any:
        """Return [{"criterion", "passed", "evidence", "epsilon"}].

        "passed" is `None` where the criterion does not apply. The last criterion is on planted examples.
        """
        evidence = self._evidence(context)
        items = []
        for criterion, judge in CRITERIA.items():
            passed, text = judge(evidence)
            items.append({"criterion": criterion, "passed": passed, "evidence": text})
        planted = context.measured[PlantedExamples.name].value["attacks"]
        items.append(as_criterion([FoundExamples(**each) for each in planted]))
        return [{**item, "epsilon": checked_radius(context.config).epsilon} for item in items]

    def _evidence(self, context: Context) -> Evidence:
        """Return the evidence for the criteria. The attacks that they need continue from their records."""
        runs = _Runs(context)
        settings, names, norm, epsilon = runs.settings, self.searches, runs.norm, runs.epsilon
        height, width, channels = runs.examples.image_shape
        largest = 1.0 if norm == "linf" else math.sqrt(height * width * channels)
        evidence = Evidence(
            searches=names,
            norm=norm,
            outcomes=runs.outcomes(_of_all_images(runs.target, epsilon, largest)),
            fixed_draws=known_draws(context),
            random=np.zeros(0),
            epsilon=epsilon,
            largest=largest,
            one_pixel=1 / math.sqrt(height * width) if norm == "linf" else math.sqrt(channels),
            num_classes=len(runs.examples.class_names),
            has_noise=has_noise(runs.target),
            repeatable=is_reproducible(runs.target, to_float(tf.constant(runs.examples.images[:4]))),
            order=np.random.default_rng(settings.seed).permutation(len(runs.examples)),
        )
        runs.compare(names.n_pixel, STANDARD, evidence)
        runs.compare(DOUBLED[evidence.strongest()], evidence.strongest(), evidence)
        if runs.target.noise_free_logits:
            runs.compare("transfer", STANDARD, evidence)
        if evidence.repeatable and runs.compare(SHORTER.get(names.square, names.square), STANDARD, evidence):
            runs.compare(names.square, STANDARD, evidence)
        return dataclasses.replace(
            evidence, random=runs.on_robust_images(names.random_sampling, robust_images(evidence.outcomes, epsilon))
        )


def _of_all_images(target: AnyTarget, epsilon: float, largest: float) -> list[Key]:
    """Return the attacks that each of the images meets, as written in criteria.py, with their radii."""
    names = [ONE_STEP, PAPERS, STANDARD, *ADAPTIVE]
    if not is_gaussian(target):
        names.remove("z_margin")
    keys: list[Key] = [(CLEAN, 0.0), *((name, epsilon) for name in names)]
    return [*keys, (STANDARD, epsilon / 2), (STANDARD, min(2 * epsilon, largest)), (UNBOUNDED, largest)]


class _Runs:
    """The attacks of a checklist on its images. They continue from their records."""

    def __init__(self, context: Context) -> None:
        self.target, self.settings = context.target, context.settings
        radius = checked_radius(context.config)
        self.norm, self.epsilon = radius.norm or "linf", radius.epsilon
        self.examples, self.records = context.examples.take(slice(0, IMAGES)), context.records(Checklist.name)
        self._eot_samples = context.config.eot_samples

    def attack(self, name: str) -> Attack:
        return in_norm(name, self.norm, self._eot_samples)

    def outcomes(self, keys: list[Key]) -> dict[Key, Outcome]:
        """Return the outcome of each attack on all images."""
        trials = [CLEAN_TRIAL if name == CLEAN else trial_of(self.attack(name), radius) for name, radius in keys]
        found = run_attacks(self.target, trials, self.examples, self.settings, self.records)
        return dict(zip(keys, found, strict=True))

    def compare(self, name: str, other: str, evidence: Evidence) -> bool:
        """Add the outcome of an attack on as many images as decide whether it leaves no less than the attack `other`.

        The images are those of `evidence.order`, in that order. Returns whether it leaves no less.
        """
        reference, total = evidence.probability(other)[evidence.order], len(self.examples)
        trial, block = trial_of(self.attack(name), self.epsilon), self.settings.block_size
        outcome, first, last = None, 0, -(-FIRST_LOOK // block) * block  # whole blocks: their images share draws
        shared = dataclasses.replace(self.settings, batch_size=min(last, self.settings.batch_size))  # one graph
        while first < total:
            part = self.examples.take(evidence.order[first:last])
            settings = dataclasses.replace(shared, first=first)
            [found] = run_attacks(self.target, [trial], part, settings, self.records / "shuffled" / str(first))
            outcome = outcome.extended(found) if outcome else found
            if is_decided(outcome.judgement.probability_correct - reference[:last], total, -evidence.tolerance):
                break
            first, last = last, 2 * last
        assert outcome is not None  # noqa: S101 there are 50 images or more
        evidence.outcomes[name, trial.radius.epsilon if trial.radius else None] = outcome
        return not_lower(evidence, name, other)[0] is True

    def on_robust_images(self, name: str, images: np.ndarray) -> np.ndarray:
        """Return P(correct) of some images under an attack. Other images would give no evidence."""
        if not len(images):
            return np.zeros(0)
        own = self.records / f"held-{zlib.crc32(images.tobytes()):08x}"  # other images need other records
        trial = trial_of(self.attack(name), self.epsilon)
        [found] = run_attacks(self.target, [trial], self.examples.take(images), self.settings, own)
        return found.judgement.probability_correct


def is_decided(differences: np.ndarray, total: int, bound: float) -> bool:
    """Return whether the mean difference of all images lies surely on one side of `bound`.

    The images were chosen at random among `total`. Two made-up differences, -1 and 1, stand in for what is rare. They
    also keep a few images that come out alike from deciding.

    Args:
        differences: [n], in [-1, 1].
        total: the number of images that the mean is over, n at least.
        bound: in [-1, 1].
    """
    if len(differences) >= total:
        return True
    seen = np.append(differences, [-1.0, 1.0])
    error = seen.std(ddof=1) / math.sqrt(len(seen)) * math.sqrt(1 - len(differences) / total)
    return bool(abs(seen.mean() - bound) > scipy.stats.t.isf(WRONG / 2, len(seen) - 1) * error)


def made_by(searches: GradientFreeAttacks) -> dict[str, Any]:
    """Return the searches and the versions that a checklist depends on, besides the net and the images.

    When they change, the checklist is made again.
    """
    texts = (ONE_STEP, PAPERS, *DOUBLED, "transfer", *dataclasses.astuple(searches))
    algorithms = {text.split(":")[0]: parse_attack(text).version for text in texts}
    return {
        "searches": dataclasses.asdict(searches),
        "judged_by": JUDGEMENT_VERSION,
        "algorithms": dict(sorted(algorithms.items())),
    }
