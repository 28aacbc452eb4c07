"""The rows of the paper's tables, and every number that it prints; no other module has them.

A net is (label, variant of variants.VARIANTS); radii are written as in the paper.
"""

from typing import Any, NamedTuple

EPSILON = "8/255"
RADII = {f"{2**n}/255": 2**n / 255 for n in range(8)}  # as written -> in the images' [0, 1] units
NETS = (("No Defense", "none"), ("WCA-Net", "anisotropic"))


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        label: the label, as in the paper.
        variant: the net, one of variants.VARIANTS.
        asked: changes to its EvaluateConfig.
        paper: the paper's clean, FGSM and PGD accuracy, as shares; empty for a row that the paper does not have.
    """

    label: str
    variant: str
    asked: dict[str, Any] = {}
    paper: tuple[float, ...] = ()


# Table 5, at epsilon = 8/255: data set -> clean, FGSM, PGD of the three rows, in %.
ABLATION_NUMBERS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "cifar10": ((93.3, 14.9, 3.9), (93.1, 60.7, 55.9), (93.2, 77.6, 71.4)),
    "cifar100": ((72.2, 12.3, 1.2), (70.1, 27.5, 21.8), (70.1, 51.5, 42.7)),
    "svhn_cropped": ((93.4, 55.6, 23.5), (93.4, 45.0, 40.1), (93.4, 87.6, 85.7)),
    "fashion_mnist": ((90.8, 26.4, 12.0), (90.1, 63.5, 37.2), (90.1, 65.2, 48.5)),
}
ABLATION_LABELS = (("No Defense", "none"), ("WCA-Net isotropic", "isotropic"), ("WCA-Net anisotropic", "anisotropic"))


def ablation_rows(dataset: str) -> list[Row]:
    """Return the rows of Table 5, without the paper's numbers for a data set that the paper does not have."""
    numbers = ABLATION_NUMBERS.get(dataset, ((),) * 3)
    return [
        Row(label, variant, {}, tuple(n / 100 for n in values))
        for (label, variant), values in zip(ABLATION_LABELS, numbers, strict=True)
    ]


# Table 4, on CIFAR-10: clean, then a number for each of RADII.
STRONGER = {
    ("pgd_restarts", "none"): (93.3, 45.3, 14.6, 0, 0, 0, 0, 0, 0),
    ("pgd_restarts", "anisotropic"): (93.2, 73.2, 72.2, 72.1, 71.2, 69.7, 56.4, 28.2, 10.5),
    ("square", "none"): (93.3, 32.9, 31.7, 12.4, 6.0, 1.2, 0, 0, 0),
    ("square", "anisotropic"): (93.2, 51.7, 51.7, 50.4, 49.0, 48.8, 44.3, 36.9, 28.6),
}

# Table 2, WCA-Net on CIFAR-10: its clean accuracy; kappa -> accuracy under C&W; n -> under n-pixel.
CW_CLEAN = 93.2
CW = {"0.1": 89.4, "1": 78.4, "2": 71.9, "5": 55.0}
PIXELS = {1: 90.8, 2: 85.5, 3: 81.2, 5: 64.3}

# Table 9: Wide-ResNet-34-10 on CIFAR-10, clean, then PGD at each of RADII. Table 7: clean, FGSM and PGD at EPSILON.
WIDE = {"none": (97, 63, 60, 26, 12, 0, 0, 0, 0), "anisotropic": (97, 80, 80, 77, 73, 70, 34, 10, 0)}
IMAGENET = {
    ("imagenette", "none"): (75.5, 8.4, 0.0),
    ("imagenette", "anisotropic"): (74.2, 59.3, 48.7),
    ("mini_imagenet", "none"): (51.9, 5.0, 0.0),
    ("mini_imagenet", "anisotropic"): (51.3, 41.6, 30.4),
}

# Appendix B: learning rate and weight decay.
CHOSEN = {"cifar10": (1e-2, 1e-4), "fashion_mnist": (1e-4, 1e-4)}

# Table 6, on CIFAR-10 at epsilon = 8/255, as shares. The last row is ours: adversarial training without any noise.
CONTROLS = (
    Row("No Defense", "none", {}, (0.933, 0.149, 0.039)),
    Row("Penalty regularizer", "anisotropic", {}, (0.932, 0.776, 0.714)),
    Row("Constraint regularizer", "constraint", {}, (0.922, 0.629, 0.532)),
    Row("E1: test without EoT", "anisotropic", {"eot_samples": 1}, (0.932, 0.829, 0.751)),
    Row("E2: average 10 noise samples", "anisotropic", {"average_draws": 10}, (0.932, 0.703, 0.688)),
    Row("E3: noise trained independently", "noise_alone", {}, (0.931, 0.450, 0.416)),
    Row("WCA-Net: AT", "at", {}, (0.881, 0.754, 0.704)),
    Row("WCA-Net: CT+AT", "ct_at", {}, (0.900, 0.756, 0.707)),
    Row("No Defense: AT (not in the paper)", "none_at"),
)
E3_NOTE = (
    "E3: the noise is trained on the undefended net; in the authors' code the first stage, without noise, already has "
    "the alignment term"
)
CONTROL_COLUMNS = ("clean", "fgsm", "pgd")
