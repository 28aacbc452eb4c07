"""The certified vote of randomised smoothing, for a net whose only noise is Gaussian, on its images."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks.radii import Radius
from wca_tf.core import files
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.batches import to_float
from wca_tf.distribution.progress import progress_bar
from wca_tf.evaluation.measures.measure import Context
from wca_tf.gaussian.intervals import mean_with_interval
from wca_tf.gaussian.smoothing import ALPHA, SELECTION_DRAWS, certified_radius
from wca_tf.nets.graphs import graph_of_target
from wca_tf.nets.targets import AnyTarget

DRAWS_PER_PASS = 200
VOTES_ALGORITHM = 3  # increase it with every change of the votes: records are made again


def effort_of(context: Context) -> dict[str, int]:
    """Return the draws of an image, and the images: those of the record, which more are added to.

    An evaluation that asks for no radii adds attacks alone. Votes of other draws are no part of the record.
    """
    config, stored = context.config, context.measured.get("certificates")
    known = {name: int(stored.key[name]) for name in ("draws", "images")} if stored else {}
    if known and not config.certified_radii:
        return known
    images = max(config.certified_images, known["images"] if known.get("draws") == config.certified_draws else 0)
    return {"draws": config.certified_draws, "images": min(images, len(context.examples))}


def smoothing_rows(context: Context, radii: list[Radius]) -> dict[str, Any]:
    """Return a row for each radius: the share of images whose vote is right, and certified within it; and the seconds.

    The seconds are those of the votes themselves, also where an earlier run made some of them.
    """
    effort, deviation = effort_of(context), context.model.input_deviation
    draws = effort["draws"]
    chosen, votes, seconds = _votes(context, **effort)
    labels = np.asarray(context.examples.labels[: len(chosen)])
    certified = certified_radius(votes, draws, deviation)
    rows = []
    for radius in radii:
        certified_right = (chosen == labels) & (certified > radius.in_l2(context.examples.image_shape))
        rows.append(
            {
                "norm": radius.norm,
                "radius": radius.epsilon,
                "vote": mean_with_interval(certified_right),
                "abstained": mean_with_interval(certified == 0),
            }
        )
    about = {**effort, "alpha": ALPHA, "deviation": deviation}
    about["accuracy"] = mean_with_interval(chosen == labels)
    return {"rows": rows, "votes": about, "seconds": round(float(seconds.sum()), 2)}


def _votes(context: Context, draws: int, images: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (the class that 100 draws choose, how many of `draws` others give it, seconds), [images].

    They are kept image by image.
    """
    record = context.records("certificates") / f"votes-{draws}-{VOTES_ALGORITHM}.npz"
    found = _stored(record)
    with progress_bar(images, "images certified", initial=min(len(found), images)) as bar:
        record.parent.mkdir(parents=True, exist_ok=True)
        for image in range(len(found), images):
            started = time.monotonic()
            seed = fold_in(make_seed(context.settings.seed), Purpose.CERTIFICATE, context.settings.first + image)
            pixels = to_float(tf.constant(context.examples.images[image : image + 1]))
            first = _counts(context.target, pixels, fold_in(seed, 0), SELECTION_DRAWS)
            best = int(first.argmax())
            votes = int(_counts(context.target, pixels, fold_in(seed, 1), draws)[best])
            found.append((best, votes, time.monotonic() - started))
            files.write_atomically(record, lambda path: np.savez(path, votes=np.array(found)))
            bar.update()
    chosen, counts, seconds = np.array(found[:images], np.float64).T
    return chosen.astype(int), counts.astype(int), seconds


def _stored(record: Path) -> list[tuple[int, int, float]]:
    if not record.exists():
        return []
    try:
        with np.load(record, allow_pickle=False) as stored:
            return [(int(best), int(votes), float(seconds)) for best, votes, seconds in stored["votes"]]
    except Exception as error:  # NumPy raises whatever zip and its own readers raise
        files.check_broken(error, record)
        return []


def _counts(target: AnyTarget, image: tf.Tensor, seed: tf.Tensor, draws: int) -> np.ndarray:
    """Return how many of the draws give each class, [C], for an image [1, H, W, channels]."""
    counted = [
        _counted(target, image, fold_in(seed, start), min(DRAWS_PER_PASS, draws - start)).numpy()
        for start in range(0, draws, DRAWS_PER_PASS)
    ]
    return np.sum(counted, axis=0)


@graph_of_target
def _counted(target: AnyTarget, image: tf.Tensor, seed: tf.Tensor, draws: int) -> tf.Tensor:
    logits = target.logits(target.features(image), seed, draws, tf.zeros([1], tf.int64))[:, 0]
    return tf.math.bincount(tf.argmax(logits, axis=1, output_type=tf.int32), minlength=logits.shape[1])
