"""Shuffles the rows of a table by partition, as encoded row groups instead of rows.

A task encodes the rows of a partition as in a file, Spark shuffles the row groups, and the tasks
after the shuffle write them to files: this shuffles a fraction of the bytes. Rows too few for a row
group are shuffled as record batches, and are encoded together with others. Nothing here needs
Spark.

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

from dagster_delta.engines.parquet.write.encodings import choose_encodings
from dagster_delta.engines.parquet.write.file import EncodedRowGroup, FileFormat, encodes_apart
from dagster_delta.engines.parquet.write.writer import COLUMN_OVERHEAD_BYTES, DataFileWriter
from dagster_delta.engines.plans import WriteResult, WriteSpec
from dagster_delta.engines.rows.partition_split import (
    PartitionColumn,
    PartitionKey,
    split_by_partition,
)
from dagster_delta.engines.spark.executor_reports import (
    encode_error,
    report_encoded_errors,
    reported,
)
from dagster_delta.engines.spark.write.tasks import WriteTask, concatenated, report_result
from dagster_delta.errors import DeltaError, StorageFailure
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.storage import open_store

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
        first = next(batches, None)
        if first is None:
            return
        spec = self.write.spec
        columns = PartitionColumn.all_of(
            spec.configuration, to_arrow_schema(spec.configuration.schema)
        )
        try:
            waiting = _WaitingRows(spec, FileFormat.of(spec), self.slice_bytes)
            for batch in self.write.conforming(chain([first], batches)):
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
        if not (is_enough and encodes_apart(self.spec, self.format)):
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
        # Most partitions of a small shuffle are empty, and need no store.
        first = next(batches, None)
        if first is None:
            return
        rows = chain([first], batches)
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
