"""DELETE as one commit.

Spec: Add File and Remove File; Deletion Vectors; Append-only Tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.table.operations.row_changes import RowStatement
from dagster_delta.table.transaction.retries import StatementOptions, run_with_retries

if TYPE_CHECKING:
    from dagster_delta.clock import Clock
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.transaction import CommitResult


def delete_rows(
    snapshot: Snapshot, where: str | None, options: StatementOptions, *, clock: Clock
) -> CommitResult:
    """Remove the rows for which a predicate is true.

    After any error but CommitStateUnknown nothing was committed, and no file is left behind where
    the store allows.
    """
    parameters = {"predicate": ["true" if where is None else where]}

    def delete(snapshot: Snapshot) -> CommitResult:
        statement = RowStatement.begin("DELETE", snapshot, where, options, clock)
        return statement.run(statement.engine_of(()), parameters)

    return run_with_retries(delete, snapshot.store, snapshot, options)
