"""Which training steps are timed against each other. Free of both frameworks."""

import dataclasses

from benchmarks.suite.plan import Sizes
from benchmarks.suite.timing import Contender

WCA, UNDEFENDED, AUTHORS = "wca_tf", "wca_tf, undefended net", "the authors' step in torch"
FLOAT32, ART = "wca_tf in float32", "ART"


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
    undefended, jobs = {**job, "defence": "none"}, {WCA: ("ours", job)}
    if cell.precision == "float32":
        jobs[UNDEFENDED] = ("ours", undefended)
    else:
        jobs[FLOAT32] = ("ours", {**job, "precision": "float32"})
    name, told = (ART, undefended) if job["adversarial"] else (AUTHORS, job)
    jobs[name] = ("peers", told)
    told = {"batch": batch, "steps": cell.steps}
    return [Contender(name, worker, job, batch * cell.steps, told) for name, (worker, job) in jobs.items()]
