"""The attacks by their names in `--attacks`. This module is free of TensorFlow."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from wca_tf.attacks.attack import Attack
from wca_tf.attacks.bounded import Bounded
from wca_tf.attacks.gradient_attacks import (
    AutoPGD,
    CarliniWagner,
    ProjectedGradient,
    SingleDraw,
    Transfer,
)
from wca_tf.attacks.query_attacks import NPixel, RandomSampling, Square
from wca_tf.attacks.worst_case_attacks import Adaptive, AutoAttackRand, MultiTargeted, RestartedPGD


@dataclasses.dataclass(frozen=True)
class NamedAttack:
    """A name in `--attacks`.

    Attributes:
        kind: the class of the attack, which declares its options.
        description: the attack in a line.
        source: the publication.
        group: the group of the attack in tables.
        defaults: the options whose values differ from the defaults of the class.
    """

    kind: type[Attack]
    description: str
    source: str
    group: str
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def in_paper(self) -> bool:
        """Return whether the paper has this attack, with these defaults."""
        return self.group in (WHITE_BOX, BLACK_BOX) and self.kind is not RandomSampling


WHITE_BOX, BLACK_BOX, AUTO, ADAPTIVE, OTHER = "white box", "black box", "Auto-PGD", "strong", "other"
# Of a step, chosen by benchmarks/draws_against_steps.py; adaptive has more where they cost nothing.
DRAWS_THAT_COST = 10
_MARGIN = {"steps": 40, "restarts": 1}
ATTACKS: dict[str, NamedAttack] = {
    "fgsm": NamedAttack(
        ProjectedGradient,
        "one step along the signs of the gradient",
        "Goodfellow et al., ICLR 2015",
        WHITE_BOX,
        {"steps": 1, "relative_step_size": 1.0, "random_start": False},
    ),
    "pgd": NamedAttack(ProjectedGradient, "steps from a random start", "Madry et al., ICLR 2018", WHITE_BOX),
    "pgd_restarts": NamedAttack(RestartedPGD, "the worst of 100 PGDs: the paper's PGD_100", "the paper", WHITE_BOX),
    "cw": NamedAttack(CarliniWagner, "the nearest error in l2", "Carlini & Wagner, S&P 2017", WHITE_BOX),
    "n_pixel": NamedAttack(NPixel, "a few pixels, by differential evolution", "Su et al., IEEE TEC 2019", BLACK_BOX),
    "square": NamedAttack(Square, "random squares", "Andriushchenko et al., ECCV 2020", BLACK_BOX),
    "random_sampling": NamedAttack(
        RandomSampling, "10,000 random points of the ball", "Carlini et al., 2019", BLACK_BOX
    ),
    "apgd_ce": NamedAttack(AutoPGD, "Auto-PGD on cross-entropy", "Croce & Hein, ICML 2020", AUTO),
    "apgd_dlr": NamedAttack(AutoPGD, "Auto-PGD on DLR", "Croce & Hein, ICML 2020", AUTO, {"objective": "dlr"}),
    "auto_rand": NamedAttack(
        AutoAttackRand, "both Auto-PGDs: AutoAttack's rand", "Croce & Hein, ICML 2020", AUTO, {"eot_samples": 20}
    ),
    "margin": NamedAttack(
        RestartedPGD, "PGD on the margin without noise", "this project", ADAPTIVE, {"objective": "margin", **_MARGIN}
    ),
    "z_margin": NamedAttack(
        RestartedPGD,
        "PGD on the margin in standard deviations of the noise",
        "this project, after the paper's Theorem 1",
        ADAPTIVE,
        {"objective": "z_margin", **_MARGIN},
    ),
    "bounded": NamedAttack(
        Bounded,
        "PGD on the margin of each draw in units of its own size: for noise anywhere",
        "this project",
        ADAPTIVE,
        {"eot_samples": DRAWS_THAT_COST},
    ),
    "multi_targeted": NamedAttack(
        MultiTargeted, "PGD on the margin towards each other class", "Gowal et al., 2019", ADAPTIVE
    ),
    "transfer": NamedAttack(Transfer, "images made on another net", "Papernot et al., 2016", ADAPTIVE),
    "adaptive": NamedAttack(
        Adaptive,
        "the cascade to quote",
        "this project, after Tramèr et al., 2020",
        ADAPTIVE,
        {"eot_samples": DRAWS_THAT_COST},
    ),
    "single_draw": NamedAttack(
        SingleDraw, "PGD on one draw; other draws judge: shows what that overstates", "Ma et al., NeurIPS 2023", OTHER
    ),
    "bim": NamedAttack(
        ProjectedGradient, "steps from the image", "Kurakin et al., ICLR 2017", OTHER, {"random_start": False}
    ),
    "fgsm_rs": NamedAttack(
        ProjectedGradient,
        "one step of 1.25 ε from a random start: for fast adversarial training",
        "Wong et al., ICLR 2020",
        OTHER,
        {"steps": 1, "relative_step_size": 1.25},
    ),
}
