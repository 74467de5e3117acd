"""Appending and overwriting rows, each as one commit.

Spec: Add File and Remove File; Transaction Identifiers; Append-only Tables.
"""

from __future__ import annotations

from dagster_delta.clock import Clock
from dagster_delta.engines.plans import WriteResult
from dagster_delta.errors import InvalidArgument
from dagster_delta.protocol.schema import StructType
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.table.operations.row_write import (
    DYNAMIC,
    PlannedWrite,
    RowWrite,
    overwrite_check,
)
from dagster_delta.table.operations.write_planning import WriteOptions
from dagster_delta.table.read.snapshot import Snapshot
from dagster_delta.table.transaction.retries import ConflictRetries
from dagster_delta.table.transaction.transaction import CommitResult


def append_rows(
    store: ObjectStore,
    snapshot: Snapshot | None,
    data: object,
    options: WriteOptions,
    *,
    clock: Clock,
) -> CommitResult:
    """Add rows; if the table does not exist, the same commit creates it.

    After any error but CommitStateUnknown nothing was committed, and new data files are deleted if
    the store allows.
    """
    _check_append(options)
    return RowWrite.begin(store, snapshot, data, options, clock).append()


def overwrite_rows(
    store: ObjectStore,
    snapshot: Snapshot | None,
    data: object,
    options: WriteOptions,
    *,
    where: str | None,
    clock: Clock,
    retries: ConflictRetries,
) -> CommitResult:
    """Replace all rows, those that a predicate matches, or those of the partitions written.

    The rows are written once, whatever the number of attempts. Errors are those of `append_rows`,
    and PartitionMismatch: a new row does not satisfy `where`.
    """
    _check_overwrite(options, where)
    return RowWrite.begin(store, snapshot, data, options, clock).overwrite(where, retries)


def plan_write(
    store: ObjectStore,
    snapshot: Snapshot | None,
    schema: StructType,
    options: WriteOptions,
    *,
    where: str | None,
    clock: Clock,
) -> PlannedWrite:
    """How rows are to be written for `commit_written`; nothing is written yet."""
    write = RowWrite.begin(store, snapshot, None, options, clock)
    configuration = write.plan_configuration(schema)
    check = [] if where in (None, DYNAMIC) else [overwrite_check(str(where))]
    return PlannedWrite(schema, write.spec(configuration, schema, check))


def commit_written(
    store: ObjectStore,
    snapshot: Snapshot | None,
    planned: PlannedWrite,
    written: WriteResult,
    options: WriteOptions,
    *,
    where: str | None,
    overwrite: bool,
    clock: Clock,
) -> CommitResult:
    """Commit files that were written as planned.

    The snapshot and the options are those that the write was planned with.
    """
    if overwrite:
        _check_overwrite(options, where)
    else:
        _check_append(options)
    write = RowWrite.begin(store, snapshot, None, options, clock)
    write.planned, write.written = planned, written
    return write.overwrite(where, ConflictRetries()) if overwrite else write.append()


def _check_append(options: WriteOptions) -> None:
    if options.schema_mode == "overwrite":
        raise InvalidArgument(
            'an append cannot replace the schema; use schema_mode="merge", or overwrite'
        )


def _check_overwrite(options: WriteOptions, where: str | None) -> None:
    if options.schema_mode == "overwrite" and where is not None:
        raise InvalidArgument(
            "the schema can only be replaced together with all rows; leave out where, or use "
            'schema_mode="merge"'
        )
