"""Import everything that a forked process needs, once; imported by the fork server only."""

from __future__ import annotations

import importlib
import pkgutil

import duckdb  # noqa: F401
import pandas as pd  # noqa: F401
import pyarrow.fs
import pyarrow.parquet  # noqa: F401

import dagster_delta

_LEFT_OUT = "dagster_delta.orchestration"


def _import_all() -> None:
    def names(path: list[str], prefix: str) -> list[str]:
        found = []
        for module in pkgutil.iter_modules(path, prefix):
            if module.name.startswith(_LEFT_OUT) or "spark" in module.name:
                continue
            found.append(module.name)
            if module.ispkg:
                package = importlib.import_module(module.name)
                found += names(list(package.__path__), f"{module.name}.")
        return found

    for name in names(list(dagster_delta.__path__), "dagster_delta."):
        importlib.import_module(name)


_import_all()
