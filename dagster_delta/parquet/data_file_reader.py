"""Reads one data file at a time: selected columns of its live rows for which a filter is true.

With a filter, its columns are decoded first; the others only in row groups where a row passes it.
Row groups without such a row by their bounds in the footer are not read, and neither are pages by
those in the page index.

Spec: Data Files; Partition Values; Deletion Vectors; Column Mapping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyroaring import BitMap64

import dagster_delta.arrow_compute as pc
from dagster_delta.nested_arrays import (
    bits_of,
    index_of,
    mask_of,
    rows_without_columns,
)
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.parquet.file_skipping import matching_row_groups, matching_rows
from dagster_delta.parquet.opened_file import (
    BATCH_BYTES,
    DataFile,
    OpenedFile,
    filter_rows,
    naming_data_file,
    read_data_footer,
)
from dagster_delta.parquet.ordered_prefetch import BatchSource
from dagster_delta.parquet.projection import FileProjection
from dagster_delta.parquet_format.reader import FETCHED_BYTES, decoding_pool
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.row_tracking import carried_columns
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.protocol.schema import StructField, StructType
from dagster_delta.protocol.statistics.bounds import values_of_partition
from dagster_delta.protocol.values.arrow_columns import column_of, string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_schema
from dagster_delta.protocol.values.arrow_values import FALSE
from dagster_delta.sql.skipping import with_constants
from dagster_delta.storage.object_store import FetchBudget, ObjectStore, RangeStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dagster_delta.sql.expressions import SqlExpression

FILE_ORDINAL = "\0file ordinal"
"""The int32 column with the index of the row's file among the files that are read together."""
ROW_INDEX = "\0row index"
"""The int64 column with the position of a row in its file, deleted rows included."""

SPLIT_FILE_BYTES = 16 * 1024 * 1024
"""Files of at least this size are divided among workers by row group."""

_WHOLE_FILE_BYTES = 1024 * 1024
"""Files up to this size are fetched whole, if a read is a round trip; others are divided."""
_OPENED_AHEAD = 8
"""Files that are opened at a time, if a read is a round trip."""

_FEW_ROWS = 262_144
"""Rows of a row group whose columns of a filter take less time to decode than its page index: a
group of our own files. Of a million rows, one row takes 0.65 of the time."""

_POSITION_FIELDS = (pa.field(FILE_ORDINAL, pa.int32()), pa.field(ROW_INDEX, pa.int64()))


class DataFileReader:
    """Reads files of one table version; may be used by several threads.

    `configuration`: of the version that is read; if it has row ids (see `tracked_configuration`),
    rows without materialized ones get those of their position.
    `expected_vectors`: deletion vectors of the files to read, if they are several: vectors in one
    file are then fetched together.
    `with_positions`: whether `FILE_ORDINAL` and `ROW_INDEX` follow the columns.
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
    ) -> None:
        self._store = store
        self._verifies_pages = verifies_pages
        self._budget = FetchBudget(FETCHED_BYTES)
        self._is_remote = store.local_path("") is None
        whole = _WHOLE_FILE_BYTES + 1 if self._is_remote else SPLIT_FILE_BYTES
        self._split_file_bytes = min(SPLIT_FILE_BYTES, whole)
        self._configuration = configuration
        self._where = where
        self._condition = None if where is None else with_constants(where.typed)
        """Skips row groups, as it skips files: its constants are computed."""
        self._vectors = DeletionVectorLoader(store, expected_vectors)
        referenced = set() if where is None else {path[0] for path in where.references}
        schema = configuration.schema
        first = [field.name for field in schema if field.name in referenced]
        self._first = _ColumnSet(configuration, first)
        """The columns of the filter, which are always decoded."""
        self._rest = _ColumnSet(configuration, [name for name in columns if name not in referenced])
        self._returned = [name for name in first if name in columns]
        decoded = [*self._returned, *self._rest.names]
        self._positions_of_columns = [decoded.index(name) for name in columns]
        """Of the columns to return, among those that are decoded."""
        self._with_positions = with_positions
        carried = carried_columns(configuration)
        self._row_ids = None if carried is None else carried.positions_in(columns)
        self._needs_positions = with_positions or self._row_ids is not None
        self.schema = to_arrow_schema(StructType(tuple(schema.field(name) for name in columns)))
        if with_positions:
            self.schema = pa.schema([*self.schema, *_POSITION_FIELDS])

    def sources(self, files: Iterable[DataFile]) -> Iterator[BatchSource]:
        """One source per small file and per row group of a large one, in order."""
        for file, opened in self._opened_ahead(files):
            if opened is None:
                yield BatchSource(partial(self.read_file, file))
                continue
            for group in self._row_groups(opened):
                read = partial(self.read_group, opened, group)
                yield BatchSource(read, self._fetched_bytes(opened, group))

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

    def read_file(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file, as `pyarrow.RecordBatch`es of `schema`."""
        opened = self.open(file)
        for group in self._row_groups(opened):
            yield from self.read_group(opened, group)

    def open(self, file: DataFile) -> OpenedFile:
        """The file with its footer and its deletion vector."""
        with self.naming(file):
            if file.selection is not None:
                selected = self._vectors.load(file.selection, data_file=file.path)
                file = replace(file, selected=selected)
            whole = self._small_file(file)
            store = self._store if isinstance(self._store, RangeStore) else None
            if whole is not None:
                handle = whole
            elif store is not None:
                handle = store.open_input(file.path, file.size_bytes)
            else:
                handle = self._store.open_input(file.path)
            footer = read_data_footer(handle, file.num_records)
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
        if self._condition is None:
            return list(range(opened.footer.num_row_groups))
        with self.naming(opened.file):
            return matching_row_groups(self._condition, opened, self._configuration)

    def read_group(self, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        """The rows of one row group of a file opened by a reader of the same table version."""
        with self.naming(opened.file):
            if opened.may_hold_wanted(group):
                yield from self._read_wanted(opened, group)

    def _read_wanted(self, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        rest = _RawRows(self._rest.decode(opened, group))
        found = self._find_passing(opened, group)
        most = opened.rows_at_once(group, self._rest.projection(opened).parquet_columns)
        for passing in _join_passing(found, most):
            if not passing.count:
                rest.skip(passing.length)
            elif not self._rest.names:
                arrays = [passing.first.column(index) for index in self._positions_of_columns]
                indexes = self._number_rows(passing.start, passing.length)
                yield self._add_position_columns(
                    arrays, opened.file, indexes, passing.mask, passing.count
                )
            else:
                yield from self._with_rest(opened, group, passing, rest)

    def _find_passing(self, opened: OpenedFile, group: int) -> Iterator[_Passing]:
        """The rows that are wanted and for which the filter is true, in batches of all rows."""
        start, end = opened.first_rows[group : group + 2]
        if self._where is None:
            mask = opened.wanted_rows(start, end - start)
            count = end - start if mask is None else mask.true_count
            yield _Passing(start, end - start, mask, rows_without_columns(count), count)
            return
        in_pages = self._find_in_pages(opened, group, self._where)
        if in_pages is not None:
            yield in_pages
            return
        # Decode.
        for raw in self._first.decode(opened, group):
            # Mask: a filter never sees a deleted row, as it could fail on one.
            mask = opened.wanted_rows(start, raw.num_rows)
            found = self._filter(opened, self._where, *filter_rows(raw, mask))
            passes = found.mask if mask is None else pc.replace_with_mask(mask, mask, found.mask)
            yield replace(found, start=start, length=raw.num_rows, mask=passes)
            start += raw.num_rows

    def _filter(
        self, opened: OpenedFile, where: SqlExpression, raw: pa.RecordBatch, count: int
    ) -> _Passing:
        """Which of some decoded rows pass, as if they were the first ones of the file."""
        columns = self._first.batch(opened, raw, count)
        passes = pc.fill_null(where.evaluate_filter(columns), FALSE)
        first, passing = filter_rows(columns.select(self._returned), passes)
        return _Passing(0, count, passes, first, passing)

    def _find_in_pages(
        self, opened: OpenedFile, group: int, where: SqlExpression
    ) -> _Passing | None:
        """As `_find_passing`, from the pages that may hold such rows by the page index; None if
        most may, or are too many at once.
        """
        # A read per page would be a round trip.
        if self._condition is None or opened.is_remote or not opened.has_selective_pages:
            return None
        start, end = opened.first_rows[group : group + 2]
        if end - start <= _FEW_ROWS:
            return None
        likely = matching_rows(self._condition, opened, group, self._configuration)
        if likely is None:
            # The next row groups of the file are most likely the same.
            opened.has_selective_pages = False
            return None
        mask = opened.wanted_rows(start, end - start)
        if mask is not None:
            likely &= bits_of(mask)
        none = _Passing(start, end - start, mask_of(likely), rows_without_columns(0), 0)
        if not likely.any():
            return none
        columns = self._first.projection(opened).parquet_columns
        batches = opened.decode_wanted(group, columns, 0, mask_of(likely))
        if batches is None:
            return None
        found = _concat_passing([self._filter(opened, where, raw, raw.num_rows) for raw in batches])
        if found.mask is not None:
            likely[likely] = bits_of(found.mask)
        return replace(none, mask=mask_of(likely), first=found.first, count=found.count)

    def _with_rest(
        self, opened: OpenedFile, group: int, passing: _Passing, rest: _RawRows
    ) -> Iterator[pa.RecordBatch]:
        """The passing rows with the other columns, of which only some pages may be decoded."""
        batches, mask, indexes = self._decode_rest(opened, group, passing, rest)
        position = taken = 0
        for raw in batches:
            part = None if mask is None else mask.slice(position, raw.num_rows)
            rows, count = filter_rows(raw, part)
            if count:
                found = [
                    *passing.first.slice(taken, count).columns,
                    *self._rest.batch(opened, rows, count).columns,
                ]
                arrays = [found[index] for index in self._positions_of_columns]
                places = indexes[position : position + raw.num_rows]
                yield self._add_position_columns(arrays, opened.file, places, part, count)
            position += raw.num_rows
            taken += count

    def _decode_rest(
        self, opened: OpenedFile, group: int, passing: _Passing, rest: _RawRows
    ) -> tuple[Iterable[pa.RecordBatch], pa.BooleanArray | None, NDArray[np.int64]]:
        """Raw batches of the other columns, which of their rows pass (None for all), and the
        positions of all of them.
        """
        start, mask = passing.start, passing.mask
        if mask is not None:
            columns = self._rest.projection(opened).parquet_columns
            first = start - opened.first_rows[group]
            found = opened.decode_wanted(group, columns, first, mask)
            if found is not None:
                rest.skip(passing.length)
                return found, None, start + np.flatnonzero(bits_of(mask))
        return rest.take(passing.length), mask, self._number_rows(start, passing.length)

    def _number_rows(self, start: int, length: int) -> NDArray[np.int64]:
        """Positions of successive rows of a file; none if no column depends on them."""
        # They have as many bytes as a column.
        return np.arange(start, start + length if self._needs_positions else start)

    def _fetched_bytes(self, opened: OpenedFile, group: int) -> int:
        """What reading a row group fetches for certain: a filter may make the rest unnecessary."""
        with self.naming(opened.file):
            always = self._rest if self._where is None else self._first
            columns = always.projection(opened).parquet_columns
            ranges = opened.remote_ranges(group, columns)
            return sum(length for _, length in ranges)

    def _add_position_columns(
        self,
        arrays: list[pa.Array],
        file: DataFile,
        indexes: NDArray[np.int64],
        mask: pa.BooleanArray | None,
        count: int,
    ) -> pa.RecordBatch:
        """The batch of those rows at some positions in the file where the mask is true, with the
        values that depend on the position.
        """
        if self._needs_positions:
            positions = _make_position_columns(file, indexes, mask)
            if self._row_ids is not None:
                _fill_row_ids(arrays, self._row_ids, file, positions[1])
            if self._with_positions:
                arrays = [*arrays, *positions]
        return _build_batch(arrays, self.schema, count)

    def naming(self, file: DataFile) -> AbstractContextManager[None]:
        """Errors from here on name the table and the data file, those of the system included."""
        return naming_data_file(self._store, file.path)


def _make_position_columns(
    file: DataFile, indexes: NDArray[np.int64], mask: pa.BooleanArray | None
) -> list[pa.Array]:
    """The position columns of those rows of a file where the mask is true."""
    found = index_of(indexes)
    if mask is not None:
        found = pc.filter(found, mask)
    return [pa.repeat(column_of([file.ordinal], pa.int32())[0], len(found)), found]


def _fill_row_ids(
    arrays: list[pa.Array], places: tuple[int | None, int | None], file: DataFile, indexes: pa.Array
) -> None:
    """Fill in the ids of a file's rows that have none, in place.

    Spec: a materialized id takes precedence; without one, the id is the file's first plus the
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


def _build_batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    return (
        pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else rows_without_columns(count)
    )


class _Passing(msgspec.Struct, frozen=True):
    """Some successive rows of a row group, of which some pass."""

    start: int
    """Position of the first one in the file."""
    length: int
    """Number of rows, with those that do not pass."""
    mask: pa.BooleanArray | None
    """Which ones pass; None for all."""
    first: pa.RecordBatch
    """The columns of the filter that are returned, of the rows that pass."""
    count: int
    """Number of rows that pass."""


def _join_passing(found: Iterable[_Passing], most: int) -> Iterator[_Passing]:
    """Successive rows as one, as long as at most so many pass: the pages of the other columns that
    hold these are then known together.
    """
    waiting: list[_Passing] = []
    for passing in found:
        count = sum(part.count for part in waiting) + passing.count
        size_bytes = sum(part.first.nbytes for part in waiting) + passing.first.nbytes
        if waiting and (count > most or size_bytes > BATCH_BYTES):
            yield _concat_passing(waiting)
            waiting = []
        waiting.append(passing)
    if waiting:
        yield _concat_passing(waiting)


def _concat_passing(parts: Sequence[_Passing]) -> _Passing:
    if len(parts) == 1:
        return parts[0]
    first = [part.first for part in parts if part.count]
    has_columns = bool(first) and bool(first[0].num_columns)
    masks = [part.mask for part in parts]
    count = sum(part.count for part in parts)
    return _Passing(
        parts[0].start,
        sum(part.length for part in parts),
        pa.concat_arrays(masks, decoding_pool()),
        pa.concat_batches(first, decoding_pool()) if has_columns else rows_without_columns(count),
        count,
    )


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
            self._skipped -= self._next_batch(self._skipped).num_rows
        while count:
            rows = self._next_batch(count)
            count -= rows.num_rows
            yield rows

    def _next_batch(self, most: int) -> pa.RecordBatch:
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

    def projection(self, opened: OpenedFile) -> FileProjection:
        """How to get the columns other than partition columns from a file."""
        # Most files of a table share their schema, so the last plans are tried first.
        for schema, projection in self._projections:
            if schema.equals(opened.arrow_schema, check_metadata=True):
                return projection
        projection = FileProjection.plan(opened.arrow_schema, self._data_fields, self._mode)
        self._projections = [(opened.arrow_schema, projection), *self._projections[:3]]
        return projection

    def decode(self, opened: OpenedFile, group: int) -> Iterator[pa.RecordBatch]:
        """The columns of a row group as the file stores them."""
        yield from opened.decode(group, self.projection(opened).parquet_columns)

    def batch(self, opened: OpenedFile, raw: pa.RecordBatch, count: int) -> pa.RecordBatch:
        """All columns of the set: from decoded rows, and from the file's partition values."""
        data = iter(self.projection(opened).apply(raw))
        values = opened.file.partition_values
        arrays = [
            next(data) if constant is None else constant.repeated(values, count)
            for constant in self._constants
        ]
        return _build_batch(arrays, self.schema, count)


class _PartitionColumn:
    """A partition column, whose value is one text for each file."""

    def __init__(self, field: StructField, physical_name: str) -> None:
        self._field, self._physical_name = field, physical_name
        self._parse = cache(self._parse_text)
        self._last: tuple[str | None, pa.Array] | None = None

    def repeated(self, values: Mapping[str, str | None], count: int) -> pa.Array:
        """The value among the partition values of a file, `count` times: a `pa.Array`."""
        text = values.get(self._physical_name)
        # Batches of a file share the longest array so far: filling one takes as long as decoding.
        last = self._last
        if last is None or last[0] != text or len(last[1]) < count:
            self._last = last = (text, pa.repeat(self._parse(text), count))
        return last[1].slice(0, count)

    def _parse_text(self, text: str | None) -> pa.Scalar:
        return values_of_partition(string_column([text]), self._field)[0]
