"""The rows of the paper's tables of variants: their names, the nets they are, how they are asked, and its numbers."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row.

    Attributes:
        label: as in the paper.
        variant: the net, one of settings.VARIANTS.
        asked: changes to its EvaluateConfig.
        paper: the paper's clean, FGSM and PGD accuracy, as shares; none for a row that it does not have.
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
    """Table 5's rows; without the paper's numbers for a data set that it does not have."""
    numbers = ABLATION_NUMBERS.get(dataset, ((),) * 3)
    return [
        Row(label, variant, {}, tuple(n / 100 for n in values))
        for (label, variant), values in zip(ABLATION_LABELS, numbers, strict=True)
    ]


# Table 6, on CIFAR-10 at epsilon = 8/255. The last row is ours: what adversarial training does without any noise.
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
