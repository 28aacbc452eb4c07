"""The source nets of transfer attacks, for attacks that name the directory of a net."""

import dataclasses
import functools
from pathlib import Path

import keras

from wca_tf.attacks import Attack
from wca_tf.attacks.gradient_attacks import Transfer
from wca_tf.core.paths import expand_user
from wca_tf.nets.keras_target import as_target, target_of
from wca_tf.nets.targets import AnyTarget
from wca_tf.runs.model_dir import ModelDirectory


def target_in(model_dir: str | Path) -> AnyTarget:
    """Return the target of the model that `bin/train` left in `model_dir`; raise InputError when there is no model."""
    directory = ModelDirectory(expand_user(str(model_dir)))
    return target_of(directory.load_best())


def with_source(attack: Attack) -> Attack:
    """Return the attack with a target as its source, in place of a directory or a Keras model; others as they are.

    Raises:
        InputError: there is no model in the directory.
    """
    if not isinstance(attack, Transfer) or not isinstance(attack.source, str | keras.Model) or not attack.source:
        return attack
    if isinstance(attack.source, keras.Model):
        return dataclasses.replace(attack, source=as_target(attack.source, attack.source.input_shape[1:]))
    best = ModelDirectory(expand_user(attack.source)).best
    changed = best.stat().st_mtime_ns if best.exists() else 0
    return dataclasses.replace(attack, source=_target_in(attack.source, changed))


@functools.lru_cache(maxsize=4)
def _target_in(model_dir: str, changed: int) -> AnyTarget:
    """Return the target of a directory, the same object as long as its file is the same, so that attacks trace once."""
    return target_in(model_dir)
