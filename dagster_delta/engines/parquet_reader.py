"""Reading data files as record batches of the table's schema.

Several workers decode ahead of the consumer; the order is that of the files and of the rows in
them, and no more than a fixed number of bytes waits.

Spec: Data Files; Partition Values; Deletion Vectors; Column Mapping.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from dagster_delta.engines.deletion_vector_loader import DeletionVectorLoader
from dagster_delta.engines.file_projection import FileProjection
from dagster_delta.engines.ordered_prefetch import BatchSource, prefetch_in_order
from dagster_delta.engines.parquet_source import open_parquet
from dagster_delta.errors import DataFileMissing, DeltaError, InvalidTable, StorageFailure
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.arrow_schema import to_arrow_schema
from dagster_delta.protocol.deletion_vectors import deleted_row_mask
from dagster_delta.protocol.partition_values import decode_path, parse_partition_column
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore

__all__ = ["DataFile", "DataFileReader", "read_data_file", "read_files"]

BATCH_ROWS = 65_536
"""Rows decoded at once. A multiple of what a container of a deletion vector covers."""
MAX_BUFFERED_BYTES = 64 * 1024 * 1024
SPLIT_FILE_BYTES = 16 * 1024 * 1024
"""Files from this size on are shared out among the workers by row group."""
WIDE_ROW_GROUP_BYTES = 128 * 1024 * 1024
"""Row groups from this size on are decoded by several threads, column by column: a worker that
reads ahead in one would fill the buffer and wait."""
SMALL_BATCH_ROWS = 16_384
"""Batches of fewer rows are put together, so that many small files do not make many batches."""

_REMOTE_THREADS = 8


@dataclass(frozen=True, slots=True)
class DataFile:
    """One logical file of the table."""

    path: str
    """Decoded: relative to the table root, or absolute."""
    size_bytes: int
    partition_values: Mapping[str, str | None]
    """Serialised values by physical column name."""
    deletion_vector: DeletionVectorDescriptor | None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> DataFile:
        """The file of one row of `LIVE_FILE_SCHEMA`, as `to_pylist` gives it."""
        vector = row.get("deletion_vector")
        return cls(
            path=decode_path(row["path"]),
            size_bytes=row["size_bytes"],
            partition_values=dict(row["partition_values"] or ()),
            deletion_vector=None if vector is None else DeletionVectorDescriptor(**vector),
        )


def read_data_file(
    store: ObjectStore,
    row: Mapping[str, Any],
    configuration: TableConfiguration,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """The live rows of one data file, on the calling thread.

    Args:
        store: store of the table.
        row: one row of a table of `LIVE_FILE_SCHEMA`, as `to_pylist` gives it.
        configuration: of the version that is read.
        columns: logical top-level columns, in order.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature, StorageFailure.
    """
    return DataFileReader(store, configuration, columns).read(DataFile.from_row(row))


def read_files(
    store: ObjectStore,
    files: pa.Table,
    configuration: TableConfiguration,
    columns: Sequence[str],
    *,
    threads: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The live rows of many data files in file order, decoded by several threads.

    Args:
        store: store of the table.
        files: `pyarrow.Table` with the columns of `LIVE_FILE_SCHEMA`.
        configuration: of the version that is read.
        columns: logical top-level columns, in order.
        threads: workers; by default one per core, and more where the store is not local.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature, StorageFailure.
    """
    wanted = ["path", "size_bytes", "partition_values", "deletion_vector"]
    rows = files.select(wanted).to_batches(max_chunksize=10_000)
    vectors = _deletion_vectors(files.column("deletion_vector"))
    reader = DataFileReader(store, configuration, columns, expected_vectors=vectors)
    data_files = (DataFile.from_row(row) for chunk in rows for row in chunk.to_pylist())
    return _merge_small(
        prefetch_in_order(
            reader.sources(data_files),
            threads=threads or _worker_count(store),
            max_buffered_bytes=MAX_BUFFERED_BYTES,
        )
    )


def _deletion_vectors(column: Any) -> Iterable[DeletionVectorDescriptor]:
    if column.null_count == len(column):
        return ()
    return [DeletionVectorDescriptor(**each) for each in column.drop_null().to_pylist()]


def _worker_count(store: ObjectStore) -> int:
    cores = os.cpu_count() or 2
    return max(2, min(cores, 16) if store.local_path("") is not None else _REMOTE_THREADS)


def _merge_small(batches: Iterable[Any]) -> Iterator[Any]:
    waiting: list[Any] = []
    waiting_rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.num_rows < SMALL_BATCH_ROWS:
            waiting.append(batch)
            waiting_rows += batch.num_rows
            if waiting_rows < SMALL_BATCH_ROWS:
                continue
            batch = None
        if waiting:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, waiting_rows = [], 0
        if batch is not None:
            yield batch
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


class DataFileReader:
    """Reads files of one table version as batches of some of its columns; thread-safe.

    Args:
        store: store of the table.
        configuration: of the version that is read.
        columns: logical top-level columns of the batches, in order.
        expected_vectors: deletion vectors of the files that will be read, where several files
            are: vectors in one file are then fetched together.
    """

    def __init__(
        self,
        store: ObjectStore,
        configuration: TableConfiguration,
        columns: Sequence[str],
        *,
        expected_vectors: Iterable[DeletionVectorDescriptor] = (),
    ) -> None:
        self._store = store
        self._mode = configuration.column_mapping_mode
        self._vectors = DeletionVectorLoader(store, expected_vectors)
        fields = [configuration.schema.field(name) for name in columns]
        self.schema = to_arrow_schema(StructType(tuple(fields)))
        partitioned = set(configuration.partition_columns)
        self._data_fields = StructType(tuple(f for f in fields if f.name not in partitioned))
        self._slots = [
            _PartitionSlot(field, configuration.physical_name(field.name))
            if field.name in partitioned
            else None
            for field in fields
        ]
        self._projections: list[tuple[Any, FileProjection]] = []

    def sources(self, files: Iterable[DataFile]) -> Iterator[BatchSource]:
        """One source per small file and per row group of a large one, in order."""
        for file in files:
            if file.size_bytes < SPLIT_FILE_BYTES:
                yield partial(self.read, file)
                continue
            opened = self._open(file)
            for group in range(opened.footer.num_row_groups):
                yield partial(self._read_groups, opened, [group])

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The live rows of a file.

        Raises:
            DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature,
            StorageFailure.
        """
        opened = self._open(file)
        yield from self._read_groups(opened, list(range(opened.footer.num_row_groups)))

    def _open(self, file: DataFile) -> _OpenedFile:
        with self._naming(file):
            handle = self._store.open_input(file.path)
            parquet = open_parquet(handle)
            projection = self._projection(parquet.schema_arrow)
        vector = file.deletion_vector
        deleted = vector and self._vectors.load(vector, data_file=file.path)
        return _OpenedFile(file, handle, parquet.metadata, projection, deleted or None)

    def _projection(self, file_schema: Any) -> FileProjection:
        # Most files of a table share their schema, so the last plans are tried first.
        for schema, projection in self._projections:
            if schema.equals(file_schema, check_metadata=True):
                return projection
        projection = FileProjection.plan(file_schema, self._data_fields, self._mode)
        self._projections = [(file_schema, projection), *self._projections[:3]]
        return projection

    def _read_groups(self, opened: _OpenedFile, groups: list[int]) -> Iterator[Any]:
        with self._naming(opened.file):
            for group in groups:
                position = opened.first_rows[group]
                for raw in opened.decode(group):
                    batch = self._finish(opened, raw, position)
                    position += raw.num_rows
                    if batch.num_rows:
                        yield batch

    def _finish(self, opened: _OpenedFile, raw: Any, position: int) -> Any:
        """The batch in the table's schema without its deleted rows.

        Args:
            opened: the file.
            raw: decoded `pyarrow.RecordBatch`.
            position: index in the file of its first row.
        """
        num_rows = raw.num_rows
        if opened.deleted is not None:
            deleted = deleted_row_mask(opened.deleted, position, num_rows)
            if deleted.true_count:
                # The count is taken here: a batch without columns cannot tell it after filtering.
                num_rows -= deleted.true_count
                raw = raw.filter(pc.invert(deleted)) if raw.num_columns else _rows(num_rows)
        data = iter(opened.projection.apply(raw))
        values = opened.file.partition_values
        columns = [
            next(data) if slot is None else slot.repeat(values, num_rows) for slot in self._slots
        ]
        if not columns:
            return _rows(num_rows)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @contextmanager
    def _naming(self, file: DataFile) -> Iterator[None]:
        """Errors from here on name the table and the data file."""
        try:
            yield
        except DeltaError as error:
            error.table = error.table or self._store.location.uri
            error.file = error.file or file.path
            raise
        except FileNotFoundError as error:
            raise DataFileMissing(
                "the log names a data file that is not there: restore the file, or restore the "
                "table to an older version",
                table=self._store.location.uri,
                file=file.path,
            ) from error
        except (OSError, pa.ArrowException) as error:
            # Arrow reports broken Parquet as an OSError too, but only the system sets errno.
            kind = StorageFailure if getattr(error, "errno", None) else InvalidTable
            raise kind(
                f"the data file cannot be read: {error}",
                table=self._store.location.uri,
                file=file.path,
            ) from error


def _rows(count: int) -> Any:
    """A `pyarrow.RecordBatch` of rows without columns."""
    nothing = pa.struct([])
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(nothing, count, [None]))


class _PartitionSlot:
    """A partition column among those wanted: one value per file, parsed once per distinct text."""

    def __init__(self, field: StructField, physical_name: str) -> None:
        self._field = field
        self._physical_name = physical_name
        self._scalars: dict[str | None, Any] = {}

    def repeat(self, values: Mapping[str, str | None], count: int) -> Any:
        """The value of a file as a `pyarrow.Array` of `count` rows."""
        text = values.get(self._physical_name)
        scalar = self._scalars.get(text)
        if scalar is None:
            parsed = parse_partition_column(
                pa.array([text], pa.string()), self._field.data_type, column=self._field.name
            )
            scalar = self._scalars[text] = parsed[0]
        return pa.repeat(scalar, count)


@dataclass(frozen=True)
class _OpenedFile:
    """A data file whose footer has been read."""

    file: DataFile
    handle: Any
    """`pyarrow.NativeFile`; its reads at a position may come from several threads."""
    footer: Any
    """`pyarrow.parquet.FileMetaData`."""
    projection: FileProjection
    deleted: BitMap64 | None

    @cached_property
    def first_rows(self) -> list[int]:
        """Index in the file of the first row of each row group, the skipped ones included."""
        starts = [0]
        for group in range(self.footer.num_row_groups):
            starts.append(starts[-1] + self.footer.row_group(group).num_rows)
        return starts

    def decode(self, group: int) -> Iterator[Any]:
        """The wanted Parquet columns of a row group, as `pyarrow.RecordBatch`es."""
        # A reader of its own: one reader must not decode on two threads.
        parquet = open_parquet(self.handle, footer=self.footer)
        is_wide = self.footer.row_group(group).total_byte_size >= WIDE_ROW_GROUP_BYTES
        yield from parquet.iter_batches(
            BATCH_ROWS, [group], self.projection.parquet_columns, use_threads=is_wide
        )
