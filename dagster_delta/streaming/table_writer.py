"""Tables as a sink of batch queries by name: `frame.write.format("delta_log")`, `INSERT INTO`.

Each task writes its own rows, without a shuffle before: a task with rows of many partitions writes
a file for each. With `DeltaTable.append(frame)`, Spark groups rows by partition, computes columns
and evaluates constraints; use it for large writes.

This module needs PySpark, and is imported only if there is a session.

Spec: Add File and Remove File.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from dagster_delta.clock import now_ms
from dagster_delta.engines import embedded_engine
from dagster_delta.engines.plans import WriteResult
from dagster_delta.engines.spark.session.schema import from_spark_schema
from dagster_delta.errors import DeltaError, InvalidArgument, StorageFailure
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.sql.time_zone import UTC, UTC_NAMES
from dagster_delta.storage import open_store
from dagster_delta.storage.unreferenced_files import delete_unreferenced
from dagster_delta.streaming.options import SourceOptions
from dagster_delta.table.operations.append import append_rows
from dagster_delta.table.operations.overwrite import overwrite_rows
from dagster_delta.table.operations.row_write import PlannedWrite, RowWrite
from dagster_delta.table.operations.write_planning import WriteOptions
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot

if TYPE_CHECKING:
    from pyspark.sql.types import StructType as SparkSchema


@dataclass(frozen=True, slots=True)
class _WrittenByTask(WriterCommitMessage):
    result: WriteResult | None = None
    error: DeltaError | None = None


class TableWriter(DataSourceArrowWriter):
    """Writes the rows of one query. Spark's driver creates it and copies it to its tasks, and calls
    its commit when all of them are done.
    """

    def __init__(self, options: SourceOptions, schema: SparkSchema, *, overwrite: bool) -> None:
        self._uri = options.uri
        self._storage_options = dict(options.storage_options)
        self._overwrite = overwrite
        self._options = _write_options(options, overwrite=overwrite)
        store = open_store(self._uri, self._storage_options)
        snapshot = find_snapshot(store)
        self._version = None if snapshot is None else snapshot.version
        write = RowWrite(store, None, self._options, now_ms)
        self._planned: PlannedWrite = write.plan(snapshot, from_spark_schema(schema))
        _refuse_computed_columns(self._planned, self._uri)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task; runs on an executor.

        After a StorageFailure Spark may repeat the task.
        """
        first = next(iterator, None)
        if first is None:
            return _WrittenByTask()
        store = open_store(self._uri, self._storage_options)
        reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], iterator))
        try:
            engine = embedded_engine(time_zone=_time_zone(first.schema))
            return _WrittenByTask(engine.write(reader, self._planned.spec, store=store))
        except StorageFailure:
            raise
        except DeltaError as error:
            # If raised, Spark would repeat the task, and return the error only as text.
            return _WrittenByTask(error=error)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the files of all tasks visible as one commit.

        Raises:
            ConstraintViolation, InvalidCast, PartitionMismatch: a task has a row that cannot be
                written; nothing is committed.
            CommitConflict, CommitStateUnknown, UnsupportedFeature: see `DeltaTable.append`.
        """
        tasks = [message for message in messages if isinstance(message, _WrittenByTask)]
        error = next((task.error for task in tasks if task.error is not None), None)
        if error is not None:
            self._discard(tasks)
            raise error
        results = [task.result for task in tasks if task.result is not None]
        written = WriteResult(
            files=tuple(file for result in results for file in result.files),
            num_rows=sum(result.num_rows for result in results),
            num_bytes=sum(result.num_bytes for result in results),
        )
        store = open_store(self._uri, self._storage_options)
        snapshot = None if self._version is None else Snapshot.load(store, version=self._version)
        write = RowWrite(store, None, self._options, now_ms, self._planned, written)
        commit = overwrite_rows if self._overwrite else append_rows
        commit(write, snapshot)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the files of the finished tasks, as far as the store allows.

        Spark also calls this after a failed commit, which may still be in the log. In that case no
        message is missing, and the commit has handled the files itself.
        """
        if None in messages:
            self._discard([message for message in messages if isinstance(message, _WrittenByTask)])

    def _discard(self, tasks: Sequence[_WrittenByTask]) -> None:
        results = [task.result for task in tasks if task.result is not None]
        paths = [decode_path(file.path) for result in results for file in result.files]
        if paths:
            delete_unreferenced(open_store(self._uri, self._storage_options), paths)


def _time_zone(schema: pa.Schema) -> str:
    """The time zone of the session whose rows these are, which a Python worker does not know."""
    zones = (getattr(field.type, "tz", None) for field in schema)
    zone = next(filter(None, zones), UTC)
    return UTC if zone in UTC_NAMES else zone


def _write_options(options: SourceOptions, *, overwrite: bool) -> WriteOptions:
    if options.reads_old_rows:
        raise InvalidArgument(
            "versionAsOf, timestampAsOf and the options of streams choose rows to read: leave them "
            "out of a write",
            table=options.uri,
        )
    if options.replaced_rows is not None and not overwrite:
        raise InvalidArgument(
            'replaceWhere and partitionOverwriteMode belong to mode("overwrite")',
            table=options.uri,
        )
    if options.overwrite_schema and not overwrite:
        raise InvalidArgument('overwriteSchema belongs to mode("overwrite")', table=options.uri)
    if options.overwrite_schema:
        mode = WriteOptions(schema_mode="overwrite")
    else:
        mode = WriteOptions(schema_mode="merge" if options.merge_schema else "strict")
    info = {} if options.user_metadata is None else {"userMetadata": options.user_metadata}
    return replace(
        mode,
        where=options.replaced_rows,
        partition_by=options.partition_by,
        commit_info=info,
        engine="arrow",
        merge_option='option("mergeSchema", "true")',
    )


def _refuse_computed_columns(planned: PlannedWrite, uri: str) -> None:
    values = planned.spec.values
    if values.identities or values.generated:
        raise InvalidArgument(
            "the table has generated or identity columns, which a write by format(…) cannot fill: "
            "write by DeltaTable.append(frame) or overwrite(frame)",
            table=uri,
        )
