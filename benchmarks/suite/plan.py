"""What is measured: the attacks, who can make them, how much work each is given, and which cells there are.

A cell is timed in turns by contenders that make the same steps on the same images. Who makes many passes a step makes
fewer steps, and on at most 32 images: fewer would cost more each. Free of both frameworks.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite.timing import Contender

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / ".benchmarks"
NUM_CLASSES = 10
KNOWN = 256  # images that each net is made for
COMPARED = 8  # images on which two libraries' nets are compared
EPSILON = 1e-3  # no image falls, and no query is saved
STEP = EPSILON / 10
RESTARTS = 3
CW_SEARCHES, CW_LEARNING_RATE, CW_CONSTANT = 3, 0.01, 1.0
POPULATION = 400  # of n_pixel; ART's is fixed
IMAGES_PER_PASS = 1000  # wca_tf's, of n_pixel's candidates
ADVERSARIAL_EPSILON = 8 / 255  # the paper's, of adversarial training
MATMUL = 2048  # rows of the square matrices whose product is the peak
MIN_IMAGES = 32  # at a time, where more were asked for
MAX_SECONDS = 45.0  # seconds of a run beyond which a contender is left out
# Contenders, beside the libraries.
OURS, DETERMINISTIC = "wca_tf", "wca_tf without noise"
REPEAT, BARE = "wca_tf, a pass per draw", "bare passes"
UNDEFENDED, FLOAT32 = "wca_tf, undefended net", "wca_tf in float32"
ART, AUTHORS = "ART", "the authors' step in torch"


def weights_file(net: str) -> Path:
    """Return where wca_tf's worker writes a net for the peers'."""
    return PEERS / f"{net}.npz"


@dataclasses.dataclass(frozen=True)
class AttackSpec:
    """What an attack costs an image: `times` passes for each of its units and its start.

    Attributes:
        unit: what times are divided by: gradients, or queries, which are forward passes.
        units: steps, queries or generations on one image.
        least: the same on several: with fewer nothing of the attack's own is timed.
        forward: forward passes that come on top.
    """

    unit: str
    units: int
    times: int = 1
    start: int = 0
    forward: int = 0
    least: int = 1

    def counted(self, units: int) -> int:
        return self.times * (units + self.start)


ATTACKS = {
    "fgsm": AttackSpec("gradients", 1),
    "pgd": AttackSpec("gradients", 10),
    "pgd_restarts": AttackSpec("gradients", 10, RESTARTS, forward=RESTARTS + 1),
    "cw": AttackSpec("gradients", 10, CW_SEARCHES),
    "apgd": AttackSpec("gradients", 20, start=1),
    "square": AttackSpec("queries", 100, least=10),  # one is its start
    "n_pixel": AttackSpec("queries", 1, POPULATION, start=1),
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
FACTORS = {("ART", "cw"): 12, ("ART", "square"): 3}  # times the passes of AttackSpec: a line search, passes a query


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
        grid: (net, images at a time, attacks).
        draws: of PGD with EoT; targets are about `target_draws`.
        batch, steps: images a step of training, and steps a run by net; of LeNet++ `adversarial_steps`.
    """

    grid: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...]
    draws: tuple[int, ...]
    target_draws: int
    batch: int
    steps: dict[str, int]
    adversarial_steps: int


BOTH = ("lenet_plus_plus", "resnet18")
FULL = Sizes(
    grid=tuple((net, (1, 32, 256), tuple(ATTACKS)) for net in BOTH),
    draws=(1, 10, 50, 200),
    target_draws=50,
    batch=128,
    steps={"lenet_plus_plus": 20, "resnet18": 4},
    adversarial_steps=3,
)
SMOKE = Sizes(
    grid=(("lenet_plus_plus", (1,), tuple(ATTACKS)), ("resnet18", (2,), ("pgd",))),
    draws=(2,),
    target_draws=2,
    batch=8,
    steps={"lenet_plus_plus": 2},
    adversarial_steps=1,
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is timed in turns; `key` names it in the results. No `draws` is the net without noise."""

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
        for net, batches, attacks in sizes.grid
        for images in batches
        for attack in attacks
        for draws in ((0, *sizes.draws) if attack == "pgd" else (0,))
        if attack != "n_pixel" or images == 1  # an image fills its passes by itself
    ]


def passes_contenders(net: str, images: int) -> list[Contender]:
    """Return a pass by either library, forward and with its gradient, and the product of matrices: seconds an image."""
    job = {"kind": "passes", "net": net, "images": images, "passes": 1}
    return [Contender("matmul", "ours", {"kind": "matmul", "net": net})] + [
        Contender(f"{worker} {kind}", worker, {**job, "gradient": kind == "gradient"}, images)
        for worker in ("ours", "peers")
        for kind in ("forward", "gradient")
    ]


def attack_contenders(cell: Cell, passes: dict[str, float]) -> tuple[list[Contender], dict[str, str]]:
    """Return who makes the cell, and who is left out, with the reason; `passes` are seconds of bare passes."""
    contenders, left_out = [], {}
    kind = "gradient" if ATTACKS[cell.attack].unit == "gradients" else "forward"
    for name, worker, job, factor in _entrants(cell):
        each = _with_work(cell, name, worker, job, factor)
        seconds = factor * each.share * passes[f"{worker} {kind}"]
        if factor > 1 and seconds > MAX_SECONDS:
            left_out[name] = f"a run on {each.told['images']} images would take about {seconds:.0f} s"
        else:
            contenders.append(each)
    return contenders, left_out


def _entrants(cell: Cell) -> list[tuple[str, str, dict[str, Any], int]]:
    """Return (name, worker, job, how many times the attack's passes it makes) of wca_tf, its baselines, and peers."""
    attack = {"kind": "attack", "attack": cell.attack, "draws": cell.draws}
    found: list[tuple[str, str, dict[str, Any], int]] = [(OURS, "ours", attack, 1)]
    if cell.draws:
        found.append((DETERMINISTIC, "ours", {**attack, "draws": 0}, 1))
        found.append((REPEAT, "ours", {**attack, "repeat": True}, cell.draws))
    else:
        gradient = ATTACKS[cell.attack].unit == "gradients"
        found.append((BARE, "ours", {"kind": "passes", "gradient": gradient}, 1))
    for library, attacks in LIBRARIES.items():
        if cell.attack not in attacks or (cell.draws > 1 and library not in AVERAGING):
            continue
        if library.startswith("SciPy"):
            found.append((library, "ours", {"kind": "scipy", "vectorised": library.endswith("vectorised")}, 1))
        else:
            factor = FACTORS.get((library, cell.attack), 1) * max(cell.draws, 1)
            found.append((library, "peers", {**attack, "library": library}, factor))
    return found


def _with_work(cell: Cell, name: str, worker: str, job: dict[str, Any], factor: int) -> Contender:
    spec = ATTACKS[cell.attack]
    images = cell.images if factor == 1 else min(cell.images, MIN_IMAGES)
    units = spec.units if cell.images == factor == 1 else spec.least
    counted = spec.counted(units)
    told = {"images": images, "units": units, f"{spec.unit}_per_image": counted}
    if spec.unit == "queries" and worker == "peers":
        told["passes_per_unit"] = factor
    job = {**job, "net": cell.net, "images": images, "units": units, "passes": counted}
    if name == BARE and cell.attack == "n_pixel":  # as many images in a pass as the attack has candidates
        job |= {"images": POPULATION, "passes": counted // POPULATION}
    return Contender(name, worker, job, images * counted, told)


@dataclasses.dataclass(frozen=True)
class TrainingCell:
    """A net and a way of training it."""

    kind: str
    net: str
    precision: str
    steps: int

    @property
    def key(self) -> str:
        return f"{self.kind}, {self.net}, {self.precision}"


def training_cells(sizes: Sizes) -> list[TrainingCell]:
    precisions = ("float32", "mixed_bfloat16")
    plain = [TrainingCell("training", net, each, steps) for net, steps in sizes.steps.items() for each in precisions]
    return [*plain, TrainingCell("adversarial training", "lenet_plus_plus", "float32", sizes.adversarial_steps)]


def training_contenders(cell: TrainingCell, batch: int) -> list[Contender]:
    """Return who trains in the cell; seconds are an image's."""
    job = {"kind": "training", "net": cell.net, "defence": "wca", "precision": cell.precision}
    job |= {"batch": batch, "steps": cell.steps, "adversarial": cell.kind != "training"}
    undefended = {**job, "defence": "none"}
    float32 = cell.precision == "float32"
    jobs = {
        OURS: ("ours", job),
        **({UNDEFENDED: ("ours", undefended)} if float32 else {FLOAT32: ("ours", {**job, "precision": "float32"})}),
        **({ART: ("peers", undefended)} if job["adversarial"] else {AUTHORS: ("peers", job)}),
    }
    told = {"batch": batch, "steps": cell.steps}
    return [Contender(name, worker, job, batch * cell.steps, told) for name, (worker, job) in jobs.items()]
