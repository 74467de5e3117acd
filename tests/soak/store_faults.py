"""Part `store`: every public operation while one call of the store fails.

Each call in turn is refused, or its reply is lost, or the process dies before or after it. The
operation gives its result or a DeltaError, and the table then has its old or its new rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.testing.faulty_store import Fault, FaultyStore, Operation, SimulatedCrash
from tests.soak.part import Round
from tests.soak.public_operations import (
    OPERATIONS,
    Place,
    PublicOperation,
    Rows,
    fill,
    memory_copy,
    rows_of,
)

URI = "memory://table"
FaultKind = Literal["crash_before", "crash_after", "lose_reply", "refuse"]
KINDS: tuple[FaultKind, ...] = ("refuse", "lose_reply", "crash_before", "crash_after")


@dataclass(frozen=True)
class _Undisturbed:
    """An operation without faults."""

    operation: PublicOperation
    value: object
    before: Rows
    after: Rows
    calls: tuple[Operation, ...]


def play_store_round(round_: Round) -> None:
    """Strike each call of each operation; in a short round, three calls of each."""
    template = MemoryStore()
    before = rows_of(fill(URI, template))
    for operation in round_.random.sample(OPERATIONS, len(OPERATIONS)):
        undisturbed = _run_undisturbed(operation, template, before)
        faults = list(_faults(undisturbed.calls))
        if round_.short:
            faults = round_.random.sample(faults, min(3, len(faults)))
        for fault in faults:
            if round_.is_over:
                return
            _strike(round_, template, undisturbed, fault)


def _run_undisturbed(
    operation: PublicOperation, template: MemoryStore, before: Rows
) -> _Undisturbed:
    calls: list[Operation] = []
    inner = memory_copy(template)
    store = FaultyStore(inner, before_call=lambda call, _: calls.append(call))
    value = operation.run(DeltaTable(URI, store=store), _place())
    return _Undisturbed(
        operation, value, before, rows_of(DeltaTable(URI, store=inner)), tuple(calls)
    )


def _place() -> Place:
    return Place("memory://other", MemoryStore())


def _faults(calls: tuple[Operation, ...]) -> list[Fault]:
    faults = []
    for name in dict.fromkeys(calls):
        for occurrence in range(1, calls.count(name) + 1):
            faults += [Fault(kind, name, occurrence=occurrence) for kind in KINDS]
    return faults


def _strike(round_: Round, template: MemoryStore, undisturbed: _Undisturbed, fault: Fault) -> None:
    inner = memory_copy(template)
    operation = undisturbed.operation
    where = f"{operation.name}, {fault}"
    error: BaseException | None = None
    value: object = None
    round_.result.operations += 1
    round_.fault(fault.kind)
    try:
        value = operation.run(DeltaTable(URI, store=FaultyStore(inner, [fault])), _place())
    except (DeltaError, SimulatedCrash) as refused:
        error = refused
    except Exception as raised:  # noqa: BLE001 - what it is, is the finding
        title = f"{operation.name}: {type(raised).__name__} where {fault.operation} fails"
        round_.fail(title, f"{where}: {raised!r}")
        return
    if error is None and operation.reads and value != undisturbed.value:
        round_.fail(f"{operation.name}: another result", f"{where}: {value}")
    try:
        rows = rows_of(DeltaTable(URI, store=inner))
    except DeltaError as unreadable:
        title = f"{operation.name}: the table cannot be read afterwards"
        round_.fail(title, f"{where}: {error!r}\n{unreadable}")
        return
    allowed = [undisturbed.after] if error is None else [undisturbed.before, undisturbed.after]
    if rows not in allowed:
        round_.fail(f"{operation.name}: other rows", f"{where}: {error!r}, {len(rows)} rows")
