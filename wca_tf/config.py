"""What a training or an evaluation is told: frozen, checked on construction, and free of TensorFlow.

Every field is a flag of `bin/train` or `bin/evaluate`; its metadata is the flag's help.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from wca_tf.attacks import Attack, BallAttack, parse_attack
from wca_tf.attacks.attack import NORMS
from wca_tf.backbones import BACKBONES
from wca_tf.defences import Defence, parse_defence
from wca_tf.errors import InputError

# Seeds and counts become int32 in TensorFlow.
LARGEST = 2**31
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker")
STRATEGY_HELP = (
    "devices: one_device; mirrored: all GPUs of this machine; multi_worker: the machines that TF_CONFIG names; auto: "
    "TF_CONFIG's machines where it is set, else all GPUs (docs/scale.md). Not part of a run: it may change on resuming"
)
DATASET_HELP = "digits, any TFDS image classification set by name, or folder:PATH (see docs/data.md)"


def option(default: Any, help: str, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field that is a flag: its default, what it means, and the values allowed."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices})


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which images, and where they are."""

    dataset: str = option("digits", DATASET_HELP)
    tfds_data_dir: str = option(
        os.environ.get("TFDS_DATA_DIR", os.path.join("~", "tensorflow_datasets")),
        "where TFDS data are, or go with --download",
    )
    download: bool = option(False, "fetch the TFDS set when it is absent; without it nothing is fetched")
    image_size: int = option(0, "resize images to this height and width; 0 keeps the size they have")

    def __post_init__(self) -> None:
        _check_at_least(self, image_size=0)


@dataclasses.dataclass(frozen=True)
class TrainConfig(DataConfig):
    """A training run. The defaults suit digits; `configs/` has the paper's (section 4.1 and appendix B)."""

    backbone: str = option("lenet_plus_plus", "feature extractor", tuple(BACKBONES))
    defence: str = option(
        "wca",
        "none, wca, ...; options after a colon: wca:covariance=isotropic:feature_dim=64. One of your own: module:Class",
    )
    learning_rate: float = option(1e-3, "Adam's, at its highest")
    learning_rate_schedule: str = option(
        "steps",
        "steps: divided by 10 after each third (the authors' for nets with noise); constant (theirs for nets without); "
        "cosine: up over a fifth of the run, then down to 0",
        ("steps", "constant", "cosine"),
    )
    batch_size: int = option(128, "images a step, over all devices together")
    epochs: int = option(30, "passes over the training images (paper: 600)")
    augmentation: str = option("none", "crop_flip: pad by 4, crop, mirror (CIFAR)", ("none", "crop_flip"))
    validation_split: float = option(
        0.1, "share of the training images kept aside to choose the best epoch; 0: train on all, the last epoch is best"
    )
    max_train_examples: int = option(0, "use at most so many training images; 0 uses all")
    precision: str = option(
        "float32",
        "the backbone's; the noise and logits stay float32 (mixed_float16, with loss scaling, is for GPUs)",
        PRECISIONS,
    )
    jit_compile: bool = option(False, "compile the training step with XLA, on one GPU; slower on CPUs, and refused")
    adversarial: str = option(
        "none",
        "adversarial training: at on attacked images alone, ct_at on clean ones too",
        ("none", "at", "ct_at"),
    )
    adversarial_attack: str = option(
        "pgd",
        "of adversarial training: by what, as in bin/evaluate --attacks. With noise in the backbone each of 50 draws "
        "is a pass of the net: pgd:eot_samples=1 is cheaper",
    )
    adversarial_epsilon: str = option("8/255", "of adversarial training: the attack's radius")
    initial_weights: str = option(
        "", "directory of a trained net, whose features and weights this one starts from; noise starts anew"
    )
    seed: int = option(0, "decides the weights' start, the order of images, and the noise")
    strategy: str = option("auto", STRATEGY_HELP, STRATEGIES)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        self.parsed_defence.check(self)
        _ = self.parsed_adversarial_attack, self.parsed_adversarial_epsilon
        _check_at_least(self, batch_size=1, epochs=1, max_train_examples=0, seed=0)
        if not (0 < self.learning_rate < math.inf):
            raise InputError(f"expected --learning_rate above 0, received {self.learning_rate}")
        if not 0 <= self.validation_split < 1:
            raise InputError(f"expected --validation_split from 0 to below 1, received {self.validation_split}")

    @functools.cached_property
    def parsed_defence(self) -> Defence:
        """The defence; raises InputError for an unknown one."""
        try:
            return parse_defence(self.defence)
        except InputError as error:
            raise InputError(f"--defence: {error}") from None

    @functools.cached_property
    def parsed_adversarial_attack(self) -> BallAttack:
        """The attack of adversarial training; raises InputError for one without a radius, or towards a class."""
        try:
            attack = parse_attack(self.adversarial_attack)
        except InputError as error:
            raise InputError(f"--adversarial_attack: {error}") from None
        if not isinstance(attack, BallAttack) or attack.targeted:
            raise InputError(
                f"expected an attack in a ball, away from the label, as --adversarial_attack; received {attack.name}"
            )
        return attack

    @functools.cached_property
    def parsed_adversarial_epsilon(self) -> float:
        """The radius of adversarial training, in the images' [0, 1] units."""
        epsilon = _parse_epsilon(self.adversarial_epsilon, "--adversarial_epsilon")
        if self.parsed_adversarial_attack.norm == "linf" and epsilon > 1:
            raise InputError(f"expected --adversarial_epsilon between 0 and 1, received {self.adversarial_epsilon}")
        return epsilon


@dataclasses.dataclass(frozen=True)
class Radius:
    """A radius of attacks.

    Attributes:
        epsilon: in the images' [0, 1] units, 0 or more.
        norm: of the attacks that it is for; None for all.
    """

    epsilon: float
    norm: str | None = None


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """An evaluation of a trained model. In Python `attacks` may be texts and attacks, `epsilons` texts and numbers."""

    attacks: str | Sequence[str | Attack] = option(
        "fgsm,pgd,adaptive", "comma-separated; parameters after a colon: pgd:steps=40"
    )
    epsilons: str | Sequence[str | float] = option(
        "8/255", "comma-separated radii for images in [0, 1], as 0.1, 8/255, or l2:0.5 for attacks of one norm alone"
    )
    eot_samples: int = option(50, "noise draws that an attack's gradient averages over (paper: 50)")
    num_examples: int = option(1000, "attack the first so many images of the split; 0 takes all")
    split: str = option(
        "test", "test, or validation (for choices that must not see the test images)", ("test", "validation")
    )
    batch_size: int = option(
        100, "images attacked at a time; matters to the results only with noise inside the backbone"
    )
    seed: int = option(0, "decides the attacks' random starts and draws, and the draws that judge them")
    tfds_data_dir: str = option("", "where TFDS data are; empty takes the training run's")
    average_draws: int = option(1, "the net answers with the mean of the logits of so many draws (paper, E2: 10)")
    attack_precision: str = option(
        "own",
        "what attacks see: the net in its own precision, or a copy whose backbone computes in another, often faster; "
        "the net itself judges",
        ("own", *PRECISIONS),
    )
    checklist: bool = option(False, "also check, on 100 images, whether the numbers rest on obfuscated gradients")
    strategy: str = option("auto", STRATEGY_HELP, STRATEGIES)

    def __post_init__(self) -> None:
        check_choices(self)
        _check_at_least(self, eot_samples=1, num_examples=0, batch_size=1, seed=0, average_draws=1)
        if max(radius.epsilon for radius in self.parsed_radii) == 0 and self.checklist:
            raise InputError(f"the checklist expects an epsilon above 0, received --epsilons={self.epsilons}")

    def identity(self) -> dict[str, Any]:
        """What all attacks of an evaluation share: which images, the seed, and the draws."""
        shared = {name: getattr(self, name) for name in ("split", "num_examples", "seed", "eot_samples")}
        names = ("average_draws", "attack_precision")  # part of it where they are not the default
        changed = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(EvaluateConfig, name)}
        return {**shared, **changed}

    @functools.cached_property
    def parsed_attacks(self) -> tuple[Attack, ...]:
        """The attacks, in order; raises InputError for an unknown one."""
        return tuple(
            item if isinstance(item, Attack) else parse_attack(item, eot_samples=self.eot_samples)
            for item in _items(self.attacks, "--attacks")
        )

    @functools.cached_property
    def parsed_radii(self) -> tuple[Radius, ...]:
        """The radii, in order.

        Raises:
            InputError: one out of range, there twice, or of a norm of no attack; none in the norm of an attack.
        """
        radii, norms = parse_radii(self.epsilons), norms_of(self.parsed_attacks)
        for radius in radii:
            if norms and radius.norm not in (None, *norms):
                raise InputError(
                    f"expected --epsilons for attacks of {' and '.join(norms)}, received one of {radius.norm}"
                )
            if "linf" in norms and radius.norm != "l2" and radius.epsilon > 1:
                raise InputError(
                    f"expected --epsilons between 0 and 1 (images are in [0, 1]), received {self.epsilons}"
                )
        for norm in norms:
            if not any(radius.norm in (None, norm) for radius in radii):
                raise InputError(f"expected a radius in {norm} among --epsilons, received {self.epsilons}")
        return tuple(radii)


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """An export of a trained model, for serving."""

    model_dir: str = option("", "directory of a trained model")
    export_dir: str = option("", "where versions of the served model go: the directory that TF Serving watches")
    version: int = option(1, "number of the version, a directory of its own; one that exists is never replaced")

    def __post_init__(self) -> None:
        _check_at_least(self, version=1)
        if not self.export_dir:
            raise InputError("expected --export_dir=DIR, where the version goes")


def norms_of(attacks: Iterable[Attack]) -> list[str]:
    """Return the norms of the attacks that have a radius, in order."""
    return list(dict.fromkeys(attack.norm for attack in attacks if isinstance(attack, BallAttack)))


def expand(path: str) -> Path:
    """A path with ~ expanded; raises InputError when there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"expected a path, received {path}: there is no such user") from None


def _items(value: Any, flag: str) -> list[Any]:
    """The items of a comma-separated list, or of a sequence."""
    items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else list(value)
    if not items:
        raise InputError(f"expected a comma-separated list in {flag}, received {value!r}")
    if len(set(items)) < len(items):
        raise InputError(f"expected each item of {flag} once, received {value!r}")
    return items


def parse_radii(text: str | Sequence[str | float]) -> list[Radius]:
    """Return the radii of a list; raises InputError for an item that is no radius, or there twice.

    >>> parse_radii("1/2,l2:0.3")
    [Radius(epsilon=0.5, norm=None), Radius(epsilon=0.3, norm='l2')]
    """
    radii = []
    for item in map(str, _items(text, "--epsilons")):
        norm, colon, number = item.rpartition(":")
        if colon and norm not in NORMS:
            raise InputError(f"expected a norm among {', '.join(NORMS)} before the radius, received {item!r}")
        radii.append(Radius(_parse_epsilon(number, "--epsilons"), norm or None))
    if len(set(radii)) < len(radii):
        raise InputError(f"expected each radius of --epsilons once, received {text!r}")
    return radii


def _parse_epsilon(text: str, flag: str) -> float:
    try:
        epsilon = float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"expected {flag} as numbers or fractions such as 8/255, received {text!r}") from None
    if not epsilon >= 0:
        raise InputError(f"expected {flag} of 0 or more, received {text}")
    return epsilon


def check_choices(config: Any) -> None:
    """Raise InputError for a field that is none of its choices."""
    for field in dataclasses.fields(config):
        choices = field.metadata["choices"]
        value = getattr(config, field.name)
        if choices and value not in choices:
            raise InputError(f"expected --{field.name} among {', '.join(choices)}; received {value!r}")


def _check_at_least(config: Any, **smallest: float) -> None:
    for name, least in smallest.items():
        if not least <= getattr(config, name) < LARGEST:
            raise InputError(f"expected --{name} from {least} to below 2^31, received {getattr(config, name)}")
