"""InputError, the exception for wrong input as opposed to a fault of the program, and its subclasses."""

import re


class InputError(ValueError):
    """Input that cannot be used.

    The message is one line that says what was expected and what was received. Commands print it and exit with 2.
    """


class NonFiniteError(InputError):
    """A net gave NaN or Inf where a number is needed."""


class DivergedError(InputError):
    """Training gave NaN or Inf: the learning rate is too high."""


# what TensorFlow writes around a cause: nodes of its graph, and lines of code
TENSORFLOW_TRACE = re.compile(
    r"""Graph\ execution\ error:\s*
    | Detected\ at\ node\ .*\ defined\ at\ \(most\ recent\ call\ last\):\n (?:\s*File\ ".*\n | <stack\ traces.*\n)*
    | Error\ in\ user-defined\ function\ passed\ to\ .*?\ transformation\ with\ iterator:\ [\w:\[\]]+:\s
    | \s*\[\[\{\{.*?\]\]
    | \{\{.*?\}\}
    | \[Op:.*""",
    re.VERBOSE,
)
DIVERGED = "training diverged"  # in TensorFlow's error when a graph finds that the loss is NaN or Inf


class UnnamedModuleError(InputError):
    """A file names a module of somebody's own, which the user has not named."""


class LostWorkerError(InputError):
    """Another process of the cluster is gone. Commands exit with 75 ("try again"), so that a launcher restarts them."""


def error_itself(error: Exception) -> BaseException:
    """Return the error that was raised first, where AutoGraph raised another with more lines in place of it."""
    found: BaseException = error
    while (inner := found.__context__) is not None and hasattr(inner, "ag_error_metadata"):
        found = inner
    return found


def one_line(error: BaseException, most: int = 300) -> str:
    """Return an exception's message on one line, cut after `most` characters; " ..." marks a cut.

    Of TensorFlow's errors it is the cause alone: where in a graph it was means nothing to a user.
    """
    text = TENSORFLOW_TRACE.sub("", str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= most else text[:most] + " ..."
