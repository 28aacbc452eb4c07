"""The experiments by name: a declaration, its place in the paper, and its data at each scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from reproduce import alignment, bound, certificates, contours, defences, more_tables, orthogonal, paper_tables
from reproduce.nets import LARGER, SCALES
from reproduce.study import Study
from reproduce.tables import Table
from wca_tf import InputError

ALL = "all"
_SETS = ("cifar10", "cifar100", "svhn_cropped", "fashion_mnist")
_CHOICE = ("fashion_mnist", "mnist", "cifar10", "cifar100", "svhn_cropped")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        paper: the table or figure of the paper.
        what: what it shows, in a sentence; its page begins with it.
        declare: (data set, scale) -> its tables; their page has one after the other.
        small, full: its data sets at --scale=small and at --scale=paper; at --scale=tiny digits stand for each.
        choice: the data sets that --dataset may name in place of these.
        measure: (study, data set) adds the evidence of an experiment of its own.
    """

    paper: str
    what: str
    declare: Callable[[str, str], tuple[Table, ...]]
    small: tuple[str, ...] = ("fashion_mnist",)
    full: tuple[str, ...] = ("cifar10",)
    choice: tuple[str, ...] = _CHOICE
    measure: Callable[[Study, str], None] | None = None

    def datasets(self, scale: str) -> tuple[str, ...]:
        """Return the data sets at a scale."""
        tiny = self.small if self.small[0] in LARGER else ("digits",)
        return {"tiny": tiny, "small": self.small, "paper": self.full}[scale]


EXPERIMENTS: dict[str, Experiment] = {
    "quickstart": Experiment(
        "not in the paper",
        "Two small nets on scikit-learn's digits, as bin/quickstart trains them.",
        more_tables.quickstart,
        ("digits",),
        ("digits",),
        (),
    ),
    "fashion_mnist": Experiment(
        "Table 5, Fashion-MNIST",
        "The nets of the ablation by the usual protocol, and in the worst case of stronger attacks.",
        more_tables.fashion_mnist,
        full=("fashion_mnist",),
        choice=(),
    ),
    "ablation": Experiment(
        "Table 5", "No defence, isotropic and anisotropic noise, under FGSM and PGD.", paper_tables.ablation, full=_SETS
    ),
    "epsilon_sweep": Experiment(
        "Figure 1", "The nets of the ablation under FGSM and PGD, by radius.", paper_tables.epsilon_sweep
    ),
    "controls": Experiment("Table 6", "Penalty, constraint, E1, E2, E3, AT and CT+AT.", paper_tables.controls),
    "stronger": Experiment("Table 4", "PGD with restarts, and Square, by radius.", paper_tables.stronger, ("cifar10",)),
    "cw_and_pixels": Experiment(
        "Table 2", "C&W for each κ, and n-pixel for each n.", paper_tables.cw_and_pixels, ("cifar10",)
    ),
    "eot_convergence": Experiment(
        "Section 4.1", "Attacks whose gradients average over 1 to 100 draws.", paper_tables.eot_convergence
    ),
    "obfuscation": Experiment(
        "Section 4.5",
        "The paper's criteria of gradient obfuscation, and those of Carlini et al. (2019).",
        paper_tables.obfuscation,
    ),
    "bound": Experiment(
        "Figure 2",
        "The bound of the theorem beside attacks, for linear SVMs of zeros and ones.",
        bound.declare,
        ("mnist",),
        ("mnist",),
        (),
        bound.measure,
    ),
    "contours": Experiment(
        "Figure 3",
        "Class weights and noise in a bottleneck of two dimensions.",
        contours.declare,
        full=("fashion_mnist",),
        measure=contours.measure,
    ),
    "larger_images": Experiment(
        "Table 7", "ResNet-18 on larger images.", paper_tables.larger_images, LARGER[1:], LARGER[1:], LARGER[1:]
    ),
    "wide_net": Experiment(
        "Table 9", "Wide-ResNet-34-10 on CIFAR-10.", paper_tables.wide_net, LARGER[:1], LARGER[:1], ()
    ),
    "grid_search": Experiment(
        "Appendix B", "Learning rate and weight decay, on validation images.", paper_tables.grid_search, ("cifar10",)
    ),
    "headline": Experiment(
        "Tables 1 and 4",
        "CIFAR-10: the paper's attacks and stronger ones, at smaller radii too.",
        more_tables.headline,
        ("cifar10",),
    ),
    "adversarial": Experiment(
        "Table 6, AT and CT+AT",
        "Adversarial training, without and with noise.",
        more_tables.adversarial,
        ("cifar10",),
        choice=("cifar10", "cifar100", "svhn_cropped", "fashion_mnist"),
    ),
    "strong_attacks": Experiment(
        "not in the paper", "Every row of Tables 5 and 6 under strong attacks.", more_tables.strong_attacks
    ),
    "defences": Experiment(
        "Table 3, and more",
        "Every stochastic defence judged alike, with its noise and without it.",
        defences.declare,
    ),
    "training_length": Experiment(
        "not in the paper",
        "Accuracy under attack, noise and margin, by the length of training.",
        more_tables.training_length,
        ("cifar10", "fashion_mnist"),
        ("cifar10", "fashion_mnist"),
    ),
    "certificates": Experiment(
        "not in the paper",
        "Accuracy that is proved in l2 for nets with 1-Lipschitz features, beside attacks.",
        certificates.declare,
        ("mnist", "fashion_mnist", "cifar10"),
        ("mnist", "fashion_mnist", "cifar10"),
        ("mnist", "fashion_mnist", "cifar10"),
        certificates.measure,
    ),
    "orthogonal": Experiment(
        "not in the paper",
        "Accuracy that is proved in l2 for nets of orthogonal layers: by radius, training time, optimizer and noise. "
        "Beside it, the vote of randomised smoothing.",
        orthogonal.declare,
        ("cifar10",),
        ("cifar10",),
        (),
        orthogonal.measure,
    ),
    "alignment": Experiment(
        "not in the paper",
        "Forms of the alignment term: where the noise goes, and what is left.",
        alignment.declare,
        ("fashion_mnist", "cifar10"),
        ("fashion_mnist", "cifar10"),
        ("fashion_mnist", "cifar10"),
    ),
    "attack_suite": Experiment(
        "not in the paper", "Every attack on the nets of the ablation.", more_tables.attack_suite
    ),
    "adaptive": Experiment(
        "not in the paper", "The cascade adaptive beside single attacks, each run whole.", more_tables.adaptive
    ),
}


def datasets_of(name: str, scale: str, dataset: str = "") -> tuple[str, ...]:
    """Return the data sets of an experiment; raise InputError where it cannot take the one that is asked for."""
    experiment = EXPERIMENTS[name]
    if not dataset:
        return experiment.datasets(scale)
    if scale == "tiny" or dataset not in experiment.choice:
        known = f"--dataset among {', '.join(experiment.choice)}" if experiment.choice else "no --dataset"
        known = "no --dataset with --scale=tiny" if scale == "tiny" else known
        raise InputError(f"expected {known} with --experiment={name}; received {dataset!r}")
    return (dataset,)


def page_name(name: str, dataset: str, scale: str) -> str:
    """Return the name of the page of an experiment on a data set."""
    return name if dataset == EXPERIMENTS[name].datasets(scale)[0] else f"{name}_{dataset}"


def check_names(experiment: str, scale: str) -> None:
    """Raise InputError for an unknown experiment or scale."""
    if experiment not in (*EXPERIMENTS, ALL):
        raise InputError(
            f"expected --experiment among {', '.join([*EXPERIMENTS, ALL])}; received {experiment!r}; see --list"
        )
    if scale not in SCALES:
        raise InputError(f"expected --scale among {', '.join(SCALES)}; received {scale!r}")
