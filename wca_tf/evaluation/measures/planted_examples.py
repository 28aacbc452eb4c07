"""A test of the attacks: `planted` of results.json. Every attack must find an adversarial image that is planted.

The test is by Zimmermann et al. (NeurIPS 2022). The net's own features get a new read-out, whose logits are as large
and as noisy as those of the net. This read-out is known to err at one point within the attack's reach (planted_net.py).
If an attack does not find an error, it is too weak, or its loss is saturated at logits of this size, or the net's
features hide the error from it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks import Attack, BallAttack, parse_attack
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.carlini_wagner import CarliniWagner
from wca_tf.attacks.n_pixel import NPixel
from wca_tf.attacks.pgd import ProjectedGradient
from wca_tf.attacks.radii import Radius
from wca_tf.attacks.random_sampling import RandomSampling
from wca_tf.attacks.transfer import Transfer
from wca_tf.core.seeds import make_seed
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples
from wca_tf.distribution.progress import progress_bar
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.criteria import NEEDED
from wca_tf.evaluation.measures.measure import Context, Measure
from wca_tf.evaluation.measures.planted_net import PlantedNet, PlantingSite, Reach
from wca_tf.nets.judge import JUDGEMENT_VERSION
from wca_tf.nets.targets import AnyTarget, is_gaussian, is_reproducible

PLANTED_ALGORITHM = 3  # increase it with every change of the test: stored results are made again
IMAGES = 10
CLEAN_CLASS = np.array([0])  # the class that the planted net gives the clean image
# An attack may miss this many planted images, above all an attack of a single step. The number is the same where fewer
# than 10 images could be planted.
MISSED = 1
# C&W goes this many standard errors of a mean over draws past the boundary. Then 98 of 100 images are errors without
# noise too.
STANDARD_ERRORS = 2.0
# Its gradient is zero only where no gradient comes through the net's features, never because the loss is saturated.
NEVER_SATURATES = ProjectedGradient(objective="margin", eot_samples=1)


@dataclasses.dataclass(frozen=True)
class FoundExamples:
    """The number of planted images that an attack found.

    Attributes:
        attack: the attack as written.
        found: the number of images on which it found an error within its reach.
        planted: the number of images on which an error was planted.
        passed: whether it found enough. `None` for an attack that cannot know of the planted image. `None` too when
            nothing can be planted: the net's features do not tell points within reach apart, its logits are all alike,
            or no seed decides its noise.
        zero_gradients: share of the images with a planted error at which the attack's gradient at the clean image is
            zero in every pixel; `None` for an attack without gradients.
        saturated: whether, at one of the images where the attack's gradient is zero, the margin's gradient is not zero.
            Then the attack's loss is flat.
    """

    attack: str
    found: int
    planted: int
    passed: bool | None
    zero_gradients: float | None = None
    saturated: bool = False


@dataclasses.dataclass(frozen=True)
class _PlantedResult:
    """The result of an attack for one planted image; `zero_gradient` is `None` for an attack without gradients."""

    found: bool
    zero_gradient: bool | None
    saturated: bool


class PlantedExamples(Measure):
    """For every attack of the evaluation and of the checklist, the number of planted images that it finds."""

    name = "planted"
    version = PLANTED_ALGORITHM

    def key(self, context: Context) -> Any:
        if not context.config.checklist:
            return None
        tested = {attack.name: attack.version for attack in _tested(context)}
        return {"radius": checked_radius(context.config).text, "attacks": tested, "judged_by": JUDGEMENT_VERSION}

    def measure(self, context: Context) -> Any:
        radius, seed = checked_radius(context.config), context.config.seed
        tested = dict.fromkeys(_tested(context), radius)
        found = find_planted_examples(context.target, tested, context.examples, seed)
        attacks = [dataclasses.asdict(each) for each in found]
        return {"norm": radius.norm, "epsilon": radius.epsilon, "attacks": attacks}


def _tested(context: Context) -> list[Attack]:
    """Return the attacks of the evaluation in the norm of the checklist, and those that the checklist needs."""
    norm = checked_radius(context.config).norm or "linf"
    attacks = [trial.attack for trial in context.trials if trial.attack]
    attacks = [attack for attack in attacks if not isinstance(attack, BallAttack) or attack.norm == norm]
    needed = [name for name in NEEDED if name != "z_margin" or is_gaussian(context.target)]
    attacks += [in_norm(name, norm, context.config.eot_samples) for name in needed]
    return list({attack.name: attack for attack in attacks}.values())


def checked_radius(config: EvaluateConfig) -> Radius:
    """Return the radius of the checklist and the planted examples: the first above 0, in the norm of its attacks."""
    radius = next(radius for radius in config.parsed_radii if radius.epsilon > 0)
    norms = [attack.norm for attack, _ in config.attacks_with_radii()]
    return Radius(radius.epsilon, radius.norm or (norms or ["linf"])[0])


def in_norm(name: str, norm: str, eot_samples: int) -> Attack:
    """Return the attack `name`, in the norm `norm` if the attack has a norm."""
    attack = parse_attack(name, eot_samples=eot_samples)
    if isinstance(attack, BallAttack) and norm != attack.norm:
        return parse_attack(f"{name}:norm={norm}", eot_samples=eot_samples)
    return attack


def largest_radii(config: EvaluateConfig) -> dict[Attack, Radius]:
    """Return each attack with the largest radius of its norm; of the first norm, for an attack without a radius."""
    in_balls = [attack for attack, _ in config.attacks_with_radii()]
    first = in_balls[0].norm if in_balls else config.parsed_radii[0].norm or "linf"
    free = [attack for attack in config.parsed_attacks if not attack.has_radius]

    def largest(norm: str) -> Radius:
        return Radius(max(radius.epsilon for radius in config.parsed_radii if radius.norm in (None, norm)), norm)

    return {attack: largest(attack.norm) for attack in in_balls} | dict.fromkeys(free, largest(first))


def find_planted_examples(
    target: AnyTarget, attacks: Mapping[Attack, Radius], examples: Examples, seed: int = 0
) -> list[FoundExamples]:
    """Plant an adversarial image near each of the first 10 images, for each attack, and count the images found.

    Args:
        target: the net.
        attacks: the attacks to test, each with a radius in its norm. The radius decides how far away an image is
            planted, for an attack without a radius too.
        examples: clean images.
        seed: seed of the planted images and of the attacks.
    """
    some = examples.take(slice(0, IMAGES)).in_memory()
    images = to_float(tf.constant(some.images))
    # Otherwise the read-out would be fitted to other features than the attack sees.
    known = is_reproducible(target.with_fixed_draw(make_seed(0)), images)
    net = PlantedNet(target, images)
    prepared = {attack.name: (_prepare(attack, net), radius) for attack, radius in attacks.items()}
    looks: dict[str, list[_PlantedResult]] = {name: [] for name in prepared}
    with progress_bar(len(prepared) * len(some), "planted images") as progress:
        for index in range(len(some)):
            site = PlantingSite(net, images[index : index + 1], index, seed)
            for name, (attack, radius) in prepared.items():
                progress.set_description(name, refresh=False)
                look = _look(attack, site, radius) if known and _can_find(attack) else None
                looks[name] += [] if look is None else [look]
                progress.update(1)
    return [_summarise(name, each) for name, each in looks.items()]


def _prepare(attack: Attack, net: PlantedNet) -> Attack:
    """Return the attack, changed so that it can find an error that the planted net makes without its noise."""
    if not isinstance(attack, CarliniWagner):
        return attack
    # C&W stops just past the nearest error of a mean over draws. It gets many draws, and goes so far past the boundary
    # that their noise does not count. The margin of the planted image is fixed, and need not reach the attack's kappa.
    draws = max(attack.eot_samples, net.target.cheap_draws)
    error = net.noise / math.sqrt(draws) if attack.objective == "expected_margin" else 0.0
    return dataclasses.replace(attack, eot_samples=draws, confidence=STANDARD_ERRORS * error)


def _summarise(name: str, looks: list[_PlantedResult]) -> FoundExamples:
    found = [look.found for look in looks]
    zero = [look.zero_gradient for look in looks if look.zero_gradient is not None]
    share = sum(zero) / len(zero) if zero else None
    return FoundExamples(name, sum(found), len(found), _passed(found), share, any(look.saturated for look in looks))


def _passed(found: list[bool]) -> bool | None:
    return any(found) and found.count(False) <= MISSED if found else None


def _can_find(attack: Attack) -> bool:
    """Return whether an attack can find the planted image.

    An attack that looks at another net cannot. Random points cannot, because the planted image is chosen outside them.
    """
    return not (isinstance(attack, RandomSampling) or (isinstance(attack, Transfer) and bool(attack.source)))


def _look(attack: Attack, site: PlantingSite, radius: Radius) -> _PlantedResult | None:
    """Run the attack on the planted net; return `None` where nothing can be planted."""
    net, image = site.net, site.image
    planted = site.plant(_reach(attack, radius, image.shape[1:]))
    if planted is None:
        return None
    index, wanted = np.array([site.index]), np.array([1]) if attack.targeted else None
    made = attack.run(net.target, image, CLEAN_CLASS, radius.epsilon, index, site.seed, wanted)
    zero = _has_zero_gradient(attack, net, image, site.seed, wanted)
    hidden = zero is True and _has_zero_gradient(NEVER_SATURATES, net, image, site.seed) is False
    return _PlantedResult(_is_error(attack, net, made.images, image, planted), zero, hidden)


def _has_zero_gradient(
    attack: Attack, net: PlantedNet, image: tf.Tensor, seed: int, wanted: np.ndarray | None = None
) -> bool | None:
    """Return whether the attack's gradient at the clean image is zero in every pixel.

    Return `None` for an attack without gradients.
    """
    found = attack.check_gradient(net.target, image, CLEAN_CLASS, seed, wanted)
    return None if found is None else bool(found.zero[0])


def _is_error(attack: Attack, net: PlantedNet, adversarial: tf.Tensor, image: tf.Tensor, planted: tf.Tensor) -> bool:
    """Return whether the attack found an error of the planted net without noise, no farther than the planted image."""
    wrong = int(tf.argmax(net.read_out(net.features(adversarial))[0])) != 0
    if isinstance(attack, BallAttack | NPixel):  # its reach is checked already
        return wrong
    near, far = (float(BALLS["l2"].distance(x - image)[0]) for x in (adversarial, planted))
    return wrong and near <= far


def _reach(attack: Attack, radius: Radius, shape: tuple[int, ...]) -> Reach:
    """Return the reach of an attack. Without a radius of its own, it is the largest l2 distance in the ball."""
    if isinstance(attack, NPixel):
        return "pixels", attack.pixels
    if isinstance(attack, BallAttack):
        return attack.norm, radius.epsilon
    return "l2", radius.in_l2(shape)


def format_planted_examples(results: list[FoundExamples]) -> str:
    """Return a line per attack."""
    verdict = {True: "pass", False: "FAIL", None: "not applicable: nothing to be found by it"}
    width = max(len(result.attack) for result in results)
    lines = []
    for result in results:
        reason = _reason(result)
        line = verdict[result.passed] + (f": {reason}" if reason else "")
        lines.append(f"{result.attack.ljust(width)}  found {result.found} of {result.planted} planted  {line}")
    return "\n".join(lines)


def _reason(result: FoundExamples) -> str:
    """Return the reason why an attack failed, if its gradients show it; else an empty text."""
    if result.passed is not False or not result.zero_gradients:
        return ""
    saturated = "saturated, " * result.saturated
    return f"{saturated}the gradient is zero in every pixel on {100 * result.zero_gradients:.0f} % of images"


def as_criterion(results: list[FoundExamples]) -> dict[str, Any]:
    """Return the self-test as a line of the checklist."""
    parts = []
    for result in results:
        reason = _reason(result)
        parts += [f"{result.attack} {result.found}/{result.planted}" + (f" ({reason})" if reason else "")]
    tested = [(result, text) for result, text in zip(results, parts, strict=True) if result.passed is not None]
    passed = all(result.passed for result, _ in tested) if tested else None
    evidence = ", ".join(text for _, text in tested)
    return {"criterion": "every attack finds a planted adversarial image", "passed": passed, "evidence": evidence}
