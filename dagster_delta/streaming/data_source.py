"""Tables as a source of Spark by name: `spark.read`, `spark.readStream` and SQL with `delta_log`.

Rows are read by the Arrow engine in Python workers. A batch query is several times slower this way
than `Scan.to_spark`, with which Spark reads Parquet itself; for a stream it is the only way.

This module needs PySpark, and is imported only if there is a session.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema

from dagster_delta.cached_property import cached_property
from dagster_delta.engines import embedded_engine
from dagster_delta.engines.plans import ChangeFileSet
from dagster_delta.engines.spark.session.schema import to_spark_schema
from dagster_delta.errors import InvalidArgument, SchemaMismatch
from dagster_delta.parquet.nested_arrays import rename_nested
from dagster_delta.protocol.features.change_data import feed_configuration
from dagster_delta.storage import StoreLocation, open_store
from dagster_delta.streaming.log_stream import LogStream, files_of_snapshot
from dagster_delta.streaming.options import (
    BEGINNING,
    DEFAULT_MAX_FILES,
    Admission,
    SourceOptions,
    StreamOffset,
    parse_source_options,
)
from dagster_delta.streaming.table_writer import TableWriter
from dagster_delta.table.log.reader import located
from dagster_delta.table.read.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql.types import StructType as SparkSchema

    from dagster_delta.protocol.schema import StructType

MIN_TASK_BYTES = 4 * 1024 * 1024
MAX_TASK_BYTES = 64 * 1024 * 1024
_TASKS_WANTED = 64


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Reads files on an executor. Picklable."""

    location: StoreLocation
    changes: ChangeFileSet
    columns: tuple[str, ...]
    """Logical columns, in order."""

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
        for files in _split(changes.files)
    ]


def _split(files: pa.Table) -> Iterator[pa.Table]:
    sizes = pc.fill_null(files["size_bytes"], 0).to_numpy()
    ends = np.cumsum(sizes)
    target = min(max(int(ends[-1]) // _TASKS_WANTED, MIN_TASK_BYTES), MAX_TASK_BYTES)
    # A file belongs to the task in whose share of the bytes it begins.
    tasks = (ends - sizes) // target
    starts = np.flatnonzero(np.diff(tasks, prepend=-1))
    for start, stop in zip(starts, [*starts[1:], len(tasks)], strict=True):
        # Slices of one buffer would be pickled with all of it.
        yield files.take(pa.array(np.arange(start, stop)))


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    # Before Spark 4.2 a source does not get the start of a batch, and cannot limit it.
    ReadAllAvailable = None  # type: ignore[assignment,misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

SOURCE_NAME = "delta_log"


class DeltaLogSource(DataSource):
    """A table by its location. Spark creates one per query, and calls it in its own processes."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return SOURCE_NAME

    @cached_property
    def _parsed(self) -> SourceOptions:
        return parse_source_options(dict(self.options))

    @property
    def _location(self) -> str | None:
        # The options of a stream that is written include some of Spark's own.
        options = {name.casefold(): value for name, value in dict(self.options).items()}
        return options.get("path")

    @property
    def _reading(self) -> SourceOptions:
        options = self._parsed
        if options.writes:
            raise InvalidArgument(
                "mergeSchema, overwriteSchema, replaceWhere, partitionOverwriteMode, partitionBy "
                "and userMetadata are options of a write",
                table=options.uri,
            )
        return options

    def schema(self) -> SparkSchema:
        """The logical schema of the table, with the columns of the feed if the feed is read."""
        return to_spark_schema(_logical_schema(_open(self._parsed), self._parsed))

    def writer(self, schema: SparkSchema, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query. Raises as `TableWriter` says."""
        return TableWriter(self._parsed, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: SparkSchema,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> NoReturn:
        """Refused: Spark gives a sink by name no id of its query, and without the id a repeated
        batch cannot be recognized.
        """
        raise InvalidArgument(
            "a stream is written by writeStream.foreachBatch(delta_sink(location)), which lands "
            "every batch exactly once",
            table=self._location,
        )

    def reader(self, schema: SparkSchema) -> DataSourceReader:
        """The reader of a batch query."""
        options = self._reading
        if options.read_change_feed or options.max_files or options.max_bytes:
            raise InvalidArgument(
                "readChangeFeed, maxFilesPerTrigger and maxBytesPerTrigger are options of a "
                "stream; DeltaTable.changes(…).to_spark() reads a range of changes",
                table=options.uri,
            )
        return _TableReader(options, schema)

    def streamReader(self, schema: SparkSchema) -> DataSourceStreamReader:  # noqa: N802
        """The reader of a streaming query."""
        options = self._reading
        if options.version_as_of is not None or options.timestamp_as_of is not None:
            raise InvalidArgument(
                "versionAsOf and timestampAsOf are options of a batch query; a stream begins with "
                "startingVersion or startingTimestamp",
                table=options.uri,
            )
        if ReadAllAvailable is None and (options.max_files or options.max_bytes):
            raise InvalidArgument(
                "maxFilesPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer, where a source "
                "learns where a batch begins; leave them out",
                table=options.uri,
            )
        return _StreamReader(options, schema)


def _open(options: SourceOptions) -> Snapshot:
    store = open_store(options.uri, options.storage_options)
    return Snapshot.load(store, version=options.version_as_of, timestamp=options.timestamp_as_of)


def _logical_schema(snapshot: Snapshot, options: SourceOptions) -> StructType:
    if not options.read_change_feed:
        return snapshot.schema
    return feed_configuration(snapshot.configuration, has_change_type=True).schema


class _Partition(InputPartition):
    def __init__(self, task: ReadFiles) -> None:
        self.task = task

    def __repr__(self) -> str:
        return f"{self.task.changes.files.num_rows} files of {self.task.location.uri}"


class _TaskReader:
    """Reads partitions on the executors, for batch queries and streams."""

    def __init__(self, options: SourceOptions, schema: SparkSchema) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition as Arrow record batches."""
        if isinstance(partition, _Partition):
            yield from partition.task.read(_arrow_schema(self._schema))

    def _tasks(self, snapshot: Snapshot, sets: Sequence[ChangeFileSet]) -> list[InputPartition]:
        location, columns = snapshot.store.location, tuple(self._schema.names)
        return [_Partition(task) for task in split_into_tasks(location, sets, columns)]

    def _checked(self, snapshot: Snapshot) -> Snapshot:
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

    def partitions(self) -> list[InputPartition]:
        """The live files, divided into tasks."""
        snapshot = self._checked(_open(self._options))
        files = files_of_snapshot(snapshot)
        return self._tasks(snapshot, [files] if files.files.num_rows else [])


class _StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: SparkSchema) -> None:
        super().__init__(options, schema)
        self._until: int | None = None

    def __getstate__(self) -> dict[str, object]:
        # The executors read the files of a partition, and need no log.
        return {"_options": self._options, "_schema": self._schema, "_until": None}

    @cached_property
    def _latest(self) -> Snapshot:
        return self._checked(_open(self._options))

    @cached_property
    def _stream(self) -> LogStream:
        return LogStream(self._latest.store, self._options, self._latest)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """The start of a query without a checkpoint, or of its first batch if that is repeated."""
        return StreamOffset(table_id=self._latest.metadata.id, version=BEGINNING).to_json_value()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Exclude everything that is committed from now on."""
        self._until = self._stream.latest_version()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of the query; if both kinds are set, `latestOffset` applies both."""
        if self._options.max_files is None and self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMaxFiles(self._options.max_files or DEFAULT_MAX_FILES)

    def latestOffset(  # noqa: N802
        self, start: dict[str, object] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, object]:
        """The end of the batch that begins at `start`; a Spark before 4.2 passes no arguments."""
        if start is None:
            return self._end_of_log().to_json_value()
        admission = Admission()
        if not isinstance(limit, ReadAllAvailable):
            admission.max_files, admission.max_bytes = (
                self._options.max_files,
                self._options.max_bytes,
            )
            if admission.max_files is None and admission.max_bytes is None:
                admission.max_files = DEFAULT_MAX_FILES
        offset = StreamOffset.from_json_value(start)
        return self._stream.advance(offset, admission, until=self._until).to_json_value()

    def _end_of_log(self) -> StreamOffset:
        version = self._stream.latest_version() if self._until is None else self._until
        return StreamOffset(table_id=self._latest.metadata.id, version=version + 1)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The files between two offsets, divided into tasks."""
        sets = self._stream.files_between(
            StreamOffset.from_json_value(start), StreamOffset.from_json_value(end)
        )
        return self._tasks(self._latest, sets)


def _arrow_schema(schema: SparkSchema) -> pa.Schema:
    """The Arrow schema in which Spark expects rows."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
