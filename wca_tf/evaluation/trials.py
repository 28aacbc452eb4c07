"""Attacks on a set of images, one batch at a time. They leave records, from which a killed evaluation continues."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from wca_tf.attacks import Attack, BallAttack, kind_of
from wca_tf.attacks.attack import Perturbed
from wca_tf.attacks.balls import BALLS
from wca_tf.attacks.cascade import WorstCase
from wca_tf.attacks.gradients import CleanGradient
from wca_tf.attacks.objectives import num_classes_of, other_classes
from wca_tf.attacks.radii import Radius
from wca_tf.attacks.transfer import Transfer
from wca_tf.core import files
from wca_tf.core.errors import InputError
from wca_tf.core.paths import expand_user
from wca_tf.core.seeds import Purpose, fold_in, make_seed
from wca_tf.data.batches import padded_batches, to_float
from wca_tf.data.examples import Examples, check_labels
from wca_tf.evaluation.blocks import BLOCK_SIZE, size_in_blocks
from wca_tf.evaluation.outcomes import CLEAN, PER_IMAGE, Outcome, as_stored, first_that_flip, load_outcome, save_outcome
from wca_tf.evaluation.pass_progress import PassProgress, work_of
from wca_tf.nets import passes
from wca_tf.nets.judge import JUDGEMENT_VERSION, Judgement, judge
from wca_tf.nets.targets import AnyTarget
from wca_tf.runs.model_dir import ModelDirectory

Nets = tuple[AnyTarget, AnyTarget]  # the net that attacks see, and the net that judges
SAVE_EVERY = 2.0  # seconds
RECORD = 4  # the form of records; 3 had the first images, and hits as bytes
CLEAN_VERSION = 2  # 1 had no interval for judging draws that images share


@dataclasses.dataclass(frozen=True)
class Trial:
    """An attack, with a radius if it has one. A trial without an attack is for the clean images."""

    attack: Attack | None
    radius: Radius | None

    @property
    def name(self) -> str:
        """The attack as written, or "clean"."""
        return self.attack.name if self.attack else CLEAN

    @property
    def title(self) -> str:
        """The attack as written, and its radius."""
        return self.name + (f" {self.radius.epsilon:.4g}" if self.radius else "")

    @property
    def versions(self) -> dict[str, Any]:
        """The versions of the code that makes the outcome. Numbers of another version are made again, not mixed in."""
        version = self.attack.version if self.attack else CLEAN_VERSION
        own = {"algorithm": version, "judged_by": JUDGEMENT_VERSION, "record": RECORD}
        if not isinstance(self.attack, WorstCase):
            return own
        members = {type(each.attack).__name__: each.attack.version for each in self.attack.stages()}
        return own | {"members": members}

    @property
    def config(self) -> dict[str, Any]:
        """The attack's options as they stand in results.json."""
        if not self.attack:
            return self.versions
        radius = {"epsilon": self.radius.epsilon} if self.radius else {}
        described = {**radius, **self.attack.options(), "kind": kind_of(self.attack), **self.versions}
        if not isinstance(self.attack, Transfer) or not self.attack.source:
            return described
        if not isinstance(self.attack.source, str):
            return {**described, "source": type(self.attack.source).__name__}
        source = ModelDirectory(expand_user(self.attack.source)).best
        return {**described, "source_sha256": files.sha256(source)} if source.exists() else described

    def matches(self, config: dict[str, Any] | None) -> bool:
        """Return whether an outcome with these options is an outcome of this attack.

        If the net that the attack transfers from is gone, it is not compared: the outcome cannot be made again.
        """
        return config is not None and self.config.items() <= config.items()


def trial_of(attack: Attack, epsilon: float | None) -> Trial:
    """Return the trial of an attack at a radius in its norm; an attack without a norm has none."""
    if epsilon is None or not isinstance(attack, BallAttack):
        return Trial(attack, None)
    return Trial(attack, Radius(epsilon, attack.norm))


CLEAN_TRIAL = Trial(None, None)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings that the outcome of an attack depends on, besides the attack, the net and the images.

    Attributes:
        seed: decides random starts and draws.
        batch_size: number of images that are attacked at a time.
        first: the number of the first image, a multiple of `block_size`; above 0 for a part of the images.
        block_size: the number of images that share draws; see `blocks.block_size`.
    """

    seed: int = 0
    batch_size: int = 100
    first: int = 0
    block_size: int = BLOCK_SIZE


def run_attacks(
    target: AnyTarget,
    trials: list[Trial],
    examples: Examples,
    settings: Settings,
    records: Path,
    attacked: AnyTarget | None = None,
    before: np.ndarray | None = None,
) -> list[Outcome]:
    """Return the outcome of each attack, in order. Work that `records` has already is not repeated.

    Args:
        target: the net that judges.
        trials: the attacks to run.
        examples: the images to attack.
        settings: see `Settings`.
        records: directory of the outcomes so far.
        attacked: the net that attacks see, where it is not `target`.
        before: [N], P(correct) of the clean images, from which follows which images flip; 1 for all where absent.

    Raises:
        InputError: a record has more images than `examples`: it is of other images.
    """
    records.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(records)
    stored = [stored_outcome(records, trial, None if target.per_image_noise else settings) for trial in trials]
    images_left = [len(examples) - (len(outcome) if outcome else 0) for outcome in stored]
    if min(images_left, default=0) < 0:
        most = max(len(outcome) for outcome in stored if outcome)
        raise InputError(
            f"expected records of {len(examples)} images in {records}, received {most}: name another --report_dir"
        )
    left = [number for number, count in enumerate(images_left) if count]
    if left:
        loaded = dict(zip(left, _loaded([trials[number] for number in left]), strict=True))
        right = np.ones(len(examples), bool) if before is None else before > 0.5
        nets, size = (attacked or target, target), _batch_size(attacked or target, settings)
        work = [
            work_of(trial.title, trial.attack, nets, images_left[number], min(size, len(examples)))
            for number, trial in loaded.items()
        ]
        with PassProgress(work, nets[0]) as progress:
            for number, trial in loaded.items():
                described = (trials[number].name, trials[number].config)
                stored[number] = _attack_all(
                    nets, trial, described, stored[number], examples, right, settings, records, progress
                )
    return [outcome for outcome in stored if outcome]


def check_attacks(target: AnyTarget, trials: list[Trial], examples: Examples) -> None:
    """Raise InputError, before any attack runs, when an attack or the labels do not suit the net.

    An attack does not suit it when its source is absent, or when the net lacks something that the attack needs.
    """
    image = to_float(tf.constant(examples.images[:1]))
    check_labels(examples.labels, num_classes_of(target, image))
    for trial in _loaded(trials):
        if trial.attack:
            trial.attack.check_target(target, image)


def _loaded(trials: list[Trial]) -> list[Trial]:
    """Return the trials with the nets that they transfer from. All radii of an attack share a net, and so a graph."""
    attacks = {attack: attack and attack.loaded() for attack in dict.fromkeys(trial.attack for trial in trials)}
    return [dataclasses.replace(trial, attack=attacks[trial.attack]) for trial in trials]


def stored_outcome(records: Path, trial: Trial, shared: Settings | None) -> Outcome | None:
    """Return the record of an attack if it has the same options and algorithms, else `None`.

    `shared` are the settings where images share draws: then the same images must have shared them.
    """
    outcome = load_outcome(records, trial.name, trial.radius, trial.versions)
    if not outcome or not trial.matches(outcome.config):
        return None
    numbers = np.arange(len(outcome))
    same = not shared or np.array_equal(outcome.judgement.blocks, _blocks(trial, numbers + shared.first, shared))
    return outcome if same else None


def _blocks(trial: Trial, indices: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the block of each image [N]. Clean images share no draws of an attack: they are one block."""
    return indices // settings.block_size if trial.attack else np.zeros(len(indices), np.int64)


def _attack_all(
    nets: Nets,
    trial: Trial,
    described: tuple[str, dict[str, Any]],
    outcome: Outcome | None,
    examples: Examples,
    right: np.ndarray,
    settings: Settings,
    records: Path,
    progress: PassProgress,
) -> Outcome:
    """Return the outcome of the attack on all examples. It is recorded every few seconds."""
    saved = time.monotonic()
    done = len(outcome) if outcome else 0
    for batch in padded_batches(examples, _batch_size(nets[0], settings), done, settings.first):
        with progress.batch(batch[-1]):
            part = _attack_batch(nets, trial, described, batch, right[done:], len(examples.class_names), settings)
        done += len(part)
        outcome = outcome.extended(part) if outcome else part
        if len(outcome) == len(examples) or time.monotonic() - saved > SAVE_EVERY:
            save_outcome(outcome, records)
            saved = time.monotonic()
    assert outcome is not None  # noqa: S101 there is at least one example
    return outcome


def _attack_batch(
    nets: Nets,
    trial: Trial,
    described: tuple[str, dict[str, Any]],
    batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor, int],
    right: np.ndarray,
    num_classes: int,
    settings: Settings,
) -> Outcome:
    attack, (attacked, target) = trial.attack, nets
    images, labels, indices, count = batch
    seed = attacking_seed = make_seed(settings.seed)
    if not attacked.per_image_noise:  # only a block's images share an attack's draws: luck averages out over blocks
        attacking_seed = fold_in(seed, Purpose.BLOCK, indices[0] // settings.block_size)
    started, raised = time.monotonic(), passes.read(passes.RAISED)
    made, gradient, wanted = Perturbed(images, {}), None, None
    if attack:
        wanted = other_classes(labels, indices, num_classes, seed) if attack.targeted else None
        gradient = attack.check_gradient(attacked, images, labels, fold_in(seed, Purpose.CLEAN_GRADIENT), wanted)
        own_seed = fold_in(attacking_seed, Purpose.ATTACK)
        epsilon = trial.radius.epsilon if trial.radius else None
        made = attack.run(attacked, images, labels, epsilon, indices, own_seed, wanted)
    judgement = as_stored(judge(target, made.images, labels, indices, seed))
    if not target.per_image_noise:
        judgement = dataclasses.replace(judgement, blocks=_blocks(trial, indices.numpy(), settings))
    reached = None if wanted is None else judge(target, made.images, wanted, indices, seed).probability_correct
    arrays = _per_image(images, labels, made, gradient, reached)
    judged = {f.name: getattr(judgement, f.name)[:count] for f in dataclasses.fields(Judgement)}
    flips = right[:count] & (judged["probability_correct"] <= 0.5)
    kept = first_that_flip(flips) if attack else np.zeros(0, np.int64)
    return Outcome(
        name=described[0],
        radius=trial.radius,
        config=described[1],
        judgement=Judgement(**judged),
        **{name: arrays[name][:count] for name in PER_IMAGE},
        shown=kept,
        flips=flips[kept],
        originals=images.numpy()[kept].astype(np.float16),
        images=made.images.numpy()[kept].astype(np.float16),
        seconds=time.monotonic() - started,
        raised=passes.read(passes.RAISED) - raised,
    )


def _per_image(
    images: tf.Tensor, labels: tf.Tensor, made: Perturbed, gradient: CleanGradient | None, reached: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return the fields of an outcome with a number for each image of a batch [B]; NaN where a number is not known."""
    unknown, change = np.full(len(images), np.nan), made.images - images
    return {
        "labels": labels.numpy(),
        "linf": BALLS["linf"].distance(change).numpy(),
        "l2": BALLS["l2"].distance(change).numpy(),
        "l0": np.any(change.numpy() != 0, axis=3).sum(axis=(1, 2)),
        "zero_gradients": gradient.zero.astype(np.float64) if gradient else unknown,
        "useless_gradients": gradient.useless.astype(np.float64) if gradient else unknown,
        "target_probability": unknown if reached is None else reached,
        "found": np.asarray(made.extras.get("found", unknown), np.float64),
        "generations": np.asarray(made.extras.get("generations", unknown), np.float64),
        "forward_passes": np.full(len(images), made.passes.forward, np.float64),
        "backward_passes": np.full(len(images), made.passes.backward, np.float64),
    }


def _batch_size(attacked: AnyTarget, settings: Settings) -> int:
    """Return the number of images to attack at a time: of a part of a block, where a block's images share draws."""
    return settings.batch_size if attacked.per_image_noise else size_in_blocks(settings.batch_size, settings.block_size)
