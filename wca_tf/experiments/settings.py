"""The settings that an experiment trains its nets with at each scale. This module is free of TensorFlow.

The scale "paper" has the paper's settings. Every table states how the settings of another scale differ from them.
"""

from wca_tf.core.machine import fast_precision
from wca_tf.core.options import identity
from wca_tf.experiments import LARGER
from wca_tf.experiments.variants import (
    ALIGNMENT_WEIGHTS,
    FAR_RADII,
    FEATURE_DIMS,
    MARGIN_RADII,
    NARROW,
    OWN_RECIPES,
    PAPER,
    PAPER_EPOCHS,
    SMOOTHING_DEVIATIONS,
    TWO_STEPS,
    VARIANTS,
    Changes,
)
from wca_tf.runs.config import TrainConfig

# More fields of a TrainConfig that say how a net is trained, not what is trained: a table's rows may differ in them.
OF_THE_MACHINE = ("initial_weights", "jit_compile", "precision")

# What --scale=tiny and --scale=small change, and for which data sets otherwise.
TINY: Changes = {
    "dataset": "digits",
    "image_size": 14,
    "max_train_examples": 256,
    "batch_size": 32,
    "epochs": 2,
    "learning_rate": 1e-3,
    "augmentation": "none",
}
TINY_SETS: dict[str, Changes] = {
    "cifar10_wide": {"image_size": 4, "max_train_examples": 32, "epochs": 1},
    "imagenette": {"image_size": 32},
    "mini_imagenet": {"image_size": 32},
}
SMALL: Changes = {
    "epochs": 8,
    "learning_rate": 2e-3,
    "learning_rate_schedule": "cosine",
    "validation_split": 0.0,
    "precision": fast_precision(),
}
_SMALL_FASHION_MNIST: Changes = {"epochs": 10, "learning_rate": 1e-3, "learning_rate_schedule": "steps"}
# A net for CIFAR-10 in minutes. All rows of a table train alike: the recipe of "none_airbench" is for nets without
# noise. With WCA's noise it ends in noise that all classes share, and Adam at this rate does not.
_SMALL_CIFAR10: Changes = {
    **SMALL,
    "backbone": "airbench93_relu",
    "epochs": 16,
    "batch_size": 512,
    "augmentation": "translate_flip",
}
DECAY_CIFAR10 = ":backbone_decay=5e-4"  # of defences that have this option
SMALL_SETS: dict[str, Changes] = {
    "cifar10": _SMALL_CIFAR10,
    "fashion_mnist": _SMALL_FASHION_MNIST,
    **dict.fromkeys(LARGER, {**_SMALL_FASHION_MNIST, "epochs": 2, "max_train_examples": 5_000}),
    "cifar10_wide": {**SMALL, "epochs": 1, "max_train_examples": 40_000, "learning_rate": 1e-3},  # an hour, estimated
}
# Data on which LeNet++ trains in seconds an epoch, or that are cut to a few images: adversarial training by PGD.
SMALL_IN_SECONDS = ("fashion_mnist", "mnist", *LARGER)
SMALL_ADVERSARIAL: Changes = {"epochs": 5, "max_train_examples": 10_000}
SMALL_FAST: Changes = {"adversarial_attack": TWO_STEPS, "epochs": 15}  # as many epochs as Wong et al. (2020)
NARROW_CIFAR10: Changes = {"backbone": NARROW, "batch_size": 128, "augmentation": "crop_flip"}
SMALL_PLANE: Changes = {"epochs": 5}
SMALL_CERTIFIED: Changes = {
    "epochs": 3,
    "learning_rate_schedule": "cosine",
    "validation_split": 0.0,
    "precision": fast_precision(),
}
SMALL_CERTIFIED_CIFAR10: Changes = {**SMALL_CERTIFIED, "epochs": 20}
SMALL_SMOOTHING_CIFAR10: Changes = {**SMALL_CERTIFIED_CIFAR10, "batch_size": 256, "learning_rate": 2e-3}
CERTIFIED_TINY: Changes = {"image_size": 12, "epochs": 2}
SMALL_BASELINES: Changes = {
    "epochs": 8,
    "learning_rate_schedule": "cosine",
    "max_train_examples": 20_000,
    "precision": fast_precision(),
}
# Many nets: so a net that trains in minutes. At this rate its noise is large beside the margins.
SMALL_ALIGNED: Changes = {"backbone": "lenet5", "epochs": 12, "learning_rate": 1e-3}
SMALL_ALIGNED_CIFAR10: Changes = {**NARROW_CIFAR10, "epochs": 8}


def train_changes(dataset: str, variant: str, scale: str) -> Changes:
    """Return the fields of a net's TrainConfig that are not left at their defaults; `dataset` is a key of `PAPER`."""
    changes = {"epochs": PAPER_EPOCHS, "learning_rate": 1e-2, **PAPER[dataset], **VARIANTS[variant]}
    if dataset in FEATURE_DIMS and "feature_dim" not in changes["defence"]:
        changes["defence"] += f":feature_dim={FEATURE_DIMS[dataset]}"
    if variant.startswith("certified"):
        changes |= _certified(dataset, variant)
    if scale == "tiny":
        changes |= _tiny(dataset, variant)
    elif scale == "small":
        changes |= _small(dataset, variant)
    return {**changes, "epochs": 0} if variant.startswith("rival_rfd") else changes


def _certified(dataset: str, variant: str) -> Changes:
    """Return the margin radius and the noise of a net to certify.

    The deviation of the noise is at most a quarter of that radius.
    """
    radius, defence = MARGIN_RADII[dataset], VARIANTS[variant]["defence"]
    if variant == "certified_smoothing":
        larger: Changes = {"backbone": NARROW} if dataset == "cifar10" else {}
        return {"defence": f"{defence}:deviation={SMOOTHING_DEVIATIONS[dataset][0]}", **larger}
    if defence == "none":
        return {"margin_radius": FAR_RADII[dataset] if variant == "certified_far" else radius}
    options = f"max_variance={(radius / 4) ** 2:g}:alignment_weight={ALIGNMENT_WEIGHTS[dataset]:g}"
    return {"margin_radius": radius, "defence": f"{defence}:{options}"}


def _tiny(dataset: str, variant: str) -> Changes:
    """Return the changes for seconds: small digits, and LeNet-5 unless the experiment is about a larger net."""
    if variant.startswith("certified"):
        backbone = "lenet5" if variant == "certified_smoothing" else VARIANTS[variant]["backbone"]
        return {**TINY, **CERTIFIED_TINY, "backbone": backbone}
    backbone = {} if dataset in LARGER else {"backbone": "lenet5"}
    few = {"max_train_examples": 128} if VARIANTS[variant].get("adversarial") else {}
    return {**TINY, **TINY_SETS.get(dataset, {}), **backbone, **few}


def _small(dataset: str, variant: str) -> Changes:
    """Return the changes for hours on 2 cores: fewer epochs, and a learning rate for them."""
    if variant.startswith("certified"):
        if dataset != "cifar10":
            return SMALL_CERTIFIED
        return SMALL_SMOOTHING_CIFAR10 if variant == "certified_smoothing" else SMALL_CERTIFIED_CIFAR10
    if variant.startswith("long"):  # the experiment gives the epochs
        smaller: Changes = {"backbone": NARROW} if dataset == "cifar10" else {"max_train_examples": 10_000}
        return {"epochs": 100, "precision": fast_precision(), **smaller}
    given = VARIANTS[variant]
    changes = {**SMALL_SETS.get(dataset, SMALL), **(SMALL_PLANE if variant.startswith("plane") else {})}
    if variant.startswith("aligned"):
        return {**changes, **given, **(SMALL_ALIGNED_CIFAR10 if dataset == "cifar10" else SMALL_ALIGNED)}
    if variant in OWN_RECIPES:
        return {**changes, **given}
    if dataset not in SMALL_IN_SECONDS:
        return {**changes, **_small_minutes(dataset, variant, given)}
    if variant.startswith("rival"):
        return {**changes, **SMALL_BASELINES}
    return {**changes, **SMALL_ADVERSARIAL} if given.get("adversarial") else changes


def _small_minutes(dataset: str, variant: str, given: Changes) -> Changes:
    """Return the part of the recipe that depends on the defence, for data on which an epoch takes minutes."""
    changes: Changes = {}
    head_alone = given["defence"].split(":")[0] in ("none", "wca")
    if dataset == "cifar10" and head_alone and "initial_weights" not in given:
        changes["defence"] = given["defence"] + DECAY_CIFAR10
    if given.get("adversarial"):
        changes |= {**SMALL_FAST, **(NARROW_CIFAR10 if dataset == "cifar10" else {})}
        if variant.startswith("rival") or not head_alone:  # noise anywhere in the net: a draw costs a pass
            changes["adversarial_attack"] += ":eot_samples=1"
    if variant.startswith("rival"):
        changes["validation_split"] = 0.1  # which chooses RFD's noise
    return changes


def differences(config: TrainConfig, dataset: str, variant: str) -> list[str]:
    """Return the differences of a net's training from the paper's, as texts such as "epochs 10, not 600"."""
    papers = OWN_RECIPES.get(variant, variant)
    paper = identity(TrainConfig(**train_changes(dataset, papers, "paper")))
    ours = identity(config)
    ignored: tuple[str, ...] = (*OF_THE_MACHINE, "seed")
    if dataset == "mini_imagenet" and config.dataset != "digits":
        ignored += ("dataset",)
    return [
        f"{name} {ours[name]}, not {paper[name]}" for name in paper if name not in ignored and ours[name] != paper[name]
    ]
