"""Modules of a user's own. A file may be anybody's, so what it names is imported only if the user has named it too."""

import importlib
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from wca_tf.core.errors import InputError, UnnamedModuleError, one_line

PACKAGES = ("wca_tf", "keras", "builtins")  # files may name their modules


def import_own(module: str) -> ModuleType:
    """Import a module that the user named; raise whatever it raises. The working directory is searched last."""
    if "" not in sys.path:
        sys.path.append("")  # last, and only now: its files must not stand in for packages
    return importlib.import_module(module)


def import_modules(modules: Iterable[str]) -> None:
    """Import modules that the user named.

    Raises:
        InputError: `modules` is no list of names, or a module cannot be imported.
    """
    if isinstance(modules, str):
        raise InputError(f"expected a list of modules, received {modules!r}")
    for module in modules:
        try:
            import_own(module)
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            raise InputError(f"expected modules to import, received {module!r}: {one_line(error)}") from None


def module_of(text: str) -> str:
    """Return the module of a defence or attack written as module:Class; empty for one of this package.

    Examples:
        >>> module_of("toy:WeightNoise:deviation=0.1"), module_of("pgd:steps=40")
        ('toy', '')
    """
    name, *assignments = text.split(":")
    return name if assignments and "=" not in assignments[0] else ""


def own_modules(modules: Iterable[str]) -> list[str]:
    """Return the modules that are neither of this package nor of Keras, in order, once each."""
    return sorted({module for module in modules if module and module.split(".")[0] not in PACKAGES})


def is_imported(module: str) -> bool:
    """Return whether a file may use a module: one of this package or of Keras, or one that is imported already."""
    return module in sys.modules or not own_modules([module])


def check_imported(modules: Iterable[str], source: str) -> None:
    """Raise UnnamedModuleError when a file may not use all of these modules; `source` says what names them."""
    if unnamed := [module for module in own_modules(modules) if not is_imported(module)]:
        raise UnnamedModuleError(
            f"{source} needs modules that nobody has named: if you trust them, add "
            f"--modules={','.join(unnamed)!r} (in Python, import them first)"
        )


def import_classes(path: Path) -> None:
    """Import the modules of this package whose classes a `.keras` file names; Keras imports its own.

    Raises:
        UnnamedModuleError: the file names another module, which is not imported. Keras would import some of them.
    """
    with zipfile.ZipFile(path) as stored:
        described = json.loads(stored.read("config.json"))
    modules = sorted(set(modules_in(described)))
    check_imported(modules, str(path))
    for module in modules:
        if module.split(".")[0] == __name__.split(".")[0]:
            importlib.import_module(module)


def modules_in(described: Any) -> Iterator[str]:
    """Yield the module of each object that a Keras configuration describes."""
    if isinstance(described, dict):
        if isinstance(described.get("module"), str):
            yield described["module"]
        for value in described.values():
            yield from modules_in(value)
    elif isinstance(described, list):
        for value in described:
            yield from modules_in(value)
