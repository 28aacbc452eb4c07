"""Attacks by name, with the paper's defaults. This module is free of TensorFlow; `build_attack` imports the attack.

An attack is a frozen configuration and a pure call, `attack(target, images, labels, indices, seed)`, that returns
adversarial images (attack.py). It sees a `Target` (target.py), never a model. Its geometry is in balls.py, what it
maximises in objectives.py.
"""

import dataclasses
import importlib
import math
from typing import TYPE_CHECKING, Any

from wca_tf.errors import InputError

if TYPE_CHECKING:
    from wca_tf.attacks.attack import Attack


@dataclasses.dataclass(frozen=True)
class AttackEntry:
    """An attack by name.

    Attributes:
        module, class_name: where its class is.
        defaults: the parameters that `--attacks` can set.
        has_radius: whether it stays within a ball of radius epsilon.
        uses_gradients: whether it follows gradients of the attacked net.
        paper_protocol: whether the paper has it.
        adaptive: whether it is made for nets with noise.
        algorithm: which version of its algorithm this is. Raise it with every change after which the same parameters
            give other images: records of another number are made again.
    """

    module: str
    class_name: str
    defaults: dict[str, Any]
    has_radius: bool = True
    uses_gradients: bool = True
    paper_protocol: bool = False
    adaptive: bool = False
    algorithm: int = 3  # 1: draws were the same for all images of a batch; 2: of D numbers, not of min(C, D)


_PROJECTED = {"objective": "ce", "steps": 10, "relative_step_size": 0.1, "random_start": True}
_BALL = {"norm": "linf", "targeted": False}


def _projected(**changes: Any) -> AttackEntry:
    defaults = {**_PROJECTED, **_BALL, **changes}
    return AttackEntry("projected_gradient", "ProjectedGradient", defaults, paper_protocol=True)


def _margin(objective: str) -> AttackEntry:
    defaults = {**_PROJECTED, "objective": objective, "steps": 40, "restarts": 1, "bound": 0.01, **_BALL}
    return AttackEntry("worst_case", "RestartedPGD", defaults, adaptive=True)


def _auto_pgd(objective: str) -> AttackEntry:
    defaults = {"objective": objective, "steps": 100, "rho": 0.75, **_BALL}
    return AttackEntry("auto_pgd", "AutoPGD", defaults)


# The paper's attacks have its parameters (section 4.1). The objectives of `margin` and `z_margin` do not saturate, and
# z_margin knows the noise's covariance; `adaptive` is a cascade that begins with it. The others have their authors'.
ATTACKS: dict[str, AttackEntry] = {
    "fgsm": _projected(steps=1, relative_step_size=1.0, random_start=False),
    "bim": _projected(random_start=False),
    "pgd": _projected(),
    "pgd_restarts": AttackEntry(
        "worst_case", "RestartedPGD", {"restarts": 100, **_PROJECTED, "bound": 0.01, **_BALL}, paper_protocol=True
    ),
    "margin": _margin("margin"),
    "z_margin": _margin("z_margin"),
    "adaptive": AttackEntry(
        "worst_case",
        "Adaptive",
        {"steps": 40, "apgd_steps": 100, "queries": 1000, "bound": 0.01, **_BALL},
        adaptive=True,
    ),
    "apgd_ce": _auto_pgd("ce"),
    "apgd_dlr": _auto_pgd("dlr"),
    "auto_rand": AttackEntry(
        "worst_case",
        "AutoAttackRand",
        {"steps": 100, "rho": 0.75, "bound": 0.01, "eot_samples": 20, **_BALL},
    ),
    "cw": AttackEntry(
        "carlini_wagner",
        "CarliniWagner",
        {
            "confidence": 0.0,
            "objective": "expected_margin",
            "steps": 1000,
            "learning_rate": 5e-4,
            "initial_constant": 1e-3,
            "searches": 9,
            "targeted": False,
        },
        has_radius=False,
        paper_protocol=True,
    ),
    "n_pixel": AttackEntry(
        "n_pixel",
        "NPixel",
        {
            "pixels": 1,
            "objective": "probability",
            "population": 400,
            "generations": 1000,
            "crossover": 0.7,
            "mutation": 0.5,
            "bound": 0.01,
            "targeted": False,
        },
        has_radius=False,
        uses_gradients=False,
        paper_protocol=True,
    ),
    "square": AttackEntry(
        "square",
        "SquareAttack",
        {"queries": 5000, "initial_share": 0.8, "bound": 0.01, "fresh": False, **_BALL},
        uses_gradients=False,
        paper_protocol=True,
    ),
    "random_sampling": AttackEntry(
        "random_sampling",
        "RandomSampling",
        {"points": 10_000, **_BALL},
        uses_gradients=False,
    ),
    "transfer": AttackEntry(
        "transfer",
        "Transfer",
        {"source": "", "climbs": "margin", "steps": 40, "relative_step_size": 0.1, **_BALL},
        uses_gradients=False,
    ),
}
_OBJECTIVES = ("ce", "expected_margin", "margin", "z_margin", "dlr")
_CHOICES = {"objective": _OBJECTIVES, "climbs": _OBJECTIVES, "norm": ("linf", "l2")}
_CHOICES_OF = {  # where an attack has its own
    ("cw", "objective"): ("expected_margin", "margin", "z_margin"),
    ("n_pixel", "objective"): ("probability", "margin"),
}
_LEAST = {"population": 4}
_MOST = dict.fromkeys(("crossover", "bound", "initial_share", "rho"), 1.0)
_MOST_WHOLE = 1_000_000  # steps or draws; more is a slip of the pen
_ZERO_IS_FINE = ("confidence", "bound")


def parse_attack(text: str, eot_samples: int = 50) -> dict[str, Any]:
    """The parameters of an attack written as `name` or `name:parameter=value:parameter=value`.

    >>> parse_attack("pgd:steps=40")["steps"]
    40

    Raises:
        InputError: unknown name or parameter, or a value of another type or out of range.
    """
    name, *assignments = text.split(":")
    parameters = {"eot_samples": eot_samples, **entry_of(name).defaults}
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if key not in parameters:
            raise InputError(f"expected a parameter of {name} among {', '.join(parameters)}; received {assignment!r}")
        parameters[key] = _parse_value(key, value, parameters[key], _CHOICES_OF.get((name, key), _CHOICES.get(key)))
    return parameters


def entry_of(text: str) -> AttackEntry:
    """The attack that `text` names, with or without parameters; raises InputError when there is none."""
    name = text.split(":")[0]
    if name not in ATTACKS:
        raise InputError(f"expected an attack among {', '.join(ATTACKS)}; received {name!r}")
    return ATTACKS[name]


def build_attack(text: str, epsilon: float | None = None, eot_samples: int = 50) -> "Attack":
    """The attack written as for `parse_attack`, with the radius `epsilon` in the images' [0, 1] units.

    Raises:
        InputError: as `parse_attack`; no epsilon for an attack that has a radius; a transfer's source that is no model.

    >>> attack = build_attack("pgd:steps=40:norm=l2", epsilon=0.5)
    >>> attack.steps, attack.norm, attack.epsilon, attack.eot_samples
    (40, 'l2', 0.5, 50)
    """
    entry, parameters = entry_of(text), parse_attack(text, eot_samples)
    if entry.has_radius:
        if epsilon is None:
            raise InputError(f"{text} expects an epsilon, received none")
        parameters["epsilon"] = epsilon
    if "source" in parameters:
        from wca_tf.keras_target import target_in

        parameters["source"] = target_in(parameters["source"]) if parameters["source"] else None
    module = importlib.import_module(f"wca_tf.attacks.{entry.module}")
    return getattr(module, entry.class_name)(**parameters)


def _parse_value(key: str, text: str, default: Any, choices: tuple[str, ...] | None) -> Any:
    kind = type(default)
    try:
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise InputError(f"expected {key} to be a {kind.__name__}, received {text!r}") from None
    if choices and value not in choices:
        raise InputError(f"expected {key} among {', '.join(choices)}; received {text!r}")
    if kind in (int, float) and not 0 < value < math.inf and not (value == 0 and key in _ZERO_IS_FINE):
        raise InputError(f"expected {key} above 0 and finite, received {text!r}")
    least, most = _LEAST.get(key, 0), _MOST.get(key, _MOST_WHOLE if kind is int else math.inf)
    if kind in (int, float) and not least <= value <= most:
        raise InputError(f"expected {key} from {least} to {most}, received {text!r}")
    return value
