"""Options of attacks and defences. Each is declared once, as a field of a frozen dataclass.

A declaration gives each option its default, bounds, choices, help, and a value for quick tests. The grammar
NAME:option=value:option=value, its checks, `--help` and the tables of the documentation are made from the declarations.
This module does not import TensorFlow.
"""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any, TypeVar

from wca_tf.core.errors import InputError, one_line
from wca_tf.core.own_modules import import_own

SMALLEST, LARGEST = 1e-30, 1e30  # of floats: float32 holds no numbers far beyond
MAX_WHOLE = 1_000_000  # steps or draws; a larger number is a typing error
MAX_INT32 = 2**31 - 1  # seeds and counts become int32 in TensorFlow
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The values that an option may have.

    Attributes:
        choices: the texts allowed; empty: any text.
        minimum: the least number allowed; `None`: 1 for whole numbers, anything above 0 for other numbers.
        maximum: the greatest number allowed; `None`: 1,000,000 for whole numbers, no limit for other numbers.
    """

    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    quick: Any = None,
    kw_only: bool = True,
    identity: bool = True,
) -> Any:
    """Declare an option as a field of a dataclass.

    Args:
        default: the option's default. Its type is the option's type: bool, int, float or str.
        help: a description, in a line.
        choices, minimum, maximum: see `Bounds`.
        quick: the option's value in quick tests; `None` for the default.
        kw_only: whether the dataclass takes the option by name alone.
        identity: whether the option may change a number. If not, `identity` leaves it out.
    """
    metadata = {"help": help, "bounds": Bounds(choices, minimum, maximum), "quick": quick, "identity": identity}
    return dataclasses.field(default=default, metadata=metadata, kw_only=kw_only)


def flag(
    default: Any,
    help: str,
    choices: tuple[str, ...] = (),
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    identity: bool = True,
) -> Any:
    """Declare a field of a configuration that is a flag of a command.

    The arguments are those of `option`. Without `maximum`, the greatest whole number allowed is 2^31 − 1.
    """
    maximum = MAX_INT32 if type(default) is int and maximum is None else maximum
    return option(default, help, choices=choices, minimum=minimum, maximum=maximum, kw_only=False, identity=identity)


def options_of(declaration: type) -> dict[str, "dataclasses.Field[Any]"]:
    """Return the options that a dataclass declares, by name."""
    return {field.name: field for field in dataclasses.fields(declaration) if "bounds" in field.metadata}


def identity(declared: Any) -> dict[str, Any]:
    """Return the options that may change a number, by name: results of equal identities may be compared and mixed."""
    options = options_of(type(declared)).items()
    return {name: getattr(declared, name) for name, field in options if field.metadata["identity"]}


def check_declared(declared: Any) -> None:
    """Raise InputError when a field is not an option, apart from `text`: neither names nor records would tell it."""
    kind = type(declared)
    others = [field.name for field in dataclasses.fields(kind) if field.name not in (*options_of(kind), "text")]
    if others:
        raise InputError(f"expected every field of {kind.__name__} to be an option(...), received {', '.join(others)}")
    if "__dataclass_params__" not in vars(kind) or not vars(kind)["__dataclass_params__"].frozen:
        raise InputError(f"expected @dataclasses.dataclass(frozen=True) before class {kind.__name__}")


def check_options(declared: Any, prefix: str = "") -> None:
    """Raise InputError for an option out of its bounds, or for a number or a bool of another type than its default.

    Args:
        declared: the dataclass with the options.
        prefix: stands before the option's name in the error, such as "--".
    """
    for name, field in options_of(type(declared)).items():
        value = getattr(declared, name)
        if isinstance(value, numbers.Number) and hasattr(value, "item"):  # NumPy's, which JSON does not know
            value = value.item()
            object.__setattr__(declared, name, value)
        if isinstance(field.default, str) and (value is None or isinstance(value, numbers.Number)):
            raise InputError(f"expected {prefix}{name} to be text, received {value!r}")
        check_value(prefix + name, value, field)


def check_value(name: str, value: Any, field: "dataclasses.Field[Any]") -> None:
    """Raise InputError when an option may not have this value."""
    bounds, kind = field.metadata["bounds"], type(field.default)
    if bounds.choices and value not in bounds.choices:
        raise InputError(f"expected {name} among {', '.join(bounds.choices)}; received {value!r}")
    if kind is bool and not isinstance(value, bool):
        raise InputError(f"expected {name} to be {_KINDS[kind]}, received {value!r}")
    if kind not in (int, float):
        return
    number: Any = numbers.Real if kind is float else numbers.Integral  # NumPy's numbers too
    if isinstance(value, bool) or not isinstance(value, number):
        raise InputError(f"expected {name} to be {_KINDS[kind]}, received {value!r}")
    maximum = bounds.maximum if bounds.maximum is not None else MAX_WHOLE if kind is int else math.inf
    minimum = bounds.minimum if bounds.minimum is not None else 1 if kind is int else None
    high_enough = value > 0 if minimum is None else value >= minimum
    if not (high_enough and value <= maximum and value < math.inf):
        if minimum is None:
            allowed = "above 0 and finite" if maximum == math.inf else f"above 0 and at most {maximum:g}"
        else:
            allowed = f"from {minimum:g} " + ("and finite" if maximum == math.inf else f"to {maximum:.10g}")
        raise InputError(f"expected {name} {allowed}, received {value!r}")
    if kind is float and value and not SMALLEST <= abs(value) <= LARGEST:
        raise InputError(f"expected {name} to be 0 or from {SMALLEST:g} to {LARGEST:g}, received {value!r}")


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def parse_options(declaration: type, name: str, assignments: list[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the assignments `option=value` give; all others come from `defaults`.

    Raises:
        InputError: an option that is not declared, is given twice, or has a value of another type or out of bounds.
    """
    declared, given = options_of(declaration), {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if key not in declared or not equals:
            known = ", ".join(declared)
            raise InputError(f"expected {name}:OPTION=VALUE with an option among {known}; received {assignment!r}")
        if key in given:
            raise InputError(f"expected each option of {name} once, received {key} twice")
        given[key] = _from_text(key, text, declared[key])
    return {**{key: value for key, value in defaults.items() if key in declared}, **given}


def _from_text(name: str, text: str, field: "dataclasses.Field[Any]") -> Any:
    kind: Any = type(field.default)
    try:
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise InputError(f"expected {name} to be {_KINDS[kind]}, received {text!r}") from None
    check_value(name, value, field)
    return value


def spell(name: str, declared: Any, defaults: Mapping[str, Any]) -> str:
    """Return NAME:option=value:... with the options of `declared` that differ from their default.

    An option's default is its value in `defaults`, or the declared default where `defaults` does not name the option.
    """
    parts = [name]
    for key, field in options_of(type(declared)).items():
        value = getattr(declared, key)
        if value != defaults.get(key, field.default):
            parts.append(assignment(key, value))
    return ":".join(parts)


def assignment(option: str, value: Any) -> str:
    """Return OPTION=VALUE as the grammar writes it.

    Examples:
        >>> assignment("targeted", True)
        'targeted=true'
    """
    return f"{option}={str(value).lower() if isinstance(value, bool) else value}"


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a Markdown page with each table as the new text between its marks `<!-- NAME -->` and `<!-- end -->`."""
    for name, table in tables.items():
        before, mark, rest = text.partition(f"<!-- {name} -->")
        if mark:
            text = f"{before}{mark}\n{table}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def build_declared(declaration: type[T], text: str, options: Mapping[str, Any]) -> T:
    """Return the declared attack or defence with these options.

    Raises:
        InputError: the class is abstract, or needs an argument that is not an option with a default.
    """
    try:
        return declaration(text=text, **options)  # type: ignore[call-arg]
    except TypeError as error:
        raise InputError(f"expected {text} to be a class with defaults for its options: {one_line(error)}") from None


def class_from_outside(module: str, name: str, base: type[T]) -> type[T]:
    """Import a class from a module outside this package, which the user named.

    Raises:
        InputError: there is no such module or class, or it does not derive from `base`.
    """
    try:
        found = getattr(import_own(module), name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(f"expected {module}:{name} to be importable: {one_line(error)}") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InputError(f"expected {module}:{name} to derive from {base.__module__}.{base.__name__}")
    return found
