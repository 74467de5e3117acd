"""Changing a column to any type while reads and writes continue, as a series of commits.

Everything needed to resume is in the log: the record of the change in the metadata, the state in a
metadata domain, a tag on every converted file. Any process that opens the table can resume or
cancel.

The states and their commits are in `evolution.column_change.states`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.clock import Clock
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import Problems
from dagster_delta.engines.statements.row_tracking import keep_row_ids
from dagster_delta.errors import (
    ColumnChangeFailed,
    CommitConflict,
    CommitRetriesExhausted,
    InvalidArgument,
)
from dagster_delta.evolution.column_change.plan import (
    BackfillCost,
    ColumnChangePlan,
    ColumnChangeRequest,
)
from dagster_delta.evolution.column_change.states import (
    cancelled_configuration,
    check_unaltered,
    published_clustering,
    published_configuration,
)
from dagster_delta.evolution.column_paths import dotted
from dagster_delta.evolution.dependants import CLUSTERING_DOMAIN
from dagster_delta.evolution.schema_change.online_change import plan_column_change
from dagster_delta.protocol.actions import AddFile, DomainMetadata
from dagster_delta.protocol.features.column_change import (
    COLUMN_CHANGE_DOMAIN,
    ColumnChange,
    is_filled,
)
from dagster_delta.protocol.features.column_mapping import ID_KEY
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.conflict_checker import ReadScope
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.sql.types import sql_type_name
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.operations.column_change_progress import (
    BackfillTotals,
    ColumnChangeProgress,
    DomainState,
    Progress,
    State,
    recorded_state,
    state_of,
    unfilled_files,
)
from dagster_delta.table.operations.write_planning import new_column_name, write_spec
from dagster_delta.table.read.row_selection import read_plan
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.committer import Conflicted
from dagster_delta.table.transaction.file_actions import tombstones
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

_BATCH_BYTES = 1024 * 1024 * 1024
"""Size of the data files that are rewritten in one commit."""

OPERATION = "CHANGE COLUMN"
_MAX_LOST_RACES = 20
"""Conflicting batches in a row after which the backfill gives up."""


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
    plan = _plan(configuration or snapshot.configuration, request, dry_run=dry_run)
    return replace(plan, cost=_cost(snapshot, size))


def _checked_batch_bytes(batch_bytes: int | None) -> int:
    if batch_bytes is None:
        return _BATCH_BYTES
    if batch_bytes <= 0:
        raise InvalidArgument(f"batch_bytes is a positive number of bytes, not {batch_bytes!r}")
    return batch_bytes


def _plan(
    configuration: TableConfiguration, request: ColumnChangeRequest, *, dry_run: bool = False
) -> ColumnChangePlan:
    return plan_column_change(
        configuration,
        request,
        change_id=uuid.uuid4().hex,
        new_name=new_column_name,
        dry_run=dry_run,
    )


def _cost(snapshot: Snapshot, batch_bytes: int) -> BackfillCost:
    sizes = snapshot.live_files(("size_bytes",))["size_bytes"].to_pylist()
    batches, filled = 0, batch_bytes
    for size in sizes:
        if filled >= batch_bytes:
            batches, filled = batches + 1, 0
        filled += size
    return BackfillCost(len(sizes), sum(sizes), snapshot.num_records, batches)


def begin_column_change(
    snapshot: Snapshot,
    request: ColumnChangeRequest,
    *,
    clock: Clock,
    commit_info: Mapping[str, object] | None = None,
) -> CommitResult:
    """Record the change in the metadata: the state `prepared`."""
    plan = _plan(snapshot.configuration, request)
    transaction = Transaction(snapshot.store, snapshot, clock=clock)
    transaction.stage_configuration(plan.prepared)
    _stage_state(transaction, plan.change, "prepared")
    return transaction.commit(
        OPERATION, parameters=_parameters(plan.change, "prepared"), user_info=commit_info
    )


class ColumnChangeJob:
    """Completes a change that was begun. Several jobs of one change may run at the same time."""

    def __init__(
        self,
        store: ObjectStore,
        engine: Engine,
        *,
        clock: Clock,
        batch_bytes: int | None = None,
        commit_info: Mapping[str, object] | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._batch_bytes = _checked_batch_bytes(batch_bytes)
        self._commit_info = commit_info
        self._on_progress = on_progress
        self._totals = BackfillTotals()
        self._early: pa.ChunkedArray | None = None

    def run(self, snapshot: Snapshot) -> CommitResult:
        """Rewrite every file that is not converted yet, and make the change public.

        Returns:
            Result of the last commit, with the metrics of this run: `BackfillTotals.metrics`.

        Raises:
            ColumnChangeFailed: values cannot be converted, or rows break a check under the new
                type; the change was cancelled, and the table is unchanged.
            SchemaChangeRefused: a concurrent commit altered the column; nothing was published.
            CommitConflict: others change the table faster than its files can be rewritten.
            InvalidArgument: no change is in progress.
        """
        change = self._require(snapshot)
        check_unaltered(snapshot.configuration, change)
        self._early = _unfilled_paths(snapshot, change)
        snapshot = self._reorganise(snapshot, change)
        first_attempt_ms: int | None = None
        for lost in range(_MAX_LOST_RACES):
            snapshot = self._fill(snapshot, change)
            if _is_over(snapshot, change):
                return self._finished_by_another(snapshot, change)
            check_unaltered(snapshot.configuration, change)
            if first_attempt_ms is None:
                first_attempt_ms = self._clock()
            self._totals.note_retries(min(lost, 1), self._clock() - first_attempt_ms)
            outcome = self._publish(snapshot, change)
            if isinstance(outcome, CommitResult):
                self._report_progress(outcome.snapshot)
                return outcome
            # Other writers added files without the shadow column: these are converted first.
            snapshot = snapshot.update()
        raise CommitRetriesExhausted(
            f"{_MAX_LOST_RACES} attempts to make the change of column {dotted(change.path)} public "
            "found files without the converted column, which others had just written; resume the "
            "change when fewer of them are at work",
            table=self._store.location.uri,
            version=snapshot.version,
        )

    def cancel(self, snapshot: Snapshot) -> CommitResult:
        """Remove the record of the change from the metadata: no reader ever saw the change."""
        change = self._require(snapshot)
        transaction = Transaction(self._store, snapshot, clock=self._clock)
        transaction.stage_configuration(cancelled_configuration(snapshot.configuration))
        _stage_removed_state(transaction, snapshot)
        return transaction.commit(
            OPERATION, parameters=_parameters(change, "cancelled"), user_info=self._commit_info
        )

    def _require(self, snapshot: Snapshot) -> ColumnChange:
        change = ColumnChange.of(snapshot.configuration)
        if change is None:
            raise InvalidArgument(
                "no column of the table is being changed", table=self._store.location.uri
            )
        return change

    def _reorganise(self, snapshot: Snapshot, change: ColumnChange) -> Snapshot:
        known = recorded_state(snapshot, change)
        if known is not None and known.state == "reorganising":
            return snapshot
        transaction = Transaction(self._store, snapshot, clock=self._clock)
        _stage_state(transaction, change, "reorganising")
        outcome = transaction.try_commit(
            OPERATION, parameters=_parameters(change, "reorganising"), user_info=self._commit_info
        )
        if isinstance(outcome, Conflicted):
            # Another job was first, or the change was cancelled: the code below finds out.
            return snapshot.update()
        self._report_progress(outcome.snapshot)
        return outcome.snapshot

    def _fill(self, snapshot: Snapshot, change: ColumnChange) -> Snapshot:
        """The first version at which all files are converted."""
        lost, size = 0, self._batch_bytes
        first_attempt_ms = self._clock()
        while not _is_over(snapshot, change):
            files = self._next_files(snapshot, change, size)
            if not files.num_rows:
                return snapshot
            check_unaltered(snapshot.configuration, change)
            outcome = self._fill_batch(snapshot, files, change)
            if isinstance(outcome, CommitResult):
                self._totals.note_retries(lost, self._clock() - first_attempt_ms)
                lost, size, snapshot = 0, self._batch_bytes, outcome.snapshot
                first_attempt_ms = self._clock()
                self._report_progress(snapshot)
                continue
            lost += 1
            if lost == _MAX_LOST_RACES:
                raise outcome.conflict.to_error(table=self._store.location.uri)
            # Smaller batches take less time, so concurrent commits change fewer of their files.
            size, snapshot = max(1, size // 2), snapshot.update()
        return snapshot

    def _next_files(self, snapshot: Snapshot, change: ColumnChange, size: int) -> pa.Table:
        """Files to rewrite in one commit: at least one while any is left. Files from before the run
        come first, and never together with later ones.
        """
        files = snapshot.live_files(LIVE_FILE_SCHEMA.names)
        left = files.filter(unfilled_files(files, change.id))
        early = left.filter(pc.is_in(left["path"], value_set=self._early))
        left = early if early.num_rows else left
        before = pc.subtract(pc.cumulative_sum(left["size_bytes"]), left["size_bytes"])
        return left.filter(pc.less(before, size))

    def _fill_batch(
        self, snapshot: Snapshot, files: pa.Table, change: ColumnChange
    ) -> CommitResult | Conflicted:
        spec = write_spec(snapshot.configuration, self._store.location, check_rows=False)
        plan, spec = keep_row_ids(read_plan(snapshot, files, None), spec)
        done = self._engine.backfill(plan, spec)
        if done.problems.num_rows:
            self._give_up(change, done.problems)
        transaction = Transaction(self._store, snapshot, clock=self._clock)
        transaction.stage_written(done.files)
        transaction.declare_row_ids_kept()
        transaction.stage_removed(tombstones(files, self._clock(), data_change=False))
        transaction.depend_on(ReadScope(paths=frozenset(files["path"].to_pylist())))
        outcome = transaction.try_commit(
            OPERATION,
            parameters=_parameters(change, "reorganising"),
            metrics={
                "numRemovedFiles": files.num_rows,
                "numAddedFiles": len(done.files),
                "numCopiedRows": done.num_rows,
                "numNulledValues": done.num_nulled,
            },
            user_info=self._commit_info,
        )
        if isinstance(outcome, Conflicted):
            transaction.created_files.delete()
            return outcome
        late = not pc.any(pc.is_in(files["path"], value_set=self._early)).as_py()
        self._totals.add_batch(files, done, late=late)
        return outcome

    def _publish(self, snapshot: Snapshot, change: ColumnChange) -> CommitResult | Conflicted:
        configuration = snapshot.configuration
        transaction = Transaction(self._store, snapshot, clock=self._clock)
        transaction.stage_configuration(published_configuration(configuration, change))
        _stage_removed_state(transaction, snapshot)
        domains = snapshot.domain_metadata()
        clustering = published_clustering(
            configuration, change, {name: each.configuration for name, each in domains.items()}
        )
        if clustering is not None:
            transaction.stage_domain(
                DomainMetadata(domain=CLUSTERING_DOMAIN, configuration=clustering, removed=False)
            )

        def without_shadow(adds: Sequence[AddFile]) -> Sequence[AddFile]:
            return [add for add in adds if not is_filled(add.tags, change.id)]

        transaction.depend_on(ReadScope(may_hold=without_shadow))
        return transaction.try_commit(
            OPERATION,
            parameters=_parameters(change, "public"),
            metrics=self._totals.metrics(),
            user_info=self._commit_info,
        )

    def _give_up(self, change: ColumnChange, problems: Problems) -> None:
        column, target = dotted(change.path), sql_type_name(change.target_type())
        rolled_back = "another process ended the change meanwhile"
        latest = Snapshot.load(self._store)
        # Another change may have begun since, and this run must not cancel it.
        if not _is_over(latest, change):
            with contextlib.suppress(CommitConflict):
                self.cancel(latest)
                rolled_back = "the change was cancelled, and the table is as it was"
        raise ColumnChangeFailed(
            f"column {column} of at least {problems.num_rows} row(s) cannot be converted to "
            f"{target}; {rolled_back}; correct the rows, say how they are converted (`cast` of "
            "change_column, USING in a statement), or let what cannot be become null by "
            'change_column with on_error="null"',
            table=self._store.location.uri,
            column=column,
            examples=tuple(problems.examples),
        )

    def _finished_by_another(self, snapshot: Snapshot, change: ColumnChange) -> CommitResult:
        shadow_id = change.shadow.metadata[ID_KEY]
        if any(each.metadata.get(ID_KEY) == shadow_id for each in snapshot.schema):
            return self._skipped(snapshot)
        raise ColumnChangeFailed(
            f"the change of column {dotted(change.path)} was cancelled by somebody else",
            table=self._store.location.uri,
            version=snapshot.version,
            column=dotted(change.path),
        )

    def _skipped(self, snapshot: Snapshot) -> CommitResult:
        return CommitResult(snapshot.version, self._totals.metrics(), snapshot, skipped=True)

    def _report_progress(self, snapshot: Snapshot) -> None:
        if self._on_progress is not None:
            progress = ColumnChangeProgress(
                state_of(snapshot),
                snapshot.version,
                self._totals.num_rows,
                self._totals.num_nulled,
                self._totals.bytes_written,
            )
            self._on_progress(progress)


def _unfilled_paths(snapshot: Snapshot, change: ColumnChange) -> pa.ChunkedArray:
    """Paths of the files that do not hold the shadow column: a `pa.ChunkedArray`."""
    files = snapshot.live_files(("path", "tags"))
    return files.filter(unfilled_files(files, change.id))["path"]


def _is_over(snapshot: Snapshot, change: ColumnChange) -> bool:
    running = ColumnChange.of(snapshot.configuration)
    return running is None or running.id != change.id


def _stage_state(transaction: Transaction, change: ColumnChange, state: State) -> None:
    known = DomainState(change.id, state, dotted(change.path), sql_type_name(change.target_type()))
    transaction.set_domain_metadata(COLUMN_CHANGE_DOMAIN, msgspec.json.encode(known).decode())


def _stage_removed_state(transaction: Transaction, snapshot: Snapshot) -> None:
    domain = snapshot.domain_metadata().get(COLUMN_CHANGE_DOMAIN)
    if domain is not None:
        transaction.stage_domain(msgspec.structs.replace(domain, removed=True))


def _parameters(change: ColumnChange, state: str) -> dict[str, object]:
    return {
        "column": dotted(change.path),
        "newType": sql_type_name(change.target_type()),
        "state": state,
        "changeId": change.id,
    }
