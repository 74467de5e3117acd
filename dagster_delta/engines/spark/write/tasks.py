"""Write tasks on Spark's executors: Arrow batches in, reports out. Nothing here needs Spark.

An executor must be able to import this package and pyarrow.

Rows of a partitioned table are shuffled as encoded row groups instead of rows. A task encodes the
rows of a partition as in a file, Spark shuffles the row groups, and the tasks after the shuffle
write them to files: this shuffles a fraction of the bytes. Rows too few for a row group are
shuffled as record batches, and are encoded together with others.

Spec: Data Files.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.engines.expressions.constraint_check import refuse_violations
from dagster_delta.engines.parquet.write.encodings import choose_encodings
from dagster_delta.engines.parquet.write.file import EncodedRowGroup, FileFormat, encodes_apart
from dagster_delta.engines.parquet.write.writer import (
    COLUMN_OVERHEAD_BYTES,
    DataFileWriter,
    write_data_files,
)
from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.engines.rows.partition_split import (
    PartitionColumn,
    PartitionKey,
    split_by_partition,
)
from dagster_delta.engines.spark.executor_reports import (
    IdentityMarks,
    Reports,
    encode_error,
    joined_marks,
    report,
    report_encoded_errors,
    reported,
)
from dagster_delta.engines.values.store_assignment import assign_batches
from dagster_delta.errors import DeltaError, StorageFailure
from dagster_delta.protocol.features.column_values import IdentityColumn
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.storage import open_store

_TASK_BATCH_ROWS = 65_536
_TASK_BATCH_BYTES = 32 * 1024 * 1024
"""Spark's batches are joined to about this many rows or Arrow bytes before they are cast and split.
"""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes the rows of one Spark partition as data files, and reports them."""

    spec: WriteSpec
    columns: tuple[str, ...]
    """Names of the DataFrame's columns. One boolean column per constraint follows them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all rows are written."""
        rows = nonempty(batches)
        if rows is not None:
            yield reported(lambda: self._write(rows))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        location = self.spec.location
        store = open_store(location.uri, location.options)
        checked = _CheckedRows(self, batches)
        schema = to_arrow_schema(self.spec.configuration.schema)
        result = write_data_files(checked.conforming(), schema, self.spec, store)
        return report_result(result, checked.marks)

    def conforming(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows to store: batches of the table's schema."""
        return _CheckedRows(self, batches).conforming()


@dataclass(slots=True)
class _CheckedRows:
    """Rows from Spark, cast and checked for writing."""

    task: WriteTask
    batches: Iterator[pa.RecordBatch]
    checks: list[pa.BooleanArray] = field(default_factory=list)
    """Results of the constraints for the rows of the batch that is being cast."""
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Last value so far and step of each identity column that was numbered."""

    def conforming(self) -> Iterator[pa.RecordBatch]:
        """Record batches of the table's schema in which every row satisfies every constraint."""
        spec = self.task.spec
        sources = joined_batches(self.batches)
        first = next(sources)
        reader = pa.RecordBatchReader.from_batches(
            self._rows(first).schema, map(self._take, chain([first], sources))
        )
        schema = spec.configuration.schema
        for batch in assign_batches(reader, schema, table=spec.location.uri):
            # Values are cast first, so the error names a value that does not fit, although its
            # constraints were evaluated on a null.
            results = [each.slice(0, batch.num_rows) for each in self.checks]
            self.checks = [each.slice(batch.num_rows) for each in self.checks]
            refuse_violations(spec.constraints, results, batch, table=spec.location.uri)
            yield batch

    def _take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.checks = batch.columns[len(self.task.columns) :]
        rows = self._rows(batch)
        for each in self.task.spec.values.identities:
            self._mark(each, rows.column(each.column))
        return rows

    def _mark(self, identity: IdentityColumn, values: pa.Int64Array) -> None:
        if values.null_count:
            # The query makes a value that does not fit null.
            raise identity.overflow()
        bounds = pc.min_max(values)
        for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
            if bound is not None:
                known, _ = self.marks.get(identity.column, (bound, identity.step))
                self.marks[identity.column] = (identity.farther(known, bound), identity.step)

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = self.task.columns
        fields = [
            pa.field(name, each.type, each.nullable, each.metadata)
            for name, each in zip(names, batch.schema, strict=False)
        ]
        return pa.RecordBatch.from_arrays(batch.columns[: len(names)], schema=pa.schema(fields))


def nonempty(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches of a task; None if there are none. Most partitions of a small shuffle are empty,
    and need no store.
    """
    first = next(batches, None)
    return None if first is None else chain([first], batches)


def joined_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches large enough for the overhead of a kernel call."""
    waiting: list[pa.RecordBatch] = []
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


def concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
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
    """What a write task reports besides its files."""

    num_rows: int
    """Rows of the files."""
    marks: IdentityMarks


def report_result(result: WriteResult, marks: IdentityMarks | None = None) -> pa.RecordBatch:
    """The report of a task, a `pyarrow.RecordBatch`.

    `marks`: last value and step of the columns that it numbered.
    """
    return report(result.files, details=[WriteDetail(result.num_rows, marks or {})])


def result_of(reports: Reports[WriteDetail]) -> WriteResult:
    """The combined result of all tasks."""
    return WriteResult(
        reports.files,
        sum(each.num_rows for each in reports.details),
        sum(each.size_bytes for each in reports.files),
        joined_marks(each.marks for each in reports.details),
    )


MIN_ROWS = 100_000
MIN_BYTES = 8 * 1024 * 1024
"""Arrow bytes that are enough for a row group, even with few rows."""


PACKED_SCHEMA = "partition string, kind string, name string, position int, count int, data binary"
"""What is shuffled, as a Spark schema: slices of packs, `count` to a pack.

A pack holds rows of one partition: of kind `rows` as a serialised record batch, of kind `group` as
an encoded row group. Of kind `error` it holds an error, see `encode_error`.
"""

PACKED_PARTITION = "partition"
"""The column to shuffle by."""

_BATCH_BYTES = 64 * 1024 * 1024
_MIN_SLICE_BYTES = 4 * 1024
_MAX_SLICE_BYTES = 1024 * 1024


def slice_size_bytes(max_records: int) -> int:
    """Maximum size of a slice, so that a Spark batch of slices fits into memory.

    `max_records`: maximum rows that Spark puts into a batch; 0 or less for no limit.
    """
    if max_records <= 0:
        return _MAX_SLICE_BYTES
    return max(_MIN_SLICE_BYTES, min(_MAX_SLICE_BYTES, _BATCH_BYTES // max_records))


@dataclass(frozen=True, slots=True)
class PackTask:
    """Packs the rows of one Spark partition, separately for each partition of the table.

    Values are cast and constraints checked before: both may change the partition of a row, and
    whether it is written.
    """

    write: WriteTask
    """The form of the rows; it does not number them."""
    slice_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of `PACKED_SCHEMA`."""
        given = nonempty(batches)
        if given is None:
            return
        spec = self.write.spec
        columns = PartitionColumn.all_of(
            spec.configuration, to_arrow_schema(spec.configuration.schema)
        )
        try:
            waiting = _WaitingRows(spec, FileFormat.of(spec), self.slice_bytes)
            for batch in self.write.conforming(given):
                for key, rows in split_by_partition(batch, columns):
                    yield from waiting.add(key, rows)
            yield from waiting.pack_all()
        except DeltaError as error:
            yield _packed((), "error", "", pa.array([encode_error(error)], pa.binary()))


@dataclass(slots=True)
class _WaitingRows:
    """Rows that are not packed yet, by partition."""

    spec: WriteSpec
    format: FileFormat
    slice_bytes: int
    rows: dict[PartitionKey, list[pa.RecordBatch]] = field(default_factory=dict)
    num_rows: Counter[PartitionKey] = field(default_factory=Counter)
    size_bytes: Counter[PartitionKey] = field(default_factory=Counter)
    total_bytes: int = 0
    # Pack names must differ between tasks, and between attempts of one task.
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    num_packed: int = 0

    def add(self, key: PartitionKey, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows of a partition, and pack them if they are enough."""
        self.rows.setdefault(key, []).append(rows)
        self.num_rows[key] += rows.num_rows
        # Few rows in many columns take more memory than their values.
        weight_bytes = rows.nbytes + COLUMN_OVERHEAD_BYTES * rows.num_columns
        self.size_bytes[key] += weight_bytes
        self.total_bytes += weight_bytes
        is_enough = (
            self.num_rows[key] >= self.spec.row_group_rows
            or self.size_bytes[key] >= self.spec.row_group_bytes
        )
        if is_enough:
            yield self._pack(key)
        while self.total_bytes > self.spec.buffer_bytes:
            yield self._pack(max(self.size_bytes, key=self.size_bytes.__getitem__))

    def pack_all(self) -> Iterator[pa.RecordBatch]:
        """Pack all waiting rows."""
        while self.rows:
            yield self._pack(next(iter(self.rows)))

    def _pack(self, key: PartitionKey) -> pa.RecordBatch:
        self.total_bytes -= self.size_bytes.pop(key)
        del self.num_rows[key]
        rows = concatenated(self.rows.pop(key))
        group = self._encoded(rows)
        kind, data = (
            ("rows", rows.serialize())
            if group is None
            else ("group", pa.py_buffer(group.to_bytes()))
        )
        self.num_packed += 1
        return _packed(key, kind, f"{self.name}-{self.num_packed}", _sliced(data, self.slice_bytes))

    def _encoded(self, rows: pa.RecordBatch) -> EncodedRowGroup | None:
        """Rows of one partition as a row group; None if they should be joined with others."""
        is_enough = rows.num_rows >= MIN_ROWS or rows.nbytes >= MIN_BYTES
        if not (is_enough and encodes_apart(self.spec)):
            return None
        table = pa.Table.from_batches([self.format.file_rows(rows)])
        return EncodedRowGroup.of_rows(table, self.format, choose_encodings(table))


def _sliced(buffer: pa.Buffer, slice_bytes: int) -> pa.BinaryArray:
    """The buffer as a binary array of slices, nothing copied."""
    offsets = np.arange(0, buffer.size, slice_bytes, dtype=np.int32)
    offsets = np.append(offsets, np.int32(buffer.size))
    count = len(offsets) - 1
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), buffer])


def _packed(key: PartitionKey, kind: str, name: str, slices: pa.BinaryArray) -> pa.RecordBatch:
    """One pack as a batch of `PACKED_SCHEMA`."""
    count = len(slices)
    texts = {"partition": msgspec.json.encode(key).decode(), "kind": kind, "name": name}
    return pa.record_batch(
        {
            **{column: pa.repeat(pa.scalar(text), count) for column, text in texts.items()},
            "position": pa.array(np.arange(count, dtype=np.int32)),
            "count": pa.repeat(pa.scalar(count, pa.int32()), count),
            "data": slices,
        }
    )


@dataclass(frozen=True, slots=True)
class UnpackTask:
    """Writes the rows that were packed, as data files, and reports them as a `WriteTask` does."""

    spec: WriteSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Reports of `REPORT_SCHEMA`, once all rows are written."""
        rows = nonempty(batches)
        if rows is None:
            return
        errors: list[bytes] = []
        yield reported(lambda: report_result(self._write(rows, errors)))
        if errors:
            yield report_encoded_errors(errors)

    def _write(self, batches: Iterator[pa.RecordBatch], errors: list[bytes]) -> WriteResult:
        """Write all packs except errors, which are added to `errors`."""
        location = self.spec.location
        store = open_store(location.uri, location.options)
        schema = to_arrow_schema(self.spec.configuration.schema)
        format_ = FileFormat.of(self.spec)
        with DataFileWriter(schema, self.spec, store) as writer:
            for key, kind, data in _whole_packs(batches):
                if kind == "rows":
                    writer.add(pa.ipc.read_record_batch(data, schema))
                elif kind == "group":
                    writer.add_encoded(key, EncodedRowGroup.of_bytes(data, format_))
                else:
                    errors.append(data.to_pybytes())
            return writer.finish()


def _whole_packs(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[PartitionKey, str, pa.Buffer]]:
    """Partition, kind and data of each pack, once its last slice has arrived; slices may arrive in
    any order.
    """
    incomplete: dict[str, dict[int, pa.Buffer]] = {}
    for batch in batches:
        *columns, data = batch.columns
        rows = zip(*(each.to_pylist() for each in columns), data, strict=True)
        for partition, kind, name, position, count, each in rows:
            slices = incomplete.setdefault(name, {})
            slices[position] = each.as_buffer()
            if len(slices) == count:
                del incomplete[name]
                whole = pa.py_buffer(b"".join(slices[index] for index in range(count)))
                yield msgspec.json.decode(partition, type=PartitionKey), kind, whole
    if incomplete:
        # The packs of one task for a partition are never split, even if the partition is skewed.
        raise StorageFailure("the shuffle lost rows on the way to the data files")
