"""Attacks by name, with the paper's defaults. This module is free of TensorFlow; `build_attack` imports the attack.

An attack is a frozen configuration and a pure call, `attack(target, images, labels, indices, seed)`, that returns
adversarial images. It sees a `Target` (target.py), never a model. Its geometry is in balls.py, what it maximises in
objectives.py.
"""

import importlib
import math
from typing import TYPE_CHECKING, Any

from wca_tf.errors import InputError

if TYPE_CHECKING:
    from wca_tf.attacks.projected_gradient import ProjectedGradient

_PGD = {"objective": "ce", "steps": 10, "relative_step_size": 0.1, "random_start": True, "norm": "linf"}

# name -> (class, its defaults). Steps and step sizes: paper, section 4.1; `margin` and `z_margin` are the adaptive
# attacks, whose objectives do not saturate and know the noise's covariance.
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "fgsm": ("ProjectedGradient", {**_PGD, "steps": 1, "relative_step_size": 1.0, "random_start": False}),
    "bim": ("ProjectedGradient", {**_PGD, "random_start": False}),
    "pgd": ("ProjectedGradient", _PGD),
    "margin": ("ProjectedGradient", {**_PGD, "objective": "margin", "steps": 40}),
    "z_margin": ("ProjectedGradient", {**_PGD, "objective": "z_margin", "steps": 40}),
}
_MODULES = {"ProjectedGradient": "wca_tf.attacks.projected_gradient"}
_CHOICES = {"objective": ("ce", "margin", "z_margin"), "norm": ("linf", "l2")}


def parse_attack(text: str, eot_samples: int = 50) -> dict[str, Any]:
    """The parameters of an attack written as `name` or `name:parameter=value:parameter=value`.

    >>> parse_attack("pgd:steps=40")["steps"]
    40

    Raises:
        InputError: unknown name or parameter, or a value of another type or out of range.
    """
    name, *assignments = text.split(":")
    if name not in ATTACKS:
        raise InputError(f"expected an attack among {', '.join(ATTACKS)}; received {name!r}")
    parameters = {**ATTACKS[name][1], "eot_samples": eot_samples}
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        if key not in parameters:
            raise InputError(f"expected a parameter of {name} among {', '.join(parameters)}; received {assignment!r}")
        parameters[key] = _parse_value(key, value, parameters[key])
    return parameters


def build_attack(text: str, epsilon: float, eot_samples: int = 50) -> "ProjectedGradient":
    """The attack written as for `parse_attack`, with the radius `epsilon` in the images' [0, 1] units."""
    parameters = parse_attack(text, eot_samples)
    class_name, _ = ATTACKS[text.split(":")[0]]
    return getattr(importlib.import_module(_MODULES[class_name]), class_name)(epsilon=epsilon, **parameters)


def _parse_value(key: str, text: str, default: Any) -> Any:
    kind = type(default)
    try:
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise InputError(f"expected {key} to be a {kind.__name__}, received {text!r}") from None
    if key in _CHOICES and value not in _CHOICES[key]:
        raise InputError(f"expected {key} among {', '.join(_CHOICES[key])}; received {text!r}")
    if kind in (int, float) and not 0 < value < math.inf:
        raise InputError(f"expected {key} above 0 and finite, received {text!r}")
    return value
