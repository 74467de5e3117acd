"""Part `races`: a second statement runs at one store call of the first, in particular the same one.

One process runs at a time: at its n-th call of the store the first writer is held while the second
one runs its whole statement. So each interleaving is reached without luck. What is left has to be
what the acknowledged statements leave one after the other.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from dagster_delta import DeltaTable
from dagster_delta.errors import DeltaError
from dagster_delta.storage.memory_store import MemoryStore
from dagster_delta.testing.faulty_store import FaultyStore, Operation
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
WRITES = tuple(operation for operation in OPERATIONS if not operation.reads)


@dataclass
class _Race:
    """Two statements on copies of one table."""

    template: MemoryStore
    first: PublicOperation
    second: PublicOperation
    serial: dict[tuple[str, ...], Rows | None] = field(default_factory=dict)
    """Rows after some of the statements in that order; None if one of them is refused."""

    def outcomes(self, acknowledged: tuple[bool, bool]) -> list[Rows]:
        """The rows that may be there after these acknowledgements."""
        orders: list[tuple[PublicOperation, ...]]
        match acknowledged:
            case (True, True):
                orders = [(self.first, self.second), (self.second, self.first)]
            case (True, False):
                orders = [(self.first,)]
            case (False, True):
                orders = [(self.second,)]
            case _:
                orders = [()]
        found = [self._one_after_the_other(order) for order in orders]
        return [rows for rows in found if rows is not None]

    def _one_after_the_other(self, order: tuple[PublicOperation, ...]) -> Rows | None:
        key = tuple(operation.name for operation in order)
        if key not in self.serial:
            store = memory_copy(self.template)
            done = all(_run(operation, store) is None for operation in order)
            self.serial[key] = rows_of(DeltaTable(URI, store=store)) if done else None
        return self.serial[key]


def _run(operation: PublicOperation, store: MemoryStore | FaultyStore) -> DeltaError | None:
    try:
        operation.run(DeltaTable(URI, store=store), Place("memory://other", MemoryStore()))
    except DeltaError as error:
        return error
    return None


def play_race_round(round_: Round) -> None:
    """Round 0: each statement against itself. Later rounds: random pairs."""
    template = MemoryStore()
    fill(URI, template)
    pairs = [(operation, operation) for operation in WRITES]
    if round_.number:
        mixed = [operation for operation in WRITES if not operation.alone]
        pairs = [(round_.random.choice(mixed), round_.random.choice(mixed)) for _ in range(12)]
    round_.random.shuffle(pairs)
    for first, second in pairs:
        race = _Race(template, first, second)
        for call in _calls(round_, race):
            if round_.is_over:
                return
            _interrupt(round_, race, call)


def _calls(round_: Round, race: _Race) -> list[int]:
    """The store calls to interrupt: all, or the first that may commit."""
    calls: list[Operation] = []
    store = FaultyStore(
        memory_copy(race.template), before_call=lambda operation, _: calls.append(operation)
    )
    _run(race.first, store)
    if not round_.short:
        return list(range(1, len(calls) + 1))
    commits = [number for number, call in enumerate(calls, 1) if call == "put_if_absent"]
    return commits[:2]


def _interrupt(round_: Round, race: _Race, call: int) -> None:
    inner = memory_copy(race.template)
    answers: list[DeltaError | None] = []
    counter = itertools.count(1)

    def before_call(operation: Operation, path: str) -> None:
        # Not in a thread of a pool: the first statement may hold locks while it waits for that.
        due = next(counter) >= call and threading.current_thread() is threading.main_thread()
        if due and not answers:
            answers.append(_run(race.second, inner))

    pair = f"{race.first.name} / {race.second.name}"
    where = f"{pair}, the second at store call {call} of the first"
    round_.result.operations += 2
    round_.fault("interleavings")
    try:
        error = _run(race.first, FaultyStore(inner, before_call=before_call))
    except Exception as raised:  # noqa: BLE001 - what it is, is the finding
        round_.fail(f"{pair}: raised {type(raised).__name__}", f"{where}: {raised!r}")
        return
    if not answers:
        return
    answered = f"{where}\nfirst: {error or 'done'}\nsecond: {answers[0] or 'done'}"
    try:
        rows = rows_of(DeltaTable(URI, store=inner))
    except DeltaError as unreadable:
        title = f"{pair}: the table cannot be read afterwards: {type(unreadable).__name__}"
        round_.fail(title, f"{answered}\n{unreadable}")
        return
    possible = race.outcomes((error is None, answers[0] is None))
    if not possible:
        round_.fail(f"{pair}: both acknowledged, but one excludes the other", answered)
    elif rows not in possible:
        round_.fail(f"{pair}: other rows than in any order", f"{answered}\n{len(rows)} rows")
