"""Modules of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def submodules_of(package: str) -> Callable[[str], ModuleType]:
    """A `__getattr__` for a package which imports its modules by name."""

    def submodule(name: str) -> ModuleType:
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return submodule
