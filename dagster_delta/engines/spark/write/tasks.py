"""What runs on Spark's executors: Arrow batches in, reports or rows out. Nothing here needs Spark.

An executor must be able to import this package and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.arrow.engine import ArrowEngine
from dagster_delta.engines.expressions.constraint_violations import refuse_violations
from dagster_delta.engines.parquet.read.data_file import data_files
from dagster_delta.engines.parquet.read.data_file_reader import (
    FILE_ORDINAL,
    ROW_INDEX,
    DataFileReader,
)
from dagster_delta.engines.parquet.read.reader import deletion_vectors_of, read_ahead
from dagster_delta.engines.parquet.write.writer import write_data_files
from dagster_delta.engines.plans import ReadPlan, WriteResult, WriteSpec
from dagster_delta.engines.spark.executor_reports import (
    IdentityMarks,
    Reports,
    joined_marks,
    report,
    reported,
)
from dagster_delta.engines.values.store_assignment import assign_batches
from dagster_delta.protocol.features.column_values import IdentityColumn
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.log.replay import LIVE_FILE_SCHEMA
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.storage import StoreLocation, open_store

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

__all__ = [
    "FILE_SCHEMA",
    "ReadTask",
    "WriteDetail",
    "WriteTask",
    "concatenated",
    "encode_files",
    "joined_batches",
    "report_result",
    "result_of",
]

FILE_SCHEMA = "file string"
"""What a read task is told, as a Spark schema: one live file as JSON per row."""

_TASK_BATCH_ROWS = 65_536
_TASK_BATCH_BYTES = 32 * 1024 * 1024
"""Spark's batches are joined to about this many rows or Arrow bytes before they are cast and split.
"""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads data files with the Arrow engine."""

    location: StoreLocation
    version: int
    configuration: TableConfiguration
    columns: tuple[str, ...]
    """Logical columns of the rows, in order."""
    where: SqlExpression | None
    """Filter to apply early; Spark applies it to all rows later."""
    with_positions: bool = False
    """Whether the key of the file and the index of the row follow the columns."""
    verifies_pages: bool = True
    """Whether pages are held against the checksums that they carry."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The live rows of the files named by batches of `FILE_SCHEMA`."""
        store = None
        for batch in batches:
            store = store or open_store(self.location.uri, self.location.options)
            rows = _decode_files(batch.column(0))
            plan = ReadPlan(
                store=store,
                version=self.version,
                configuration=self.configuration,
                files=_file_table(rows),
                columns=self.columns,
                where=self.where,
                verifies_pages=self.verifies_pages,
            )
            if self.with_positions:
                keys = np.array([each.key for each in rows], dtype=np.int64)
                yield from _read_with_positions(plan, keys)
            else:
                yield from ArrowEngine().read(plan)


def _read_with_positions(plan: ReadPlan, keys: Any) -> Iterator[Any]:
    reader = DataFileReader(
        plan.store,
        plan.configuration,
        plan.columns,
        where=plan.where,
        expected_vectors=deletion_vectors_of(plan.files),
        with_positions=True,
        verifies_pages=plan.verifies_pages,
    )
    fields = [pa.field("file", pa.int64()), pa.field("row", pa.int64())]
    schema = pa.schema([*list(reader.schema)[:-2], *fields])
    for batch in read_ahead(plan.store, reader.sources(data_files(plan.files))):
        files = pa.array(keys[np.from_dlpack(batch.column(FILE_ORDINAL))])
        columns = [*batch.columns[:-2], files, batch.column(ROW_INDEX)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class _FileRow(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    partition_values: list[tuple[str, str | None]] | None
    deletion_vector: dict[str, str | int | None] | None
    key: int = 0
    """See `keys_of_files`."""


_LOG_COLUMNS = ["path", "size_bytes", "partition_values", "deletion_vector"]


def encode_files(files: Any, keys: Sequence[int] | None = None) -> Any:
    """Live files as a pyarrow.Table of `FILE_SCHEMA`.

    Args:
        files: pyarrow.Table with the columns of `LIVE_FILE_SCHEMA`.
        keys: of the files, where the rows will come with positions.
    """
    rows = files.select(_LOG_COLUMNS).to_pylist()
    if keys is not None:
        rows = [{**row, "key": int(key)} for row, key in zip(rows, keys, strict=True)]
    texts = [msgspec.json.encode(each).decode() for each in rows]
    return pa.table({"file": pa.array(texts, pa.string())})


def _decode_files(texts: Any) -> list[_FileRow]:
    return [msgspec.json.decode(each, type=_FileRow) for each in texts.to_pylist()]


def _file_table(rows: Sequence[_FileRow]) -> Any:
    schema = pa.schema([LIVE_FILE_SCHEMA.field(name) for name in _LOG_COLUMNS])
    return pa.Table.from_pylist([msgspec.structs.asdict(each) for each in rows], schema)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes the rows of one Spark partition as data files, and reports them."""

    spec: WriteSpec
    columns: tuple[str, ...]
    """Names of the DataFrame's columns. Behind them stands one boolean column per constraint."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all rows are written.

        Raises:
            StorageFailure: the store refused or failed; the task may be run again.
        """
        # Most partitions of a small shuffle are empty, and need no store.
        first = next(batches, None)
        if first is None:
            return
        rows = chain([first], batches)
        yield reported(lambda: self._write(rows))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Any:
        location = self.spec.location
        store = open_store(location.uri, location.options)
        checked = _CheckedRows(self, batches)
        schema = to_arrow_schema(self.spec.configuration.schema)
        result = write_data_files(checked.conforming(), schema, self.spec, store)
        return report_result(result, checked.marks)

    def conforming(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows as they will be stored: batches of the table's schema.

        Args:
            batches: of the task, at least one.

        Raises:
            SchemaMismatch, InvalidCast, ConstraintViolation, PartitionMismatch: a row that cannot
                be written.
        """
        return _CheckedRows(self, batches).conforming()


@dataclass(slots=True)
class _CheckedRows:
    """Rows on their way from Spark into the files."""

    task: WriteTask
    batches: Iterator[Any]
    checks: list[Any] = field(default_factory=list)
    """Results of the constraints for the rows of the batch that is being cast."""
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Last value so far and step of each identity column that was numbered."""

    def conforming(self) -> Iterator[Any]:
        """Record batches of the table's schema in which every row satisfies every constraint."""
        spec = self.task.spec
        sources = joined_batches(self.batches)
        first = next(sources)
        reader = pa.RecordBatchReader.from_batches(
            self._rows(first).schema, map(self._take, chain([first], sources))
        )
        schema = spec.configuration.schema
        for batch in assign_batches(reader, schema, table=spec.location.uri):
            # Values are cast first, so that one that does not fit is called just that, although
            # its constraints were evaluated on a null.
            results = [each.slice(0, batch.num_rows) for each in self.checks]
            self.checks = [each.slice(batch.num_rows) for each in self.checks]
            refuse_violations(spec.constraints, results, batch, table=spec.location.uri)
            yield batch

    def _take(self, batch: Any) -> Any:
        self.checks = batch.columns[len(self.task.columns) :]
        rows = self._rows(batch)
        for each in self.task.spec.values.identities:
            self._mark(each, rows.column(each.column))
        return rows

    def _mark(self, identity: IdentityColumn, values: Any) -> None:
        if values.null_count:
            # The query makes null of what does not fit.
            raise identity.overflow()
        bounds = pc.min_max(values)
        for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
            if bound is not None:
                known, _ = self.marks.get(identity.column, (bound, identity.step))
                self.marks[identity.column] = (identity.farther(known, bound), identity.step)

    def _rows(self, batch: Any) -> Any:
        names = self.task.columns
        fields = [
            pa.field(name, each.type, each.nullable, each.metadata)
            for name, each in zip(names, batch.schema, strict=False)
        ]
        return pa.RecordBatch.from_arrays(batch.columns[: len(names)], schema=pa.schema(fields))


def joined_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows in batches that are worth the overhead of a kernel call."""
    waiting: list[Any] = []
    rows = size_bytes = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= _TASK_BATCH_ROWS or size_bytes >= _TASK_BATCH_BYTES:
            yield concatenated(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield concatenated(waiting)


def concatenated(batches: list[Any]) -> Any:
    """The rows of record batches of one schema, at least one, as one batch."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches)
    columns = [
        pa.concat_arrays(each.chunks) if each.num_chunks else pa.nulls(0, each.type)
        for each in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


class WriteDetail(msgspec.Struct, frozen=True):
    """What a task that writes tells beside its files."""

    num_rows: int
    """Rows of the files."""
    marks: IdentityMarks


def report_result(result: WriteResult, marks: IdentityMarks | None = None) -> Any:
    """The report of a task, a `pyarrow.RecordBatch`.

    Args:
        result: what it wrote.
        marks: of the columns that it numbered.
    """
    return report(result.files, details=[WriteDetail(result.num_rows, marks or {})])


def result_of(reports: Reports[WriteDetail]) -> WriteResult:
    """What all tasks wrote together."""
    return WriteResult(
        reports.files,
        sum(each.num_rows for each in reports.details),
        sum(each.size_bytes for each in reports.files),
        joined_marks(each.marks for each in reports.details),
    )
