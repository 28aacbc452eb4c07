"""The paper's tables and figures by name; a module for each. This one is free of TensorFlow."""

import dataclasses
from collections.abc import Mapping

SCALES = ("tiny", "small", "paper")
NOT_MEASURED = "cost not measured"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The description of an experiment that `bin/reproduce --list` shows.

    Attributes:
        paper: the table or figure of the paper.
        what: the nets, attacks or quantities that it shows.
        nets: the number of nets that it trains at --scale=small, on each of `small`; nets that other experiments share
            count too.
        small, full: data sets at --scale=small and at --scale=paper, keys of variants.PAPER; at --scale=tiny the data
            set is digits.
        also: data sets that have a table of their own in --experiment=all at --scale=small, and the cost of each.
        choice: the data sets that --dataset may name in place of these; empty where the experiment is about its own.
        cost: the time that it took at --scale=small on 2 cores, which other jobs shared.
        version: a number to increase with every change of what its rows measure; kept rows are then made again.
    """

    paper: str
    what: str
    nets: tuple[int, ...]
    small: tuple[str, ...] = ("fashion_mnist",)
    full: tuple[str, ...] = ("cifar10",)
    also: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cost: str = NOT_MEASURED
    version: int = 1
    choice: tuple[str, ...] = ("fashion_mnist", "mnist", "cifar10", "cifar100", "svhn_cropped")

    def datasets(self, scale: str) -> tuple[str, ...]:
        """Return the data sets at one of `SCALES`."""
        return {"tiny": ("digits",), "small": self.small, "paper": self.full}[scale]

    def number_of_nets(self, datasets: tuple[str, ...]) -> int:
        """Return the number of nets at --scale=small on these data sets."""
        return sum(self.nets[self.small.index(name)] if name in self.small else self.nets[0] for name in datasets)


ABLATION_SETS = ("cifar10", "cifar100", "svhn_cropped", "fashion_mnist")
LARGER = ("cifar10_wide", "imagenette", "mini_imagenet")
EXPERIMENTS: dict[str, Experiment] = {
    "ablation": Experiment(
        "Table 5",
        "no defence, isotropic and anisotropic noise under FGSM and PGD",
        (3,),
        full=ABLATION_SETS,
        also={"cifar10": "43 min of training, 1 min of attacks"},
        cost="75 min of training, 1 min of attacks",
    ),
    "epsilon_sweep": Experiment(
        "Figure 1",
        "the same nets under FGSM and PGD, epsilon = 2^n/255, n = 0..7",
        (3,),
        also={"cifar10": "41 min of training, 3 min of attacks, with one core"},
        cost="75 min of training, 6 min of attacks",
    ),
    "controls": Experiment(
        "Table 6",
        "penalty, constraint, E1, E2, E3, AT and CT+AT",
        (7,),
        also={"cifar10": "3.2 h of training, 3 min of attacks, with one core"},
        cost="3.5 h of training, minutes of attacks",
    ),
    "stronger": Experiment(
        "Table 4",
        "PGD with restarts, and Square, for each epsilon; three seeds",
        (6,),
        ("cifar10",),
        cost="1.4 h of training, 59 min of attacks, with one core",
    ),
    "cw_and_pixels": Experiment(
        "Table 2",
        "C&W for each kappa, and n-pixel for each n",
        (2,),
        ("cifar10",),
        cost="55 min of training, 1.5 h of attacks, with one core",
    ),
    "eot_convergence": Experiment(
        "Section 4.1",
        "FGSM and PGD whose gradients average over 1 to 100 draws",
        (2,),
        also={"cifar10": "28 min of training, 4 min of attacks, with one core"},
        cost="59 min of training, 3 min of attacks, with one core and other work beside",
    ),
    "obfuscation": Experiment(
        "Section 4.5",
        "the paper's criteria of gradient obfuscation, and Carlini et al.'s",
        (3,),
        cost="1.3 h of training, 1.1 h of checks, with one core and other work beside",
    ),
    "bound": Experiment(
        "Figure 2",
        "Theorem 1's bound beside PGD, for linear SVMs of 0 against 1",
        (0,),
        ("mnist",),
        ("mnist",),
        choice=(),
        cost="1.6 min of one core",
    ),
    "contours": Experiment(
        "Figure 3",
        "class weights and noise in a bottleneck of two dimensions",
        (2,),
        full=("fashion_mnist",),
        cost="26 min of training",
    ),
    "scale": Experiment(
        "Tables 7 and 9",
        "Wide-ResNet-34-10 on CIFAR-10, ResNet-18 on Imagenette and mini-ImageNet",
        (2, 2, 2),
        LARGER,
        LARGER,
        also={"cifar10_wide": "95 min of training, 13 min of attacks, with one core with AMX"},
        choice=LARGER,
    ),
    "grid_search": Experiment(
        "Appendix B",
        "learning rate and weight decay in {1e-1 .. 1e-4}, on validation images",
        (16,),
        ("cifar10",),
        cost="24 min of training, 7 min of attacks, with one core",
    ),
    "headline": Experiment(
        "Tables 1 and 4",
        "CIFAR-10, three seeds: the paper's attacks, and strong ones; a fast recipe after 8, 16 and 24 epochs",
        (10,),
        ("cifar10",),
        cost="4.3 h of training, 1.6 h of attacks, with one core",
    ),
    "adversarial": Experiment(
        "Table 6, AT and CT+AT",
        "fast adversarial training, without and with noise: ResNet-18 by FGSM-RS, a smaller net by PGD of two steps",
        (7,),
        ("cifar10",),
        choice=("cifar10", "cifar100", "svhn_cropped"),
        cost="27 min of training on a GPU (not measured on a CPU), 2.1 h of attacks, with one core",
    ),
    "strong_attacks": Experiment(
        "not in the paper",
        "every row of ablation and controls under strong attacks",
        (8,),
        full=ABLATION_SETS,
        also={"cifar10": "3.5 h of training, 86 min of attacks, with one core each"},
        cost="3.7 h of training, 10 to 20 min of attacks a net",
        version=2,
    ),
    "fashion_mnist": Experiment(
        "Table 5, Fashion-MNIST",
        "the nets of the ablation by the paper's protocol and by adaptive attacks at 8/255, 0.1 and 0.3",
        (3,),
        full=("fashion_mnist",),
        choice=(),
        cost="1.8 h of training, 2.1 h of attacks, with one core",
    ),
    "defences": Experiment(
        "Table 3, and more",
        "every stochastic defence, without and with adversarial training, beside its net without the noise",
        (37,),
        cost="10.8 h of training, 18.6 h of attacks, with one core each",
        version=2,
    ),
    "training_length": Experiment(
        "not in the paper",
        "accuracy, noise and margin after 2 to 100 epochs at the paper's learning rates",
        (5, 5),
        ("cifar10", "fashion_mnist"),
        ("cifar10", "fashion_mnist"),
        cost="CIFAR-10: 5.2 h of training, 37 min of attacks; Fashion-MNIST: 1.4 h, 2.1 h; with one core",
    ),
    "certificates": Experiment(
        "not in the paper",
        "lower bounds of accuracy in l2 for nets with Lipschitz features, without and with noise, beside attacks",
        (12, 11, 5),
        ("mnist", "fashion_mnist", "cifar10"),
        ("mnist", "fashion_mnist", "cifar10"),
        choice=("mnist", "fashion_mnist", "cifar10"),
        cost="3.1 h of training, 1.2 h of attacks, with one core",
    ),
    "alignment": Experiment(
        "not in the paper",
        "forms of the alignment term, limits and features: where the noise goes, and what is left",
        (67, 16),
        ("fashion_mnist", "cifar10"),
        ("fashion_mnist", "cifar10"),
        choice=(),
        cost="5.8 h of training, 6.7 h of attacks, with one core",
        version=2,
    ),
    "attack_suite": Experiment(
        "not in the paper",
        "every attack on the nets of the ablation at epsilon = 0.1",
        (3,),
        cost="68 min of training, 47 min of attacks",
        version=3,
    ),
    "adaptive": Experiment(
        "not in the paper",
        "the cascade adaptive beside its members run whole: accuracy, and time on an idle machine",
        (2,),
        cost="41 min of training, 11 min of attacks",
        version=3,
    ),
}
