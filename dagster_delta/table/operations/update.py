"""UPDATE as one commit.

Spec: Add File and Remove File; Deletion Vectors; Append-only Tables; Column Invariants.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.engines.engine import Engine
from dagster_delta.engines.plans import Assignment
from dagster_delta.engines.statements.assignments import parse_assignments, resolve_defaults
from dagster_delta.sql.filters import at_statement
from dagster_delta.table.operations.row_changes import RowStatement
from dagster_delta.table.transaction.retries import StatementOptions, run_with_retries

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.transaction import CommitResult


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
        statement = RowStatement.begin("UPDATE", snapshot, where, options, clock)
        assignments, engine = _assign(statement, values)
        return statement.run(engine, parameters, assignments)

    return run_with_retries(update, snapshot.store, snapshot, options)


def _assign(
    statement: RowStatement, values: Mapping[str, str]
) -> tuple[tuple[Assignment, ...], Engine]:
    configuration, schema = statement.snapshot.configuration, statement.snapshot.schema
    moment = dt.datetime.now(dt.UTC)
    dated = {
        name: at_statement(sql, schema, moment) if isinstance(sql, str) else sql
        for name, sql in values.items()
    }
    resolved = resolve_defaults(dated, configuration, schema)
    assignments = parse_assignments(resolved, schema, zone=statement.zone)
    engine = statement.engine_of(assignments)
    if engine.casts_values:
        resolved = resolve_defaults(dated, configuration, schema, embedded=False)
        assignments = parse_assignments(resolved, schema, casts=False, zone=statement.zone)
    return assignments, engine
