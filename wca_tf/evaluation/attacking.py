"""Attacks on a set of images, a batch at a time, with a record that a killed evaluation goes on from."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from wca_tf import files
from wca_tf.attacks import build_attack, entry_of, parse_attack
from wca_tf.attacks.attack import Attack, AttackResult
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.objectives import num_classes_of
from wca_tf.attacks.target import AnyTarget, HeadNoiseTarget
from wca_tf.config import expand
from wca_tf.data.batches import to_float
from wca_tf.data.examples import Examples, check_labels
from wca_tf.evaluation.accuracy import JUDGING_ALGORITHM, judge
from wca_tf.evaluation.outcomes import CLEAN, GALLERY, Outcome, load_outcome, save_outcome
from wca_tf.model_dir import ModelDirectory
from wca_tf.progress import progress_bar
from wca_tf.seeds import fold_in, make_seed, uniform_by_index

Nets = tuple[AnyTarget, AnyTarget]  # what attacks see, and what judges
# A forward pass without a backward one, in passes with both: for the estimate of the time left alone.
FORWARD = 0.35
SAVE_EVERY = 2.0  # seconds
# Folded into the evaluation's seed: what the random numbers are for (2 is accuracy.JUDGING_DRAW, 4 the checklist's).
ZERO_GRADIENTS, ATTACKING, WANTED_CLASS, BLOCK = 0, 1, 3, 5
# Images that are attacked with the same draws, where an image cannot have its own: with noise before the head.
BLOCK_SIZE = 20


@dataclasses.dataclass(frozen=True)
class Planned:
    """An attack to run: as written, and its radius if it has one. `clean`, of radius 0, is no attack."""

    name: str
    epsilon: float | None

    @property
    def algorithms(self) -> dict[str, int]:
        """The versions of the code that make its outcome: numbers of another version are made again, not mixed."""
        own = 1 if self.name == CLEAN else entry_of(self.name).algorithm
        return {"algorithm": own, "judged_by": JUDGING_ALGORITHM}

    def build(self, eot_samples: int) -> Attack | None:
        return None if self.name == CLEAN else build_attack(self.name, self.epsilon, eot_samples)

    def config(self, eot_samples: int) -> dict[str, Any]:
        """The attack's parameters as they stand in results.json."""
        if self.name == CLEAN:
            return self.algorithms
        radius = {} if self.epsilon is None else {"epsilon": self.epsilon}
        parameters = {**radius, **parse_attack(self.name, eot_samples), **self.algorithms}
        source = ModelDirectory(expand(parameters["source"])).best if parameters.get("source") else None
        return {**parameters, "source_sha256": files.sha256(source)} if source and source.exists() else parameters

    def made(self, config: dict[str, Any] | None, eot_samples: int) -> bool:
        """Whether an outcome with these parameters is this attack's; one whose source is gone cannot be made again."""
        return config is not None and self.config(eot_samples).items() <= config.items()

    @property
    def norm(self) -> str | None:
        """The norm of its radius, if it has one."""
        return None if self.epsilon is None or self.name == CLEAN else parse_attack(self.name)["norm"]

    def work(self, attack: Attack | None) -> float:
        """Passes that an image costs at most."""
        if attack is None:
            return FORWARD
        return 1 + FORWARD + attack.passes * (1.0 if entry_of(self.name).uses_gradients else FORWARD)


@dataclasses.dataclass(frozen=True)
class Ready:
    """A planned attack as it runs, with its parameters."""

    planned: Planned
    attack: Attack | None
    config: dict[str, Any]
    work: float


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the outcome of an attack depends on, besides the attack, the net and the images."""

    eot_samples: int = 50
    seed: int = 0
    batch_size: int = 100


def make_ready(planned: list[Planned], eot_samples: int) -> list[Ready]:
    """Each attack, in order. Those that differ by their radius share a transfer's source, which is a net, and a graph.

    Raises:
        InputError: an attack that cannot be built.
    """
    built: dict[str, Any] = {}
    ready = []
    for each in planned:
        if each.name not in built:
            built[each.name] = each.build(eot_samples)
        attack = built[each.name]
        if attack and each.epsilon is not None:
            attack = dataclasses.replace(attack, epsilon=each.epsilon)
        ready.append(Ready(each, attack, each.config(eot_samples), each.work(attack)))
    return ready


def run_attacks(
    target: AnyTarget,
    planned: list[Planned],
    examples: Examples,
    settings: Settings,
    records: Path,
    attacked: AnyTarget | None = None,
) -> list[Outcome]:
    """Each attack's outcome, in order; what `records` has already is not done again.

    Args:
        target: the net, which judges.
        planned: what to run.
        examples: on which images.
        settings: see there.
        records: directory of the outcomes so far.
        attacked: what attacks see of the net, where that is not `target`.
    """
    records.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(records)
    stored = [_stored(records, attack, settings) for attack in planned]
    images_left = [len(examples) - (len(outcome) if outcome else 0) for outcome in stored]
    left = [i for i, count in enumerate(images_left) if count]
    if left:
        ready = dict(zip(left, make_ready([planned[i] for i in left], settings.eot_samples), strict=True))
        work = sum(attack.work * images_left[i] for i, attack in ready.items())
        with progress_bar(round(work), "image steps") as progress:
            for i, attack in ready.items():
                nets = (attacked or target, target)
                stored[i] = _attack_all(nets, attack, stored[i], examples, settings, records, progress)
    return [outcome for outcome in stored if outcome]


def check_attacks(target: AnyTarget, planned: list[Planned], examples: Examples, settings: Settings) -> None:
    """Raise InputError when an attack cannot be built or the net lacks what it needs, before anything is done."""
    image = to_float(tf.constant(examples.images[:1]))
    check_labels(examples.labels, num_classes_of(target, image))
    for ready in make_ready(planned, settings.eot_samples):
        if ready.attack:
            ready.attack.check_target(target, image)


def _stored(records: Path, planned: Planned, settings: Settings) -> Outcome | None:
    """Return the record of an attack if it is of the same parameters and algorithms."""
    outcome = load_outcome(records, planned.name, planned.epsilon, planned.algorithms)
    return outcome if outcome and planned.made(outcome.config, settings.eot_samples) else None


def _attack_all(
    nets: Nets,
    ready: Ready,
    outcome: Outcome | None,
    examples: Examples,
    settings: Settings,
    records: Path,
    progress: "tqdm[Any]",
) -> Outcome:
    """The attack's outcome on all examples, recorded every few seconds."""
    name, epsilon = ready.planned.name, ready.planned.epsilon
    radius = f" {epsilon:.4g}" if ready.attack and epsilon is not None else ""
    progress.set_description(name + radius, refresh=False)
    saved = time.monotonic()
    done = len(outcome) if outcome else 0
    size = settings.batch_size if isinstance(nets[0], HeadNoiseTarget) else _size_in_blocks(settings.batch_size)
    for batch in _padded_batches(examples, size, done):
        part = _attack_batch(nets, ready, batch, len(examples.class_names), settings)
        outcome = outcome.extended(part) if outcome else part
        if len(outcome) == len(examples) or time.monotonic() - saved > SAVE_EVERY:
            save_outcome(outcome, records)
            saved = time.monotonic()
        progress.update(round(len(part) * ready.work))
    assert outcome is not None  # noqa: S101 there is at least one example
    return outcome


def _attack_batch(
    nets: Nets,
    ready: Ready,
    batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor, int],
    num_classes: int,
    settings: Settings,
) -> Outcome:
    attack, (attacked, target) = ready.attack, nets
    images, labels, indices, count = batch
    seed = attacking_seed = make_seed(settings.seed)
    own_draws = isinstance(attacked, HeadNoiseTarget)
    if not own_draws:  # images share the draws of an attack: those of a block alone, so that their luck averages out
        attacking_seed = fold_in(seed, BLOCK, indices[0] // BLOCK_SIZE)
    started = time.monotonic()
    result, still, wanted = AttackResult(images), None, None
    if attack:
        wanted = _wanted_classes(labels, indices, num_classes, seed) if attack.targeted else None
        still = attack.zero_gradients(attacked, images, labels, fold_in(seed, ZERO_GRADIENTS), wanted)
        result = attack.run(attacked, images, labels, indices, fold_in(attacking_seed, ATTACKING), wanted)
    adversarial = result.images
    judgement = judge(target, adversarial, labels, indices, seed)
    if attack and not own_draws:
        judgement = dataclasses.replace(judgement, blocks=indices.numpy() // BLOCK_SIZE)
    unknown = np.full(len(images), np.nan)
    reached = unknown if wanted is None else judge(target, adversarial, wanted, indices, seed).probability_correct
    change = adversarial - images
    whole = Outcome(
        name=ready.planned.name,
        epsilon=ready.planned.epsilon,
        config=ready.config,
        judgement=judgement,
        linf=BALLS["linf"].distance(change).numpy(),
        l2=BALLS["l2"].distance(change).numpy(),
        l0=np.any(change.numpy() != 0, axis=3).sum(axis=(1, 2)),
        zero_gradients=unknown if still is None else still.astype(np.float64),
        target_probability=reached,
        found=unknown if result.found is None else result.found.astype(np.float64),
        generations=unknown if result.generations is None else result.generations.astype(np.float64),
        images=adversarial.numpy()[:GALLERY],
        seconds=time.monotonic() - started,
    )
    return whole if count == len(images) else whole.first(count)


def _wanted_classes(labels: tf.Tensor, indices: tf.Tensor, num_classes: int, seed: tf.Tensor) -> tf.Tensor:
    """For each image a class other than its label, by its index."""
    uniform = uniform_by_index(fold_in(seed, WANTED_CLASS), indices, (1,))[:, 0]
    offset = 1 + tf.cast(uniform * (num_classes - 1), labels.dtype)
    return (labels + offset) % num_classes


def _size_in_blocks(batch_size: int) -> int:
    """Return the largest batch, no larger than asked for, of which a whole number makes a block."""
    return next(size for size in range(min(batch_size, BLOCK_SIZE), 0, -1) if BLOCK_SIZE % size == 0)


def _padded_batches(
    examples: Examples, batch_size: int, start: int = 0
) -> Iterator[tuple[tf.Tensor, tf.Tensor, tf.Tensor, int]]:
    """(images, labels, indices, how many are not padding) from example `start`; batches of one size, traced once."""
    size = min(batch_size, len(examples))
    for first in range(start, len(examples), size):
        indices = np.minimum(np.arange(first, first + size), len(examples) - 1)
        images = to_float(tf.constant(examples.images[indices]))
        yield images, tf.constant(examples.labels[indices]), tf.constant(indices), min(size, len(examples) - first)
