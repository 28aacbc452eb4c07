"""What noise adds to certificates: beside nets without noise, without training, and beside randomised smoothing."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wca_tf.attacks.radii import Radius, parse_radii
from wca_tf.core.errors import DivergedError
from wca_tf.evaluation.config import EvaluateConfig
from wca_tf.evaluation.measures.certificates import Head, extrapolated_seconds, row_of
from wca_tf.evaluation.measures.smoothing_votes import VOTED_IMAGES
from wca_tf.evaluation.runner import load_evaluation_examples
from wca_tf.experiments.certificate_nets import ALL_IMAGES, DETERMINISTIC, NETS, RADII, certified, radii_of
from wca_tf.experiments.charts import Series
from wca_tf.experiments.run import Run
from wca_tf.experiments.tables import Table, in_points
from wca_tf.experiments.variants import SMOOTHING_DEVIATIONS
from wca_tf.gaussian.intervals import mean_difference, mean_with_interval
from wca_tf.nets.targets import GaussianLogitsTarget
from wca_tf.runs.model_dir import ModelDirectory

ADDS, BEYOND_BEST, BEST = "the noise adds", "beyond the best without noise", "best without noise"
BEYOND_C1, VOTE_ADDS = "beyond C1", "the noise adds to the vote"
SMOOTHING, WITHOUT_TRAINING = "smoothing, the vote", "noise without training"
SAME_IMAGES = "No Defense, the same images"
VOTING_DRAWS = {"tiny": 1_000, "small": 20_000, "paper": 100_000}
VOTE = "vote certified"  # the answer of most draws is right under every attack, so P(correct) is above 1/2
CURVES = {
    "certificate": "certified",
    "known_draw": "C1",
    "gaussian_shift": "C2",
    "vote": VOTE,
    "deterministic": "noise off",
}
# Deviations of isotropic noise that is put on the features of a trained net.
DEVIATIONS = {"tiny": (0.05,), "small": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28), "paper": (0.02, 0.08, 0.32)}
DEVIATION_IMAGES = {"tiny": 20, "small": 2_000, "paper": 0}


def head_of(run: Run, path: Path, images: int) -> tuple[Head, tuple[int, ...]]:
    """Return what certificates need of a trained net on the first test images (0: all), and the shape of an image."""
    config = EvaluateConfig(tfds_data_dir=run.config.tfds_data_dir, num_examples=images)
    directory = ModelDirectory(path)
    examples = load_evaluation_examples(config, directory)
    model = directory.load_best()
    target = model.target()
    if not isinstance(target, GaussianLogitsTarget):
        raise TypeError(f"expected a net with noise in its head alone, received {type(model).__name__}")
    return Head.of(target, model, examples, config.batch_size), examples.image_shape


def add_gains(run: Run, dataset: str, paths: dict[str, list[Path]], table: Table) -> None:
    """Fill a row for each net with noise and radius: its certificate less others, paired over all images.

    The others are that of the same net without its noise, the best of all nets without noise, and C1. A net that was
    trained with several seeds has a number for each.

    Args:
        run: the run.
        dataset: the data set of the nets.
        paths: variant -> directories of the trained nets, one for each seed; nets that diverged are not there.
        table: gains the rows.
    """
    images = ALL_IMAGES[run.config.scale]
    heads = {variant: [head_of(run, path, images) for path in each] for variant, each in paths.items() if each}
    for text in radii_of(dataset) if heads else ():
        [radius] = parse_radii(text)
        bounds = {variant: [bounds_of(*head, radius) for head in each] for variant, each in heads.items()}
        best = max((found["deterministic"] for each in bounds.values() for found in each), key=np.mean)
        for label, variant in NETS.items():
            if variant in bounds and variant not in DETERMINISTIC:
                name = f"{dataset}, {label}, {text}"
                table.add(name, BEST, mean_with_interval(best))
                gains = [_gains(found, best) for found in bounds[variant]]
                for column in gains[0]:
                    table.add(name, column, text=", ".join(in_points(mean_difference(of[column])) for of in gains))


def _gains(found: dict[str, np.ndarray], best: np.ndarray) -> dict[str, np.ndarray]:
    """Return, for each image, what a net's certificates are above others."""
    others = {ADDS: found["deterministic"], BEYOND_BEST: best, BEYOND_C1: found["known_draw"]}
    gains = {column: found["certificate"] - other for column, other in others.items()}
    return {**gains, VOTE_ADDS: found["vote"] - found["deterministic"]}


def bounds_of(head: Head, shape: tuple[int, ...], radius: Radius) -> dict[str, np.ndarray]:
    """Return each bound [N] of a head at a radius, and "vote": 1.0 where the answer of most draws is certified."""
    bounds = head.bounds(head.lipschitz * radius.in_l2(shape))
    return {**bounds, "vote": (bounds["certificate"] > 0.5).astype(np.float64)}


def add_deviations(run: Run, dataset: str, path: Path, table: Table) -> dict[str, Series]:
    """Fill a row for each deviation of isotropic noise on a net's features; return curves over them for each radius."""
    plain, shape = head_of(run, path, DEVIATION_IMAGES[run.config.scale])
    drawn: dict[str, Series] = {
        f"{dataset}, l2 radius {text}": {name: [] for name in CURVES.values()} for text in RADII[dataset]
    }
    for deviation in DEVIATIONS[run.config.scale]:
        head = dataclasses.replace(plain, scale=deviation * plain.weights)  # its quantiles serve every radius
        for text in RADII[dataset]:
            bounds = bounds_of(head, shape, parse_radii(text)[0])
            name = f"{dataset}, {WITHOUT_TRAINING}, deviation {deviation:g}, {text}"
            for key, column in CURVES.items():
                number = mean_with_interval(bounds[key])
                table.add(name, column, number)
                drawn[f"{dataset}, l2 radius {text}"][column].append((deviation, number["value"]))
    return drawn


def add_smoothing(run: Run, dataset: str, plain: Path | None, table: Table) -> None:
    """Fill the rows of randomised smoothing's vote, beside the certificates of a net without noise on the same images.

    Args:
        run: the run.
        dataset: the data set.
        plain: the directory of the net without noise; `None` where it diverged.
        table: gains the rows.
    """
    beside = head_of(run, plain, VOTED_IMAGES) if plain else None
    for deviation in SMOOTHING_DEVIATIONS[dataset]:
        words = f"{dataset}, {SMOOTHING}, deviation {deviation:g}"
        try:
            path = run.trained(dataset, "certified_smoothing", defence=f"smoothing:deviation={deviation:g}")
        except DivergedError:
            table.add(words, "clean", text="diverged")
            continue
        asked: dict[str, Any] = {"num_examples": VOTED_IMAGES, "certified_draws": VOTING_DRAWS[run.config.scale]}
        found = certified(run, path, dataset, "fgsm:norm=l2", f"l2:{RADII[dataset][0]}", eot_samples=1, **asked)
        votes = found.results["certificates"]
        for text in radii_of(dataset):
            row, name = row_of(votes["rows"], text), f"{words}, {text}"
            table.add(name, "clean", votes["votes"]["accuracy"])
            table.add(name, VOTE, row["vote"])
            table.add(name, "abstained", row["abstained"])
            table.add(name, "s per 10,000", text=f"{extrapolated_seconds(votes):.0f}")
            if beside:
                bounds = bounds_of(*beside, parse_radii(text)[0])
                table.add(name, SAME_IMAGES, mean_with_interval(bounds["certificate"]))


def smoothing_settings(scale: str, dataset: str) -> Sequence[Any]:
    """Return what the rows of smoothing follow from besides the nets, as JSON."""
    return [VOTING_DRAWS[scale], VOTED_IMAGES, list(SMOOTHING_DEVIATIONS[dataset])]
