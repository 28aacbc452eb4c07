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
NETS = ("lenet_plus_plus", "resnet18")
NUM_CLASSES, FEATURE_DIM = 10, 32
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
MOST_PASSES = {"lenet_plus_plus": 6400, "resnet18": 1600}  # of a step: who makes more is left out, for the time
# Contenders, beside the libraries.
OURS, DETERMINISTIC = "wca_tf", "wca_tf without noise"
REPEAT, BARE, PRODUCT = "wca_tf, a pass per draw", "bare passes", "product of matrices"
UNDEFENDED, ART, AUTHORS = "wca_tf, undefended net", "ART", "the authors' step in torch"


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


def attack_cells(smoke: bool) -> list[Cell]:
    """Return every cell, those of a net and a number of images together; EoT is PGD's alone."""
    grid = {"lenet_plus_plus": (1,), "resnet18": (2,)} if smoke else dict.fromkeys(NETS, (1, 32, 256))
    return [
        Cell(attack, net, images, draws)
        for net, batches in grid.items()
        for images in batches
        for attack in ATTACKS
        for draws in ((0, *eot_draws(smoke)) if attack == "pgd" else (0,))
        if attack != "n_pixel" or images == 1  # an image fills its passes by itself
    ]


def eot_draws(smoke: bool) -> tuple[int, ...]:
    return (2,) if smoke else (1, 10, 50, 200)


def target_draws(smoke: bool) -> int:
    """Return the number of draws that targets are about."""
    return 2 if smoke else 50


def attack_contenders(cell: Cell) -> list[Contender]:
    """Return who makes the cell, and without noise also the product of matrices, which tells the machine's peak."""
    found = [_with_work(cell, *entrant) for entrant in _entrants(cell)]
    return found if cell.draws else [*found, Contender(PRODUCT, "ours", {"kind": "product", "net": cell.net})]


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
    most = MOST_PASSES[cell.net] / min(cell.images, MIN_IMAGES)
    return [entrant for entrant in found if entrant[3] == 1 or entrant[3] <= most]


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
    """A net and a way of training it: `steps` steps a run, of `batch` images."""

    kind: str
    net: str
    precision: str
    steps: int
    batch: int

    @property
    def key(self) -> str:
        return f"{self.kind}, {self.net}, {self.precision}"


def training_cells(smoke: bool) -> list[TrainingCell]:
    steps = {"lenet_plus_plus": 2} if smoke else {"lenet_plus_plus": 20, "resnet18": 4}
    rows = [("training", net, each, steps[net]) for net in steps for each in ("float32", "mixed_bfloat16")]
    rows.append(("adversarial training", "lenet_plus_plus", "float32", 1 if smoke else 3))
    return [TrainingCell(*row, batch=8 if smoke else 128) for row in rows]


def training_contenders(cell: TrainingCell) -> list[Contender]:
    """Return who trains in the cell; seconds are an image's."""
    job = {"kind": "training", "net": cell.net, "defence": "wca", "precision": cell.precision}
    told = {"batch": cell.batch, "steps": cell.steps}
    job |= {**told, "adversarial": cell.kind != "training"}
    undefended, jobs = {**job, "defence": "none"}, {OURS: ("ours", job)}
    if cell.precision == "float32":
        jobs[UNDEFENDED] = ("ours", undefended)
    jobs |= {ART: ("peers", undefended)} if job["adversarial"] else {AUTHORS: ("peers", job)}
    share = cell.batch * cell.steps
    return [Contender(name, worker, job, share, told) for name, (worker, job) in jobs.items()]
