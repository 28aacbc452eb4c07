"""What is measured: the attacks, who can make them, how much work each is given, and which cells there are.

A cell is (attack, net, images at a time, draws); its contenders do the same work, except where the time allowed is too
short: then fewer steps. Who makes many passes a step may get fewer images too, not so few that each costs more. Free
of both frameworks.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite.timing import Contender

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / ".benchmarks"
EPSILON = 1e-3  # no image falls, and no query is saved
STEP = EPSILON / 10
RESTARTS = 3
CW_SEARCHES, CW_LEARNING_RATE, CW_CONSTANT = 3, 0.01, 1.0
POPULATION = 400  # of n_pixel; ART's is fixed
MATMUL = 2048  # rows of the square matrices whose product is the peak
IMAGES_PER_PASS = 1000  # wca_tf's, of n_pixel's candidates
OURS, DETERMINISTIC = "wca_tf", "wca_tf without noise"
REPEAT, BARE = "wca_tf, a pass per draw", "bare passes"
SLACK = 1.2  # what an attack takes beyond its passes
MIN_IMAGES = 32  # at a time, where more were asked for: a pass over fewer costs more an image
COMPARED = 8  # images on which two libraries' nets are compared
MAX_SECONDS = 45.0  # seconds of a run beyond which a contender is left out
MIN_ROUNDS = 3  # of cells that take longer than they may
NUM_CLASSES = 10
KNOWN = 256  # images that each net is made for
ADVERSARIAL_EPSILON = 8 / 255  # the paper's, of adversarial training
# Of hidden_noise.py, standard deviations of RSE's noise: of the images, from 0 to 1, and before other convolutions.
IMAGE_NOISE, HIDDEN_NOISE = 0.2, 0.1
DEVIATION_PASSES = 500


def weights_file(net: str) -> Path:
    """Return where wca_tf's worker writes a net for the peers'."""
    return PEERS / f"{net}.npz"


@dataclasses.dataclass(frozen=True)
class AttackSpec:
    """What an attack of `units` steps, queries or generations costs an image: `times` passes for each and the start.

    Attributes:
        unit: what is counted, and what times are divided by: gradients, or queries, which are forward passes.
        forward: passes that come on top.
        weight: of its cells' time.
        least: units that every contender makes, whatever the time: with fewer nothing of the attack's own is timed.
    """

    unit: str
    units: int
    times: int = 1
    start: int = 0
    forward: int = 0
    weight: float = 1.0
    least: int = 1

    def counted(self, units: int) -> int:
        return self.times * (units + self.start)


ATTACKS = {
    "fgsm": AttackSpec("gradients", 1),
    "pgd": AttackSpec("gradients", 10, weight=4.0),  # most targets are its
    "pgd_restarts": AttackSpec("gradients", 10, RESTARTS, forward=RESTARTS + 1),
    "cw": AttackSpec("gradients", 20, CW_SEARCHES),
    "apgd": AttackSpec("gradients", 20, start=1),
    "square": AttackSpec("queries", 100, weight=3.0, least=10),  # one is its start
    "n_pixel": AttackSpec("queries", 3, POPULATION, start=1),
}
# The other libraries, and their attacks. torchattacks' and CleverHans's C&W are other attacks.
LIBRARIES = {
    "Foolbox": ("fgsm", "pgd", "pgd_restarts", "cw"),
    "ART": tuple(ATTACKS),
    "torchattacks": ("fgsm", "pgd", "pgd_restarts", "apgd", "square", "n_pixel"),
    "CleverHans": ("fgsm", "pgd"),
    "SciPy, a pass per candidate": ("n_pixel",),
    "SciPy, vectorised": ("n_pixel",),
}
AVERAGING = ("Foolbox", "torchattacks")  # their PGD averages over draws: of logits, and of gradients
# How many times the passes of AttackSpec a library makes: ART's line search, its three passes a query.
FACTORS = {("ART", "cw"): 12.0, ("ART", "square"): 3.0, ("SciPy, a pass per candidate", "n_pixel"): 4.0}


def check_result(attack: str, result: np.ndarray, images: np.ndarray) -> None:
    """Raise unless the result [B, H, W, channels] is in [0, 1] and in the ball; and, where it must, has moved."""
    if not ((result >= 0) & (result <= 1)).all():
        raise RuntimeError(f"{attack} left [0, 1]: {result.min()} to {result.max()}")
    distances = np.abs(result - images).max(axis=(1, 2, 3))
    held = attack not in ("cw", "n_pixel")  # these return an image that falls, and none does
    moves = attack in ("fgsm", "pgd")  # the others may return an image that does not fall
    if (held and distances.max() > EPSILON + 1e-6) or (moves and distances.min() == 0):
        raise RuntimeError(f"{attack} moved images by {distances.min()} to {distances.max()}, epsilon {EPSILON}")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        grid: (net, images at a time, draws of PGD, attacks); every attack has 0 draws too, the net without noise.
        target_draws: the number of draws that targets are about.
        most: the largest number of units of an attack.
        batch, steps: images a step of training, and steps a run by net; of LeNet++ `adversarial_steps`.
    """

    grid: tuple[tuple[str, tuple[int, ...], tuple[int, ...], tuple[str, ...]], ...]
    target_draws: int
    most: int
    batch: int
    steps: dict[str, int]
    adversarial_steps: int


FULL = Sizes(
    tuple((net, (1, 32, 256), (1, 10, 50, 200), tuple(ATTACKS)) for net in ("lenet_plus_plus", "resnet18")),
    50,
    100,
    128,
    {"lenet_plus_plus": 20, "resnet18": 4},
    3,
)
SMOKE = Sizes(
    (("lenet_plus_plus", (2,), (2,), tuple(ATTACKS)), ("resnet18", (1,), (2,), ("pgd",))),
    2,
    2,
    8,
    {"lenet_plus_plus": 2},
    1,
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is timed in turns; `key` names it in the results."""

    attack: str
    net: str
    images: int
    draws: int

    @property
    def key(self) -> str:
        return f"{self.attack}, {self.group}, {f'EoT {self.draws}' if self.draws else 'deterministic'}"

    @property
    def group(self) -> str:
        return f"{self.net}, {self.images} images"


def attack_cells(sizes: Sizes) -> list[Cell]:
    """Return every cell, those of a net and a number of images together."""
    return [
        Cell(attack, net, images, draws)
        for net, batches, levels, attacks in sizes.grid
        for images in batches
        for attack in attacks
        for draws in ((0, *levels) if attack == "pgd" else (0,))
    ]


def passes_contenders(net: str, images: int) -> list[Contender]:
    """Return a pass by either library, forward and with its gradient, and the product of matrices: seconds an image."""
    job = {"kind": "passes", "net": net, "images": images, "passes": 1}
    return [Contender("matmul", "ours", {"kind": "matmul", "net": net})] + [
        Contender(f"{worker} {kind}", worker, {**job, "gradient": kind == "gradient"}, images)
        for worker in ("ours", "peers")
        for kind in ("forward", "gradient")
    ]


@dataclasses.dataclass(frozen=True)
class Entrant:
    """A contender whose work is not decided yet; it makes `factor` times the passes of the attack."""

    name: str
    worker: str
    job: dict[str, Any]
    factor: float = 1.0

    @property
    def one_image(self) -> bool:
        return self.name.startswith("SciPy")


def entrants(cell: Cell) -> list[Entrant]:
    """Return who makes the cell: wca_tf, its own baselines, and the libraries that can."""
    attack = {"kind": "attack", "attack": cell.attack, "draws": cell.draws}
    found = [Entrant(OURS, "ours", attack)]
    if cell.draws:
        found.append(Entrant(DETERMINISTIC, "ours", {**attack, "draws": 0}))
        found.append(Entrant(REPEAT, "ours", {**attack, "repeat": True}, cell.draws))
    else:
        found.append(Entrant(BARE, "ours", {"kind": "passes", "gradient": ATTACKS[cell.attack].unit == "gradients"}))
    for library, attacks in LIBRARIES.items():
        if cell.attack in attacks and (cell.draws <= 1 or library in AVERAGING):
            factor = FACTORS.get((library, cell.attack), 1.0) * max(cell.draws, 1)
            scipy = library.startswith("SciPy")
            job = {"kind": "scipy", "vectorised": factor == 1} if scipy else {**attack, "library": library}
            found.append(Entrant(library, "ours" if scipy else "peers", job, factor))
    return found


Passes = dict[str, float]  # "ours forward", "ours gradient", "peers forward", "peers gradient" -> seconds an image


def attack_contenders(
    cell: Cell, sizes: Sizes, passes: Passes, budget: float, rounds: int
) -> tuple[list[Contender], int, dict[str, str]]:
    """Give who makes the cell as much work as they can do in their share of `budget` seconds.

    Returns:
        The contenders, in how many rounds they take turns, and those left out, with the reason.
    """
    found, spec = entrants(cell), ATTACKS[cell.attack]
    limit = budget * spec.weight / len(found) / (rounds + 2)  # two runs to warm up
    asked = (cell.images, min(spec.units, sizes.most))

    def fit(entrant: Entrant, asked: tuple[int, int], least: int) -> tuple[int, int]:
        """Return what was asked, or fewer units, then fewer images down to `least`, for `limit` seconds."""
        images, most = asked
        fitting = (u for u in range(most, spec.least, -1) if estimate(entrant, spec, passes, images, u) <= limit)
        units = next(fitting, min(spec.least, most))
        return max(least, min(images, int(limit / estimate(entrant, spec, passes, 1, units)))), units

    alike = [each for each in found if each.factor == 1 and not each.one_image]
    least = 1 if cell.attack == "n_pixel" else cell.images  # its image fills a pass by itself
    common = min(fit(each, asked, least) for each in alike)  # for all who make one pass a step
    contenders, left_out, total = [], {}, 0.0
    for each in found:
        images = 1 if each.one_image else common[0]
        work = common if each in alike else fit(each, (images, common[1]), min(images, MIN_IMAGES))
        seconds = estimate(each, spec, passes, *work)
        if seconds > MAX_SECONDS and each not in alike:
            left_out[each.name] = f"a run on {work[0]} images would take about {seconds:.0f} s"
        else:
            total += seconds
            contenders.append(_contender(each, cell, work))
    return contenders, min(rounds, max(MIN_ROUNDS, int(budget * spec.weight / total) - 2)), left_out


def estimate(entrant: Entrant, spec: AttackSpec, passes: Passes, images: int, units: int) -> float:
    """Return the seconds that a run will take, from bare passes."""
    forward, gradient = (passes[f"{entrant.worker} {kind}"] for kind in ("forward", "gradient"))
    each = gradient if spec.unit == "gradients" else forward
    return SLACK * entrant.factor * images * (spec.counted(units) * each + spec.forward * forward)


def _contender(entrant: Entrant, cell: Cell, work: tuple[int, int]) -> Contender:
    (images, units), spec = work, ATTACKS[cell.attack]
    counted = spec.counted(units)
    job = {**entrant.job, "net": cell.net, "images": images, "units": units, "passes": counted}
    told = {"images": images, "units": units, f"{spec.unit}_per_image": counted}
    if entrant.name == BARE and cell.attack == "n_pixel":  # as many images in a pass as the attack has candidates
        size = min(images * POPULATION, IMAGES_PER_PASS)
        job |= {"images": size, "passes": -(-images * counted // size)}
    if spec.unit == "queries" and entrant.worker == "peers":
        told["passes_per_unit"] = entrant.factor
    return Contender(entrant.name, entrant.worker, job, images * counted, told)
