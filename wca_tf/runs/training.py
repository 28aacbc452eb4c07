"""train(config, model_dir): train a model by a configuration and save it; a killed run resumes where it stopped."""

import contextlib
import functools
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import cast

import keras
import tensorflow as tf

from wca_tf.attacks import BallAttack
from wca_tf.core.arithmetic import tensor_float_32, use_deterministic_operations
from wca_tf.core.errors import DIVERGED, DivergedError, InputError, UnnamedModuleError
from wca_tf.core.files import exclusive_directory, remove_leftovers
from wca_tf.core.options import identity
from wca_tf.core.own_modules import import_modules
from wca_tf.data.batches import evaluation_batches, to_float, training_batches
from wca_tf.data.examples import Examples
from wca_tf.data.sources import open_examples, place
from wca_tf.distribution.cluster import is_chief, would_be_chief
from wca_tf.distribution.strategy import (
    check_same_everywhere,
    check_shares,
    distribute_batches,
    lost_worker_is_an_error,
    make_strategy,
    one_writer,
    synchronise_batch_normalisation,
)
from wca_tf.nets.classifier import StochasticClassifier
from wca_tf.nets.inference_copy import inference_copy
from wca_tf.nets.loss_terms import LipschitzMargin
from wca_tf.nets.model_files import load_model
from wca_tf.runs.catastrophic_overfitting import CatastrophicOverfitting
from wca_tf.runs.config import TrainConfig
from wca_tf.runs.epoch_recorder import EpochRecorder, TrainingProgress
from wca_tf.runs.model_dir import PATHS, ModelDirectory
from wca_tf.runs.new_model import fitting, new_model, take_weights

MAX_FAST_STEPS = 2  # an attack of so few gradient steps in training may lead to catastrophic overfitting


def train(
    config: TrainConfig, model_dir: str | Path, snapshots: Collection[int] = (), modules: Iterable[str] = ()
) -> dict[str, float]:
    """Train, or go on training, in `model_dir`; return the best epoch's line of metrics.jsonl.

    After each epoch in `snapshots` the net is kept in a directory of its own, `ModelDirectory.snapshot`, which can be
    evaluated like that of a finished run. `modules` are modules of your own that `initial_weights` or the source of an
    attack needs; the defence and the attacks of `config` bring their own.

    A run that is killed at any moment and started again ends with the same weights as a run that was never killed. Each
    epoch begins from the saved weights, optimizer and random stream, and its number decides the order of the images.

    Raises:
        InputError: unusable data or configuration; a directory of another configuration, in use, or not writable;
            a loss of NaN or Inf (the files of the last complete epoch are kept).
    """
    import_modules(modules)
    directory = ModelDirectory(model_dir)
    directory.check_same_config(config)
    if directory.last.exists():
        if not directory.best.exists():
            raise InputError(
                f"{directory.path} is trained, but its {directory.best.name} is gone: name another --model_dir"
            )
        _check_snapshots(directory, snapshots)
        if would_be_chief(config.strategy):
            print(f"{directory.path} is trained; nothing to do")
        return directory.best_epoch()
    with lost_worker_is_an_error(directory.path), tensor_float_32(config.tensor_float_32):
        return _train(directory, config, snapshots)


def _check_snapshots(directory: ModelDirectory, snapshots: Collection[int]) -> None:
    """Raise InputError unless a run that is past these epochs kept their nets."""
    for epoch in snapshots:
        if not directory.snapshot(epoch).last.exists():
            raise InputError(f"{directory.path} has no net of epoch {epoch}, and is past it: name another --model_dir")


def _train(directory: ModelDirectory, config: TrainConfig, snapshots: Collection[int]) -> dict[str, float]:
    strategy = make_strategy(config.strategy)
    if config.deterministic:
        use_deterministic_operations(config.seed)
    check_shares(strategy, config.batch_size, config.jit_compile)
    parts = open_examples(config, "train").split_validation(
        config.validation_split, config.seed, config.max_train_examples
    )
    training, *others = place(config, *filter(None, parts))
    validation = others[0] if others else None
    for part in filter(None, (training, validation)):
        part.check_readable()
    if (size := fitting(config, training, strategy).batch_size) < config.batch_size:
        print(f"--batch_size={size}: there are {len(training)} images to train on")
    flags = {name: value for name, value in identity(config).items() if name not in PATHS}
    check_same_everywhere(strategy, lambda: (flags, training.sha256))
    with strategy.scope():
        model = new_model(config, training)  # before anything is written, since it may raise
        if config.adversarial != "none":
            image = to_float(tf.constant(training.images[:1]))
            _attack_of_training(config).check_target(model.target(), image)
        model.margin = _margin_of(config, model)
        if config.initial_weights and not directory.backup.exists():
            take_weights(model, config.initial_weights)
        with one_writer(strategy, directory.path) as path:
            return _train_in(ModelDirectory(path), config, model, training, validation, strategy, snapshots)


def _train_in(
    directory: ModelDirectory,
    config: TrainConfig,
    model: StochasticClassifier,
    training: Examples,
    validation: Examples | None,
    strategy: tf.distribute.Strategy,
    snapshots: Collection[int],
) -> dict[str, float]:
    """Train in a directory that only this process uses; return the best epoch's line."""
    with exclusive_directory(directory.path):
        directory.check_same_config(config)  # another process may have come first
        if directory.last.exists():
            return directory.best_epoch()
        directory.backup.parent.mkdir(exist_ok=True)
        remove_leftovers(directory.backup.parent)
        if directory.backup.exists():
            directory.check_same_dataset(training, training=True)
            margin, model = model.margin, _net_of_backup(directory)
            model.margin = margin
        if config.adversarial != "none":
            attack, epsilon = _attack_of_training(config), config.parsed_adversarial_epsilon
            model.adversary = config.parsed_defence.adversary(attack, epsilon, mixed=config.adversarial == "ct_at")
        synchronise_batch_normalisation(model, strategy)
        if not directory.backup.exists():  # an earlier start, killed before its first backup, may describe other images
            directory.write_config(config, training, model)
        if config.epochs:
            _fit(model, config, directory, training, validation, strategy, snapshots)
        elif not directory.backup.exists():
            _keep(model, config, directory, validation)
        directory.backup.replace(directory.last)
        with contextlib.suppress(OSError):  # it may hold files that are not this run's
            directory.backup.parent.rmdir()
    return directory.best_epoch()


def _net_of_backup(directory: ModelDirectory) -> StochasticClassifier:
    """Return the net of the last complete epoch; raise InputError with commands that help where its file is broken."""
    try:
        return load_model(directory.backup)
    except UnnamedModuleError:
        raise
    except InputError as error:
        best, backup = (shlex.quote(str(path)) for path in (directory.best, directory.backup))
        ways = []
        with contextlib.suppress(InputError):
            load_model(directory.best)  # it has an optimizer and a random stream too
            ways.append(f"to go on from the best epoch: cp {best} {backup}")
        ways.append(f"to start again: rm {backup}")
        raise InputError(f"{error}; {'; '.join(ways)}") from None


def _margin_of(config: TrainConfig, model: StochasticClassifier) -> LipschitzMargin | None:
    """Return what the loss does with the logits; `None` for plain cross-entropy."""
    if not config.margin_radius:
        return None if config.temperature == 1 else LipschitzMargin(0.0, config.temperature)
    _ = model.class_weights
    in_float32 = inference_copy(model, "float32") if config.precision != "float32" else model
    return LipschitzMargin(config.margin_radius * in_float32.lipschitz(), config.temperature)


def _attack_of_training(config: TrainConfig) -> BallAttack:
    """Return the attack of adversarial training, with the net that it transfers from, if any."""
    return cast(BallAttack, config.parsed_adversarial_attack.loaded())


def _fit(
    model: StochasticClassifier,
    config: TrainConfig,
    directory: ModelDirectory,
    training: Examples,
    validation: Examples | None,
    strategy: tf.distribute.Strategy,
    snapshots: Collection[int],
) -> None:
    config = fitting(config, training)
    steps = len(training) // config.batch_size
    first_epoch = int(model.optimizer.iterations.numpy()) // steps
    _check_snapshots(directory, [epoch for epoch in snapshots if epoch <= first_epoch])
    recorder = EpochRecorder(directory, first_epoch, snapshots, [part for part in (training, validation) if part])
    callbacks = [*config.parsed_defence.callbacks(), recorder]
    if config.adversarial != "none" and config.parsed_adversarial_attack.passes <= MAX_FAST_STEPS:
        attack, epsilon = _attack_of_training(config), config.parsed_adversarial_epsilon
        recorder.overfitting = CatastrophicOverfitting(training, attack, epsilon, recorder.lines)
        callbacks.insert(-1, recorder.overfitting)
    progress = [TrainingProgress(steps, config.epochs, first_epoch)] if is_chief() else []
    if is_chief():
        callbacks += [keras.callbacks.TensorBoard(directory.tensorboard, write_graph=False), *progress]
        print(_greeting(len(training), len(validation or ()), steps, first_epoch, config.epochs))
    train_on = functools.partial(
        training_batches, training, config.batch_size, config.epochs, first_epoch, config.seed, config.augmentation
    )
    validate_on = functools.partial(evaluation_batches, validation, config.batch_size) if validation else None
    try:
        model.fit(
            distribute_batches(strategy, train_on, config.batch_size),
            steps_per_epoch=steps,
            epochs=config.epochs,
            initial_epoch=first_epoch,
            validation_data=validate_on and distribute_batches(strategy, validate_on, config.batch_size),
            validation_steps=-(-len(validation or ()) // config.batch_size) or None,  # a step beyond would draw noise
            callbacks=callbacks,
            shuffle=False,  # the batches come shuffled
            verbose=0,
        )
    except tf.errors.OpError as error:
        recorder.check_unchanged()  # a file that is gone is why a batch cannot be read
        if DIVERGED not in str(error):
            raise
        raise DivergedError(
            f"training diverged: the loss became NaN or Inf after epoch {len(recorder.lines)}; try a smaller "
            f"--learning_rate than {config.learning_rate} in another --model_dir"
        ) from None
    finally:
        for shown in progress:
            shown.bar.close()


def _keep(
    model: StochasticClassifier, config: TrainConfig, directory: ModelDirectory, validation: Examples | None
) -> None:
    """Write the net of --epochs=0, whose weights are those of another net."""
    logs: dict[str, float] = {}
    if validation:
        batches = evaluation_batches(validation, config.batch_size)
        steps = -(-len(validation) // config.batch_size)
        measured = model.evaluate(batches, steps=steps, verbose=0, return_dict=True)
        logs = {f"val_{name}": value for name, value in measured.items()}
    recorder = EpochRecorder(directory, 0)
    recorder.set_model(model)
    recorder.on_epoch_end(-1, logs)


def _greeting(training: int, validation: int, steps: int, first_epoch: int, epochs: int) -> str:
    ahead = f"resuming after epoch {first_epoch} of {epochs}" if first_epoch else f"{epochs} epochs"
    return f"{training} training and {validation} validation images, {steps} steps an epoch, {ahead}"
