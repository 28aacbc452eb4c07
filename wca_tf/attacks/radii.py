"""Radii of attacks, as written in `--epsilons`. This module is free of TensorFlow."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from wca_tf.core.errors import InputError

NORMS = ("linf", "l2")
# By norm. In l2, √d for images of d = 100 million numbers: none is farther. The squares of 1e20 overflow float32.
LARGEST = {"linf": 1.0, "l2": 10_000.0}


@dataclasses.dataclass(frozen=True)
class Radius:
    """A radius of attacks.

    Attributes:
        epsilon: the radius in the images' [0, 1] units, 0 or more.
        norm: the norm of the attacks that the radius is for; `None` for all attacks.
    """

    epsilon: float
    norm: str | None = None

    @property
    def text(self) -> str:
        """The radius as `--epsilons` takes it, exact to the bit: "0.1", "8/255", "l2:0.5"; l∞ is not named.

        Examples:
            >>> Radius(8 / 255, "linf").text, Radius(0.5, "l2").text
            ('8/255', 'l2:0.5')
        """
        short, numerator = f"{self.epsilon:g}", round(255 * self.epsilon)
        if float(short) != self.epsilon:
            short = f"{numerator}/255" if numerator / 255 == self.epsilon else repr(self.epsilon)
        return short if self.norm in (None, "linf") else f"{self.norm}:{short}"

    def matches(self, other: "Radius") -> bool:
        """Return whether the other radius is the same; a radius without a norm matches those of all norms."""
        return self.epsilon == other.epsilon and (None in (self.norm, other.norm) or self.norm == other.norm)

    def in_l2(self, image_shape: tuple[int, ...]) -> float:
        """Return the radius of the l2 ball around the ball: ε √d for a ball in l∞, with d numbers in an image."""
        return self.epsilon * (math.sqrt(math.prod(image_shape)) if self.norm == "linf" else 1.0)


def as_radius(value: Any) -> Radius:
    """Return the radius that a number, or a text such as "8/255" or "l2:0.5", or a radius means.

    Raises:
        InputError: it is no radius.
    """
    return value if isinstance(value, Radius) else _parse_radius(str(value), "radius")


def parse_radii(text: str | Sequence[str | float], flag: str = "--epsilons") -> list[Radius]:
    """Return the radii of a list; raise InputError for an item that is not a radius, or that is there twice.

    Args:
        text: the list, as text or as a sequence.
        flag: the flag that the errors name.

    Examples:
        >>> parse_radii("1/2,l2:0.3")
        [Radius(epsilon=0.5, norm=None), Radius(epsilon=0.3, norm='l2')]
    """
    radii = [_parse_radius(str(item), flag) for item in split_list(text, flag)]
    if len(set(radii)) < len(radii):
        raise InputError(f"expected each radius of {flag} once, received {text!r}")
    return radii


def _parse_radius(item: str, flag: str) -> Radius:
    norm, colon, number = item.rpartition(":")
    if colon and norm not in NORMS:
        raise InputError(f"expected a norm among {', '.join(NORMS)} before the radius, received {item!r}")
    return Radius(parse_epsilon(number, flag), norm or None)


def parse_epsilon(text: str, flag: str) -> float:
    """Return the radius in a text; raise InputError, with the name of the flag, unless it is a number of 0 or more."""
    try:
        epsilon = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InputError(f"expected {flag} as numbers or fractions such as 8/255, received {text!r}") from None
    if not 0 <= epsilon < math.inf:
        raise InputError(f"expected {flag} of 0 or more, and finite, received {text}")
    return epsilon


def check_within_images(epsilon: float, norm: str, flag: str) -> None:
    """Raise InputError for a radius that is larger than any images in [0, 1] need: above 1 in linf, 10,000 in l2."""
    if epsilon > LARGEST[norm]:
        # Radii in units of pixels from 0 to 255 are the usual slip.
        meant = f": {epsilon:g}/255?" if norm == "linf" and epsilon <= 255 else ""
        raise InputError(
            f"expected {flag} in {norm} of at most {LARGEST[norm]:,g} (images are in [0, 1]), "
            f"received {epsilon:g}{meant}"
        )


def single_radius(epsilon: Any, norm: str) -> float:
    """Return the radius of an attack's call, for a ball of this norm.

    Args:
        epsilon: a number, or a text such as "8/255" or "linf:8/255".
        norm: the attack's norm.

    Raises:
        InputError: there is no single number, it is out of range, or it is a radius of another norm.
    """
    try:
        text = epsilon if isinstance(epsilon, str) else repr(float(epsilon))
    except (TypeError, ValueError):  # of a list, None, or an array of numbers
        raise InputError(f"expected epsilon as one number, such as 8/255, received {epsilon!r}") from None
    radius = _parse_radius(text, "epsilon")
    if radius.norm not in (None, norm):
        raise InputError(f"expected a radius of {norm}, the attack's norm, received {epsilon!r}")
    check_within_images(radius.epsilon, norm, "epsilon")
    return radius.epsilon


def split_list(value: Any, flag: str) -> list[Any]:
    """Return the items of a comma-separated list, or of a sequence.

    Raises:
        InputError: there are no items, an item is itself a list, or an item is there twice.
    """
    if isinstance(value, str):
        items = [item.strip() for item in value.split(",") if item.strip()]
    else:
        items = list(value) if isinstance(value, Iterable) else []
    if not items:
        raise InputError(f"expected a comma-separated list in {flag}, received {value!r}")
    try:
        different = len(set(items))
    except TypeError:  # of what cannot be hashed, such as a list or a tensor
        raise InputError(f"expected a list of single items in {flag}, received {value!r}") from None
    if different < len(items):
        raise InputError(f"expected each item of {flag} once, received {value!r}")
    return items
