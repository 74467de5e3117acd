"""APPEND: adds rows as one commit, which creates the table if there is none.

Spec: Add File and Remove File; Transaction Identifiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.errors import InvalidArgument, TableAlreadyExists
from dagster_delta.table.operations.row_write import RowWrite, write_metrics
from dagster_delta.table.read.file_planner import select_rows

if TYPE_CHECKING:
    from dagster_delta.table.read.snapshot import Snapshot
    from dagster_delta.table.transaction.transaction import CommitResult


def append_rows(write: RowWrite, snapshot: Snapshot | None) -> CommitResult:
    """Add rows; without a snapshot, the same commit creates the table.

    After any error but CommitStateUnknown nothing was committed, and new data files are deleted if
    the store allows.
    """
    if write.options.schema_mode == "overwrite":
        raise InvalidArgument(
            'an append cannot replace the schema; use schema_mode="merge", or overwrite'
        )

    def append() -> CommitResult:
        if write.options.absent is not None and write.transaction.snapshot is not None:
            _depend_on_absence(write, write.transaction.snapshot, write.options.absent)
        configuration = write.stage_configuration()
        written = write.write_rows(configuration)
        return write.commit(configuration, {"mode": "Append"}, write_metrics(written))

    return write.run(append, snapshot)


def _depend_on_absence(write: RowWrite, snapshot: Snapshot, where: str) -> None:
    """Make sure that no row satisfies a condition, and that no concurrent commit adds one."""
    from dagster_delta.table.operations.row_changes import selection

    expression = write.parse_condition(where, snapshot, "the condition of the append")
    selected = select_rows(snapshot, expression, write.engine)
    if selected.files.num_rows:
        raise TableAlreadyExists(
            f"the table has rows for which {where} holds, and this append is for a table "
            "without any",
            table=write.store.location.uri,
            version=snapshot.version,
        )
    selects = selection(write.transaction, write.engine, expression)
    write.transaction.depend_on(selected.reads, selects=selects)
