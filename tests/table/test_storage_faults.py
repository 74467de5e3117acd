"""Every operation with a fault at each of its storage calls: the error says that the storage
failed, no other kind comes out, and the table has its old rows or its new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import pytest

from dagster_delta.errors import CommitStateUnknown, StorageFailure, TableNotFound
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.table.delta_table import DeltaTable
from dagster_delta.testing.faulty_store import Fault, FaultyStore, Operation
from tests.table.fault_operations import READS, WRITES, Rows, frame, table_objects
from tests.table_rows import sorted_rows

pytestmark = pytest.mark.slow


def _copied(objects: dict[str, bytes], clock: int = 1) -> MemoryStore:
    store = MemoryStore(clock_ms=lambda: clock)
    for path, data in objects.items():
        store.put(path, data)
    return store


def _opened(store: MemoryStore | FaultyStore) -> DeltaTable:
    return DeltaTable("", store=store)


def _rows(store: MemoryStore) -> Rows:
    return sorted_rows(_opened(store).snapshot().scan().to_arrow())


@dataclass(frozen=True)
class _Run:
    """A run of an operation without faults."""

    old: Rows
    new: Rows
    calls: tuple[tuple[Operation, int], ...]
    """How often each method of the store was called."""


@cache
def _sound_run(operation: str) -> _Run:
    store = _copied(table_objects())
    faulty = FaultyStore(store, inside_files=True)
    act: Callable[[DeltaTable], object] = READS.get(operation) or WRITES[operation]
    result = act(_opened(faulty))
    new = _given(result) if operation in READS else _rows(store)
    calls: Any = tuple(faulty.calls.items())
    return _Run(_rows(_copied(table_objects())), new, calls)


def _given(result: object) -> Rows:
    assert isinstance(result, list)
    return result


def _faults(run: _Run, kind: Literal["refuse", "lose_reply"]) -> list[Fault]:
    return [
        Fault(kind, method, occurrence=number)
        for method, count in run.calls
        for number in range(1, count + 1)
        # A lost reply to a read is the same as a refusal.
        if kind == "refuse" or method in {"put", "put_if_absent", "delete", "write_opened"}
    ]


@pytest.mark.parametrize("read", READS)
def test_a_fault_while_reading_is_a_storage_failure_or_passed_over(read: str) -> None:
    run = _sound_run(read)
    struck = 0
    for fault in _faults(run, "refuse"):
        faulty = FaultyStore(_copied(table_objects()), [fault], inside_files=True)
        try:
            assert READS[read](_opened(faulty)) == run.new, fault
        except StorageFailure:
            struck += 1
    assert struck


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", ["refuse", "lose_reply"])
@pytest.mark.examples(6)
def test_a_fault_while_writing_leaves_the_old_rows_or_the_new_ones(
    kind: Literal["refuse", "lose_reply"], write: str
) -> None:
    run = _sound_run(write)
    for fault in _faults(run, kind):
        store = _copied(table_objects())
        faulty = FaultyStore(store, [fault], inside_files=True)
        try:
            WRITES[write](_opened(faulty))
        except (StorageFailure, CommitStateUnknown):
            assert _rows(store) in (run.old, run.new), fault
        else:
            assert _rows(store) == run.new, fault
        # The table is not stuck either.
        _opened(store).append(frame(90, 1).select(["id", "day"]))


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_fault_while_cloning_leaves_no_clone_or_a_whole_one(
    side: str, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _rows(_copied(table_objects()))

    def clone(faults: list[Fault]) -> tuple[FaultyStore, MemoryStore]:
        source, target = _copied(table_objects()), MemoryStore()
        faulty = FaultyStore(source if side == "source" else target, faults, inside_files=True)
        opened = target if side == "source" else faulty
        monkeypatch.setattr("dagster_delta.table.operations.clone.open_store", lambda *_: opened)
        try:
            _opened(faulty if side == "source" else source).clone("memory://x/y", deep=deep)
        except (StorageFailure, CommitStateUnknown):
            pass
        else:
            assert not deep or _rows(target) == old
        return faulty, target

    sound, _ = clone([])
    calls: Any = tuple(sound.calls.items())
    for kind in ("refuse", "lose_reply"):
        for fault in _faults(_Run(old, old, calls), kind):
            _, target = clone([fault])
            if not deep:
                continue
            try:
                assert _rows(target) == old, fault
            except TableNotFound:
                continue
