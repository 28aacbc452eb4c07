"""The checklist's criteria: the evidence for each, and its verdict.

They are the five criteria of the paper (section 4.5, after Athalye et al., ICML 2018, and He et al., CVPR 2019), and
the criteria of Carlini et al. (2019). A failure of the paper's first criterion may be due to the paper's own PGD alone.
The criterion is therefore tested again with a longer PGD. The criteria compare mean P(correct) on the same images. Only
random sampling and zero gradients count images.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from wca_tf.attacks import parse_attack
from wca_tf.evaluation.outcomes import CLEAN, Outcome
from wca_tf.gaussian.intervals import percent

# A mean of P(correct) counts as lower if it is lower by more than this many images, of the hundred or fewer tested.
IMAGES_LOWER = 2
# The largest share of images whose cross-entropy gradient may be exactly zero. A plain net has no such images.
ZERO_GRADIENTS = 0.01

ONE_STEP, PAPERS = "fgsm", "pgd"  # the paper's, with its parameters
STANDARD = "pgd:steps=40"
ADAPTIVE = ("margin", "z_margin")
DOUBLED = {STANDARD: "pgd:steps=80", "margin": "margin:steps=80", "z_margin": "z_margin:steps=80"}
SHORTER = {"square": "square:queries=1000"}  # run first: where it is better than the standard attack, that decides
UNBOUNDED = "pgd:steps=20"  # the paper's
# Each of these attacks must find a planted image. Square must do so only where it is asked for: its 5,000 queries would
# take the longest.
NEEDED = (ONE_STEP, PAPERS, STANDARD, *ADAPTIVE)


@dataclasses.dataclass(frozen=True)
class GradientFreeAttacks:
    """The checklist's attacks without gradients, as written. They take the longest.

    Smaller attacks than these defaults are only for trials.
    """

    square: str = "square"
    random_sampling: str = "random_sampling:points=1000"  # as many as in the paper
    n_pixel: str = "n_pixel:objective=margin:population=40:generations=25"


Key = tuple[str, float | None]  # an attack as written here, and its radius; None for an attack without one


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The evidence for the criteria.

    Attributes:
        searches: the attacks without gradients, as written.
        norm: the norm of the radii.
        outcomes: the outcomes by (attack as written here, radius); the radius of an attack without one is `None`.
        fixed_draws: the outcomes of the standard attack when it knows the draw, one for each draw; empty where no draw
            can be known.
        random: P(correct) under random points, for the images that `robust_images` returns.
        epsilon: the radius of the checklist.
        largest: a radius that leaves an attack unbounded.
        one_pixel: the smallest radius whose ball allows as much l2 distortion as any change of one pixel.
        num_classes: C.
        has_noise: whether the net has noise.
        repeatable: whether the seed decides the noise.
        order: the images [N] in the order in which attacks meet them whose outcomes are of fewer images, as more would
            not change the verdict.
    """

    searches: GradientFreeAttacks
    norm: str
    outcomes: dict[Key, Outcome]
    fixed_draws: list[Outcome]
    random: np.ndarray
    epsilon: float
    largest: float
    one_pixel: float
    num_classes: int
    has_noise: bool = False
    repeatable: bool = True
    order: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def probability(self, name: str, epsilon: float | None = None) -> np.ndarray:
        """Return P(correct) per image under an attack, at the radius of the checklist unless another is given."""
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
        """Return the attack with the lowest mean P(correct) among the standard and the adaptive attacks."""
        return min((name for name in DOUBLED if self.has(name)), key=self.mean)


Verdict = tuple[bool | None, str]


def robust_images(outcomes: dict[Key, Outcome], epsilon: float) -> np.ndarray:
    """Return the indices of the images that the net gets right in most draws, clean and under the standard attack."""
    left = [outcomes[key].judgement.probability_correct for key in ((CLEAN, 0.0), (STANDARD, epsilon))]
    return np.flatnonzero(np.min(left, axis=0) >= 0.5)


def not_lower(evidence: Evidence, weaker: str, stronger: str) -> Verdict:
    """Return whether the attack `weaker` leaves no lower mean P(correct) than `stronger`, with the evidence."""
    weak, strong, note = evidence.probability(weaker), evidence.probability(stronger), ""
    if len(weak) < len(strong):
        strong, note = strong[evidence.order[: len(weak)]], f", on {len(weak)} images, by which the verdict is sure"
    left, right = float(weak.mean()), float(strong.mean())
    return left >= right - evidence.tolerance, f"{weaker} leaves {percent(left)} %, {stronger} {percent(right)} %{note}"


def _papers_one_step(evidence: Evidence) -> Verdict:
    """Return the verdict on FGSM against the paper's PGD.

    The steps of that PGD add up to epsilon. It therefore reaches a corner of the ball only if it starts on that
    corner's side.
    """
    passed, text = not_lower(evidence, ONE_STEP, PAPERS)
    if passed or not _one_step(evidence)[0] or evidence.norm != "linf":
        return passed, text
    return passed, f"{text}: probably since ten steps of a tenth of epsilon, begun at random, end short of a corner"


def _one_step(evidence: Evidence) -> Verdict:
    return not_lower(evidence, ONE_STEP, STANDARD)


def _square(evidence: Evidence) -> Verdict:
    if not evidence.repeatable:
        return None, "no seed decides the net's noise, so that Square's proposals cannot meet the same draws"
    square = evidence.searches.square
    shorter = SHORTER.get(square, square)
    return not_lower(evidence, square if evidence.has(square) else shorter, STANDARD)


def _pixels(evidence: Evidence) -> Verdict:
    """Return the verdict on n-pixel against the standard attack.

    If n-pixel finds more errors, and a changed pixel can be farther away than the ball allows, the criterion does not
    apply.
    """
    passed, text = not_lower(evidence, evidence.searches.n_pixel, STANDARD)
    if passed or evidence.epsilon >= evidence.one_pixel:
        return passed, text
    return None, f"{text}, but a changed pixel is farther away, in l2, than this epsilon allows"


def _unbounded(evidence: Evidence) -> Verdict:
    """Return whether the mean is at most that of guessing, and hardly an image stays right more often than not.

    At this radius each image can become any other. An attack that works therefore wins on each of them.
    """
    judged = evidence.probability(UNBOUNDED, evidence.largest)
    left, mostly, chance = float(judged.mean()), float((judged > 0.5).mean()), 1 / evidence.num_classes
    return (
        left <= chance and mostly <= evidence.tolerance,
        f"{UNBOUNDED} at {evidence.largest:.4g} leaves {percent(left)} %, chance is {percent(chance)} %; "
        f"{percent(mostly)} % of images stay at P(correct) > ½",
    )


def _random(evidence: Evidence) -> Verdict:
    """Return whether no random point is mostly wrong, on images that the net mostly gets right under PGD."""
    found, images = int((evidence.random < 0.5).sum()), len(evidence.random)
    points = parse_attack(evidence.searches.random_sampling).passes
    if not images:
        return None, f"{STANDARD} leaves no image at P(correct) ≥ ½"
    text = f"{points:,} points bring {found} of the {images} images that {STANDARD} leaves at P(correct) ≥ ½ below it"
    return found == 0, f"{text} (the paper: 1,000 points, on images that FGSM brings to an error)"


def _budget(evidence: Evidence) -> Verdict:
    radii = sorted({evidence.epsilon / 2, evidence.epsilon, min(2 * evidence.epsilon, evidence.largest)})
    left = [evidence.mean(STANDARD, radius) for radius in radii]
    falls = all(after <= before + evidence.tolerance for before, after in zip(left, left[1:], strict=False))
    text = ", ".join(f"{percent(share)} % at {radius:.4g}" for radius, share in zip(radii, left, strict=True))
    lower = left[-1] < left[0] - evidence.tolerance or left[0] <= evidence.tolerance
    return falls and lower, f"{STANDARD} leaves {text}"


def _fixed_draw(evidence: Evidence) -> Verdict:
    """Return the verdict on the attack that knows the draw, by the mean over draws.

    With a single draw, the mean over images deviates by about as much as the tolerance.
    """
    if not evidence.fixed_draws:
        return None, "no seed decides the net's noise" if evidence.has_noise else "the net has no noise"
    left = np.array([outcome.judgement.probability_correct.mean() for outcome in evidence.fixed_draws])
    known, error = float(left.mean()), float(left.std(ddof=1)) / math.sqrt(len(left))
    unknown = evidence.mean(STANDARD)
    text = (
        f"{STANDARD} leaves {percent(known)} % when it knows the draw (mean of {len(left)} draws, "
        f"standard error {percent(error)}), {percent(unknown)} % when it does not"
    )
    return known <= unknown + evidence.tolerance, text


def _zero_gradients(evidence: Evidence) -> Verdict:
    share = float(evidence.outcomes[STANDARD, evidence.epsilon].zero_gradients.mean())
    return (
        share <= ZERO_GRADIENTS,
        f"the gradient of cross-entropy is zero in every pixel on {percent(share)} % of images",
    )


def _more_steps(evidence: Evidence) -> Verdict:
    return not_lower(evidence, DOUBLED[evidence.strongest()], evidence.strongest())


def _adaptive(evidence: Evidence) -> Verdict:
    adaptive = min((name for name in ADAPTIVE if evidence.has(name)), key=evidence.mean)
    return not_lower(evidence, adaptive, STANDARD)


def _transfer(evidence: Evidence) -> Verdict:
    if not evidence.has("transfer"):
        return None, "no noise-free form of this net is known"
    return not_lower(evidence, "transfer", STANDARD)


CRITERIA: dict[str, Callable[[Evidence], Verdict]] = {
    "one-step attacks are no better than iterative ones (paper, 1: FGSM against its PGD-10)": _papers_one_step,
    "black-box attacks are no better than white-box ones (paper's criterion 2, but by Square)": _square,
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
