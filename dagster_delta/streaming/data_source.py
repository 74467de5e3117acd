"""Tables as a source and a sink of Spark by the name `delta_log`: `spark.read`, `readStream`,
`frame.write` and SQL.

Rows are read by the Arrow engine in Python workers. A batch query is several times slower this way
than `Scan.to_spark`, with which Spark reads Parquet itself; for a stream it is the only way.

Each task writes its own rows, without a shuffle before: a task with rows of many partitions writes
a file for each. With `DeltaTable.append(frame)`, Spark groups rows by partition, computes columns
and evaluates constraints; use it for large writes.

This module needs PySpark, and is imported only if there is a session.

Spec: Add File and Remove File.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.clock import now_ms
from dagster_delta.engines import embedded_engine
from dagster_delta.engines.plans import ChangeFileSet, WriteResult
from dagster_delta.engines.spark.session.schema import from_spark_schema, to_spark_schema
from dagster_delta.errors import DeltaError, InvalidArgument, SchemaMismatch, StorageFailure
from dagster_delta.nested_arrays import rename_nested
from dagster_delta.protocol.features.change_data import feed_configuration
from dagster_delta.protocol.values.arrow_columns import integer_column
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.split_by_size import split_by_size
from dagster_delta.sql.time_zone import UTC, UTC_NAMES
from dagster_delta.storage import StoreLocation, open_store
from dagster_delta.storage.unreferenced_files import delete_unreferenced
from dagster_delta.streaming.log_stream import LogStream, files_of_snapshot
from dagster_delta.streaming.options import (
    BEGINNING,
    Admission,
    SourceOptions,
    StreamOffset,
    parse_source_options,
)
from dagster_delta.table.log.reader import located
from dagster_delta.table.operations.append import append_rows
from dagster_delta.table.operations.overwrite import overwrite_rows
from dagster_delta.table.operations.write_planning import SchemaMode, WriteOptions
from dagster_delta.table.operations.write_rows import DYNAMIC, PlannedWrite, RowWrite
from dagster_delta.table.read.snapshot import Snapshot, find_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType as SparkSchema

    from dagster_delta.protocol.schema import StructType

MIN_TASK_BYTES = 4 * 1024 * 1024
MAX_TASK_BYTES = 64 * 1024 * 1024
_TASKS_WANTED = 64


@dataclass(frozen=True, slots=True, repr=False)
class ReadFiles(InputPartition):
    """Reads files on an executor, as one partition of a batch query or a stream. Picklable."""

    location: StoreLocation
    changes: ChangeFileSet
    columns: tuple[str, ...]
    """Logical columns, in order."""

    def __repr__(self) -> str:
        return f"{self.changes.files.num_rows} files of {self.location.uri}"

    def read(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The live rows of the files, with an Arrow schema of the same columns."""
        store = open_store(self.location.uri, self.location.options)
        # A query that writes the rows to another table would take it for an error of that table.
        with located(store):
            for batch in embedded_engine().read_changes(store, [self.changes], self.columns):
                columns = [
                    # Spark's variants have required parts, and no cast creates them for a null.
                    column if column.type == field.type else rename_nested(column, field.type)
                    for column, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def split_into_tasks(
    location: StoreLocation, sets: Sequence[ChangeFileSet], columns: tuple[str, ...]
) -> list[ReadFiles]:
    """The files of a batch divided into tasks of about equal size, with neighbours together."""
    return [
        ReadFiles(location, replace(changes, files=files), columns)
        for changes in sets
        for files in _split_files(changes.files)
    ]


def _split_files(files: pa.Table) -> Iterator[pa.Table]:
    sizes = pc.fill_null(files["size_bytes"], 0).to_pylist()
    target = min(max(sum(sizes) // _TASKS_WANTED, MIN_TASK_BYTES), MAX_TASK_BYTES)
    for numbers in split_by_size(range(len(sizes)), sizes.__getitem__, target):
        # Slices of one buffer would be pickled with all of it.
        yield files.take(integer_column(numbers))


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    # Before Spark 4.2 a source does not get the start of a batch, and cannot limit it.
    ReadAllAvailable = None  # type: ignore[assignment,misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

_REDACTED_OPTIONS = "spark.sql.redaction.options.regex"
_SPARK_DEFAULT = "(?i)url"
_STORAGE_OPTIONS = r"storage\."


def register_delta_log(spark: SparkSession) -> None:
    """Register `format("delta_log")` with a session, for reading and writing in Python and SQL.

    Streams accept the options `startingVersion` (a number or `latest`), `startingTimestamp`,
    `maxFilesPerTrigger` (1000 by default) and `maxBytesPerTrigger` (both from Spark 4.2 on),
    `ignoreDeletes`, `ignoreChanges`, `skipChangeCommits` and `readChangeFeed`, with the meanings
    they have in Delta Lake; batch queries accept `versionAsOf` and `timestampAsOf`, writes
    `mergeSchema`, `overwriteSchema`, `replaceWhere`, `partitionOverwriteMode`, `userMetadata`, and
    `partitionBy` (names with commas between them) for a new table. Storage options have the prefix
    `storage.`. In SQL, use a temporary view for SELECT and INSERT; it stays at the version of its
    first query. `CREATE TABLE … USING delta_log` is refused: Spark does not pass on the location.

    This way is convenient but slow. With `Scan.to_spark`, Spark reads Parquet natively, and with
    `DeltaTable.append` and `overwrite`, it groups the rows by partition before they are written. To
    write a stream, use `delta_sink`.

    A query reads every file of its version, with any filter: Spark keeps one reader for all uses of
    a frame or view, and uses with other filters would miss rows. `Scan` skips files.

    Examples:
        register_delta_log(spark)
        clicks = spark.readStream.format("delta_log").option("startingVersion", 7).load(uri)
        spark.sql("CREATE TEMPORARY VIEW clicks USING delta_log OPTIONS (path 's3://lake/clicks')")
        spark.sql("INSERT INTO clicks SELECT * FROM arrived WHERE day = DATE '2026-01-31'")
        frame.write.format("delta_log").mode("append").save("s3://lake/clicks")

    Args:
        spark: a session of Spark 4, classic or Connect, whose Python workers have this package.
    """
    spark.dataSource.register(DeltaLogSource)
    _hide_storage_options(spark)


def _hide_storage_options(spark: SparkSession) -> None:
    """Make Spark hide the storage options of views in its plans, its UI and its event logs.

    By default it hides `secret` and `token`, but not `account_key` or `connection_string`.
    """
    known = spark.conf.get(_REDACTED_OPTIONS, _SPARK_DEFAULT) or _SPARK_DEFAULT
    if _STORAGE_OPTIONS not in known:
        spark.conf.set(_REDACTED_OPTIONS, f"{known}|{_STORAGE_OPTIONS}")


class DeltaLogSource(DataSource):
    """A table by its location. Spark creates one per query, and calls it in its own processes."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "delta_log"

    @cached_property
    def _parsed_options(self) -> SourceOptions:
        return parse_source_options(dict(self.options))

    def schema(self) -> SparkSchema:
        """The logical schema of the table, with the columns of the feed if the feed is read."""
        return to_spark_schema(
            _logical_schema(_open_snapshot(self._parsed_options), self._parsed_options)
        )

    def writer(self, schema: SparkSchema, overwrite: bool) -> TableWriter:
        """The writer of a batch query. Raises as `TableWriter` says."""
        return TableWriter(self._parsed_options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: SparkSchema,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> NoReturn:
        """Refused: Spark gives a sink by name no id of its query, and without the id a repeated
        batch cannot be recognized.
        """
        raise InvalidArgument(
            "a stream is written by writeStream.foreachBatch(delta_sink(location)), which commits "
            "every batch exactly once"
        )

    def reader(self, schema: SparkSchema) -> DataSourceReader:
        """The reader of a batch query."""
        return _TableReader(self._parsed_options.check_use("a batch query"), schema)

    def streamReader(self, schema: SparkSchema) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a streaming query."""
        options = self._parsed_options.check_use("a stream")
        if ReadAllAvailable is None and (options.max_files or options.max_bytes):
            raise InvalidArgument(
                "maxFilesPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer, where a source "
                "learns where a batch begins; leave them out",
                table=options.uri,
            )
        return _StreamReader(options, schema)


def _open_snapshot(options: SourceOptions) -> Snapshot:
    store = open_store(options.uri, options.storage_options)
    return Snapshot.load(store, version=options.version_as_of, timestamp=options.timestamp_as_of)


def _logical_schema(snapshot: Snapshot, options: SourceOptions) -> StructType:
    if not options.read_change_feed:
        return snapshot.schema
    return feed_configuration(snapshot.configuration, has_change_type=True).schema


class _TaskReader:
    """Reads partitions on the executors, for batch queries and streams."""

    def __init__(self, options: SourceOptions, schema: SparkSchema) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow record batches."""
        if isinstance(partition, ReadFiles):
            yield from partition.read(_arrow_schema(self._schema))

    def _make_tasks(self, snapshot: Snapshot, sets: Sequence[ChangeFileSet]) -> Sequence[ReadFiles]:
        return split_into_tasks(snapshot.store.location, sets, tuple(self._schema.names))

    def _check_schema(self, snapshot: Snapshot) -> Snapshot:
        # Spark has already read the schema, in another process.
        schema = to_spark_schema(_logical_schema(snapshot, self._options))
        if schema.simpleString() != self._schema.simpleString():
            raise SchemaMismatch(
                "the schema of the table is not the one that the query was made with, which is "
                f"{self._schema.simpleString()}: load the table again, without a schema of your "
                "own",
                table=snapshot.store.location.uri,
                version=snapshot.version,
            )
        return snapshot


class _TableReader(_TaskReader, DataSourceReader):
    """Reads one version of the table.

    It has no `pushFilters`: Spark keeps one reader for all uses of a frame or view, so the files
    that the filter of one use skips would be missing in the others.
    """

    def partitions(self) -> Sequence[ReadFiles]:
        """The live files, divided into tasks."""
        snapshot = self._check_schema(_open_snapshot(self._options))
        return self._make_tasks(snapshot, [files_of_snapshot(snapshot)])


class _StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: SparkSchema) -> None:
        super().__init__(options, schema)
        self._until: int | None = None

    def __getstate__(self) -> dict[str, object]:
        # The executors read the files of a partition, and need no log.
        return {"_options": self._options, "_schema": self._schema, "_until": None}

    @cached_property
    def _latest_snapshot(self) -> Snapshot:
        return self._check_schema(_open_snapshot(self._options))

    @cached_property
    def _log_stream(self) -> LogStream:
        return LogStream(self._options, self._latest_snapshot)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """The start of a query without a checkpoint, or of its first batch if that is repeated."""
        return StreamOffset(
            table_id=self._latest_snapshot.metadata.id, version=BEGINNING
        ).to_json_value()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Exclude everything that is committed from now on."""
        self._until = self._log_stream.latest_version()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Some limit: `latestOffset` applies those of the query."""
        return ReadMaxFiles(1)

    def latestOffset(  # noqa: N802
        self, start: dict[str, object] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, object]:
        """The end of the batch that begins at `start`; a Spark before 4.2 passes no arguments."""
        if start is None:
            version = self._log_stream.latest_version() if self._until is None else self._until
            end = StreamOffset(table_id=self._latest_snapshot.metadata.id, version=version + 1)
            return end.to_json_value()
        is_unlimited = isinstance(limit, ReadAllAvailable)
        admission = Admission() if is_unlimited else self._options.admission()
        offset = StreamOffset.from_json_value(start)
        return self._log_stream.advance(offset, admission, until=self._until).to_json_value()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[ReadFiles]:
        """The files between two offsets, divided into tasks."""
        sets = self._log_stream.files_between(
            StreamOffset.from_json_value(start), StreamOffset.from_json_value(end)
        )
        return self._make_tasks(self._latest_snapshot, sets)


def _arrow_schema(schema: SparkSchema) -> pa.Schema:
    """The Arrow schema in which Spark expects rows."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


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
            self._delete_files(tasks)
            raise error
        written = _written_by(tasks)
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
            self._delete_files(
                [message for message in messages if isinstance(message, _WrittenByTask)]
            )

    def _delete_files(self, tasks: Sequence[_WrittenByTask]) -> None:
        paths = [decode_path(file.path) for file in _written_by(tasks).files]
        if paths:
            delete_unreferenced(open_store(self._uri, self._storage_options), paths)


def _written_by(tasks: Sequence[_WrittenByTask]) -> WriteResult:
    return WriteResult.combined([task.result for task in tasks if task.result is not None])


def _time_zone(schema: pa.Schema) -> str:
    """The time zone of the session whose rows these are, which a Python worker does not know."""
    zones = (getattr(field.type, "tz", None) for field in schema)
    zone = next(filter(None, zones), UTC)
    return UTC if zone in UTC_NAMES else zone


def _write_options(options: SourceOptions, *, overwrite: bool) -> WriteOptions:
    options.check_use("an overwrite" if overwrite else "an append")
    mode: SchemaMode = "merge" if options.merge_schema else "strict"
    info = {} if options.user_metadata is None else {"userMetadata": options.user_metadata}
    return WriteOptions(
        schema_mode="overwrite" if options.overwrite_schema else mode,
        where=DYNAMIC if options.partition_overwrite == DYNAMIC else options.replace_where,
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
