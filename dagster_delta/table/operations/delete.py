"""DELETE as one commit.

Spec: Add File and Remove File; Deletion Vectors; Append-only Tables.
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


def delete(
    table: TableHandle,
    /,
    where: str | None = None,
    *,
    engine: str | None = None,
    idempotency: tuple[str, int] | None = None,
    commit_info: Mapping[str, object] | None = None,
    on_conflict: OnConflict = "retry",
) -> CommitResult:
    """Delete rows as one commit. If no row matches, nothing is committed and `skipped` is true.

    Only the columns of the predicate are read, in files that may hold a match. With deletion
    vectors (`delta.enableDeletionVectors`) no row is written; else the files with matches are
    rewritten without them. Files that lose all rows are removed.

    Args:
        where: Spark SQL; rows that satisfy it are deleted. None deletes every row, through the
            log alone.
        engine: `arrow` or `spark`; by default Arrow, or Spark if only Spark evaluates the SQL
            exactly and a session is active.
        idempotency: application id and version; a version that was already committed does
            nothing; the version is recorded even if no row matches.
        commit_info: recorded in the commitInfo beside this library's own fields.
        on_conflict: after a conflict with a concurrent commit, `retry` plans the statement
            again on the newest version, up to 100 times within half an hour, or as
            `ConflictRetries(attempts=…, seconds=…)` says; `fail` raises the conflict.

    Raises:
        TableNotFound: the table does not exist.
        SchemaMismatch: the predicate names a column that is not in the schema.
        InvalidArgument: the predicate is not a boolean expression, or fails on a value.
        UnsupportedExpression: the embedded engine cannot evaluate it exactly as Spark would,
            and there is no Spark session.
        UnsupportedFeature, ConditionalPutUnsupported: the table cannot be written, or is
            append-only.
        CommitConflict, CommitStateUnknown: the commit failed, or may have failed.
    """
    options = StatementOptions(
        engine=engine,
        idempotency=idempotency,
        commit_info=commit_info,
        on_conflict=on_conflict,
    )
    parameters = {"predicate": ["true" if where is None else where]}

    def delete_from(snapshot: Snapshot) -> CommitResult:
        statement = RowStatement("DELETE", snapshot, where, options)
        return statement.run(statement.engine_of(()), parameters)

    deleted = run_with_retries(delete_from, table.store, table._existing(), options)
    return adopt_write(table, deleted, engine)
