"""Changing a column to any type while reads and writes continue, as a series of commits.

Everything needed to resume is in the log: the mark in the metadata, and a tag on every converted
file. Any process that opens the table can resume or cancel. `evolution.column_change` has the table
of states.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import Clock, now_ms
from dagster_delta.engines import engine_for
from dagster_delta.engines.embedded_values import EMBEDDED_VALUES
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import Problems
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import (
    ColumnChangeFailed,
    CommitConflict,
    InvalidArgument,
)
from dagster_delta.evolution import actions
from dagster_delta.evolution.column_change import (
    cancelled_configuration,
    check_unaltered,
    published_clustering,
    published_configuration,
)
from dagster_delta.evolution.column_change_plan import (
    plan_column_change as plan_online_change,
)
from dagster_delta.evolution.column_change_request import ColumnChangeRequest
from dagster_delta.evolution.column_paths import dotted, to_path
from dagster_delta.evolution.plan import BackfillCost, ColumnChangePlan
from dagster_delta.evolution.programs import check_readers
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_TAG,
    ColumnChange,
    OnError,
    Position,
    field_at,
    is_filled,
)
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.schema import DataType
from dagster_delta.protocol.values.arrow_values import FALSE
from dagster_delta.split_by_size import split_by_size
from dagster_delta.sql.types import sql_type_name
from dagster_delta.table.log.columns import total_bytes
from dagster_delta.table.operations.change_schema import RETRIES, parse_column_type
from dagster_delta.table.operations.write_planning import write_spec
from dagster_delta.table.read.file_planner import check_no_row_lost, read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.retries import run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.table.table_handle import TableHandle

_BATCH_BYTES = 1024 * 1024 * 1024
"""Size of the data files that are rewritten in one commit."""
_OPERATION = "CHANGE COLUMN"
_METRICS = (
    "numCopiedRows",
    "numLateRows",
    "numNulledValues",
    "numRemovedFiles",
    "numRemovedBytes",
    "numAddedFiles",
    "numAddedBytes",
    "numBatches",
    "numRetries",
    "longestRetryMs",
)


def plan_column_change(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    new_type: str | DataType,
    *,
    cast: str | None = None,
    on_error: OnError = "abort",
    nullable: bool | None = None,
    position: str | None = None,
    enable_features: bool = False,
    batch_bytes: int | None = None,
) -> ColumnChangePlan:
    """The plan of `change_column` and its cost; nothing is written. It takes the same arguments
    and raises the same errors, but returns missing switches as `missing_switches` of the plan.
    """
    request = _make_request(
        table, column, new_type, cast, on_error, nullable, position, enable_features
    )
    return plan_for(table._existing(), request, batch_bytes=batch_bytes, dry_run=True)


def change_column(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    new_type: str | DataType,
    *,
    cast: str | None = None,
    on_error: OnError = "abort",
    nullable: bool | None = None,
    position: str | None = None,
    enable_features: bool = False,
    force: bool = False,
    batch_bytes: int | None = None,
    engine: str | None = None,
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[ColumnChangeProgress], None] | None = None,
) -> CommitResult:
    """Change a column to any atomic type online, while others read and write the table.

    Every data file is rewritten with both columns, batch by batch; one last commit replaces the
    old column by the new one. Before it, files that other writers added during the change are
    rewritten too. If the process ends in between, `resume_column_change` continues from the
    log.

    Args:
        column: path of the column, or of a struct field, `element` or `value` in it.
        new_type: as SQL spells it (`INT`, `DECIMAL(10,2)`, `DATE`), or a type of the schema.
        cast: Spark SQL over the row for the new value of a top-level column. It must be SQL
            that the embedded engine supports, because every writer computes the new column
            during the change. With `cast`, the type may stay the same. By default the value is
            converted as CAST does in a session in UTC.
        on_error: for a value that cannot be converted: `abort` cancels the change, which leaves
            the table unchanged; `null` stores a null.
        nullable: whether the changed column takes nulls; None keeps the present setting.
        position: `FIRST`, or the name of the column to place it after; None keeps the position.
        enable_features: whether to enable what the table lacks for this: the switch
            `dagsterDelta.enableColumnChange` and column mapping.
        force: as for `alter`.
        batch_bytes: size of the data files that are rewritten in one commit; 1 GiB.
        engine: `arrow` in this process (the default), or `spark` on the executors of the active
            session.
        commit_info: recorded in every commit beside this library's own fields.
        on_progress: called for every commit.

    Returns:
        What the last commit did. Its metrics count the whole run: `numCopiedRows` rows
        converted, `numLateRows` of them in files that other writers added without the new
        column, `numNulledValues`, `numRemovedFiles` and `numRemovedBytes` of the files that
        were rewritten, `numAddedFiles` and `numAddedBytes` of those that replace them,
        `numBatches`, `numRetries` attempts to commit that lost to a concurrent commit, and
        `longestRetryMs`, the longest time from the first attempt at a commit to its success.

    Raises:
        ColumnChangeFailed: values cannot be converted, or rows break a constraint under the new
            type; the message counts them, with examples and their files. The change was
            cancelled.
        SchemaChangeRefused: something depends on the column in a way that the change cannot
            preserve, another change is in progress, or the table lacks what the change needs.
        SchemaMismatch, InvalidArgument: the arguments are invalid for this table.
        UnsupportedExpression: values cannot be converted exactly as Spark converts them.
        CommitConflict: others change the table faster than its files can be rewritten.
    """
    request = _make_request(
        table, column, new_type, cast, on_error, nullable, position, enable_features
    )
    # This comes first, so that invalid arguments are refused before anything is committed.
    job = _make_job(engine, batch_bytes, commit_info, on_progress)
    request = replace(request, force=force)
    begun = begin_column_change(table._existing(), request, clock=now_ms, commit_info=commit_info)
    return table._adopt(job.run(table._adopt(begun).snapshot))


def column_change(table: TableHandle, /) -> ColumnChangeState | None:
    """The column change in progress at the latest version, or None.

    Raises:
        TableNotFound: the table does not exist yet.
        InvalidTable: the record of the change is damaged.
    """
    return read_state(table._existing())


def resume_column_change(
    table: TableHandle,
    /,
    *,
    batch_bytes: int | None = None,
    engine: str | None = None,
    commit_info: Mapping[str, object] | None = None,
    on_progress: Callable[[ColumnChangeProgress], None] | None = None,
) -> CommitResult:
    """Continue the column change in progress until it is complete.

    Args:
        batch_bytes: as for `change_column`.
        engine: as for `change_column`.
        commit_info: as for `change_column`.
        on_progress: as for `change_column`.

    Returns:
        As for `change_column`; the metrics count what this run did.

    Raises:
        InvalidArgument: no change is in progress.
        ColumnChangeFailed, SchemaChangeRefused, CommitConflict: as for `change_column`.
    """
    job = _make_job(engine, batch_bytes, commit_info, on_progress)
    return table._adopt(job.run(table._existing()))


def cancel_column_change(
    table: TableHandle, /, *, commit_info: Mapping[str, object] | None = None
) -> CommitResult:
    """Cancel the column change in progress: the column stays unchanged.

    Converted values stay in the files, invisible to readers, until the files are rewritten.

    Raises:
        InvalidArgument: no change is in progress.
        ColumnChangeFailed: another process has ended it meanwhile.
        CommitConflict: others change the metadata faster than it can be cancelled.
    """
    return table._adopt(remove_mark(table._existing(), clock=now_ms, commit_info=commit_info))


def _make_request(
    table: TableHandle,
    /,
    column: str | Sequence[str],
    new_type: str | DataType,
    cast: str | None,
    on_error: OnError,
    nullable: bool | None,
    position: str | None,
    enable_features: bool,
) -> ColumnChangeRequest:
    path = to_path(column)
    also: list[actions.SchemaAction] = []
    if nullable is not None:
        also.append(actions.SetNullable(path, nullable))
    if position is not None:
        after = None if position.upper() == "FIRST" else position
        also.append(actions.MoveColumn(path, Position(after)))
    return ColumnChangeRequest(
        path,
        parse_column_type(new_type),
        cast,
        on_error,
        enable_features,
        table._allow_column_changes,
        tuple(also),
    )


def _make_job(
    engine: str | None,
    batch_bytes: int | None,
    commit_info: Mapping[str, object] | None,
    on_progress: Callable[[ColumnChangeProgress], None] | None,
) -> ColumnChangeJob:
    return ColumnChangeJob(engine_for(None, engine), now_ms, batch_bytes, commit_info, on_progress)


class ColumnChangeState(msgspec.Struct, frozen=True):
    """A change in progress, from the log of one version."""

    id: str
    column: str
    from_type: str
    to_type: str
    state: Literal["prepared", "reorganising"]
    """`prepared` until the first file holds the converted column."""
    version: int
    """Version of the table that this was read from."""
    num_files: int
    """Live files of the table."""
    num_files_left: int
    """Number of files without the converted column."""
    bytes_left: int
    """Size of these files."""


class ColumnChangeProgress(msgspec.Struct, frozen=True):
    """One step of a change that has just been committed."""

    state: ColumnChangeState | None
    """The remaining work; None once the change is public."""
    version: int
    num_rows: int
    """Rows rewritten so far."""
    num_nulled: int
    """Values so far that became null because they could not be converted."""
    bytes_written: int


Progress = Callable[[ColumnChangeProgress], None]


def read_state(snapshot: Snapshot) -> ColumnChangeState | None:
    """The change in progress, or None."""
    change = ColumnChange.of(snapshot.configuration)
    if change is None:
        return None
    files = snapshot.live_files(("size_bytes", "tags"))
    left = _find_unfilled(files, change)
    return ColumnChangeState(
        id=change.id,
        column=dotted(change.path),
        from_type=_present_type(change, snapshot),
        to_type=sql_type_name(change.target_type()),
        state="prepared" if left.num_rows == files.num_rows else "reorganising",
        version=snapshot.version,
        num_files=files.num_rows,
        num_files_left=left.num_rows,
        bytes_left=total_bytes(left),
    )


def _present_type(change: ColumnChange, snapshot: Snapshot) -> str:
    source = change.source(snapshot.schema)
    if source is None:
        return "(dropped)"
    # Writers that do not know the change may have renamed the column.
    try:
        return sql_type_name(field_at(source, change.path[1:]))
    except KeyError:
        return "(altered)"


def _find_unfilled(files: pa.Table, change: ColumnChange) -> pa.Table:
    """The files that do not hold the shadow column."""
    filled = pc.equal(pc.map_lookup(files["tags"], COLUMN_CHANGE_TAG, "first"), change.id)
    return files.filter(pc.invert(pc.fill_null(filled, FALSE)))


def plan_for(
    snapshot: Snapshot,
    request: ColumnChangeRequest,
    *,
    configuration: TableConfiguration | None = None,
    batch_bytes: int | None = None,
    dry_run: bool = False,
) -> ColumnChangePlan:
    """What a change would do to a table, and its cost.

    The configuration is that after the changes planned before this one; with `dry_run` the plan
    reports a switch that is off, instead of an error.
    """
    size = _checked_batch_bytes(batch_bytes)
    plan = plan_online_change(
        configuration or snapshot.configuration,
        request,
        change_id=uuid.uuid4().hex,
        values=EMBEDDED_VALUES,
        dry_run=dry_run,
    )
    sizes = snapshot.live_files(("size_bytes",))["size_bytes"].to_pylist()
    batches = list(split_by_size(sizes, int, size))
    cost = BackfillCost(len(sizes), sum(sizes), snapshot.num_records, len(batches))
    return plan.with_cost(cost)


def _checked_batch_bytes(batch_bytes: int | None) -> int:
    if batch_bytes is None:
        return _BATCH_BYTES
    if batch_bytes <= 0:
        raise InvalidArgument(f"batch_bytes is a positive number of bytes, not {batch_bytes!r}")
    return batch_bytes


def begin_column_change(
    snapshot: Snapshot,
    request: ColumnChangeRequest,
    *,
    clock: Clock,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Set the mark of the change, planned again after conflicts."""

    def begin(newest: Snapshot) -> CommitResult:
        plan = plan_for(newest, request)
        transaction = Transaction(newest.store, newest, clock=clock)
        if not request.force:
            # Once begun, the change is not refused at its end.
            check_readers(plan.before, plan.after, table=newest.store.location.uri)
        transaction.stage_configuration(plan.prepared, force=True)
        parameters = _describe_change(plan.change, "prepared")
        return transaction.commit(_OPERATION, parameters=parameters, user_info=commit_info)

    return run_with_retries(begin, snapshot.store, snapshot, RETRIES)


def remove_mark(
    snapshot: Snapshot, *, clock: Clock, commit_info: Mapping[str, object] | None = None
) -> CommitResult:
    """Remove the mark, on the newest version after conflicts: no reader ever saw the change. If
    another process has ended it meanwhile, that is a ColumnChangeFailed.
    """
    change = _find_running(snapshot)

    def cancel(newest: Snapshot) -> CommitResult:
        _check_running(newest, change)
        transaction = Transaction(newest.store, newest, clock=clock)
        transaction.stage_configuration(cancelled_configuration(newest.configuration), force=True)
        parameters = _describe_change(change, "cancelled")
        return transaction.commit(_OPERATION, parameters=parameters, user_info=commit_info)

    return run_with_retries(cancel, snapshot.store, snapshot, RETRIES)


def _find_running(snapshot: Snapshot) -> ColumnChange:
    change = ColumnChange.of(snapshot.configuration)
    if change is None:
        raise InvalidArgument(
            "no column of the table is being changed", table=snapshot.store.location.uri
        )
    return change


def _describe_change(change: ColumnChange, state: str) -> dict[str, object]:
    return {
        "column": dotted(change.path),
        "newType": sql_type_name(change.target_type()),
        "state": state,
        "changeId": change.id,
    }


@dataclass
class ColumnChangeJob:
    """Completes a change that was begun."""

    engine: Engine
    clock: Clock
    batch_bytes: int | None = None
    commit_info: Mapping[str, object] | None = None
    on_progress: Progress | None = None
    _metrics: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_METRICS, 0), init=False)
    _early: pa.ChunkedArray = field(default=None, init=False)
    """Paths of the files to rewrite that existed when the run began."""

    def __post_init__(self) -> None:
        self.batch_bytes = _checked_batch_bytes(self.batch_bytes)

    def run(self, snapshot: Snapshot) -> CommitResult:
        """Rewrite every file that is not converted yet, and make the change public.

        Returns:
            Result of the last commit, with the metrics of this run.

        Raises:
            ColumnChangeFailed: values cannot be converted, or rows break a check under the new
                type; the change was cancelled, and the table is unchanged. Or another process ended
                the change.
            SchemaChangeRefused: a concurrent commit altered the column; nothing was published.
            CommitConflict: others change the table faster than its files can be rewritten.
            InvalidArgument: no change is in progress.
        """
        change = _find_running(snapshot)
        self._early = _find_unfilled(snapshot.live_files(("path", "tags")), change)["path"]
        while True:
            done = self._commit_step(snapshot, change)
            snapshot = done.snapshot
            self._report_progress(snapshot)
            if not _is_running(snapshot, change):
                return done

    def _commit_step(self, snapshot: Snapshot, change: ColumnChange) -> CommitResult:
        """The next commit of the change, planned again after conflicts."""
        began_ms, num_lost = self.clock(), -1

        def note_time() -> None:
            if num_lost > 0:
                longest = max(self._metrics["longestRetryMs"], self.clock() - began_ms)
                self._metrics["longestRetryMs"] = longest

        def attempt(newest: Snapshot) -> CommitResult:
            nonlocal num_lost
            num_lost += 1
            self._metrics["numRetries"] += num_lost > 0
            note_time()
            _check_running(newest, change)
            check_unaltered(newest.configuration, change, EMBEDDED_VALUES)
            # Smaller batches take less time, so concurrent commits change fewer of their files.
            files = self._next_files(newest, change, (self.batch_bytes or 1) >> num_lost)
            if files.num_rows:
                return self._fill_batch(newest, files, change)
            return self._publish_change(newest, change)

        done = run_with_retries(attempt, snapshot.store, snapshot, RETRIES)
        note_time()
        return done

    def _next_files(self, snapshot: Snapshot, change: ColumnChange, size: int) -> pa.Table:
        """Files to rewrite in one commit: at least one while any is left. Files from before the run
        come first, and never together with later ones.
        """
        left = _find_unfilled(snapshot.live_files(LIVE_FILE_SCHEMA.names), change)
        early = left.filter(pc.is_in(left["path"], value_set=self._early))
        left = early if early.num_rows else left
        batches = split_by_size(left["size_bytes"].to_pylist(), int, size)
        return left.slice(0, len(next(batches, ())))

    def _fill_batch(
        self, snapshot: Snapshot, files: pa.Table, change: ColumnChange
    ) -> CommitResult:
        spec = write_spec(snapshot.configuration, snapshot.store.location, check_rows=False)
        plan, spec = keep_row_ids(read_plan(snapshot, files, None), spec)
        done = self.engine.backfill(plan, spec)
        if done.problems.num_rows:
            self._give_up(snapshot, change, done.problems)
        transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
        transaction.stage_written(done.files)
        with transaction.created_files:
            check_no_row_lost(snapshot, files, done.num_rows)
        transaction.declare_row_ids_kept()
        transaction.stage_removed(tombstones(files, self.clock(), data_change=False))
        transaction.depend_on(ReadScope(paths=frozenset(files["path"].to_pylist())))
        metrics = {
            "numRemovedFiles": files.num_rows,
            "numAddedFiles": len(done.files),
            "numCopiedRows": done.num_rows,
            "numNulledValues": done.num_nulled,
        }
        committed = transaction.commit(
            _OPERATION,
            parameters=_describe_change(change, "reorganising"),
            metrics=metrics,
            user_info=self.commit_info,
        )
        is_early = pc.any(pc.is_in(files["path"], value_set=self._early)).as_py()
        of_run = {
            **metrics,
            "numLateRows": 0 if is_early else done.num_rows,
            "numRemovedBytes": total_bytes(files),
            "numAddedBytes": sum(file.size_bytes for file in done.files),
            "numBatches": 1,
        }
        for name, value in of_run.items():
            self._metrics[name] += value
        return committed

    def _publish_change(self, snapshot: Snapshot, change: ColumnChange) -> CommitResult:
        configuration = snapshot.configuration
        transaction = Transaction(snapshot.store, snapshot, clock=self.clock)
        transaction.stage_configuration(published_configuration(configuration, change), force=True)
        clustering = published_clustering(configuration, change, snapshot.domain_metadata())
        if clustering is not None:
            transaction.stage_domain(clustering)

        def without_shadow(adds: Sequence[AddFile]) -> Sequence[AddFile]:
            return [add for add in adds if not is_filled(add.tags, change.id)]

        transaction.depend_on(ReadScope(may_hold=without_shadow))
        return transaction.commit(
            _OPERATION,
            parameters=_describe_change(change, "public"),
            metrics=self._metrics,
            user_info=self.commit_info,
        )

    def _give_up(self, snapshot: Snapshot, change: ColumnChange, problems: Problems) -> None:
        column, target = dotted(change.path), sql_type_name(change.target_type())
        rolled_back = "another process ended the change meanwhile"
        latest = snapshot.update()
        # Another change may have begun since, and this run must not cancel it.
        if _is_running(latest, change):
            with contextlib.suppress(ColumnChangeFailed, CommitConflict):
                remove_mark(latest, clock=self.clock, commit_info=self.commit_info)
                rolled_back = "the change was cancelled, and the table is as it was"
        raise ColumnChangeFailed(
            f"column {column} of at least {problems.num_rows} row(s) cannot be converted to "
            f"{target}; {rolled_back}; correct the rows, say how they are converted (`cast` of "
            "change_column, USING in a statement), or let what cannot be become null by "
            'on_error="null"',
            table=snapshot.store.location.uri,
            column=column,
            examples=tuple(problems.examples),
        )

    def _report_progress(self, snapshot: Snapshot) -> None:
        if self.on_progress is not None:
            metrics = self._metrics
            self.on_progress(
                ColumnChangeProgress(
                    read_state(snapshot),
                    snapshot.version,
                    metrics["numCopiedRows"],
                    metrics["numNulledValues"],
                    metrics["numAddedBytes"],
                )
            )


def _is_running(snapshot: Snapshot, change: ColumnChange) -> bool:
    running = ColumnChange.of(snapshot.configuration)
    return running is not None and running.id == change.id


def _check_running(snapshot: Snapshot, change: ColumnChange) -> None:
    if not _is_running(snapshot, change):
        raise ColumnChangeFailed(
            f"the change of column {dotted(change.path)} was finished or cancelled by another "
            "process",
            table=snapshot.store.location.uri,
            version=snapshot.version,
            column=dotted(change.path),
        )
