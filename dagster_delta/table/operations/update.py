"""UPDATE as one commit.

Spec: Add File and Remove File; Deletion Vectors; Append-only Tables; Column Invariants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_delta.table.operations.auto_compact import adopt_write
from dagster_delta.table.operations.change_rows import RowStatement
from dagster_delta.table.transaction.retries import StatementOptions, run_with_retries

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.table_handle import TableHandle
    from dagster_delta.table.transaction.commit_result import CommitResult
    from dagster_delta.table.transaction.retries import OnConflict


def update(
    table: TableHandle,
    /,
    set: Mapping[str, str],  # noqa: A002  as SQL calls it
    where: str | None = None,
    *,
    engine: str | None = None,
    idempotency: tuple[str, int] | None = None,
    commit_info: Mapping[str, object] | None = None,
    on_conflict: OnConflict = "retry",
) -> CommitResult:
    """Update rows as one commit. If no row matches, nothing is committed and `skipped` is true.

    Args:
        set: Spark SQL by column: `{"price": "price * 1.1"}`. All expressions are computed from
            the old row and cast to the column's type; `a.b` is a field of a struct. Text needs
            its own quotes: `{"state": "'open'"}`. `DEFAULT` is the column's default, or null.
        where: Spark SQL; rows that satisfy it are changed. None changes every row.
        engine: as for `delete`.
        idempotency: as for `delete`.
        commit_info: recorded in the commitInfo beside this library's own fields.
        on_conflict: as for `delete`.

    Raises:
        InvalidCast: a new value does not fit the type of its column.
        ConstraintViolation: a new row breaks NOT NULL, an invariant or a CHECK.
        InvalidArgument: nothing is set, or a column is set twice; an expression fails on a
            value.
        TableNotFound, SchemaMismatch, UnsupportedExpression, UnsupportedFeature,
        ConditionalPutUnsupported, CommitConflict, CommitStateUnknown: as for `delete`.
    """
    options = StatementOptions(
        engine=engine,
        idempotency=idempotency,
        commit_info=commit_info,
        on_conflict=on_conflict,
    )
    parameters = {"predicate": [] if where is None else [where]}

    def update_of(snapshot: Snapshot) -> CommitResult:
        statement = RowStatement("UPDATE", snapshot, where, options)
        assignments, chosen = statement.assign(set)
        return statement.run(chosen, parameters, assignments)

    updated = run_with_retries(update_of, table.store, table._existing(), options)
    return adopt_write(table, updated, engine)
