"""Attacks by name. This module is free of TensorFlow, which an attack imports when it is called.

An attack is a frozen dataclass that declares its options (gradient_attacks.py, worst_case_attacks.py,
query_attacks.py); registry.py gives it a name. The call `attack(model, images, labels, epsilon)` is a pure function: it
returns adversarial images and their effect on the net (attack.py). The algorithm of an attack sees a `Target`
(wca_tf.nets.targets), never a model. The geometry is in balls.py, the objectives that attacks maximise in
objectives.py.
"""

from typing import Any

from wca_tf.attacks.attack import Attack, AttackResult, BallAttack
from wca_tf.attacks.registry import ADAPTIVE, ATTACKS
from wca_tf.core.errors import InputError
from wca_tf.core.options import build_declared, class_from_outside, option, options_of, parse_options, spell

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackResult",
    "BallAttack",
    "kind_of",
    "option",
    "parse_attack",
    "quick_text",
    "spell_attack",
]

VARIED_BY_THE_PAPER = {"confidence", "pixels"}


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


def spell_attack(attack: Attack) -> str:
    """Return the text with the fewest options from which `parse_attack` makes this attack.

    Examples:
        >>> spell_attack(parse_attack("pgd:steps=10:norm=l2"))
        'pgd:norm=l2'
    """
    names = [spell(name, attack, named.defaults) for name, named in ATTACKS.items() if named.kind is type(attack)]
    outside = f"{type(attack).__module__}:{type(attack).__qualname__}"
    return min(names, key=lambda text: text.count(":")) if names else spell(outside, attack, {})


def kind_of(attack: Attack) -> str:
    """Return the kind of an attack: "paper", "variant", "adaptive" or "own".

    A "paper" attack is one of the paper's, with the paper's options. An "adaptive" attack is adapted to the defence. An
    "own" attack is a user's class. Any other attack is a "variant", such as a paper's attack with other options.

    Examples:
        >>> kind_of(parse_attack("pgd")), kind_of(parse_attack("pgd:steps=40")), kind_of(parse_attack("z_margin"))
        ('paper', 'variant', 'adaptive')
    """
    name = spell_attack(attack).split(":")[0]
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
