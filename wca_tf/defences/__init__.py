"""Defences by name, a module of this package for each. TensorFlow loads when a net is built.

It finds the modules by listing the package. A module NAME declares a defence as `DEFENCE`, a class derived from
`Defence` (defence.py).
"""

import functools
import importlib
import pkgutil

from wca_tf.core.errors import InputError
from wca_tf.core.options import build_declared, class_from_outside, option, parse_options
from wca_tf.defences.defence import Defence, NetRequest

__all__ = ["Defence", "NetRequest", "defence_names", "option", "parse_defence"]


NOT_DEFENCES = ("adversarial_training", "defence", "tables")  # the modules that declare no defence


@functools.cache
def defence_names() -> tuple[str, ...]:
    """Return the names of the defences of this package, in alphabetical order.

    Examples:
        >>> defence_names()
        ('adv_bnn', 'ctrw', 'l2p', 'none', 'pni', 'random_ensemble', 'rfd', 'rse', 'se_snn', 'smoothing', 'wca')
    """
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in NOT_DEFENCES))


def declaration_of(name: str) -> type[Defence]:
    """Return the declaration of a defence of this package."""
    return importlib.import_module(f"{__name__}.{name}").DEFENCE


def parse_defence(text: str) -> Defence:
    """Return the defence written as `name:option=value:option=value`.

    Args:
        text: the defence; its name is one of `defence_names()`, or module:Class for your own defence.

    Raises:
        InputError: the name or an option is unknown, or a value has the wrong type or is out of bounds.

    Examples:
        >>> parse_defence("wca:feature_dim=64:covariance=isotropic").options()["feature_dim"]
        64
    """
    name, *assignments = text.split(":")
    if name in defence_names():
        declaration = declaration_of(name)
    elif assignments and "=" not in assignments[0]:
        declaration = class_from_outside(name, assignments[0], Defence)  # type: ignore[type-abstract]
        name, assignments = f"{name}:{declaration.__name__}", assignments[1:]
    else:
        raise InputError(f"expected a defence among {', '.join(defence_names())}, or module:Class; received {name!r}")
    return build_declared(declaration, text, parse_options(declaration, name, assignments, {}))
