"""The tables below a directory.

Spec: File Types (the log is in `_delta_log` at the root of a table).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dagster_delta.errors import StorageFailure
from dagster_delta.protocol.actions import Metadata, Protocol
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.paths import LOG_DIRECTORY
from dagster_delta.storage import open_store

BRANCHES_DIRECTORY = "_branches"
"""Directory below a root with the tables of branches, which are not those of the root."""


class DeclaredTable(msgspec.Struct, frozen=True, array_like=True):
    """What a table declares, in a form that can be stored."""

    protocol: Protocol
    metadata: Metadata

    @property
    def configuration(self) -> TableConfiguration:
        """The same as what the table is read by."""
        return TableConfiguration(self.protocol, self.metadata)


def find_tables(root: str, storage_options: Mapping[str, object] | None = None) -> list[str]:
    """The locations of all tables at or below `root`, sorted, without those of its branches.

    A local directory is walked without entering tables. On other storage every name below the root
    is listed, because storage without directories has no cheaper way: call it rarely.
    """
    store = open_store(root, storage_options)
    base = store.location.uri.rstrip("/")
    local = store.local_path("")
    if local is not None:
        if not Path(local).is_dir():
            raise StorageFailure("There is no such directory to look for tables in", table=base)
        try:
            return sorted(
                _join_path(base, found)
                for found in _find_tables_below(Path(local), "", frozenset())
            )
        except OSError as error:
            raise StorageFailure(
                f"The directories could not be searched for tables ({error}): make all of them "
                "readable, or search below another one",
                table=base,
            ) from error
    marker = f"{LOG_DIRECTORY}/"
    found = {
        path[: path.index(marker)].rstrip("/")
        for path in (meta.path for meta in store.list_recursive())
        if path.startswith(marker) or f"/{marker}" in path
        if f"/{BRANCHES_DIRECTORY}/" not in f"/{path}"
    }
    return sorted(_join_path(base, name) for name in found)


def _find_tables_below(directory: Path, name: str, above: frozenset[str]) -> Iterator[str]:
    real = os.path.realpath(directory)
    if real in above:
        # A symbolic link to a directory above: its tables are found there.
        return
    with os.scandir(directory) as entries:
        names = [e.name for e in entries if e.name != BRANCHES_DIRECTORY and e.is_dir()]
    if LOG_DIRECTORY in names:
        yield name
        return
    for name_below in names:
        yield from _find_tables_below(
            directory / name_below, f"{name}/{name_below}".lstrip("/"), above | {real}
        )


def _join_path(base: str, name: str) -> str:
    return f"{base}/{name}".rstrip("/")
