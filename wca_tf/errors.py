"""The one exception that means: the input, not the program, is wrong."""

import re


class InputError(ValueError):
    """Something a user gave cannot be used.

    The message is one line that says what was expected and what was received; commands print it and exit with 2.
    """


class NonFiniteError(InputError):
    """A net gave NaN or Inf where a number is needed."""


class DivergedError(InputError):
    """Training left the finite numbers: the learning rate is too high."""


DIVERGED = "training diverged"  # what TensorFlow's error says when a graph finds the loss to be NaN or Inf


class LostWorkerError(InputError):
    """Another process of the cluster is gone; commands exit with 75, try again, so that a launcher restarts them."""


def one_line(error: BaseException, most: int = 300) -> str:
    """An exception's message on one line, cut to `most` characters."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error))  # TensorFlow's names of nodes tell a user nothing
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= most else text[:most] + " ..."
