"""The attacks by their names in `--attacks`: the class, the defaults and the source of each."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from wca_tf.attacks.arc import ARC
from wca_tf.attacks.attack import Attack
from wca_tf.attacks.auto_pgd import AutoPGD
from wca_tf.attacks.carlini_wagner import CarliniWagner
from wca_tf.attacks.cascade import Adaptive, AutoAttackRand, Bounded, MultiTargeted, RestartedPGD
from wca_tf.attacks.n_pixel import NPixel
from wca_tf.attacks.pgd import ProjectedGradient, SingleDraw
from wca_tf.attacks.random_sampling import RandomSampling
from wca_tf.attacks.square import Square
from wca_tf.attacks.transfer import Transfer
from wca_tf.core.errors import InputError
from wca_tf.core.options import build_declared, class_from_outside, options_of, parse_options


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
    "arc": NamedAttack(ARC, "from net to net of a random ensemble", "Dbouk & Shanbhag, ICML 2022", OTHER),
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
VARIED_BY_THE_PAPER = {"confidence", "pixels"}
for _name, _named in ATTACKS.items():
    _named.kind.names[_name] = _named.defaults


def parse_attack(text: str, **defaults: Any) -> Attack:
    """Return the attack written as `name:option=value:option=value`.

    Args:
        text: the attack; its name is one of `ATTACKS`, or module:Class for your own attack.
        defaults: values of options, such as eot_samples, for which neither the text nor the name has a value.

    Raises:
        InputError: the name or an option is unknown, or a value has the wrong type or is out of bounds.

    Examples:
        >>> attack = parse_attack("pgd:steps=40:norm=l2", eot_samples=20)
        >>> attack.steps, attack.norm, attack.eot_samples, attack.name
        (40, 'l2', 20, 'pgd:steps=40:norm=l2')
    """
    name, *assignments = text.split(":")
    if name not in ATTACKS and assignments and "=" not in assignments[0]:
        cls = class_from_outside(name, assignments[0], Attack)  # type: ignore[type-abstract]
        options = parse_options(cls, f"{name}:{cls.__name__}", assignments[1:], defaults)
        return build_declared(cls, text, options)
    if name not in ATTACKS:
        known = ", ".join(ATTACKS)
        raise InputError(f"expected an attack among {known}, or module:Class; received {name!r}")
    named = ATTACKS[name]
    options = parse_options(named.kind, name, assignments, {**defaults, **named.defaults})
    return build_declared(named.kind, text, options)


def kind_of(attack: Attack) -> str:
    """Return the kind of an attack: "paper", "variant", "adaptive" or "own".

    A "paper" attack is one of the paper's, with the paper's options. An "adaptive" attack is adapted to the defence. An
    "own" attack is a user's class. Any other attack is a "variant", such as a paper's attack with other options.

    Examples:
        >>> kind_of(parse_attack("pgd")), kind_of(parse_attack("pgd:steps=40")), kind_of(parse_attack("z_margin"))
        ('paper', 'variant', 'adaptive')
    """
    name = attack.spelled.split(":")[0]
    if name not in ATTACKS:
        return "own"
    options, named = attack.options(), ATTACKS[name]
    if named.group == ADAPTIVE or options.get("objective") in ("margin", "z_margin"):
        return "adaptive"
    usual = {**{key: field.default for key, field in options_of(named.kind).items()}, **named.defaults}
    changed = {key for key, value in usual.items() if options[key] != value}
    return "paper" if named.in_paper and changed <= VARIED_BY_THE_PAPER else "variant"


def quick_text(name: str) -> str:
    """Return the text of an attack of `ATTACKS`, with the values of its options for quick tests.

    Examples:
        >>> quick_text("apgd_ce")
        'apgd_ce:steps=20'
    """
    named = ATTACKS[name]
    quick = {key: field.metadata["quick"] for key, field in options_of(named.kind).items()}
    changes = [f"{key}={value}" for key, value in quick.items() if value is not None and key not in named.defaults]
    return ":".join([name, *changes])
