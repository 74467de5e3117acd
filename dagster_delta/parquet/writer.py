"""Writes rows as Parquet data files under a table root, split by partition, with statistics.

Rows wait per partition until they fill a row group or the common budget; then workers encode them,
also several row groups of one file at a time, while the next rows are added. Waiting rows, rows
being encoded and open files are all bounded. The rows of one partition keep their
order.

Spec: Data Files; Add File and Remove File; Partition Values.
"""

from __future__ import annotations

import logging
import os
import random
import string
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.clock import Clock, now_ms
from dagster_delta.errors import InvalidArgument, SchemaMismatch, UnsupportedExpression
from dagster_delta.nested_arrays import index_of, runs_of
from dagster_delta.parquet.file_format import (
    ColumnEncodings,
    EncodedRowGroup,
    FileFormat,
    FileInWriting,
)
from dagster_delta.parquet.plans import WriteResult, WriteSpec
from dagster_delta.protocol.actions import AddFile
from dagster_delta.protocol.features.column_change import COLUMN_CHANGE_KEY, untagged
from dagster_delta.protocol.schema import StructField
from dagster_delta.protocol.values.partition_values import (
    encode_path,
    partition_directory,
    python_values,
    serialize_partition_value,
)
from dagster_delta.storage.object_store import ObjectStore
from dagster_delta.storage.unreferenced_files import delete_unreferenced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagster_delta.parquet.shadow_column import ShadowColumn


_LOG = logging.getLogger(__name__)

_COLUMN_OVERHEAD_BYTES = 512
"""Bytes that a column of a waiting batch takes besides its values."""
_MIN_ROW_GROUP_BYTES = 64 * 1024
"""Arrow bytes of the smallest row group that a full file consists of."""
_SELECTIVE_ROWS = 262_144
"""Rows of a row group if they are wide enough. With 655,360 of them, a filter on one row took
readers 1.4 to 2 times as long; with 131,072, a full scan took Spark 1.3 times as long."""
_NARROW_ROW_GROUP_BYTES = 4 * 1024 * 1024
"""Arrow bytes up to which a row group takes more rows, so that its pages are worth a read."""
_FILES_OF_ONE_THREAD = 16
"""More files than this are written by workers, however small they are."""


def write_data_files(
    batches: Iterable[pa.RecordBatch],
    spec: WriteSpec,
    store: ObjectStore,
    *,
    clock: Clock = now_ms,
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
) -> WriteResult:
    """Write the rows and return an add action for each file; no log entry is written.

    `batches`: in the Arrow form of the schema of `spec`, partition columns included.
    """
    with DataFileWriter(spec, store, clock=clock, new_uuid=new_uuid) as writer:
        for batch in batches:
            writer.add(batch)
        return writer.finish()


class DataFileWriter:
    """Writes the rows it is given as data files; no log entry is written.

    A context manager: left by an error, it deletes its files if the store allows it.
    """

    def __init__(
        self,
        spec: WriteSpec,
        store: ObjectStore,
        *,
        clock: Clock = now_ms,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._shadow = _shadow_column(spec)
        self._is_filled = True
        if self._shadow is not None:
            spec = self._shadow.write_spec(spec)
        configuration = spec.configuration
        self._num_rows = 0
        self._spec = spec
        self._format = FileFormat.of(spec)
        self._schema = self._format.arrow_schema
        self._store = store
        self._clock = clock
        self._new_uuid = new_uuid
        self._partition_names = configuration.physical_partition_columns
        self._begun: list[FileInWriting] = []
        self._written: dict[tuple[int, int], AddFile] = {}
        """By flush and row group in it of the first rows."""
        self._partition_fields = configuration.partition_schema.fields
        self._sort_keys = [
            (configuration.physical_name(name), "ascending") for name in spec.sort_by
        ]
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._open: OrderedDict[PartitionKey, _Partition] = OrderedDict()
        """Partitions that may have an open file, least recently written first."""
        half = max(_MIN_ROW_GROUP_BYTES, spec.target_file_size_bytes // 2)
        self._row_group_bytes = min(spec.row_group_bytes, half)
        """A file ends with a row group, so that those of small files are small."""
        self._unsplit: list[pa.RecordBatch] = []
        """Rows as files store them, followed by their partition columns."""
        self._unsplit_bytes = 0
        self._waiting_bytes = 0
        self._taken_bytes = 0
        self._flushes = 0
        self._tasks: _WorkerTasks | None = None
        self._encodings: ColumnEncodings | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            if self._tasks is not None:
                self._tasks.stop()
            self._delete_written_files()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a record batch, and pass on those that are enough for a row group."""
        if self._shadow is not None:
            filled = self._shadow.fill(batch)
            self._is_filled &= not filled.num_problems
            batch = filled.batch
        self._num_rows += batch.num_rows
        rows = self._format.file_rows(batch)
        self._taken_bytes += rows.nbytes
        if not self._partition_fields:
            self._wait_in_partition((), rows)
            self._flush_largest()
            return
        # Splitting takes time for each partition, so batches are split together.
        columns = [*rows.columns, *(batch.column(field.name) for field in self._partition_fields)]
        unsplit = pa.RecordBatch.from_arrays(columns, names=[str(n) for n in range(len(columns))])
        size_bytes = unsplit.nbytes + _COLUMN_OVERHEAD_BYTES * len(columns)
        enough_bytes = min(self._spec.row_group_bytes, self._spec.buffer_bytes // 4)
        if size_bytes >= enough_bytes:
            # Joining it with others would copy it, and nested texts must stay below 2 GiB.
            self._split_rows()
        self._unsplit.append(unsplit)
        self._unsplit_bytes += size_bytes
        if self._unsplit_bytes >= enough_bytes:
            self._split_rows()
            self._flush_largest()

    def finish(self) -> WriteResult:
        """Write what waits, close every file, and return an add action for each."""
        self._split_rows()
        for partition in list(self._partitions.values()):
            if partition.waiting_rows:
                self._flush_partition(partition)
            if partition.key in self._open:
                self._close_partition(partition)
        if self._tasks is not None:
            self._tasks.finish()
        # In the order of their first rows.
        written = tuple(self._written[place] for place in sorted(self._written))
        if not self._is_filled:
            # The write does not fail: the column change reads the values later and reports it.
            written = tuple(untagged(file) for file in written)
        return WriteResult(written, self._num_rows)

    def _split_rows(self) -> None:
        if not self._unsplit:
            return
        rows = pa.Table.from_batches(self._unsplit).combine_chunks()
        self._unsplit, self._unsplit_bytes = [], 0
        num_stored = len(self._schema)
        if self._encodings is None:
            self._encodings = ColumnEncodings.for_rows(
                pa.Table.from_arrays(rows.columns[:num_stored], schema=self._schema)
            )
        for batch in rows.to_batches():
            stored = pa.RecordBatch.from_arrays(batch.columns[:num_stored], schema=self._schema)
            values = dict(zip(self._partition_fields, batch.columns[num_stored:], strict=True))
            for key, part in split_by_partition(stored, values):
                self._wait_in_partition(key, part)

    def _wait_in_partition(self, key: PartitionKey, rows: pa.RecordBatch) -> None:
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = _Partition(key)
        before = partition.waiting_bytes
        partition.add(rows)
        self._waiting_bytes += partition.waiting_bytes - before
        if self._is_due(partition):
            self._flush_partition(partition)

    def _flush_largest(self) -> None:
        """Flush partitions until the others fit into the common budget."""
        if self._waiting_bytes <= self._spec.buffer_bytes:
            return
        for partition in sorted(
            self._partitions.values(), key=lambda partition: -partition.waiting_bytes
        ):
            if self._waiting_bytes <= self._spec.buffer_bytes:
                break
            self._flush_partition(partition)

    def _is_due(self, partition: _Partition) -> bool:
        if self._sort_keys:
            # A file is sorted as a whole, so its rows wait together.
            return partition.waiting_bytes >= self._spec.target_file_size_bytes
        return (
            partition.waiting_rows
            >= self._limit_rows(partition.waiting_rows, partition.waiting_bytes)
            or partition.waiting_bytes >= self._row_group_bytes
        )

    def _limit_rows(self, rows: int, size_bytes: int) -> int:
        """Rows that a row group should have if its rows are as wide as these."""
        narrow = rows * _NARROW_ROW_GROUP_BYTES // max(1, size_bytes)
        return min(self._spec.row_group_rows, max(_SELECTIVE_ROWS, narrow))

    def _flush_partition(self, partition: _Partition) -> None:
        size_bytes = partition.waiting_bytes
        self._waiting_bytes -= size_bytes
        # Release the rows to the worker: encoded row groups may wait long.
        rows = [partition.take(self._schema)]
        encodings = self._encodings = self._encodings or ColumnEncodings.for_rows(rows[0])
        number = self._flushes
        self._flushes += 1
        self._make_room_for(partition)
        self._run_task(
            partition,
            size_bytes,
            lambda: self._encode(rows.pop(), size_bytes, encodings),
            lambda groups: self._append_row_groups(partition, groups, number),
        )

    def _encode(
        self, rows: pa.Table, size_bytes: int, encodings: ColumnEncodings
    ) -> list[EncodedRowGroup]:
        ordered = rows.sort_by(self._sort_keys) if self._sort_keys else rows
        # One batch may have the rows of many row groups.
        limit = self._limit_rows(rows.num_rows, size_bytes)
        # Batches rarely end at the limit: a little more than it is one row group.
        groups = max(
            size_bytes // self._row_group_bytes,
            -(-rows.num_rows // self._spec.row_group_rows),
            (rows.num_rows + limit // 2) // limit,
        )
        step = -(-rows.num_rows // groups)
        return [
            EncodedRowGroup.of_rows(ordered.slice(start, step), self._format, encodings)
            for start in range(0, ordered.num_rows, step)
        ]

    def _append_row_groups(
        self, partition: _Partition, groups: list[EncodedRowGroup], number: int
    ) -> None:
        """Add row groups to the partition's file, or to a new one if none is open. Only workers
        call it, as they do `_close_file`.
        """
        for place, group in enumerate(groups):
            if partition.file is None:
                path = self._new_path(partition.key, number)
                partition.file = FileInWriting(path, self._format, self._store)
                partition.file_place = number, place
                self._begun.append(partition.file)
            partition.file.append(group)
            if partition.file.size_bytes >= self._spec.target_file_size_bytes:
                self._close_file(partition)
        if self._sort_keys:
            self._close_file(partition)

    def _close_file(self, partition: _Partition) -> None:
        file, partition.file = partition.file, None
        if file is None:
            return
        size_bytes, stats = file.close()
        self._written[partition.file_place] = AddFile(
            path=encode_path(file.path),
            partition_values=dict(zip(self._partition_names, partition.key, strict=True)),
            size_bytes=size_bytes,
            modification_time_ms=self._clock(),
            data_change=True,
            stats=stats,
            tags=dict(self._spec.tags) or None,
        )

    def _delete_written_files(self) -> None:
        """Delete the written files if the store allows it: nothing refers to them."""
        for file in self._begun:
            try:
                file.discard()
            except Exception:  # noqa: BLE001 the original error matters more
                _LOG.warning("%s could not be given up", file.path, exc_info=True)
        delete_unreferenced(self._store, [file.path for file in self._begun])

    def _new_path(self, key: PartitionKey, number: int) -> str:
        kind, root = ("cdc", "_change_data/") if self._spec.is_change_data else ("part", "")
        name = f"{kind}-{number:05d}-{self._new_uuid()}-c000{self._format.extension}"
        configuration = self._spec.configuration
        properties = configuration.properties
        # Partition directories would show physical names under column mapping; like Spark, spread
        # the files over random prefixes there.
        if properties.randomize_file_prefixes or configuration.column_mapping_mode != "none":
            return f"{root}{_random_prefix(properties.random_prefix_length)}/{name}"
        if not key:
            return f"{root}{name}"
        directory = partition_directory(dict(zip(self._partition_names, key, strict=True)))
        return f"{root}{directory}/{name}"

    def _make_room_for(self, partition: _Partition) -> None:
        self._open[partition.key] = partition
        self._open.move_to_end(partition.key)
        while len(self._open) > max(1, self._spec.max_open_partitions):
            self._close_partition(next(iter(self._open.values())))

    def _close_partition(self, partition: _Partition) -> None:
        del self._open[partition.key]
        if not partition.waiting:
            del self._partitions[partition.key]
        self._run_task(partition, 0, list, lambda _: self._close_file(partition))

    def _run_task(
        self,
        partition: _Partition,
        size_bytes: int,
        encode: Callable[[], list[EncodedRowGroup]],
        write: Callable[[list[EncodedRowGroup]], None],
    ) -> None:
        """Encode at once, and write to a partition's file in order of arrival."""
        if self._tasks is None:
            if (
                self._taken_bytes < self._spec.row_group_bytes
                and self._flushes <= _FILES_OF_ONE_THREAD
            ):
                # Small writes end before a thread would start.
                write(encode())
                return
            self._tasks = _WorkerTasks(self._spec.buffer_bytes // 2)
        self._tasks.run(partition, size_bytes, encode, write)


class _Partition(msgspec.Struct):
    """One partition: its waiting rows, and the file of its row groups.

    Only the workers use `file`; they process the flushes of one partition one after the other. Only
    the thread that adds rows uses the rest.
    """

    key: PartitionKey
    waiting: list[pa.RecordBatch] = msgspec.field(default_factory=list)
    waiting_rows: int = 0
    waiting_bytes: int = 0
    last_task: Future[None] | None = None
    file: FileInWriting | None = None
    file_place: tuple[int, int] = (0, 0)

    def add(self, batch: pa.RecordBatch) -> None:
        self.waiting.append(batch)
        self.waiting_rows += batch.num_rows
        # Few rows in many columns take more memory than their values.
        self.waiting_bytes += batch.nbytes + _COLUMN_OVERHEAD_BYTES * batch.num_columns

    def take(self, schema: pa.Schema) -> pa.Table:
        rows = pa.Table.from_batches(self.waiting, schema)
        self.waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0
        return rows


def _random_prefix(length: int) -> str:
    letters = string.ascii_letters + string.digits
    return "".join(random.choices(letters, k=length))  # noqa: S311  no secret depends on it


def _shadow_column(spec: WriteSpec) -> ShadowColumn | None:
    """The shadow column to fill in while a column changes its type."""
    if spec.is_change_data or COLUMN_CHANGE_KEY not in spec.configuration.metadata.configuration:
        return None
    from dagster_delta.parquet.shadow_column import ShadowColumn

    try:
        return ShadowColumn.of(spec.configuration)
    except (SchemaMismatch, InvalidArgument, UnsupportedExpression):
        # The columns of the change have been altered. The change must handle it, not the writer:
        # a file without the shadow is identified by its tags.
        return None


_MAX_WORKERS = 8
_FILE_BYTES = 32 * 1024
"""Bytes of rows whose encoding takes about as long as creating a file."""


class _WorkerTasks:
    """Passes work to threads.

    `max_bytes`: Arrow bytes of the rows that may be with the workers before `run` waits.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        num_workers = max(2, min(os.cpu_count() or 2, _MAX_WORKERS))
        self._workers = ThreadPoolExecutor(num_workers, "delta-write")
        self._running: deque[tuple[Future[None], int]] = deque()
        self._running_bytes = 0

    def run(
        self,
        partition: _Partition,
        size_bytes: int,
        encode: Callable[[], list[EncodedRowGroup]],
        write: Callable[[list[EncodedRowGroup]], None],
    ) -> None:
        """Encode at any time, then write after everything passed before for this partition.

        Raises the error of an earlier task.
        """
        previous = partition.last_task

        def run_in_turn() -> None:
            groups = encode()
            # Workers take tasks in the order they were given, so this one has been started.
            if previous is not None:
                previous.result()
            write(groups)

        task = partition.last_task = self._workers.submit(run_in_turn)
        self._running.append((task, size_bytes + _FILE_BYTES))
        self._running_bytes += size_bytes + _FILE_BYTES
        self._wait_until_running(self._max_bytes)

    def finish(self) -> None:
        """Wait until everything is done. Raises the error of a task."""
        self._wait_until_running(0)
        self._workers.shutdown()

    def stop(self) -> None:
        """Let the workers finish their current tasks, and drop the others."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _wait_until_running(self, max_bytes: int) -> None:
        while self._running and (self._running_bytes > max_bytes or self._running[0][0].done()):
            task, size_bytes = self._running.popleft()
            task.result()
            self._running_bytes -= size_bytes


PartitionKey = tuple[str | None, ...]
"""Serialised partition values in the order of the partition columns."""


_MAX_CODE = 2**62
"""Largest number that stands for the values of a row while they are told apart."""


def split_by_partition(
    rows: pa.RecordBatch, partition_values: Mapping[StructField, pa.Array]
) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
    """The rows of each partition, in their own order, with all columns.

    `partition_values`: a value per row by partition column, in directory order.
    """
    if not rows.num_rows:
        return
    encoded = [_encode(values, field) for field, values in partition_values.items()]
    codes, size = encoded[0][0], len(encoded[0][1])
    for more_codes, values in encoded[1:]:
        size *= len(values)
        if size > _MAX_CODE:
            distinct, codes = np.unique(codes, return_inverse=True)
            size = len(distinct) * len(values)
        codes = codes * len(values) + more_codes
    first = codes[0]
    if (codes == first).all():
        yield tuple(values[row_codes[0]] for row_codes, values in encoded), rows
        return
    # 16-bit codes use radix sort, which takes a tenth of the time.
    order = np.argsort(codes.astype(np.uint16) if size <= 2**16 else codes, kind="stable")
    positions = index_of(order)
    for run in runs_of(codes[order]):
        row = order[run.start]
        key = tuple(values[row_codes[row]] for row_codes, values in encoded)
        # Taking each group separately releases the batch: a small waiting partition must not keep
        # all the others in memory.
        yield key, pc.take(rows, positions.slice(run.start, run.stop - run.start))


def _encode(column: pa.Array, field: StructField) -> tuple[NDArray[np.int64], list[str | None]]:
    """A code per row, and the serialised value of each code.

    Values with the same serialised form (null and "") get one code, so they are one partition.
    """
    dictionary = pc.dictionary_encode(column, null_encoding="encode")
    texts = [
        serialize_partition_value(value, field.data_type, column=field.name)
        for value in python_values(dictionary.dictionary)
    ]
    distinct = list(dict.fromkeys(texts))
    code_of = {text: code for code, text in enumerate(distinct)}
    translation = np.array([code_of[text] for text in texts], dtype=np.int64)
    # `to_numpy` would import pandas. There are no nulls among the codes.
    return translation[np.from_dlpack(dictionary.indices)], distinct
