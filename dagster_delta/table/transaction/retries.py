"""How often a statement is planned again when another writer got in first.

A statement says which rows it wants, not which files it has read. After a conflict it is planned on
the newest version, as if it had begun there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import (
    CommitConflict,
    CommitRetriesExhausted,
    ConcurrentTransaction,
    InvalidArgument,
)
from dagster_delta.table.transaction.app_transactions import ApplicationRecord
from dagster_delta.table.transaction.transaction import CommitResult

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot


class ConflictRetries(msgspec.Struct, frozen=True):
    """Limits of the retries after a conflict. No attempt begins beyond either of them."""

    attempts: int = 100
    """Plans and commits in all, the first one included."""
    seconds: float = 1800.0
    """Time since the first attempt began."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.seconds < 0:
            raise InvalidArgument(
                f"ConflictRetries takes at least one attempt and no negative time, not {self}"
            )


OnConflict = Literal["retry", "fail"] | ConflictRetries
"""What a statement does after a conflict: plan again within the limits, or raise the conflict."""

_FAIL = ConflictRetries(attempts=1)


def conflict_retries(on_conflict: OnConflict) -> ConflictRetries:
    """The limits that a caller asks for. Raises InvalidArgument for anything else."""
    if isinstance(on_conflict, ConflictRetries):
        return on_conflict
    if on_conflict == "retry":
        return ConflictRetries()
    if on_conflict == "fail":
        return _FAIL
    raise InvalidArgument(
        "on_conflict is 'retry', 'fail' or ConflictRetries(attempts=…, seconds=…), not "
        f"{on_conflict!r}"
    )


class Attempts:
    """The attempts of one statement."""

    def __init__(self, limits: ConflictRetries) -> None:
        self._limits = limits
        self._started = time.monotonic()
        self.number = 1
        """Of the attempt that runs, from 1 on."""

    def may_repeat(self, conflict: type[CommitConflict]) -> bool:
        """Whether another attempt may follow a conflict; it is counted then.

        A conflict about application ids says that two processes do the same work, and exhausted
        commits found no conflict: neither is tried again.
        """
        if issubclass(conflict, (ConcurrentTransaction, CommitRetriesExhausted)):
            return False
        is_late = time.monotonic() - self._started >= self._limits.seconds
        if is_late or self.number >= self._limits.attempts:
            return False
        self.number += 1
        return True

    def counted(self, result: CommitResult) -> CommitResult:
        """The result of the last attempt, with the number of attempts."""
        return result if self.number == 1 else replace(result, attempts=self.number)

    def describe(self, conflict: CommitConflict) -> CommitConflict:
        """The conflict of the last attempt, with the number of attempts in its message."""
        if self.number > 1:
            conflict.message += f" (attempt {self.number} of {self._limits.attempts})"
        return conflict


def run_with_retries(
    run: Callable[[Snapshot], CommitResult],
    snapshot: Snapshot,
    limits: ConflictRetries,
    record: ApplicationRecord,
) -> CommitResult:
    """The result of a statement that is planned again on newer versions after conflicts.

    Args:
        run: plans the statement on a version and commits it. It leaves nothing behind when it
            raises a conflict, and is called again then.
        snapshot: the version of the first attempt.
        limits: of the retries.
        record: what the statement records of applications. If another process has done the same
            statement meanwhile, that is the result.

    Raises:
        CommitConflict: the limits are reached, or another attempt would not help.
        Anything that `run` raises.
    """
    attempts = Attempts(limits)
    while True:
        try:
            return attempts.counted(run(snapshot))
        except CommitConflict as conflict:
            may_repeat = attempts.may_repeat(type(conflict))
            if may_repeat or record.idempotency is not None:
                snapshot = snapshot.update()
            if may_repeat:
                continue
            if (done := record.found_done(snapshot)) is not None:
                return done
            raise attempts.describe(conflict) from None
