"""The outcome of an attack: what it left of each image, in memory and on disk. All numbers are made from it."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.attacks.radii import Radius, as_radius
from wca_tf.core import files
from wca_tf.gaussian.intervals import mean_with_interval
from wca_tf.nets.judge import Judgement

# The largest number of images that a record keeps for the report.
GALLERY = 8
CLEAN = "clean"
RECORDS = "records"  # the folder of a report directory with a file for each outcome
# Fields of Outcome with a number for each image.
PER_IMAGE = (
    *("labels", "linf", "l2", "l0", "zero_gradients", "useless_gradients", "target_probability", "found"),
    *("generations", "forward_passes", "backward_passes"),
)
SHOWN = ("shown", "flips", "originals", "images")  # fields with a row for each image that is kept


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one attack at one radius on the first images of a split.

    The clean images have an outcome too, as if by an attack without a configuration.

    Attributes:
        name: the attack as written in `--attacks`, or "clean".
        radius: `None` for an attack without a radius, and for the clean images.
        config: the attack's options, and the versions of the code.
        judgement: the judgement of the images.
        labels: whole numbers [N].
        linf, l2, l0: per image [N], the distance from the clean image; l0 counts pixels.
        zero_gradients: per image [N], whether the gradient at the clean image is zero in every pixel; NaN for an attack
            without gradients.
        useless_gradients: per image [N], the same, also where float32 loses the term of the label; see `CleanGradient`.
        target_probability: per image [N], P(target class) for a targeted attack; NaN for other attacks.
        found: per image [N], whether an attack that searches for the nearest adversarial image found one; NaN for other
            attacks.
        generations: per image [N], how many generations n_pixel searched; NaN for other attacks.
        forward_passes, backward_passes: per image [N], the attack's passes through nets, as the mean of a batch; NaN
            where the net does not count them.
        shown: whole numbers [K], the places of the images that are kept: the first that flip, then the first others.
        flips: [K], whether the attack makes the net wrong more often than not where it was right before.
        originals, images: float16 [K, H, W, channels], the kept images before and after the attack.
        seconds: the time that it took.
        raised: how often the net answered with a probability of 0, which was raised to the smallest float.
    """

    name: str
    radius: Radius | None
    config: dict[str, Any]
    judgement: Judgement
    labels: np.ndarray
    linf: np.ndarray
    l2: np.ndarray
    l0: np.ndarray
    zero_gradients: np.ndarray
    useless_gradients: np.ndarray
    target_probability: np.ndarray
    found: np.ndarray
    generations: np.ndarray
    forward_passes: np.ndarray
    backward_passes: np.ndarray
    shown: np.ndarray
    flips: np.ndarray
    originals: np.ndarray
    images: np.ndarray
    seconds: float
    raised: int

    def __len__(self) -> int:
        return len(self.linf)

    def extended(self, other: "Outcome") -> "Outcome":
        """Return the outcome on the images of this outcome, followed by the images of `other`."""
        arrays: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in PER_IMAGE + SHOWN
        }
        arrays["shown"][len(self.shown) :] += len(self)
        kept = first_that_flip(arrays["flips"])
        arrays |= {name: arrays[name][kept] for name in SHOWN}
        judgement = Judgement.concatenate([self.judgement, other.judgement])
        seconds, raised = self.seconds + other.seconds, self.raised + other.raised
        return dataclasses.replace(self, judgement=judgement, seconds=seconds, raised=raised, **arrays)

    def numbers(self) -> dict[str, Any]:
        """Return the attack's row of results.json."""
        row: dict[str, Any] = {
            "name": self.name,
            "norm": self.radius.norm if self.radius else None,
            "epsilon": self.radius.epsilon if self.radius else None,
            "config": self.config,
            **self.judgement.numbers(),
            "probability_error": float(self.judgement.probability_error.max()),
            "no_useful_gradient_share": None,
            "distortion": {norm: _distortion(getattr(self, norm), self.found) for norm in ("linf", "l2", "l0")},
            "found": None if np.isnan(self.found).any() else mean_with_interval(self.found),
            "generations": None,
            "parts": self.judgement.parts,
            "seconds": round(self.seconds, 2),
            "passes": None,
        }
        if not np.isnan(self.forward_passes).any():
            both = {"forward": self.forward_passes, "backward": self.backward_passes}
            row["passes"] = {way: round(float(passes.mean()), 2) for way, passes in both.items()}
        if not np.isnan(self.generations).any():
            names = ("mean", "median", "min", "max")
            row["generations"] = {name: float(getattr(np, name)(self.generations)) for name in names}
        if not np.isnan(self.useless_gradients).any():
            row["no_useful_gradient_share"] = float(self.useless_gradients.mean())
        if not np.isnan(self.target_probability).any():
            row["target_rate"] = mean_with_interval(self.target_probability)
        return row


def first_that_flip(flips: np.ndarray) -> np.ndarray:
    """Return the places of the images to keep: the first that flip, then the first others."""
    return np.argsort(~flips, kind="stable")[:GALLERY]


def _distortion(distances: np.ndarray, found: np.ndarray) -> dict[str, float | None]:
    """Return the mean and the median of distances [N]; `None` means infinity.

    An image that was not `found` is infinitely far away. To compare minimum-norm attacks, use the median distance, not
    the success rate.
    """
    distances = np.where(found == 0, np.inf, distances)
    numbers = {"mean": distances.mean(), "median": np.median(distances)}
    return {name: float(number) if np.isfinite(number) else None for name, number in numbers.items()}


def record_path(directory: Path, name: str, radius: Radius | None) -> Path:
    """Return the path of an outcome's record: a readable name, and a hash that makes it unique."""
    text = radius and radius.text
    digest = hashlib.sha256(json.dumps([name, text]).encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9.=-]+", "_", name)[:60]
    return directory / f"{readable}{'' if radius is None else f'-{radius.epsilon:.4g}'}-{digest}.npz"


def save_outcome(outcome: Outcome, directory: Path) -> None:
    """Write the record of an attack, for the images that it has attacked so far.

    Hits are stored as bits. In place of probabilities of hits, those of misses are stored, as float16: see `as_stored`.
    """
    described = {name: getattr(outcome, name) for name in ("name", "config", "seconds", "raised")}
    described["radius"] = outcome.radius and outcome.radius.text
    judged = {f.name: getattr(outcome.judgement, f.name) for f in dataclasses.fields(Judgement)}
    hits = judged.pop("hits")
    packed = np.packbits(hits, axis=1) if hits.dtype == bool else (1 - hits).astype(np.float16)
    arrays: dict[str, Any] = {
        "described": np.array(json.dumps(described)),
        **{name: getattr(outcome, name) for name in PER_IMAGE + SHOWN},
        **{f"judgement_{name}": values for name, values in judged.items()},
        "hits": packed,
        "draws": np.array(hits.shape[1]),
    }
    path = record_path(directory, outcome.name, outcome.radius)
    files.write_atomically(path, lambda temporary: np.savez_compressed(temporary, **arrays))


def load_outcome(
    directory: Path, name: str, radius: Radius | None, versions: dict[str, Any] | None = None
) -> Outcome | None:
    """Return the record of an attack, or `None` where there is no record.

    The result is `None` too where the record's `config` does not have all items of `versions`, and where the file is
    broken: a line is printed then.

    Raises:
        InputError: the disk does not give the file.
    """
    path = record_path(directory, name, radius)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        described = json.loads(str(arrays.pop("described")))
        if not (versions or {}).items() <= described["config"].items():
            print(f"made again: {path}, which is of an older version")
            return None  # it may lack fields that records have today
        hits, draws = arrays.pop("hits"), int(arrays.pop("draws"))
        bits = hits.dtype == np.uint8
        unpacked = np.unpackbits(hits, axis=1, count=draws).astype(bool) if bits else 1 - hits.astype(np.float64)
        judged = {key: arrays.pop(key) for key in list(arrays) if key.startswith("judgement_")}
        fields = {key.removeprefix("judgement_"): values for key, values in judged.items()}
        norm = described["config"].get("norm")
        text = described.pop("radius")
        found = None if text is None else Radius(as_radius(text).epsilon, norm)
        return Outcome(**described, radius=found, judgement=Judgement(**fields, hits=unpacked), **arrays)
    except Exception as error:  # NumPy raises whatever zip and its own readers raise
        files.check_broken(error, path)
        return None


def as_stored(judgement: Judgement) -> Judgement:
    """Return the judgement as its record keeps it, so that a resumed evaluation has the same numbers as another.

    Where a draw gives the probability of a hit, not a hit, that of a miss has the 11 bits of float16. So probabilities
    near 1 keep their digits: rounded themselves, 0.9998 would be 1, and P¹⁰⁰ two points too high.
    """
    if judgement.hits.dtype == bool:
        return judgement
    hits = 1 - (1 - judgement.hits).astype(np.float16).astype(np.float64)
    return dataclasses.replace(judgement, hits=hits, probability_correct=hits.mean(axis=1))
