"""Handles of tables, and the files that stand beside their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import FaultyStore, SimulatedCrash


def data_files(place: DeltaTable | ObjectStore) -> set[str]:
    """The paths of all files outside of the log, whether a version refers to them or not."""
    store = place.store if isinstance(place, DeltaTable) else place
    return {each.path for each in store.list_recursive() if not each.path.startswith("_delta_log")}


def reopened(table: DeltaTable) -> DeltaTable:
    """A handle that knows nothing of what the other has read."""
    return DeltaTable("", store=table.store)


def interrupted(store: ObjectStore, *actions: Callable[[DeltaTable], object]) -> DeltaTable:
    """A handle before whose next commits another writer commits, each time with another action.

    The table need not exist yet.
    """
    waiting = list(actions)

    def rival(operation: str, path: str) -> None:
        if operation == "put_if_absent" and path.endswith(".json") and waiting:
            waiting.pop(0)(DeltaTable("", store=store, must_exist=False))

    return DeltaTable("", store=FaultyStore(store, before_call=rival), must_exist=False)


@contextmanager
def crashing_at_third_batch(store: ObjectStore) -> Iterator[tuple[DeltaTable, set[str]]]:
    """A handle whose rewrite of the table crashes when it has written three files, and deletes none
    of them; and the paths of these files, once it has crashed.
    """
    before = data_files(store)
    written: set[str] = set()

    def die(operation: str, path: str) -> None:
        if len(data_files(store) - before) >= 3:
            raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        yield DeltaTable("", store=FaultyStore(store, before_call=die)), written
    written |= data_files(store) - before
