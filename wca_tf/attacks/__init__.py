"""Attacks by name. This module is free of TensorFlow, which an attack imports when it is called.

An attack is a frozen declaration of its options (declarations.py) and a pure call, `attack(model, images, labels,
epsilon)`, that returns adversarial images and what they do (attack.py). It sees a `Target` (wca_tf.nets.targets), never
a model. Its geometry is in balls.py, what it maximises in objectives.py.
"""

from typing import Any

from wca_tf.attacks.attack import Attack, AttackResult, BallAttack
from wca_tf.attacks.declarations import ADAPTIVE, ATTACKS
from wca_tf.errors import InputError
from wca_tf.options import class_from_outside, option, options_of, parse_options, spell

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
        text: the name is one of `ATTACKS`, or module:Class for an attack of your own.
        defaults: options for which the name has no value of its own, such as eot_samples.

    Raises:
        InputError: an unknown name or option, or a value of another type or out of bounds.

    >>> attack = parse_attack("pgd:steps=40:norm=l2", eot_samples=20)
    >>> attack.steps, attack.norm, attack.eot_samples, attack.name
    (40, 'l2', 20, 'pgd:steps=40:norm=l2')
    """
    name, *assignments = text.split(":")
    if name not in ATTACKS and assignments and "=" not in assignments[0]:
        cls = class_from_outside(name, assignments[0], Attack)  # type: ignore[type-abstract]
        options = parse_options(cls, f"{name}:{cls.__name__}", assignments[1:], defaults)
        return cls(text=text, **options)
    if name not in ATTACKS:
        known = ", ".join(ATTACKS)
        raise InputError(f"expected an attack among {known}, or module:Class; received {name!r}")
    named = ATTACKS[name]
    return named.kind(text=text, **parse_options(named.kind, name, assignments, {**defaults, **named.defaults}))


def spell_attack(attack: Attack) -> str:
    """Return the shortest text that `parse_attack` would make this attack of.

    >>> spell_attack(parse_attack("pgd:steps=10:norm=l2"))
    'pgd:norm=l2'
    """
    names = [spell(name, attack, named.defaults) for name, named in ATTACKS.items() if named.kind is type(attack)]
    outside = f"{type(attack).__module__}:{type(attack).__qualname__}"
    return min(names, key=lambda text: text.count(":")) if names else spell(outside, attack, {})


def kind_of(attack: Attack) -> str:
    """Return "paper" (its attack, its options), "variant" (of it), "adaptive" (to the defence), or "own" (a user's).

    >>> kind_of(parse_attack("pgd")), kind_of(parse_attack("pgd:steps=40")), kind_of(parse_attack("z_margin"))
    ('paper', 'variant', 'adaptive')
    """
    name = spell_attack(attack).split(":")[0]
    if name not in ATTACKS:
        return "own"
    options, named = attack.options(), ATTACKS[name]
    climbed = options.get("objective", options.get("source_objective"))
    if climbed in ("margin", "z_margin") or (named.group == ADAPTIVE and climbed is None):
        return "adaptive"
    usual = {**{key: field.default for key, field in options_of(named.kind).items()}, **named.defaults}
    changed = {key for key, value in usual.items() if options[key] != value}
    return "paper" if named.in_paper and changed <= VARIED_BY_THE_PAPER else "variant"


def quick_text(name: str) -> str:
    """Return an attack of `ATTACKS` with the values of its options for quick tests.

    >>> quick_text("apgd_ce")
    'apgd_ce:steps=20'
    """
    named = ATTACKS[name]
    quick = {key: field.metadata["quick"] for key, field in options_of(named.kind).items()}
    changes = [f"{key}={value}" for key, value in quick.items() if value is not None and key not in named.defaults]
    return ":".join([name, *changes])
