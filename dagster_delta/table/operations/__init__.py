"""One module for each statement on a table, imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_delta.table.operations import (
        append,
        clone,
        convert,
        create,
        delete,
        fsck,
        health,
        leftover_files,
        merge,
        optimize,
        overwrite,
        restore,
        row_changes,
        row_write,
        update,
        vacuum,
        write_planning,
    )

__all__ = [
    "append",
    "clone",
    "convert",
    "create",
    "delete",
    "fsck",
    "health",
    "leftover_files",
    "merge",
    "optimize",
    "overwrite",
    "restore",
    "row_changes",
    "row_write",
    "update",
    "vacuum",
    "write_planning",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")
