"""Reads one data file at a time: selected columns of its live rows for which a filter is true.

With a filter, its columns are decoded first; the others only in row groups where a row passes it.

Spec: Data Files; Partition Values; Deletion Vectors; Column Mapping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.parquet.arrow_views import without_views
from dagster_delta.parquet.batch_sizes import BATCH_BYTES
from dagster_delta.parquet.data_file import DataFile
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.parquet.nested_arrays import with_padded_text
from dagster_delta.parquet.opened_file import OpenedFile
from dagster_delta.parquet.ordered_prefetch import BatchSource, FetchedSource
from dagster_delta.parquet.projection import FileProjection
from dagster_delta.parquet.row_group_skipping import matching_row_groups
from dagster_delta.parquet.source import naming_data_file, read_data_footer
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.checkpoint.parquet_reader import FETCHED_BYTES, decoding_pool
from dagster_delta.protocol.features.row_tracking import carried_columns
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.features.text_limits import padded_type
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.values.arrow_columns import integer_column, string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.protocol.values.arrow_values import FALSE
from dagster_delta.protocol.values.partition_values import parse_partition_column
from dagster_delta.storage.object_store import FetchBudget, ObjectStore, RangeStore

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

FILE_ORDINAL = "\0file ordinal"
"""The int32 column with the index of the row's file among the files that are read together."""
ROW_INDEX = "\0row index"
"""The int64 column with the position of a row in its file, deleted rows included."""

SPLIT_FILE_BYTES = 16 * 1024 * 1024

_WHOLE_FILE_BYTES = 1024 * 1024
"""Files up to this size are fetched whole, if a read is a round trip; others are divided."""
_OPENED_AHEAD = 8
"""Files that are opened at a time, if a read is a round trip."""

_POSITION_FIELDS = (pa.field(FILE_ORDINAL, pa.int32()), pa.field(ROW_INDEX, pa.int64()))


class DataFileReader:
    """Reads files of one table version; may be used by several threads.

    `configuration`: of the version that is read; if it has row ids (see `tracked_configuration`),
    rows without materialised ones get those of their position.
    `expected_vectors`: deletion vectors of the files to read, if they are several: vectors in one
    file are then fetched together.
    `with_positions`: whether `FILE_ORDINAL` and `ROW_INDEX` follow the columns.
    `split_file_bytes`: files of at least this size are divided among workers by row group.
    """

    def __init__(
        self,
        store: ObjectStore,
        configuration: TableConfiguration,
        columns: Sequence[str],
        *,
        where: SqlExpression | None = None,
        expected_vectors: Iterable[DeletionVectorDescriptor] = (),
        with_positions: bool = False,
        verifies_pages: bool = True,
        split_file_bytes: int = SPLIT_FILE_BYTES,
    ) -> None:
        self._store = store
        self._verifies_pages = verifies_pages
        self._budget = FetchBudget(FETCHED_BYTES)
        self._is_remote = store.local_path("") is None
        whole = _WHOLE_FILE_BYTES + 1 if self._is_remote else split_file_bytes
        self._split_file_bytes = min(split_file_bytes, whole)
        self._configuration = configuration
        self._columns = list(columns)
        self._where = where
        self._predicate = None if where is None else where.to_predicate()
        self._vectors = DeletionVectorLoader(store, expected_vectors)
        referenced = {path[0] for path in where.references} if where is not None else set(columns)
        schema = configuration.schema
        first = [each.name for each in schema if each.name in referenced] if where else columns
        self._first = _ColumnSet(configuration, first)
        """The columns that are always decoded: those of the filter, or all if there is none."""
        self._rest = _ColumnSet(configuration, [name for name in columns if name not in referenced])
        self._with_positions = with_positions
        carried = carried_columns(configuration)
        self._row_ids = None if carried is None else carried.positions_in(columns)
        self.schema = to_arrow_schema(StructType(tuple(schema.field(name) for name in columns)))
        if with_positions:
            self.schema = pa.schema([*self.schema, *_POSITION_FIELDS])

    def sources(self, files: Iterable[DataFile]) -> Iterator[BatchSource]:
        """One source per small file and per row group of a large one, in order."""
        for file, opened in self._opened_ahead(files):
            if opened is None:
                yield partial(self.read, file)
                continue
            for group in self._row_groups(opened):
                read = partial(self.read_group, opened, group)
                yield FetchedSource(read, self._fetched_bytes(opened, group))

    def _opened_ahead(
        self, files: Iterable[DataFile]
    ) -> Iterator[tuple[DataFile, OpenedFile | None]]:
        """The files in order, and those opened that are divided."""

        def opened(file: DataFile) -> tuple[DataFile, OpenedFile | None]:
            return file, None if file.size_bytes < self._split_file_bytes else self.open(file)

        if not self._is_remote:
            yield from map(opened, files)
            return
        rest = iter(files)
        with ThreadPoolExecutor(_OPENED_AHEAD, "delta-open") as threads:
            ahead = deque(threads.submit(opened, file) for file in islice(rest, _OPENED_AHEAD))
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(threads.submit(opened, file) for file in islice(rest, 1))

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, as `pyarrow.RecordBatch`es of `schema`."""
        opened = self.open(file)
        for group in self._row_groups(opened):
            yield from self.read_group(opened, group)

    def open(self, file: DataFile) -> OpenedFile:
        """The file with its footer and its deletion vector."""
        with self.naming(file):
            whole = self._small_file(file)
            store = self._store if isinstance(self._store, RangeStore) else None
            if whole is not None:
                handle = whole
            elif store is not None:
                handle = store.open_input(file.path, file.size_bytes)
            else:
                handle = self._store.open_input(file.path)
            footer = read_data_footer(handle)
            opened = OpenedFile(
                file,
                handle,
                footer.metadata,
                footer.schema_arrow,
                footer.statistics,
                self._is_remote and whole is None,
                self._verifies_pages,
                self._budget,
                store,
            )
            vector = file.deletion_vector
            if vector is not None:
                opened.left_out = self._vectors.load(
                    vector, data_file=file.path, num_rows=opened.footer.num_rows
                )
            if file.hidden:
                opened.left_out = (opened.left_out or BitMap64()) | file.hidden
        return opened

    def _small_file(self, file: DataFile) -> pa.NativeFile | None:
        """A small file, in memory, if a read is a round trip."""
        if not self._is_remote or file.size_bytes > _WHOLE_FILE_BYTES:
            return None
        # The size in the log may be wrong.
        data = self._store.read_range(file.path, 0, _WHOLE_FILE_BYTES + 1)
        return pa.BufferReader(data) if len(data) <= _WHOLE_FILE_BYTES else None

    def _row_groups(self, opened: OpenedFile) -> list[int]:
        if self._predicate is None:
            return list(range(opened.footer.num_row_groups))
        with self.naming(opened.file):
            return matching_row_groups(
                self._predicate,
                opened.statistics,
                opened.arrow_schema,
                self._configuration.schema,
                self._configuration.column_mapping_mode,
            )

    def read_group(self, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        """The rows of one row group of a file opened by a reader of the same table version."""
        with self.naming(opened.file):
            if opened.may_hold_wanted(group):
                read = self._read_all if self._where is None else self._read_matching
                yield from read(opened, group)

    def _fetched_bytes(self, opened: OpenedFile, group: int) -> int:
        """What reading a row group fetches for certain: a filter may make the rest unnecessary."""
        with self.naming(opened.file):
            projection = self._first.projection(opened.arrow_schema)
            ranges = opened.remote_ranges(group, projection.parquet_columns)
            return sum(length for _, length in ranges)

    def _read_all(self, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        position = opened.first_rows[group]
        projection = self._first.projection(opened.arrow_schema)
        for raw in opened.decode(group, projection.parquet_columns):
            wanted = opened.wanted_rows(position, raw.num_rows)
            rows, count = _filter(raw, wanted)
            if count:
                arrays = self._first.arrays(projection, rows, opened.file, count)
                yield self._located(arrays, opened.file, position, raw.num_rows, wanted, count)
            position += raw.num_rows

    def _read_matching(self, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        position = 0
        rest = _RawRows(self._raw_rest(opened, group))
        for selected, first_columns in self._matches(opened, group):
            if selected.true_count:
                start = opened.first_rows[group] + position
                yield from self._matching(opened, start, selected, first_columns, rest)
            else:
                # These are decoded only if a later row passes.
                rest.skip(len(selected))
            position += len(selected)

    def _matching(
        self,
        opened: OpenedFile,
        start: int,
        selected: pa.BooleanArray,
        first_columns: pa.Table,
        rest: _RawRows,
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a run of rows; the filter's columns of its selected rows are decoded."""
        position = taken = 0
        for rows, length in self._decode_rest(opened, selected, rest):
            mask = selected.slice(position, length)
            count = mask.true_count
            if count:
                found = dict(zip(self._rest.names, rows, strict=True))
                for name in self._first.names:
                    found[name] = first_columns[name].slice(taken, count).combine_chunks()
                arrays = [found[name] for name in self._columns]
                yield self._located(arrays, opened.file, start + position, length, mask, count)
            position += length
            taken += count

    def _located(
        self,
        arrays: list[pa.Array],
        file: DataFile,
        start: int,
        length: int,
        mask: pa.BooleanArray | None,
        count: int,
    ) -> pa.RecordBatch:
        """The batch of some rows, with the values that depend on their position in the file."""
        if self._with_positions or self._row_ids is not None:
            positions = _positions(file, start, length, mask)
            if self._row_ids is not None:
                _fill_row_ids(arrays, self._row_ids, file, positions[1])
            if self._with_positions:
                arrays = [*arrays, *positions]
        return _batch(arrays, self.schema, count)

    def _raw_rest(self, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        projection = self._rest.projection(opened.arrow_schema)
        yield from opened.decode(group, projection.parquet_columns)

    def _decode_rest(
        self, opened: OpenedFile, selected: pa.BooleanArray, rest: _RawRows
    ) -> Iterator[tuple[list[pa.Array], int]]:
        """The selected rows of the columns besides the filter's, batch by batch, and the number of
        rows from which each batch was taken.
        """
        if not self._rest.names:
            yield [], len(selected)
            return
        position = 0
        projection = self._rest.projection(opened.arrow_schema)
        for raw in rest.take(len(selected)):
            rows, count = _filter(raw, selected.slice(position, raw.num_rows))
            position += raw.num_rows
            arrays = self._rest.arrays(projection, rows, opened.file, count) if count else []
            yield arrays, raw.num_rows

    def _matches(
        self, opened: OpenedFile, group: int
    ) -> Iterator[tuple[pa.BooleanArray, pa.Table]]:
        """Which rows of a row group are wanted and pass the filter, in runs of rows: one run,
        unless the filter's columns of the rows that pass take more than `BATCH_BYTES`.

        Returns:
            A `pyarrow.BooleanArray` of the rows of a run, and a `pyarrow.Table` of the filter's
            columns in those that pass.
        """
        from dagster_delta.sql.evaluation import evaluate_filter

        assert self._where is not None  # noqa: S101 a filter selects this way of reading
        position = opened.first_rows[group]
        projection = self._first.projection(opened.arrow_schema)
        masks: list[pa.BooleanArray] = []
        batches: list[pa.RecordBatch] = []
        size_bytes = 0
        for raw in opened.decode(group, projection.parquet_columns):
            wanted = opened.wanted_rows(position, raw.num_rows)
            position += raw.num_rows
            # The filter never sees a deleted row: it could fail on one.
            rows, count = _filter(raw, wanted)
            arrays = self._first.arrays(projection, rows, opened.file, count)
            batch = _batch(arrays, self._first.schema, count)
            mask = pc.fill_null(evaluate_filter(self._where, batch), FALSE)
            passed, count = _filter(batch, mask)
            if batches and size_bytes + passed.nbytes > BATCH_BYTES:
                yield pa.concat_arrays(masks), pa.Table.from_batches(batches, self._first.schema)
                masks, batches, size_bytes = [], [], 0
            masks.append(mask if wanted is None else pc.replace_with_mask(wanted, wanted, mask))
            if count:
                batches.append(passed)
                size_bytes += passed.nbytes
        if masks:
            yield pa.concat_arrays(masks), pa.Table.from_batches(batches, self._first.schema)

    def naming(self, file: DataFile) -> AbstractContextManager[None]:
        """Errors from here on name the table and the data file, those of the system included."""
        return naming_data_file(self._store, file.path)


def _filter(rows: pa.RecordBatch, mask: pa.BooleanArray | None) -> tuple[pa.RecordBatch, int]:
    """The rows of a `pyarrow.RecordBatch` where the mask is true (all without one), counted."""
    if mask is None:
        return rows, rows.num_rows
    count = mask.true_count
    if count == rows.num_rows:
        return rows, count
    # A batch without columns cannot be filtered: it would lose its number of rows.
    if not rows.num_columns:
        return _rows(count), count
    # `RecordBatch.filter` has no parameter for an allocator.
    drop = pc.FilterOptions("drop")
    return pc.call_function("filter", [without_views(rows), mask], drop, decoding_pool()), count


def _positions(
    file: DataFile, start: int, length: int, mask: pa.BooleanArray | None
) -> list[pa.Array]:
    """The position columns of those rows of a file from `start` on where the mask is true."""
    rows = np.arange(start, start + length, dtype=np.int64)
    indexes = pa.Array.from_buffers(pa.int64(), length, [None, pa.py_buffer(rows)])
    if mask is not None:
        indexes = pc.filter(indexes, mask)
    return [pa.repeat(integer_column([file.ordinal], pa.int32())[0], len(indexes)), indexes]


def _fill_row_ids(
    arrays: list[pa.Array], places: tuple[int | None, int | None], file: DataFile, indexes: pa.Array
) -> None:
    """Fill in the ids of a file's rows that have none, in place.

    Spec: a materialised id takes precedence; without one, the id is the file's first plus the
    position.
    """
    row_id, row_commit_version = places
    if row_id is not None and file.base_row_id is not None:
        fresh = pc.add(indexes, file.base_row_id)
        arrays[row_id] = pc.coalesce(arrays[row_id], fresh)
    if row_commit_version is not None and file.default_row_commit_version is not None:
        arrays[row_commit_version] = pc.fill_null(
            arrays[row_commit_version], file.default_row_commit_version
        )


def _batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else _rows(count)


def _rows(count: int) -> pa.RecordBatch:
    """A `pyarrow.RecordBatch` of rows without columns."""
    nothing = pa.struct([])
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(nothing, count, [None]))


class _RawRows:
    """Decoded rows of a row group, of which some are taken and others skipped."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._current: pa.RecordBatch | None = None
        self._skipped = 0

    def skip(self, count: int) -> None:
        """Skip the next rows; they are decoded when later rows are taken."""
        self._skipped += count

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """The next rows, as `pyarrow.RecordBatch`es of raw columns."""
        while self._skipped:
            self._skipped -= self._next(self._skipped).num_rows
        while count:
            rows = self._next(count)
            count -= rows.num_rows
            yield rows

    def _next(self, most: int) -> pa.RecordBatch:
        batch = self._current if self._current is not None else next(self._batches)
        if batch.num_rows <= most:
            self._current = None
            return batch
        self._current = batch.slice(most)
        return batch.slice(0, most)


class _ColumnSet:
    """Some columns of the table, found in any of its files."""

    def __init__(self, configuration: TableConfiguration, names: Sequence[str]) -> None:
        fields = [configuration.schema.field(name) for name in names]
        partitioned = set(configuration.partition_columns)
        self.names = list(names)
        self.schema = to_arrow_schema(StructType(tuple(fields)))
        self._mode = configuration.column_mapping_mode
        self._data_fields = StructType(tuple(f for f in fields if f.name not in partitioned))
        self._constants = [
            _PartitionColumn(field, configuration.physical_name(field.name))
            if field.name in partitioned
            else None
            for field in fields
        ]
        self._projections: list[tuple[pa.Schema, FileProjection]] = []

    def projection(self, file_schema: pa.Schema) -> FileProjection:
        """How to get the columns other than partition columns from a file of that
        `pyarrow.Schema`.
        """
        # Most files of a table share their schema, so the last plans are tried first.
        for schema, projection in self._projections:
            if schema.equals(file_schema, check_metadata=True):
                return projection
        projection = FileProjection.plan(file_schema, self._data_fields, self._mode)
        self._projections = [(file_schema, projection), *self._projections[:3]]
        return projection

    def arrays(
        self, projection: FileProjection, raw: pa.RecordBatch, file: DataFile, count: int
    ) -> list[pa.Array]:
        """All columns of the set: from decoded rows, and from the file's partition values."""
        data = iter(projection.apply(raw))
        values = file.partition_values
        return [
            next(data) if constant is None else constant.repeat(values, count)
            for constant in self._constants
        ]


class _PartitionColumn:
    """A partition column: one value per file, parsed once per distinct text."""

    def __init__(self, field: StructField, physical_name: str) -> None:
        self._field = field
        self._physical_name = physical_name
        self._scalars: dict[str | None, pa.Scalar] = {}

    def repeat(self, values: Mapping[str, str | None], count: int) -> pa.Array:
        """The value of a file as a `pyarrow.Array` of `count` rows."""
        text = values.get(self._physical_name)
        scalar = self._scalars.get(text)
        if scalar is None:
            parsed = parse_partition_column(
                string_column([text]), self._field.data_type, column=self._field.name
            )
            padded = with_padded_text(parsed, padded_type(self._field))
            scalar = self._scalars[text] = padded[0]
        return pa.repeat(scalar, count)
