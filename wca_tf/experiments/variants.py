"""The nets of the experiments by name, with the paper's settings. This module is free of TensorFlow."""

from typing import Any

Changes = dict[str, Any]

FOLDER = "folder:"  # of mini-ImageNet; --mini_imagenet gives the folder

# Section 4.1 and appendix B. The authors' code gives what the paper does not say: augmentation, and the variant "none".
_RESNET: Changes = {"backbone": "resnet18", "learning_rate": 1e-2, "augmentation": "crop_flip"}
_IMAGENET: Changes = {**_RESNET, "backbone": "resnet18_imagenet"}
PAPER: dict[str, Changes] = {
    "fashion_mnist": {"dataset": "fashion_mnist", "learning_rate": 1e-4},
    "cifar10": {**_RESNET, "dataset": "cifar10"},
    "cifar10_wide": {**_RESNET, "dataset": "cifar10", "backbone": "wide_resnet34_10"},
    "cifar100": {**_RESNET, "dataset": "cifar100"},
    "svhn_cropped": {**_RESNET, "dataset": "svhn_cropped", "augmentation": "none"},
    "imagenette": {**_IMAGENET, "dataset": "imagenette/160px-v2", "image_size": 160},
    "mini_imagenet": {**_IMAGENET, "dataset": FOLDER, "image_size": 84},
    "mnist": {"dataset": "mnist", "learning_rate": 1e-4},
    "digits": {"dataset": "digits"},
}
PAPER_EPOCHS = 600
FEATURE_DIMS = {"cifar100": 256, "mini_imagenet": 256}  # for 100 classes; otherwise 32

_UNDEFENDED: Changes = {
    "defence": "none",
    "learning_rate": 1e-3,
    "learning_rate_schedule": "constant",
}
VARIANTS: dict[str, Changes] = {
    "none": _UNDEFENDED,
    "isotropic": {"defence": "wca:covariance=isotropic"},
    "anisotropic": {"defence": "wca"},
    "constraint": {"defence": "wca:regularizer=constraint"},
    # initial_weights names a variant; run.py puts its directory there.
    "noise_alone": {"defence": "wca:noise_alone=true", "initial_weights": "none"},
    "at": {"defence": "wca", "adversarial": "at"},
    "ct_at": {"defence": "wca", "adversarial": "ct_at"},
    "none_at": {**_UNDEFENDED, "adversarial": "at"},
    "ctrw_at": {"defence": "ctrw", "learning_rate_schedule": "constant", "adversarial": "at"},
    "smoothing_at": {"defence": "smoothing", "learning_rate_schedule": "constant", "adversarial": "at"},
    "plane_isotropic": {"defence": "wca:covariance=isotropic:feature_dim=2"},
    "plane_anisotropic": {"defence": "wca:feature_dim=2"},
}
# The rows of the experiment "defences": each defence on clean images, and adversarially trained by FGSM-RS.
BASELINES = ("none", "wca", "rse", "pni", "l2p", "adv_bnn", "se_snn", "smoothing", "ctrw", "rfd")
FGSM_RS = "fgsm_rs:eot_samples=1"
# FGSM-RS overfitted catastrophically on airbench's nets within three epochs. Two steps, at a rate of 0.3 by momentum,
# did not in five.
TWO_STEPS = "pgd:steps=2:relative_step_size=0.5"
_FAST: Changes = {"adversarial": "at", "adversarial_attack": FGSM_RS}
# LeNet++ has no batch normalisation: with a deviation of 0.05, as in the authors' first code, the noise of Adv-BNN
# drowns the signal.
BASELINE_OPTIONS = {"adv_bnn": ":deviation=0.01"}
# Of defences whose logits are Gaussian: an average over draws costs nothing there, and a single draw may saturate.
_FAST_BY_EOT: Changes = {**_FAST, "adversarial_attack": "fgsm_rs"}
for _name in BASELINES[:-1]:
    _defence = _name + BASELINE_OPTIONS.get(_name, "")
    VARIANTS[f"rival_{_name}"] = {"defence": _defence}
    VARIANTS[f"rival_{_name}_at"] = {"defence": _defence, **(_FAST_BY_EOT if _name in ("wca", "se_snn") else _FAST)}
# Without noise, but with the decay of all weights that RSE and CTRW have. The other nets without noise have none.
VARIANTS["rival_decay"] = {"defence": "none:weight_decay=5e-4:backbone_decay=5e-4"}
for _more in ("", "_at"):  # noise at test time on a net that is already trained
    VARIANTS[f"rival_rfd{_more}"] = {"defence": "rfd", "initial_weights": f"rival_none{_more}"}
# Adversarial training of a ResNet-18 with the decay, batch and epochs of Wong et al. (2020). Theirs has a rate of 0.2,
# a linear schedule, plain momentum, decay of all parameters and a pre-activation net. With 32 features and their rate,
# 24 features were 0 for each of 300 training images after four epochs.
VARIANTS["fast_none"] = {
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
VARIANTS["fast_wca"] = {
    **VARIANTS["fast_none"],
    "defence": "wca:backbone_decay=5e-4:feature_dim=512",
    "adversarial_attack": "fgsm_rs",
    # With WCA's noise, momentum at 0.2 ended in noise that all classes share, and a net that did not learn.
    "optimizer": "adam",
    "learning_rate": 1e-3,
}
# The undefended net by a recipe close to airbench (Jordan, 2024): logits over 9, and the decay of this rate.
VARIANTS["none_airbench"] = {
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
# These have a recipe of their own at every scale. Notes say how it differs from the paper's recipe of another variant.
OWN_RECIPES = {
    "fast_none": "none_at",
    "fast_wca": "at",
    "none_airbench": "none",
    "aligned_none": "none",
    "aligned_wca": "anisotropic",
    "aligned_rse": "none",
    "aligned_none_at": "none_at",
    "aligned_wca_at": "at",
    "long_none": "none",
    "long_anisotropic": "anisotropic",
    "long_isotropic": "isotropic",
}
# The rows of the experiment "certificates": nets with 1-Lipschitz features, and randomised smoothing.
# max_variance and alignment_weight are added for each data set. The temperature is that of Prach & Lampert (2022), for
# weights of norm 1.
_LIPSCHITZ: Changes = {
    "backbone": "lipschitz_cnn",
    "learning_rate": 1e-3,
    "learning_rate_schedule": "cosine",
    "temperature": 0.25,
}
_BOUNDED = "wca:regularizer=constraint"
VARIANTS |= {
    "certified_none": {**_LIPSCHITZ, "defence": "none"},
    # After an epoch on MNIST, the temperature 1 certified more at 1.0 and 1.58, and 0.25 more at 0.3 and clean images.
    "certified_far": {**_LIPSCHITZ, "defence": "none", "temperature": 1.0},
    "certified_isotropic": {**_LIPSCHITZ, "defence": f"{_BOUNDED}:covariance=isotropic"},
    "certified_anisotropic": {**_LIPSCHITZ, "defence": _BOUNDED},
    "certified_smoothing": {"backbone": "lenet_plus_plus", "defence": "smoothing", "learning_rate": 1e-3},
}
# A small net for CIFAR-10 that does not whiten patches of the images. With less whitening more was left
# of airbench93 at 1/255 (docs/results/cifar10_backbones.json). Its bottleneck has a ReLU, as the paper's.
NARROW = "resnet18_narrow"
# The rows of the experiment "alignment"; it chooses the options of "aligned_wca". These nets have batch normalisation,
# and train at the paper's rate for CIFAR-10. At --scale=small those of Fashion-MNIST are smaller (settings.py).
_ALIGNED: Changes = {"learning_rate": 1e-2, "learning_rate_schedule": "cosine", "validation_split": 0.1}
VARIANTS |= {
    "aligned_none": {**_ALIGNED, "defence": "none", "backbone": NARROW},
    "aligned_wca": {**_ALIGNED, "defence": "wca", "backbone": NARROW},
    "aligned_rse": {**_ALIGNED, "defence": "rse", "backbone": NARROW},
}
for _name in ("aligned_none", "aligned_wca"):
    VARIANTS[f"{_name}_at"] = {**VARIANTS[_name], "adversarial": "at", "adversarial_attack": TWO_STEPS}
# The rows of the experiment "training_length", at the paper's learning rates, on a net for CIFAR-10 in minutes.
_HELD: Changes = {"learning_rate_schedule": "constant"}
VARIANTS |= {
    "long_none": {"defence": "none", **_HELD},
    "long_anisotropic": {"defence": "wca", **_HELD},
    "long_isotropic": {"defence": "wca:covariance=isotropic", **_HELD},
    "long_steps": {"defence": "wca", "learning_rate_schedule": "steps"},
}
# The radius of Lipschitz-margin training, between the radii to certify, and the deviation that smooths images.
MARGIN_RADII = {"digits": 0.2, "mnist": 0.6, "fashion_mnist": 0.5, "cifar10": 0.28}
# Of "certified_far". On MNIST above the largest radius, 1.58, and below half the distance of most classes' mean images.
FAR_RADII = {"digits": 0.3, "mnist": 2.0, "fashion_mnist": 1.0, "cifar10": 0.42}
# With a larger weight of the alignment term the noise is as large as its bound allows in all directions that decide.
ALIGNMENT_WEIGHTS = {"digits": 0.01, "mnist": 0.01, "fashion_mnist": 0.003, "cifar10": 0.003}
SMOOTHING_DEVIATIONS = {"digits": (0.25,), "mnist": (0.5, 1.0), "fashion_mnist": (0.5,), "cifar10": (0.25,)}
