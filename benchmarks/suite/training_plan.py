"""Which training steps are timed against each other. Free of both frameworks."""

import dataclasses
from typing import Any

from benchmarks.suite.timing import Contender

WCA, UNDEFENDED, AUTHORS = "wca_tf", "wca_tf, undefended net", "the authors' step in torch"
FLOAT32, REPEAT, ART = "wca_tf in float32", "wca_tf, a pass per draw", "ART"
PRECISIONS = ("float32", "mixed_bfloat16")
PLAIN, ADVERSARIAL = "training", "adversarial training"


@dataclasses.dataclass(frozen=True)
class TrainingSizes:
    """Images a step, and steps a run by net; of adversarial training, and of it with a pass per draw; its draws."""

    batch: int = 128
    steps: tuple[tuple[str, int], ...] = (("lenet_plus_plus", 20), ("resnet18", 4))
    adversarial_net: str = "lenet_plus_plus"
    adversarial_steps: int = 3
    repeat_batch: int = 16
    draws: int = 50


FULL = TrainingSizes()
SMOKE = TrainingSizes(8, (("lenet_plus_plus", 2),), adversarial_steps=1, repeat_batch=2, draws=2)


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


def training_cells(sizes: TrainingSizes) -> list[TrainingCell]:
    plain = [TrainingCell(PLAIN, net, precision, steps) for net, steps in sizes.steps for precision in PRECISIONS]
    return [*plain, TrainingCell(ADVERSARIAL, sizes.adversarial_net, "float32", sizes.adversarial_steps)]


def training_contenders(cell: TrainingCell, sizes: TrainingSizes) -> list[Contender]:
    """Who trains in the cell; seconds are an image's."""
    job = {"kind": "training", "net": cell.net, "defence": "wca", "precision": cell.precision}
    job |= {"batch": sizes.batch, "steps": cell.steps, "adversarial": cell.kind == ADVERSARIAL}
    undefended = {**job, "defence": "none"}
    jobs: dict[str, tuple[str, dict[str, Any]]] = {WCA: ("ours", job)}
    if cell.kind == ADVERSARIAL:
        repeat = {**job, "draws": sizes.draws, "batch": sizes.repeat_batch, "steps": 1}
        jobs |= {UNDEFENDED: ("ours", undefended), REPEAT: ("ours", repeat), ART: ("peers", undefended)}
    elif cell.precision == "float32":
        jobs |= {UNDEFENDED: ("ours", undefended), AUTHORS: ("peers", job)}
    else:
        jobs |= {FLOAT32: ("ours", {**job, "precision": "float32"}), AUTHORS: ("peers", job)}
    return [
        Contender(name, worker, told, told["batch"] * told["steps"], {"batch": told["batch"], "steps": told["steps"]})
        for name, (worker, told) in jobs.items()
    ]
