"""DELETE and UPDATE as one commit.

Spec: Add File and Remove File; Deletion Vectors; Append-only Tables; Column Invariants.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.engines import embedded_engine, engine_for, engine_for_changes
from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import Assignment
from dagster_delta.engines.statements.assignments import parse_assignments, resolve_defaults
from dagster_delta.sql.filters import at_moment, check_repeatable, parse_filter
from dagster_delta.table.operations.row_changes import (
    CHANGED_ROWS,
    NO_CHANGES,
    RowChangeMetrics,
    change_rows,
)
from dagster_delta.table.read.file_planner import select_rows
from dagster_delta.table.transaction.retries import StatementOptions, run_with_retries
from dagster_delta.table.transaction.transaction import CommitResult, Transaction

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.table.read.snapshot import Snapshot


def delete_rows(
    snapshot: Snapshot, where: str | None, options: StatementOptions, *, clock: Clock
) -> CommitResult:
    """Remove the rows for which a predicate is true.

    After any error but CommitStateUnknown nothing was committed, and no file is left behind where
    the store allows.
    """
    parameters = {"predicate": ["true" if where is None else where]}

    def delete(snapshot: Snapshot) -> CommitResult:
        statement = _RowStatement("DELETE", snapshot, where, options, clock)
        return statement.run(statement.engine_of(()), parameters)

    return run_with_retries(delete, snapshot.store, snapshot, options)


def update_rows(
    snapshot: Snapshot,
    values: Mapping[str, str],
    where: str | None,
    options: StatementOptions,
    *,
    clock: Clock,
) -> CommitResult:
    """Give the rows for which a predicate is true new values.

    The values are Spark SQL by column, over the row as it was. Errors are those of `delete_rows`,
    and InvalidCast or ConstraintViolation: a new value is no value of its column.
    """
    parameters = {"predicate": [] if where is None else [where]}

    def update(snapshot: Snapshot) -> CommitResult:
        statement = _RowStatement("UPDATE", snapshot, where, options, clock)
        assignments, engine = statement.assign(values)
        return statement.run(engine, parameters, assignments)

    return run_with_retries(update, snapshot.store, snapshot, options)


class _RowStatement:
    """One attempt, on a version."""

    def __init__(
        self,
        name: str,
        snapshot: Snapshot,
        where: str | None,
        options: StatementOptions,
        clock: Clock,
    ) -> None:
        self._started, self._moment = time.perf_counter(), dt.datetime.now(dt.UTC)
        self._name, self._snapshot, self._options = name, snapshot, options
        self._asked = None if options.engine is None else engine_for(None, options.engine)
        self._zone = (self._asked or embedded_engine()).time_zone
        self._transaction = Transaction(snapshot.store, snapshot, clock=clock)
        self._transaction.check_may_remove(f"{'an' if name == 'UPDATE' else 'a'} {name}")
        self._where = None
        if where is not None:
            self._where = parse_filter(where, snapshot.schema, self._moment, self._zone)
            check_repeatable(self._where, f"the condition of {name}")

    def engine_of(self, assignments: tuple[Assignment, ...]) -> Engine:
        """The engine that the caller or the expressions ask for."""
        where = () if self._where is None else (self._where,)
        expressions = (*where, *(assignment.value for assignment in assignments))
        return self._asked or engine_for_changes(expressions, self._snapshot.store, self._zone)

    def assign(self, values: Mapping[str, str]) -> tuple[tuple[Assignment, ...], Engine]:
        """The values that an engine assigns, and this engine."""
        configuration, schema = self._snapshot.configuration, self._snapshot.schema
        dated = {
            name: at_moment(sql, self._moment, schema) if isinstance(sql, str) else sql
            for name, sql in values.items()
        }
        resolved = resolve_defaults(dated, configuration, schema)
        assignments = parse_assignments(resolved, schema, zone=self._zone)
        engine = self.engine_of(assignments)
        if engine.casts_values:
            resolved = resolve_defaults(dated, configuration, schema, embedded=False)
            assignments = parse_assignments(resolved, schema, casts=False, zone=self._zone)
        return assignments, engine

    def run(
        self,
        engine: Engine,
        parameters: Mapping[str, object],
        assignments: tuple[Assignment, ...] = (),
    ) -> CommitResult:
        """Change the selected rows, and commit that."""
        self._transaction.stage_applications(self._options)
        selected = select_rows(self._snapshot, self._where, engine)
        scanned = time.perf_counter()
        if not selected.files.num_rows and self._options.records_nothing:
            # As in the reference implementation, what changes nothing makes no version.
            metrics = self._metrics(NO_CHANGES, scanned)
            return CommitResult(self._snapshot.version, metrics, self._snapshot, skipped=True)
        with self._transaction.created_files:
            counts = change_rows(
                self._transaction, selected, engine, assignments=assignments, where=self._where
            )
        return self._transaction.commit(
            self._name,
            parameters=parameters,
            metrics=self._metrics(counts, scanned),
            user_info=self._options.commit_info,
        )

    def _metrics(self, counts: RowChangeMetrics, scanned: float) -> dict[str, int | str]:
        now = time.perf_counter()
        rows = "numDeletedRows" if self._name == "DELETE" else "numUpdatedRows"
        return {
            **{rows if name == CHANGED_ROWS else name: count for name, count in counts.items()},
            "executionTimeMs": round((now - self._started) * 1000),
            "scanTimeMs": round((scanned - self._started) * 1000),
            "rewriteTimeMs": round((now - scanned) * 1000),
        }
