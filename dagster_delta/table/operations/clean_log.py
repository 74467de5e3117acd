"""CLEAN LOG: deletes the log of expired versions on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_delta.clock import now_ms
from dagster_delta.table.log_upkeep import cleanup
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from dagster_delta.table.log_upkeep.cleanup import LogCleanupResult
    from dagster_delta.table.table_handle import TableHandle


def clean_log(
    table: TableHandle,
    /,
    retention_hours: float | None = None,
    *,
    dry_run: bool = True,
    enforce_retention: bool = True,
) -> LogCleanupResult:
    """Delete the log files of versions older than the table's log retention.

    The log is cut at a checkpoint, which is written if none is near: the version that was the
    latest at midnight (UTC), the retention ago, and all newer ones stay readable. Rows are
    unchanged; files that only older versions need are deleted by the next `vacuum`.

    A reader of commits (a sensor, a stream, a change feed) that is further behind gets an error
    for the missing commits and has to start over.

    Writes do the same after each checkpoint, as far as checkpoints exist, unless the table has
    `delta.enableExpiredLogCleanup = false`.

    Args:
        retention_hours: how long versions stay readable; by default
            `delta.logRetentionDuration`, else 30 days.
        dry_run: only find the files.
        enforce_retention: refuse a retention shorter than the table's, and tables that have
            `delta.enableExpiredLogCleanup = false`.

    Raises:
        InvalidArgument: the retention is too short, or the table keeps its log.
        TableNotFound: the table does not exist.
        InvalidTable: the version that the log will begin with cannot be read; nothing was
            deleted.
        UnsupportedFeature, UnsupportedWriterVersion: this library cannot write the table.
        StorageFailure: the store refused or failed.
    """
    result = cleanup.clean_log(
        table.store,
        table._existing(),
        clock=now_ms,
        retention_hours=retention_hours,
        dry_run=dry_run,
        enforce_retention=enforce_retention,
    )
    if not dry_run and result.num_files:
        # The snapshot may still have to read the checkpoint that it was opened with.
        table._snapshot = Snapshot.load(table.store)
    return result
