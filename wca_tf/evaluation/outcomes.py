"""The outcome of an attack on each image, in memory and on disk. Results and reports are made from these records."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.core import files
from wca_tf.evaluation.worst_case import least_probability
from wca_tf.nets.judge import Judgement

# The number of adversarial images that are kept for the report.
GALLERY = 8
CLEAN = "clean"
PER_IMAGE = (  # fields of Outcome
    *("linf", "l2", "l0", "zero_gradients", "useless_gradients", "target_probability", "found", "generations"),
    *("forward_passes", "backward_passes"),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one attack on the first images of a split.

    The clean images have an outcome too, as if by an attack without a configuration.

    Attributes:
        name: the attack as written in `--attacks`, or "clean".
        epsilon: the radius; `None` for an attack without a radius, 0 for the clean images.
        config: the attack's parameters.
        judgement: the judgement of the images.
        linf, l2, l0: per image [N], the distance from the clean image; l0 counts pixels.
        zero_gradients: per image [N], whether the gradient at the clean image is zero in every pixel; NaN for an attack
            without gradients.
        useless_gradients: per image [N], the same, also where float32 loses the term of the label; see `CleanGradient`.
        target_probability: per image [N], P(target class) for a targeted attack; NaN for other attacks.
        found: per image [N], whether an attack that searches for the nearest adversarial image found one; NaN for other
            attacks.
        generations: per image [N], how many generations n_pixel searched; NaN for other attacks.
        images: [at most 8, H, W, channels], the first adversarial images.
        seconds: the time that it took.
        forward_passes, backward_passes: per image [N], the attack's passes through nets, as the mean of a batch; NaN
            where the net does not count them.
    """

    name: str
    epsilon: float | None
    config: dict[str, Any]
    judgement: Judgement
    linf: np.ndarray
    l2: np.ndarray
    l0: np.ndarray
    zero_gradients: np.ndarray
    useless_gradients: np.ndarray
    target_probability: np.ndarray
    found: np.ndarray
    generations: np.ndarray
    images: np.ndarray
    seconds: float
    forward_passes: np.ndarray
    backward_passes: np.ndarray

    @property
    def norm(self) -> str | None:
        """The norm of the radius; `None` without a radius."""
        return None if self.epsilon is None else self.config.get("norm")

    def __len__(self) -> int:
        return len(self.linf)

    def extended(self, other: "Outcome") -> "Outcome":
        """Return the outcome on the images of this outcome, followed by the images of `other`."""
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in PER_IMAGE
        }
        images = np.concatenate([self.images, other.images])[:GALLERY]
        judgement = Judgement.concatenate([self.judgement, other.judgement])
        seconds = self.seconds + other.seconds
        return dataclasses.replace(self, judgement=judgement, images=images, seconds=seconds, **arrays)

    def first(self, count: int) -> "Outcome":
        """Return the outcome on the first `count` images."""
        arrays: dict[str, Any] = {name: getattr(self, name)[:count] for name in (*PER_IMAGE, "images")}
        fields = {f.name: getattr(self.judgement, f.name)[:count] for f in dataclasses.fields(Judgement)}
        return dataclasses.replace(self, judgement=Judgement(**fields), **arrays)


def record_path(directory: Path, name: str, epsilon: float | None) -> Path:
    """Return the path of an outcome's record: a readable name, and a hash that makes it unique."""
    digest = hashlib.sha256(json.dumps([name, epsilon]).encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9.=-]+", "_", name)[:60]
    return directory / f"{readable}{'' if epsilon is None else f'-{epsilon:.4g}'}-{digest}.npz"


def save_outcome(outcome: Outcome, directory: Path) -> None:
    """Write the record of an attack, for the images that it has attacked so far."""
    described = {"name": outcome.name, "epsilon": outcome.epsilon, "config": outcome.config, "seconds": outcome.seconds}
    arrays: dict[str, Any] = {
        "described": np.array(json.dumps(described)),
        **{name: getattr(outcome, name) for name in PER_IMAGE},
        "images": outcome.images,
        **{f"judgement_{f.name}": getattr(outcome.judgement, f.name) for f in dataclasses.fields(Judgement)},
    }
    path = record_path(directory, outcome.name, outcome.epsilon)
    files.write_atomically(path, lambda temporary: np.savez(temporary, **arrays))


def load_outcome(
    directory: Path, name: str, epsilon: float | None, algorithms: dict[str, int] | None = None
) -> Outcome | None:
    """Return the record of an attack, or `None` where there is no record.

    The result is `None` too where the record's `config` does not have all items of `algorithms`, and where the file is
    broken; then a line is printed.

    Raises:
        InputError: the disk does not give the file.
    """
    path = record_path(directory, name, epsilon)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        described = json.loads(str(arrays.pop("described")))
        if not (algorithms or {}).items() <= described["config"].items():
            return None  # it is of an older algorithm, and may lack fields that records have today
        fields = {f.name: arrays.pop(f"judgement_{f.name}") for f in dataclasses.fields(Judgement)}
        return Outcome(**described, judgement=Judgement(**fields), **arrays)
    except Exception as error:  # NumPy raises whatever zip and its own readers raise
        files.check_broken(error, path)
        return None


def stored_worst_case(arrays: dict[str, np.ndarray], names: list[str], norm: str, epsilon: float) -> Judgement:
    """Return the judgement of each image in the worst case over the clean image and the named attacks at a radius.

    `arrays` are those of `per_example_arrays`.
    """
    described = zip(*(arrays[key].tolist() for key in ("attack", "norm", "epsilon")), strict=True)
    rows = [
        row
        for row, (name, *radius) in enumerate(described)
        if name == CLEAN or (name in names and radius == [norm, epsilon])
    ]
    return least_probability(stored_judgements(arrays, rows))


def stored_judgements(arrays: dict[str, np.ndarray], rows: list[int]) -> list[Judgement]:
    """Return the judgements of the outcomes `rows` of `arrays`, which are those of `per_example_arrays`."""
    shape = arrays["probability_correct"].shape
    every = {"hits": np.zeros((*shape, 0), bool), "blocks": np.tile(arrays["index"], (shape[0], 1)), **arrays}
    return [Judgement(**{f.name: every[f.name][row] for f in dataclasses.fields(Judgement)}) for row in rows]


def per_example_arrays(outcomes: list[Outcome], labels: np.ndarray, first: int = 0) -> dict[str, np.ndarray]:
    """Return the arrays of examples.npz; `first` is the index of the first image.

    `index` and `label` are [N]. The other arrays have a row for each outcome, and the clean images come first: names,
    norms and radii are [A], numbers are [A, N]. An attack without a radius has epsilon NaN and an empty norm. For a net
    that is judged by draws, there are also `hits` [A, N, draws] and `blocks` [A, N].
    """
    hits = np.stack([outcome.judgement.hits for outcome in outcomes])
    judged = ("correct", "noise_free_correct", "probability_correct", "probability_error", "z_margin")
    return {
        "index": first + np.arange(len(labels)),
        "label": labels,
        "attack": np.array([outcome.name for outcome in outcomes]),
        "norm": np.array([o.norm or "" for o in outcomes]),
        "epsilon": np.array([np.nan if o.epsilon is None else o.epsilon for o in outcomes]),
        **{name: np.stack([getattr(o.judgement, name) for o in outcomes]) for name in judged},
        **{name: np.stack([getattr(o, name) for o in outcomes]) for name in ("linf", "l2", "l0", "found")},
        **({"hits": hits, "blocks": np.stack([o.judgement.blocks for o in outcomes])} if hits.size else {}),
    }
