"""Rewrites row groups of data files without some of their rows, or with new values in some columns,
a few columns at a time.

Columns of a Parquet file are independent, so only one needs to be in memory while it is filtered
and encoded, even if rows are wide. A column that does not change in a whole row group, in a file
like those of the table's writer, is copied byte for byte.

Spec: Data Files; Parquet's file format.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.cached_property import cached_property
from dagster_delta.engines.parquet.read.data_file import DataFile
from dagster_delta.engines.parquet.read.data_file_reader import SPLIT_FILE_BYTES, DataFileReader
from dagster_delta.engines.parquet.read.file_projection import leaf_ranges
from dagster_delta.engines.parquet.read.legacy_calendar import LegacyCalendar
from dagster_delta.engines.parquet.read.opened_file import OpenedFile
from dagster_delta.engines.parquet.read.ordered_prefetch import BatchSource
from dagster_delta.engines.parquet.write.column_splicing import (
    ColumnBytes,
    FooterBytes,
    is_movable,
    joined_columns,
)
from dagster_delta.engines.parquet.write.encodings import SharedEncodings
from dagster_delta.engines.parquet.write.file import (
    EncodedRowGroup,
    FileFormat,
    encode_rows,
    encodes_apart,
)
from dagster_delta.engines.parquet.write.file_statistics import FileStatistics
from dagster_delta.engines.parquet.write.footer_splicing import MAGIC, RowGroupBytes
from dagster_delta.engines.plans import ReadPlan, WriteSpec
from dagster_delta.engines.rows.partition_split import PartitionKey
from dagster_delta.engines.values.nested_arrays import index_of, rename_nested
from dagster_delta.protocol.checkpoint.parquet_reader import decoding_pool
from dagster_delta.protocol.features.row_tracking import carried_columns
from dagster_delta.protocol.values.partition_values import is_null_text

if TYPE_CHECKING:
    import pyarrow.parquet as pq

PART_BYTES = 4 * 1024 * 1024
"""Approximate Arrow bytes of the columns of one row group that are in memory together."""
MAX_ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Maximum uncompressed bytes of a copied row group; larger ones are split into several."""

MIN_ROW_GROUP_BYTES = 1024 * 1024
"""Row groups with fewer uncompressed bytes are joined with others."""

_CODEC_NAMES = {"none": "uncompressed"}
_VARIABLE_WIDTH = 24
"""Assumed bytes of a text or nested value."""


class CopiedColumns(msgspec.Struct, frozen=True):
    """Columns of a row group for a new file; those of a row group come in order."""

    columns: tuple[ColumnBytes, ...]
    statistics: FileStatistics
    """Metadata of these columns."""
    key: PartitionKey
    num_rows: int
    """Number of rows kept, changed ones included."""
    num_changed: int
    is_last: bool
    """Whether these are the last columns of the row group."""

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        return sum(len(each.pages) for each in self.columns)


class RowGroupChange(Protocol):
    """New values for some columns of some rows of one file; may be used by several threads."""

    @property
    def columns(self) -> Collection[str]:
        """Logical names of the columns."""

    def num_matches(self, opened: OpenedFile, group: int) -> int:
        """Rows of a row group that change."""

    def marks(self, opened: OpenedFile, group: int) -> pa.BooleanArray:
        """Which of the live rows of a row group change: a `pyarrow.BooleanArray`."""

    def values(self, opened: OpenedFile, group: int) -> pa.RecordBatch:
        """The rows of a row group that change, in order, with their new values."""


class _Model(msgspec.Struct, frozen=True):
    """The metadata of an empty file of the table's writer."""

    footer: bytes
    schema: bytes
    """The elements of the schema."""
    writer: str
    """Name and version of the library."""


class RowGroupCopier:
    """Copies row groups; may be used by several threads."""

    def __init__(self, source: ReadPlan, spec: WriteSpec) -> None:
        self._format = FileFormat.of(spec)
        self._is_possible = encodes_apart(spec)
        self._source = source
        self._codec = _CODEC_NAMES.get(self._format.codec, self._format.codec)
        self._partition_names = spec.configuration.physical_partition_columns
        self._partition_types = [each.data_type for each in spec.configuration.partition_schema]
        # Row ids depend on the rows' position, so they must be written.
        self._may_keep = carried_columns(source.configuration) is None
        self._readers: dict[range, DataFileReader] = {}
        self._encodings = SharedEncodings()

    @cached_property
    def _model(self) -> _Model:
        empty = encode_rows(self._format.arrow_schema.empty_table(), self._format)
        footer = RowGroupBytes.of_file(memoryview(empty.file)).footer
        return _Model(footer, FooterBytes.parse(footer).schema, empty.metadata.created_by)

    def sources(
        self, file: DataFile, reader: DataFileReader, change: RowGroupChange | None = None
    ) -> Iterator[BatchSource] | None:
        """Sources of the remaining rows of a file, in order: of `CopiedColumns`, or of record
        batches if a row group should be split. None if the rows should be joined with others.

        `file`: the file, with its removed rows as hidden ones.
        """
        if not self._is_possible or file.size_bytes < SPLIT_FILE_BYTES:
            return None
        opened = reader.open(file)
        leaving = 0 if opened.left_out is None else len(opened.left_out)
        if 2 * leaving > opened.footer.num_rows:
            return None
        groups = range(opened.footer.num_row_groups)
        if change is not None and any(_is_large(opened, group) for group in groups):
            return None
        return self._sources(opened, reader, change)

    def _sources(
        self, opened: OpenedFile, reader: DataFileReader, change: RowGroupChange | None
    ) -> Iterator[BatchSource]:
        with reader.naming(opened.file):
            kept = self._kept(opened)
        every = range(len(self._format.columns))
        for group in range(opened.footer.num_row_groups):
            if not opened.may_hold_wanted(group):
                continue
            if change is not None and change.num_matches(opened, group):
                yield partial(self._change, opened, group, change, kept.get(group), reader)
            elif _is_tiny(opened, group):
                # Row groups of changed rows must not pile up in a file that changes often.
                yield partial(reader.read_group, opened, group)
            elif group in kept:
                yield partial(self._keep, opened, group, kept[group], every, reader)
            elif _is_large(opened, group):
                yield partial(reader.read_group, opened, group)
            else:
                for part in self._parts(opened.num_wanted(group), every):
                    yield partial(self._filter, opened, group, part)

    def join(self, parts: Sequence[CopiedColumns]) -> EncodedRowGroup:
        """Join all columns of a row group.

        `parts`: in order, the last one last.
        """
        statistics = FileStatistics(self._format.statistics)
        for each in parts:
            statistics.take(each.statistics)
        columns = [column for each in parts for column in each.columns]
        content = joined_columns(self._model.footer, columns, parts[-1].num_rows)
        return EncodedRowGroup(content, content.read_metadata(), statistics)

    def _filter(self, opened: OpenedFile, group: int, part: range) -> Iterator[CopiedColumns]:
        """Columns of the remaining rows, encoded again."""
        yield self._encoded([self._read(opened, group, part)], opened, part)

    def _keep(
        self,
        opened: OpenedFile,
        group: int,
        chunks: Sequence[bytes],
        part: range,
        reader: DataFileReader,
    ) -> Iterator[CopiedColumns]:
        """Columns copied from the file, if all rows remain."""
        statistics = FileStatistics(self._format.statistics)
        for index in self._format.statistics.observed_columns:
            if index in part:
                statistics.observe(self._read(opened, group, range(index, index + 1)), index)
        row_group = opened.footer.row_group(group)
        leaves = leaf_ranges(list(self._format.arrow_schema))
        columns = []
        with reader.naming(opened.file):
            for index in range(leaves[part.start].start, leaves[part.stop - 1].stop):
                start, stop = _page_range(row_group.column(index))
                pages = opened.handle.read_at(stop - start, start)
                columns.append(ColumnBytes(pages, chunks[index], start))
        yield self._copied(tuple(columns), statistics, opened, part, row_group.num_rows)

    def _change(
        self,
        opened: OpenedFile,
        group: int,
        change: RowGroupChange,
        chunks: Sequence[bytes] | None,
        reader: DataFileReader,
    ) -> Iterator[CopiedColumns]:
        """All columns, with new values in some rows of some of them."""
        new = change.values(opened, group)
        marks = change.marks(opened, group)
        count = change.num_matches(opened, group)
        num_rows = opened.num_wanted(group)
        for part in self._runs(change.columns):
            name = self._format.columns[part.start]
            if name in change.columns:
                rows = self._read(opened, group, part)
                values = rename_nested(new.column(name), rows.schema.field(0).type)
                rows = pa.table([_put_values(rows.column(0), values, marks)], schema=rows.schema)
                yield replace(self._encoded([rows], opened, part), num_changed=count)
            elif chunks is not None:
                for each in self._keep(opened, group, chunks, part, reader):
                    yield replace(each, num_changed=count)
            else:
                for piece in self._parts(num_rows, part):
                    for each in self._filter(opened, group, piece):
                        yield replace(each, num_changed=count)

    def _runs(self, changed: Collection[str]) -> Iterator[range]:
        """Columns of the file in order: each changed one alone, the others in runs."""
        start = 0
        for index, name in enumerate(self._format.columns):
            if name in changed:
                if index > start:
                    yield range(start, index)
                yield range(index, index + 1)
                start = index + 1
        if start < len(self._format.columns):
            yield range(start, len(self._format.columns))

    def _encoded(self, rows: list[pa.Table], opened: OpenedFile, part: range) -> CopiedColumns:
        """The columns of a `pyarrow.Table`, removed from a list as in `_encode`."""
        statistics = FileStatistics(self._format.statistics)
        statistics.observe(rows[0], part.start)
        num_rows = rows[0].num_rows
        return self._copied(self._encode(rows), statistics, opened, part, num_rows)

    def _copied(
        self,
        columns: tuple[ColumnBytes, ...],
        statistics: FileStatistics,
        opened: OpenedFile,
        part: range,
        num_rows: int,
    ) -> CopiedColumns:
        is_last = part.stop == len(self._format.columns)
        return CopiedColumns(columns, statistics, self._key(opened), num_rows, 0, is_last)

    def _key(self, opened: OpenedFile) -> PartitionKey:
        texts = map(opened.file.partition_values.get, self._partition_names)
        return tuple(
            None if is_null_text(text, data_type) else text
            for text, data_type in zip(texts, self._partition_types, strict=True)
        )

    def _parts(self, num_rows: int, columns: range) -> Iterator[range]:
        """Columns of the file that are processed together: adjacent indexes, in order."""
        start, size = columns.start, 0
        for index in columns:
            width = num_rows * _width(self._format.arrow_schema.field(index).type)
            if index > start and size + width > PART_BYTES:
                yield range(start, index)
                start, size = index, 0
            size += width
        yield range(start, columns.stop)

    def _read(self, opened: OpenedFile, group: int, part: range) -> pa.Table:
        """Columns of the remaining rows, as a `pyarrow.Table` in the new file's schema."""
        reader = self._readers.get(part)
        if reader is None:
            names = self._format.columns[part.start : part.stop]
            source = self._source
            reader = DataFileReader(source.store, source.configuration, names)
            self._readers[part] = reader
        schema = pa.schema([self._format.arrow_schema.field(index) for index in part])
        batches = [
            pa.RecordBatch.from_arrays(
                [
                    rename_nested(values, field.type)
                    for values, field in zip(batch.columns, schema, strict=True)
                ],
                schema=schema,
            )
            for batch in reader.read_group(opened, group)
        ]
        return pa.Table.from_batches(batches, schema)

    def _encode(self, rows: list[pa.Table]) -> tuple[ColumnBytes, ...]:
        """The columns of a `pyarrow.Table`, which is removed from a list to free it as soon as
        possible.
        """
        encodings = self._encodings.choose(rows[0])
        encoded = encode_rows(rows.pop(), self._format, encodings)
        content = RowGroupBytes.of_file(memoryview(encoded.file))
        (pages,) = content.pages
        (chunks,) = FooterBytes.parse(content.footer).row_groups
        found = []
        for index, chunk in enumerate(chunks):
            start, stop = _page_range(encoded.metadata.row_group(0).column(index))
            found.append(ColumnBytes(pages[start - len(MAGIC) : stop - len(MAGIC)], chunk, start))
        return tuple(found)

    def _kept(self, opened: OpenedFile) -> dict[int, tuple[bytes, ...]]:
        """The row groups that need no change, and the footer's metadata of their columns."""
        groups = [
            group
            for group in range(opened.footer.num_row_groups)
            if opened.num_wanted(group) == opened.footer.row_group(group).num_rows
        ]
        if not (groups and self._may_keep and opened.footer.created_by == self._model.writer):
            return {}
        # New files do not have these keys.
        if LegacyCalendar.of(opened.arrow_schema.metadata) is not None:
            return {}
        try:
            footer = FooterBytes.of_handle(opened.handle)
        except (IndexError, RecursionError):
            return {}
        if footer is None or footer.schema != self._model.schema:
            return {}
        found = ((group, footer.row_groups[group]) for group in groups)
        return {group: chunks for group, chunks in found if self._may_move(opened, group, chunks)}

    def _may_move(self, opened: OpenedFile, group: int, chunks: Sequence[bytes]) -> bool:
        """Whether the columns of a row group are stored as this writer stores them."""
        row_group, schema = opened.footer.row_group(group), opened.footer.schema
        for index, chunk in enumerate(chunks):
            column = schema.column(index)
            # The compression is safe to read only from a movable chunk.
            if not is_movable(chunk, column):
                return False
            known = row_group.column(index)
            if known.physical_type != column.physical_type:
                return False
            if known.compression.casefold() != self._codec:
                return False
        return bool(len(chunks) == row_group.num_columns)


def _is_large(opened: OpenedFile, group: int) -> bool:
    size_bytes = opened.footer.row_group(group).total_byte_size
    return bool(size_bytes > MAX_ROW_GROUP_BYTES) or opened.has_long_entries(group)


def _is_tiny(opened: OpenedFile, group: int) -> bool:
    return bool(opened.footer.row_group(group).total_byte_size < MIN_ROW_GROUP_BYTES)


def _put_values(column: pa.ChunkedArray, values: pa.Array, marks: pa.BooleanArray) -> pa.Array:
    """The values of a `pyarrow.ChunkedArray`, replaced at the marks."""
    places = np.arange(len(column), dtype=np.int64)
    marked = np.from_dlpack(pc.indices_nonzero(marks))
    places[marked] = len(column) + np.arange(len(values))
    both = pa.concat_arrays([*column.chunks, values])
    return pc.take(both, index_of(places), memory_pool=decoding_pool())


def _page_range(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Position in the file of the pages of a `pyarrow.parquet.ColumnChunkMetaData`."""
    start = column.data_page_offset
    if column.has_dictionary_page:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _width(arrow_type: pa.DataType) -> int:
    try:
        return max(1, int(arrow_type.bit_width) // 8)
    except ValueError:
        return _VARIABLE_WIDTH
