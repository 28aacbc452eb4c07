"""Flags from the fields of a configuration, and errors as one line and exit 2, or 75 where trying again may help."""

import contextlib
import dataclasses
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from absl import app, flags, logging

from wca_tf.cli.help import help_text
from wca_tf.core import files
from wca_tf.core.errors import InputError, LostWorkerError, one_line
from wca_tf.core.own_modules import import_modules
from wca_tf.core.termination import supervise
from wca_tf.distribution.cluster import cluster_of

Config = TypeVar("Config")

# Errors by name: TensorFlow, which has the second, may not be imported.
EXHAUSTED = ("MemoryError", "ResourceExhaustedError")
_DEFINERS: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}


def define_flags(config_class: type, without: Sequence[str] = ()) -> None:
    """Define a flag for each field of a configuration class, except the fields `without`."""
    for field in dataclasses.fields(config_class):
        if field.name in without:
            continue
        choices = field.metadata["bounds"].choices
        if choices:
            flags.DEFINE_enum(field.name, field.default, choices, field.metadata["help"])
            # absl's own <a|b|c> breaks lines within a name.
            flags.FLAGS[field.name].help = f"{field.metadata['help']}; one of {', '.join(choices)}"
        else:
            _DEFINERS[type(field.default)](field.name, field.default, field.metadata["help"])
        show_in_help(field.name)


def show_in_help(name: str) -> None:
    """Make a flag one of the command's own, which --helpfull lists."""
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def config_from_flags(config_class: type[Config], **given: Any) -> Config:
    """Return the configuration that the parsed flags say. `given` are values of fields, in place of their flags."""
    names = [field.name for field in dataclasses.fields(config_class)]  # type: ignore[arg-type]
    parsed = {name: flags.FLAGS[name].value for name in names if name in flags.FLAGS and name not in given}
    with _without_notes():  # an attack of a user's own may import TensorFlow
        return config_class(**parsed, **given)


def run(main: Callable[[], None], usage: str, common: tuple[str, ...] = (), details: str = "") -> None:
    """Parse the command line and call `main`; what a user can cause becomes one line and exit 2.

    Every command has the flags --modules and --lock.

    Args:
        main: the command.
        usage: the text that --help begins with.
        common: the flags that --help lists; empty for all.
        details: more text, for --helpfull.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the terminal has no ε
    if sys.stderr is None:  # closed by the shell: another file would get its number
        sys.stderr = open(os.devnull, "w")
    _define_common_flags()
    _show_help(usage, common, details)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    # TensorFlow leaves it off on CPUs without instructions for neural networks, where training is faster with it too.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.set_verbosity(logging.WARNING)  # TFDS tells where it reads from, at length
    app.run(lambda _: _main_with_clear_errors(lambda: _with_common_flags(main)), flags_parser=_parse)


def _define_common_flags() -> None:
    flags.DEFINE_list(
        "modules", [], "comma-separated modules of your own that may be imported, for nets and attacks that need them"
    )
    flags.DEFINE_bool(
        "lock", True, "keep other processes out of directories that are written; --nolock where there are no locks"
    )
    for name in ("modules", "lock"):
        show_in_help(name)


def _with_common_flags(main: Callable[[], None]) -> None:
    files.use_locks(flags.FLAGS.lock)
    if flags.FLAGS.modules:
        with _without_notes():
            import_modules(flags.FLAGS.modules)
    main()


def import_tensorflow() -> None:
    """Import TensorFlow, quietly."""
    with _without_notes():
        importlib.import_module("tensorflow")


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Keep TensorFlow's start-up notes, which no log level silences, from stderr; unless importing it fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException:
            notes.seek(0)
            os.write(kept, notes.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _show_help(usage: str, common: tuple[str, ...], details: str) -> None:
    """Print the help, and end, where the command line asks for it."""
    asked = set(sys.argv[1:])
    full = bool(asked & {"--helpfull", "-helpfull"})
    if full or asked & {"--help", "-help", "-h", "-?"}:
        names = sorted(flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0]))
        try:
            print(help_text(usage, details, names, common, full), flush=True)
        except BrokenPipeError:
            _leave_closed_pipe()
        except OSError as error:  # a disk full
            _fail(one_line(error))
        sys.exit(0)


def _parse(arguments: Sequence[str]) -> list[str]:
    try:
        # Windows begins text files with a byte order mark, which absl takes for a part of the first flag.
        expanded = flags.FLAGS.read_flags_from_files(list(arguments), force_gnu=False)
        rest = flags.FLAGS([text.removeprefix("\ufeff") for text in expanded if text[:2] not in ("\ufeff", "\ufeff#")])
    except SystemExit:
        sys.exit(0)  # absl's --helpxml and --help=true leave with 1
    except (flags.Error, OSError, ValueError) as error:
        _fail(f"{error} (see --help)")
    if len(rest) > 1:
        _fail(f"expected flags only, received {' '.join(rest[1:])!r}")
    return rest


def _main_with_clear_errors(main: Callable[[], None]) -> None:
    try:
        cluster = cluster_of(flags.FLAGS.strategy) if "strategy" in flags.FLAGS else None
        if cluster and cluster.num_workers > 1:
            supervise()
        main()
    except LostWorkerError as error:
        sys.stdout.flush()
        print(f"error: {one_line(error, 1000)}", file=sys.stderr, flush=True)
        os._exit(os.EX_TEMPFAIL)  # TensorFlow's own ending waits for the lost worker, and aborts
    except InputError as error:
        _fail(str(error))
    except BrokenPipeError:
        _leave_closed_pipe()
        sys.exit(1)
    except OSError as error:  # a path too long, a disk full, a permission missing
        _fail(one_line(error))
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed: run bin/quickstart, then .venv/bin/python {sys.argv[0]}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ not in EXHAUSTED:
            raise
        _fail(f"not enough memory, or no space left to write: {one_line(error)}")


def _leave_closed_pipe() -> None:
    """Let output go nowhere from now on: its reader, such as `head`, has gone, and Python would complain at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
