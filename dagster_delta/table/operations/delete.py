"""DELETE and UPDATE, each as one commit.

Spec: Add File and Remove File; Deletion Vectors; Append-only Tables; Column Invariants.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from dagster_delta.engines import embedded_engine, engine_for_changes
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import Assignment
from dagster_delta.errors import InvalidArgument
from dagster_delta.table.operations.row_changes import (
    RowChangeCounts,
    change_rows,
    refuse_append_only,
)
from dagster_delta.table.read.row_selection import select_rows
from dagster_delta.table.transaction.app_transactions import ApplicationRecord
from dagster_delta.table.transaction.retries import ConflictRetries, run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.sql.expressions import SqlExpression
    from dagster_delta.table.read.snapshot import Snapshot


def delete_rows(
    snapshot: Snapshot,
    where: str | None,
    engine: Engine | None,
    *,
    clock: Clock,
    commit_info: Mapping[str, object] | None,
    record: ApplicationRecord,
    retries: ConflictRetries,
) -> CommitResult:
    """Remove the rows for which a predicate is true.

    `record` is what it records of applications. After any error but CommitStateUnknown nothing was
    committed, and no file is left behind where the store allows.
    """
    parameters = {"predicate": ["true" if where is None else where]}

    def delete(snapshot: Snapshot) -> CommitResult:
        operation = _RowOperation.begin("DELETE", snapshot, where, engine, clock)
        chosen = engine or operation.engine_of(())
        return operation.run((), chosen, parameters, commit_info, record)

    return run_with_retries(delete, snapshot, retries, record)


def update_rows(
    snapshot: Snapshot,
    values: Mapping[str, str],
    where: str | None,
    engine: Engine | None,
    *,
    clock: Clock,
    commit_info: Mapping[str, object] | None,
    record: ApplicationRecord,
    retries: ConflictRetries,
) -> CommitResult:
    """Give the rows for which a predicate is true new values.

    The values are Spark SQL by column, over the row as it was. Errors are those of `delete_rows`,
    and InvalidCast or ConstraintViolation: a new value is no value of its column.
    """
    parameters = {"predicate": [] if where is None else [where]}

    def update(snapshot: Snapshot) -> CommitResult:
        operation = _RowOperation.begin("UPDATE", snapshot, where, engine, clock)
        assignments, chosen = operation.assign(values, engine)
        return operation.run(assignments, chosen, parameters, commit_info, record)

    return run_with_retries(update, snapshot, retries, record)


class _RowOperation(msgspec.Struct, frozen=True):
    name: str
    transaction: Transaction
    snapshot: Snapshot
    where: SqlExpression | None
    zone: str
    started: float

    @classmethod
    def begin(
        cls,
        name: str,
        snapshot: Snapshot,
        where: str | None,
        engine: Engine | None,
        clock: Clock,
    ) -> _RowOperation:
        started = time.perf_counter()
        zone = (engine or embedded_engine()).time_zone
        transaction = Transaction(snapshot.store, snapshot, clock=clock)
        refuse_append_only(transaction, f"{'an' if name == 'UPDATE' else 'a'} {name}")
        expression = None
        if where is not None:
            from dagster_delta.sql.filters import check_repeatable, parse_filter

            expression = parse_filter(where, snapshot.schema, dt.datetime.now(dt.UTC), zone)
            check_repeatable(expression, f"the condition of {name}")
        return cls(name, transaction, snapshot, expression, zone, started)

    def assign(
        self, values: Mapping[str, str], engine: Engine | None
    ) -> tuple[tuple[Assignment, ...], Engine]:
        """The new values, typed, and the engine that computes them."""
        from dagster_delta.engines.statements.assignments import parse_assignments, resolve_defaults
        from dagster_delta.sql.filters import at_statement

        if not isinstance(values, Mapping):
            raise InvalidArgument(f"an update takes {{column: Spark SQL}}, not {values!r}")
        configuration, schema = self.snapshot.configuration, self.snapshot.schema
        moment = dt.datetime.now(dt.UTC)
        dated = {
            name: at_statement(sql, schema, moment) if isinstance(sql, str) else sql
            for name, sql in values.items()
        }
        resolved = resolve_defaults(dated, configuration, schema)
        assignments = parse_assignments(resolved, schema, zone=self.zone)
        engine = engine or self.engine_of(assignments)
        if engine.casts_values:
            resolved = resolve_defaults(dated, configuration, schema, embedded=False)
            assignments = parse_assignments(resolved, schema, casts=False, zone=self.zone)
        return assignments, engine

    def run(
        self,
        assignments: tuple[Assignment, ...],
        engine: Engine,
        parameters: Mapping[str, object],
        commit_info: Mapping[str, object] | None,
        record: ApplicationRecord,
    ) -> CommitResult:
        if (done := record.found_done(self.snapshot)) is not None:
            return done
        record.stage(self.transaction)
        selected = select_rows(self.snapshot, self.where, engine)
        scanned = time.perf_counter()
        if not selected.files.num_rows and record.is_empty:
            # As in the reference implementation, what changes nothing makes no version.
            metrics = self._metrics(RowChangeCounts(), scanned)
            return CommitResult(self.snapshot.version, metrics, self.snapshot, skipped=True)
        with self.transaction.created_files:
            counts = change_rows(
                self.transaction,
                selected,
                engine,
                assignments=assignments,
                where=self.where,
            )
        return self.transaction.commit(
            self.name,
            parameters=parameters,
            metrics=self._metrics(counts, scanned),
            user_info=commit_info,
        )

    def engine_of(self, assignments: tuple[Assignment, ...]) -> Engine:
        """The engine that the expressions ask for."""
        where = () if self.where is None else (self.where,)
        expressions = (*where, *(assignment.value for assignment in assignments))
        return engine_for_changes(expressions, self.transaction.store, self.zone)

    def _metrics(self, counts: RowChangeCounts, scanned: float) -> dict[str, int | str]:
        rows = "numDeletedRows" if self.name == "DELETE" else "numUpdatedRows"
        now = time.perf_counter()
        return {
            **row_change_metrics(counts, rows),
            "executionTimeMs": round((now - self.started) * 1000),
            "scanTimeMs": round((scanned - self.started) * 1000),
            "rewriteTimeMs": round((now - scanned) * 1000),
        }


def row_change_metrics(counts: RowChangeCounts, rows: str) -> dict[str, int | str]:
    """The counts by the names of commitInfo."""
    metrics: dict[str, int | str] = {
        "numRemovedFiles": counts.num_removed_files,
        "numRemovedBytes": counts.num_removed_bytes,
        "numAddedFiles": counts.num_added_files,
        "numAddedBytes": counts.num_added_bytes,
        "numCopiedRows": counts.num_copied_rows,
        "numDeletionVectorsAdded": counts.num_vectors_added,
        "numDeletionVectorsUpdated": counts.num_vectors_updated,
        "numDeletionVectorsRemoved": counts.num_vectors_removed,
        "numAddedChangeFiles": counts.num_change_files,
    }
    if counts.num_changed_rows is not None:
        metrics[rows] = counts.num_changed_rows
    return metrics
