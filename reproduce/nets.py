"""The nets of the study by name: what is trained, with which settings, at which scale. Free of TensorFlow."""

import dataclasses
from pathlib import Path
from typing import Any

from wca_tf import TrainConfig, fast_precision

Changes = dict[str, Any]
SCALES = ("tiny", "small", "paper")
CONFIGS = Path(__file__).resolve().parent.parent / "configs"
FOLDER = "folder:"  # of mini-ImageNet; --mini_imagenet gives the folder
LARGER = ("cifar10_wide", "imagenette", "mini_imagenet")
NARROW = "resnet18_narrow"
# The names of data sets in titles.
TITLES = {
    "digits": "digits",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn_cropped": "SVHN",
    "imagenette": "Imagenette",
    "mini_imagenet": "mini-ImageNet",
}
SEEDS = (0, 1, 2)  # of the nets that are trained three times

# FGSM-RS overfitted catastrophically on small nets within three epochs; two steps did not in five.
TWO_STEPS = "pgd:steps=2:relative_step_size=0.5"
FGSM_RS = "fgsm_rs:eot_samples=1"
_FAST: Changes = {"adversarial": "at", "adversarial_attack": FGSM_RS}
# An average over draws costs nothing where the logits are Gaussian, and a single draw may saturate.
_FAST_BY_EOT: Changes = {**_FAST, "adversarial_attack": "fgsm_rs"}
_OFFICIAL = "reproduce.official:WCAOfficial"

# Each net by its changes to the settings of configs/: "none..." to those of *_none.flags, "isotropic" to those of
# *_isotropic.flags, the others to those of *_anisotropic.flags.
VARIANTS: dict[str, Changes] = {
    "none": {},
    "isotropic": {},
    "anisotropic": {},
    "constraint": {"defence": "wca:regularizer=constraint"},
    "noise_alone": {"defence": "wca:noise_alone=true", "initial_weights": "none"},  # the net that it starts from
    "at": {"adversarial": "at"},
    "ct_at": {"adversarial": "ct_at"},
    "none_at": {"adversarial": "at"},
    "ctrw_at": {"defence": "ctrw", "learning_rate_schedule": "constant", "adversarial": "at"},
    "smoothing_at": {"defence": "smoothing", "learning_rate_schedule": "constant", "adversarial": "at"},
    "plane_isotropic": {"defence": "wca:covariance=isotropic:feature_dim=2"},
    "plane_anisotropic": {"defence": "wca:feature_dim=2"},
}
# Table 3, and more. With a deviation of 0.05 the noise of Adv-BNN drowns the signal of LeNet++, which has no batch
# normalisation.
BASELINES = ("none", "wca", "rse", "pni", "l2p", "adv_bnn", "se_snn", "smoothing", "ctrw", "rfd")
for _name in BASELINES:
    _defence = _name + {"adv_bnn": ":deviation=0.01"}.get(_name, "")
    _starts = {"initial_weights": "baseline_none"} if _name == "rfd" else {}
    VARIANTS[f"baseline_{_name}"] = {"defence": _defence, **_starts}
    _attacked = _FAST_BY_EOT if _name in ("wca", "se_snn") else _FAST
    _starts = {"initial_weights": "baseline_none_at"} if _name == "rfd" else _attacked
    VARIANTS[f"baseline_{_name}_at"] = {"defence": _defence, **_starts}
# Without noise, but with the decay of all weights that RSE and CTRW have.
VARIANTS["baseline_decay"] = {"defence": "none:weight_decay=5e-4:backbone_decay=5e-4"}

# Adversarial training of a ResNet-18 with the decay, batch and epochs of Wong et al. (2020).
_RESNET_AT: Changes = {
    **_FAST,
    "defence": "none:weight_decay=5e-4:backbone_decay=5e-4:feature_dim=512",
    "backbone": "resnet18",
    "optimizer": "nesterov",
    "learning_rate": 0.1,
    "learning_rate_schedule": "cosine",
    "epochs": 15,
    "batch_size": 128,
    "augmentation": "crop_flip",
}
# With WCA's noise, momentum at 0.2 ended in noise that all classes share; Adam at this rate does not.
_ADAM: Changes = {"defence": "wca:backbone_decay=5e-4:feature_dim=512", "optimizer": "adam", "learning_rate": 1e-3}
# The undefended net by a recipe close to airbench (Jordan, 2024): logits over 9, and the decay of this rate.
_AIRBENCH: Changes = {
    "defence": "none:weight_decay=1.33e-3:backbone_decay=1.33e-3:temperature=9",
    "backbone": "airbench94_relu",
    "optimizer": "nesterov",
    "learning_rate": 1.0,
    "learning_rate_schedule": "cosine",
    "label_smoothing": 0.2,
    "epochs": 16,
    "batch_size": 512,
    "augmentation": "translate_flip",
}
_ALIGNED: Changes = {"backbone": NARROW, "learning_rate": 1e-2, "learning_rate_schedule": "cosine"}
_ALIGNED |= {"validation_split": 0.1}
_ALIGNED_AT: Changes = {**_ALIGNED, "adversarial": "at", "adversarial_attack": TWO_STEPS}
_QUICKSTART: Changes = {"backbone": "lenet5", "epochs": 20, "learning_rate": 2e-3, "batch_size": 64}
_LONG: Changes = {"learning_rate_schedule": "constant"}
# 1-Lipschitz features, with the temperature of Prach and Lampert (2022) for weights of norm 1.
_LIPSCHITZ: Changes = {"backbone": "lipschitz_cnn", "learning_rate": 1e-3, "learning_rate_schedule": "cosine"}
_LIPSCHITZ |= {"temperature": 0.25}
_ORTHOGONAL: Changes = {"backbone": "orthogonal_net", "optimizer": "orthogonal_muon", "learning_rate": 0.03}
_ORTHOGONAL |= {"learning_rate_schedule": "cosine", "batch_size": 256, "temperature": 0.25}
_ORTHOGONAL |= {"validation_split": 0.0, "epochs": 100}
# Two hours of CIFAR-10 on two cores. A step in bfloat16 takes less time than one in float32.
_ORTHOGONAL_LONG: Changes = {**_ORTHOGONAL, "backbone": "orthogonal_net:width=96", "augmentation": "translate_flip"}
_ORTHOGONAL_LONG |= {"epochs": 116, "precision": "mixed_bfloat16", "margin_radius": 0.2}
_ORTHOGONAL_HOURS: Changes = {**_ORTHOGONAL_LONG, "learning_rate": 0.01, "epochs": 180}
# Twenty minutes.
_ORTHOGONAL_MINUTES: Changes = {**_ORTHOGONAL_LONG, "backbone": "orthogonal_net", "epochs": 50}
_CONSTRAINT = "wca:regularizer=constraint"
# Nets with a recipe of their own at every scale.
OWN_RECIPES: dict[str, Changes] = {
    "quickstart_none": {**_QUICKSTART, "defence": "none"},
    "quickstart_wca": {**_QUICKSTART, "defence": "wca"},
    "resnet18_none_at": _RESNET_AT,
    "resnet18_wca_at": {**_RESNET_AT, **_ADAM, "adversarial_attack": "fgsm_rs"},
    "airbench_none": _AIRBENCH,
    "aligned_none": {**_ALIGNED, "defence": "none"},
    "aligned_wca": {**_ALIGNED, "defence": "wca"},
    "aligned_rse": {**_ALIGNED, "defence": "rse"},
    "aligned_none_at": {**_ALIGNED_AT, "defence": "none"},
    "aligned_wca_at": {**_ALIGNED_AT, "defence": "wca"},
    "long_none": {**_LONG, "defence": "none"},
    "long_anisotropic": {**_LONG, "defence": "wca"},
    "long_isotropic": {**_LONG, "defence": "wca:covariance=isotropic"},
    "long_official": {**_LONG, "defence": _OFFICIAL},
    "long_steps": {"defence": "wca", "learning_rate_schedule": "steps"},
    "certified_none": {**_LIPSCHITZ, "defence": "none"},
    "certified_far": {**_LIPSCHITZ, "defence": "none", "temperature": 1.0},
    "certified_isotropic": {**_LIPSCHITZ, "defence": f"{_CONSTRAINT}:covariance=isotropic"},
    "certified_anisotropic": {**_LIPSCHITZ, "defence": _CONSTRAINT},
    "orthogonal_none": {**_ORTHOGONAL, "defence": "none"},
    "orthogonal_long": {**_ORTHOGONAL_LONG, "defence": "none"},
    "orthogonal_hours": {**_ORTHOGONAL_HOURS, "defence": "none"},
    "orthogonal_minutes": {**_ORTHOGONAL_MINUTES, "defence": "none"},
    "orthogonal_far": {**_ORTHOGONAL, "defence": "none"},
    "orthogonal_isotropic": {**_ORTHOGONAL, "defence": f"{_CONSTRAINT}:covariance=isotropic"},
    "orthogonal_anisotropic": {**_ORTHOGONAL, "defence": _CONSTRAINT},
    "orthogonal_nesterov": {**_ORTHOGONAL, "defence": "none", "optimizer": "orthogonal_nesterov"},
    "orthogonal_adam": {**_ORTHOGONAL, "defence": "none", "optimizer": "adam"},
    "certified_smoothing": {"backbone": "lenet_plus_plus", "defence": "smoothing", "learning_rate": 1e-3},
}
VARIANTS |= OWN_RECIPES

# What --scale=tiny and --scale=small change.
TINY: Changes = {
    "dataset": "digits",
    "image_size": 14,
    "max_train_examples": 256,
    "batch_size": 32,
    "epochs": 2,
    "learning_rate": 1e-3,
    "augmentation": "none",
}
_TINY_SETS: dict[str, Changes] = {
    "cifar10_wide": {"image_size": 4, "max_train_examples": 32, "epochs": 1},
    "imagenette": {"image_size": 32},
    "mini_imagenet": {"image_size": 32},
}
_COSINE: Changes = {"learning_rate_schedule": "cosine", "precision": fast_precision()}
_SMALL: Changes = {"epochs": 8, "learning_rate": 2e-3, "validation_split": 0.0, **_COSINE}
_SMALL_FASHION_MNIST: Changes = {"epochs": 10, "learning_rate": 1e-3, "learning_rate_schedule": "steps"}
_SMALL_SETS: dict[str, Changes] = {
    "digits": {},
    "fashion_mnist": _SMALL_FASHION_MNIST,
    **dict.fromkeys(LARGER, {**_SMALL_FASHION_MNIST, "epochs": 2, "max_train_examples": 5_000}),
    "cifar10_wide": {**_SMALL, "epochs": 1, "max_train_examples": 40_000, "learning_rate": 1e-3},
    "cifar10": {
        **_SMALL,
        "backbone": "airbench93_relu",
        "epochs": 16,
        "batch_size": 512,
        "augmentation": "translate_flip",
    },
}
_NARROW: Changes = {"backbone": NARROW, "batch_size": 128, "augmentation": "crop_flip"}
_IN_SECONDS = ("digits", "fashion_mnist", "mnist", *LARGER)  # data on which an epoch takes seconds
_SMALL_BASELINES: Changes = {"epochs": 8, "max_train_examples": 20_000, **_COSINE}
_SMALL_ALIGNED: Changes = {"backbone": "lenet5", "epochs": 12, "learning_rate": 1e-3}
# Nets of orthogonal layers on small images: half an hour of one core at most.
_OF_SMALL_IMAGES: Changes = {"precision": "mixed_bfloat16", "augmentation": "none"}
_SMALL_ORTHOGONAL: dict[tuple[str, str], Changes] = {
    ("mnist", "orthogonal_none"): {**_OF_SMALL_IMAGES, "epochs": 30},
    ("mnist", "orthogonal_far"): {**_OF_SMALL_IMAGES, "epochs": 20, "backbone": "orthogonal_net:width=128"},
    ("fashion_mnist", "orthogonal_none"): {**_OF_SMALL_IMAGES, "epochs": 12},
}
_SMALL_CERTIFIED: Changes = {"epochs": 3, "validation_split": 0.0, **_COSINE}

# Of nets with 1-Lipschitz features: the radius of Lipschitz-margin training, that of "certified_far", and the weight of
# the alignment term, with which the noise is as large as its bound allows.
MARGIN_RADII = {"digits": 0.2, "mnist": 0.6, "fashion_mnist": 0.5, "cifar10": 0.28}
FAR_RADII = {"digits": 0.3, "mnist": 2.0, "fashion_mnist": 1.0, "cifar10": 0.42}
# Radii of margin training by the table of settings on validation images; Fashion-MNIST has that of MNIST.
ORTHOGONAL_RADII = {("mnist", "orthogonal_none"): 0.4, ("mnist", "orthogonal_far"): 1.6}
ORTHOGONAL_RADII |= {("fashion_mnist", "orthogonal_none"): 0.4}
ALIGNMENT_WEIGHTS = {"digits": 0.01, "mnist": 0.01, "fashion_mnist": 0.003, "cifar10": 0.003}


@dataclasses.dataclass(frozen=True)
class Net:
    """A net of the study: one training, or the net as it was after an epoch of a training.

    Attributes:
        dataset: the data set, as in the names of configs/.
        variant: a key of `VARIANTS`.
        changes: (field, value) of its TrainConfig that differ from the variant's settings, such as ("seed", 1).
        epoch: the epoch after which it is judged; 0 for the best epoch, as `bin/train` keeps it.
        epochs_kept: the epochs whose nets the training keeps.
    """

    dataset: str
    variant: str
    changes: tuple[tuple[str, Any], ...] = ()
    epoch: int = 0
    epochs_kept: tuple[int, ...] = ()

    def but(self, **changes: Any) -> "Net":
        """Return the net with changes to its TrainConfig."""
        return dataclasses.replace(self, changes=tuple({**dict(self.changes), **changes}.items()))

    def of_seed(self, seed: int) -> "Net":
        """Return the net of another seed; the net of seed 0 is the net itself."""
        return self.but(seed=seed) if seed else self

    def training(self, scale: str) -> str:
        """Return the name of its training."""
        changed = [f"{field}={value}" for field, value in self.changes]
        return "-".join([self.dataset, scale, self.variant, *changed]).replace("/", "_").replace(":", "_")

    def name(self, scale: str) -> str:
        """Return the name of the net, that of its evidence."""
        return self.training(scale) + (f"-epoch={self.epoch}" if self.epoch else "")

    def config(self, scale: str) -> Changes:
        """Return the fields of its TrainConfig that are not at their defaults.

        initial_weights, where there are any, is a key of `VARIANTS`.
        """
        return {**settings(self.dataset, self.variant, scale), **dict(self.changes)}

    def starts_from(self, scale: str) -> "Net | None":
        """Return the net whose weights it starts from; `None` for a net that starts from random weights."""
        source = self.config(scale).get("initial_weights")
        return Net(self.dataset, source) if source else None


def settings(dataset: str, variant: str, scale: str) -> Changes:
    """Return the settings that a net is trained with at a scale, as fields of a TrainConfig."""
    changes = {**papers_settings(dataset, variant), **VARIANTS[variant]}
    if variant.startswith(("certified", "orthogonal")):
        changes |= _certified(dataset, variant)
    if scale == "tiny":
        changes |= _tiny(dataset, variant)
    elif scale == "small":
        changes |= _small(dataset, variant)
    if variant.startswith("baseline_rfd"):
        changes["epochs"] = 0  # noise on a net that is already trained
    return changes


def papers_settings(dataset: str, variant: str) -> Changes:
    """Return the paper's settings of a data set, from the flag file in configs/."""
    kind = variant.split("_")[0]
    kind = kind if kind in ("none", "isotropic") else "anisotropic"
    stem = {"cifar10_wide": "cifar10_wide_resnet34_10"}.get(dataset, dataset)
    lines = (CONFIGS / f"{stem}_{kind}.flags").read_text().splitlines()
    flags = dict(line[2:].split("=", 1) for line in lines if line.startswith("--"))
    defaults = dataclasses.asdict(TrainConfig())
    return {name: type(defaults[name])(value) for name, value in flags.items()}


def _certified(dataset: str, variant: str) -> Changes:
    """Return the margin radius and the noise of a net to certify: its deviation is at most a quarter of that radius."""
    radius, defence = MARGIN_RADII[dataset], VARIANTS[variant]["defence"]
    if variant == "certified_smoothing":
        return {"backbone": NARROW} if dataset == "cifar10" else {}
    if defence == "none":
        given = FAR_RADII[dataset] if variant.endswith("_far") else radius
        given = ORTHOGONAL_RADII.get((dataset, variant), given)
        return {"margin_radius": VARIANTS[variant].get("margin_radius", given)}
    options = f"max_variance={(radius / 4) ** 2:g}:alignment_weight={ALIGNMENT_WEIGHTS[dataset]:g}"
    return {"margin_radius": radius, "defence": f"{defence}:{options}"}


def _tiny(dataset: str, variant: str) -> Changes:
    """Return the changes for seconds: small digits, and LeNet-5 unless the table is about a larger net."""
    if variant.startswith(("certified", "orthogonal")):
        backbone = "lenet5" if variant == "certified_smoothing" else VARIANTS[variant]["backbone"]
        return {**TINY, "image_size": 12, "backbone": backbone}
    backbone = {} if dataset in LARGER else {"backbone": "lenet5"}
    few = {"max_train_examples": 128} if VARIANTS[variant].get("adversarial") else {}
    return {**TINY, **_TINY_SETS.get(dataset, {}), **backbone, **few}


def _small(dataset: str, variant: str) -> Changes:
    """Return the changes for hours on 2 cores: fewer epochs, and a learning rate for them."""
    family, given = variant.split("_")[0], VARIANTS[variant]
    if variant in ("orthogonal_long", "orthogonal_hours", "orthogonal_minutes"):
        return {}
    if family == "orthogonal":
        epochs = 3 if variant.endswith("isotropic") else 12
        return _SMALL_ORTHOGONAL.get((dataset, variant), {"epochs": epochs, "augmentation": "none"})
    if family == "certified":
        smoothing = {"batch_size": 256, "learning_rate": 2e-3} if variant == "certified_smoothing" else {}
        return {**_SMALL_CERTIFIED, **({"epochs": 20, **smoothing} if dataset == "cifar10" else {})}
    if family == "long":
        smaller = {"backbone": NARROW} if dataset == "cifar10" else {"max_train_examples": 10_000}
        return {"epochs": 100, "precision": fast_precision(), **smaller}
    changes = {**_SMALL_SETS.get(dataset, _SMALL), **({"epochs": 5} if family == "plane" else {})}
    if family == "aligned":
        return {**changes, **given, **({**_NARROW, "epochs": 8} if dataset == "cifar10" else _SMALL_ALIGNED)}
    if variant in OWN_RECIPES:
        return {**changes, **given}
    if dataset not in _IN_SECONDS:
        return {**changes, **_small_minutes(dataset, variant, given)}
    if family == "baseline":
        return {**changes, **_SMALL_BASELINES}
    return {**changes, **({"epochs": 5, "max_train_examples": 10_000} if given.get("adversarial") else {})}


def _small_minutes(dataset: str, variant: str, given: Changes) -> Changes:
    """Return the part of the recipe that depends on the defence, for data on which an epoch takes minutes."""
    defence = given.get("defence", "none" if variant.startswith("none") else "wca")
    changes: Changes = {}
    in_head = defence.split(":")[0] in ("none", "wca")
    if dataset == "cifar10" and in_head and "initial_weights" not in given and "backbone_decay" not in defence:
        changes["defence"] = defence + ":backbone_decay=5e-4"
    if given.get("adversarial"):
        changes |= {"adversarial_attack": TWO_STEPS, "epochs": 15, **(_NARROW if dataset == "cifar10" else {})}
        if variant.startswith("baseline") or not in_head:  # noise anywhere in the net: a draw costs a pass
            changes["adversarial_attack"] += ":eot_samples=1"
    if variant.startswith("baseline"):
        changes["validation_split"] = 0.1  # which chooses RFD's noise
    return changes
