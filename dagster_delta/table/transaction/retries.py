"""How often a statement is planned again when another writer got in first.

A statement says which rows it wants, not which files it has read. After a conflict it is planned on
the newest version, as if it had begun there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from dagster_delta.errors import (
    CommitConflict,
    CommitRetriesExhausted,
    ConcurrentTransaction,
    ConstraintViolation,
    InvalidArgument,
    LogGap,
    SchemaChangeRefused,
    SchemaMismatch,
    UnsupportedExpression,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_delta.sql.constraint import Constraint
from dagster_delta.sql.expectation import Expectation
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.commit_result import AppTransaction, CommitResult

if TYPE_CHECKING:
    from dagster_delta.storage.object_store import ObjectStore
    from dagster_delta.table.slices import Slice
    from dagster_delta.table.transaction.commit_result import RowQuarantine
    from dagster_delta.table.transaction.staged_write import AuditOfWrite

_AnySnapshot = TypeVar("_AnySnapshot", Snapshot, Snapshot | None)


class ConflictRetries(msgspec.Struct, frozen=True):
    """Limits of the retries after a conflict. No attempt begins beyond either of them."""

    attempts: int = 100
    """Plans and commits in all, the first one included."""
    seconds: float = 1800.0
    """Time since the first conflict."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.seconds < 0:
            raise InvalidArgument(
                f"ConflictRetries takes at least one attempt and no negative time, not {self}"
            )


_REFUSED_ON_A_VERSION = (
    ConcurrentTransaction,
    ConstraintViolation,
    InvalidArgument,
    SchemaChangeRefused,
    SchemaMismatch,
    UnsupportedExpression,
    UnsupportedFeature,
)
"""Errors after which surely nothing is committed, and that another version may not raise."""

OnConflict = Literal["retry", "fail"] | ConflictRetries
"""What a statement does after a conflict: plan again within the limits, or raise the conflict."""


class StatementOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every statement that changes rows."""

    engine: str | None = None
    """`arrow` or `spark`; None: chosen by the data and the expressions."""
    idempotency: tuple[str, int] | None = None
    """Application id and version; the statement is done at most once with them."""
    progress: Sequence[AppTransaction] = ()
    """`txn` actions to record with it, each only if the table has the expected version."""
    commit_info: Mapping[str, object] | None = None
    """Recorded in the commitInfo."""
    check: str | None = None
    """Spark SQL that every new row must satisfy."""
    within: Slice | None = None
    """The part of the table that the statement keeps to."""
    expectations: Sequence[Expectation] = ()
    """What is expected of the rows that it is given."""
    audit: AuditOfWrite | None = None
    """Judges what is about to be committed; see `StagedWrite`."""
    quarantine: RowQuarantine | None = None
    """Where rows go that violate an expectation with `quarantine`."""
    on_conflict: OnConflict = "retry"

    def __post_init__(self) -> None:
        _ = self.limits  # raises for an invalid option
        if isinstance(self.within, str):
            raise InvalidArgument(
                f"within takes a slice, as Slice.of makes it; {self.within!r} is for where, or for "
                "check"
            )
        match self.idempotency:
            case None | (str(), int()):
                return
        raise InvalidArgument(
            "idempotency is an application id and its version, as in ('nightly', 7), not "
            f"{self.idempotency!r}"
        )

    @property
    def limits(self) -> ConflictRetries:
        """How often it is planned again after a conflict."""
        if isinstance(self.on_conflict, ConflictRetries):
            return self.on_conflict
        if self.on_conflict not in ("retry", "fail"):
            raise InvalidArgument(
                "on_conflict is 'retry', 'fail' or ConflictRetries(attempts=…, seconds=…), not "
                f"{self.on_conflict!r}"
            )
        return ConflictRetries() if self.on_conflict == "retry" else ConflictRetries(attempts=1)

    @property
    def records_nothing(self) -> bool:
        """Whether there is no `txn` action, so a write without changed rows needs no commit."""
        return self.idempotency is None and not self.progress

    def found_done(self, snapshot: Snapshot | None) -> CommitResult | None:
        """The result of the statement if the table records that it was already done, else None."""
        if self.idempotency is None or snapshot is None:
            return None
        app_id, version = self.idempotency
        committed = snapshot.transaction_version(app_id)
        if committed is None or committed < version:
            return None
        return CommitResult(snapshot.version, {}, snapshot, skipped=True)

    @property
    def constraints(self) -> list[Constraint]:
        """What new rows must satisfy in addition to the constraints of the table."""
        return [] if self.check is None else [Constraint("check", self.check, is_partition=True)]


def run_with_retries(
    run: Callable[[_AnySnapshot], CommitResult],
    store: ObjectStore,
    snapshot: _AnySnapshot,
    options: StatementOptions,
    *,
    may_repeat: Callable[[_AnySnapshot], bool] = lambda _: True,
    is_held: bool = False,
) -> CommitResult:
    """The result of a statement that is planned again on newer versions after conflicts.

    Args:
        run: plans the statement on a version and commits it, and raises a conflict only if nothing
            is committed. It is called again then.
        store: store of the table.
        snapshot: the version of the first attempt; None where there is no table yet.
        options: the limits of the retries, and what the statement records of applications. If the
            table has that already, or another process has done the same statement meanwhile, that
            is the result.
        may_repeat: whether another attempt on a newer version can succeed.
        is_held: whether `snapshot` may be older than the latest version. What is refused on it is
            tried once more on the latest.

    Raises:
        CommitConflict: the limits are reached, or another attempt would not help.
        LogGap, VersionNotFound: likewise, where a clean-up of the log has deleted the version.
        Anything that `run` raises.
    """
    attempt, first_conflict, limits = 1, None, options.limits
    while (done := options.found_done(snapshot)) is None:
        try:
            result = run(snapshot)
            return result if attempt == 1 else replace(result, attempts=attempt)
        except (*_REFUSED_ON_A_VERSION, CommitConflict, LogGap, VersionNotFound) as conflict:
            if is_held and snapshot is not None and isinstance(conflict, _REFUSED_ON_A_VERSION):
                newest = snapshot.update()
                if newest is not snapshot and may_repeat(newest):
                    snapshot, is_held = newest, False
                    continue
            is_held = False
            # A clean-up may delete the log of the version before the statement has read it. The
            # rows of a statement may come from another table, whose errors are not of this one.
            is_gap = isinstance(conflict, LogGap | VersionNotFound)
            if not (isinstance(conflict, CommitConflict) or is_gap) or (
                is_gap and conflict.table != store.location.uri
            ):
                raise
            now = time.monotonic()
            first_conflict = now if first_conflict is None else first_conflict
            # A conflict about application ids says that two processes do the same work, and
            # exhausted commits found no conflict.
            repeats = (
                not isinstance(conflict, (ConcurrentTransaction, CommitRetriesExhausted))
                and attempt < limits.attempts
                and now - first_conflict < limits.seconds
            )
            if repeats or options.idempotency is not None:
                snapshot = Snapshot.load(store) if snapshot is None else snapshot.update()
            if (done := options.found_done(snapshot)) is not None:
                return done
            if not (repeats and may_repeat(snapshot)):
                if attempt > 1:
                    conflict.message += f" (attempt {attempt} of {limits.attempts})"
                raise
            attempt += 1
    return done
