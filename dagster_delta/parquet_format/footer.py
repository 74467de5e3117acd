"""The footers of Parquet files, without the Arrow calls that end the process.

Arrow's parser rejects a footer that is not Thrift. Contradictions inside a footer raise exceptions
in its C++ code, which its Python classes do not catch: a damaged or hostile footer ends the
process. In `_parquet.pxd` and `libparquet.pxd`, `except +` is missing for

- `RowGroupMetaData.column(i)`, which throws if size statistics do not have the length that the
  levels of the column require, and for chunks without metadata or encrypted chunks. `check_chunks`
  finds these first;
- `ColumnChunkMetaData.statistics` and `is_stats_set`, which throw if bounds are shorter than a
  value of the column, or the physical type differs from the schema. `ChunkStatistics` reads
  statistics instead;
- `ColumnChunkMetaData.compression`, which throws for codecs that Arrow does not know, and writing
  or pickling `FileMetaData`, which ends the process for a signed footer. Neither is used for files
  by other writers.

The other values in use are numbers and texts that were parsed with the footer, and page decoders
catch exceptions.

Spec: none; Parquet's file format and its Thrift definition.
"""

from __future__ import annotations

import io
import math
import struct
from contextlib import suppress
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from dagster_delta.cached_property import cached_property
from dagster_delta.parquet_format.footer_splicing import FileMetadata
from dagster_delta.parquet_format.reader import open_parquet_reader
from dagster_delta.parquet_format.thrift_compact import LIST, STRUCT, Cursor

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MOST_CHUNKS = 10_000
"""Above this number of column chunks, finding the statistics takes longer than reading the row
groups that they would rule out."""

_FORMATS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
_BINARY = frozenset({"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"})

_EXACT = Context(prec=40)

# Ids of fields, from a row group to the statistics of a column chunk.
_GROUP_COLUMNS, _CHUNK_METADATA, _STATISTICS, _TYPE_ORDER = 1, 3, 12, 1
_MAX, _MIN, _NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 1, 2, 3, 5, 6
_BOUNDS = frozenset({_MAX, _MIN, _MAX_VALUE, _MIN_VALUE})
_COLUMN_INDEX_POSITION, _COLUMN_INDEX_LENGTH = 6, 7
_NULL_PAGES, _NULL_COUNTS = 1, 5
_PAGE_BOUNDS = (2, 3)
_MAX_INDEX_BYTES = 1024 * 1024
"""A longer one takes longer to read than the pages that it would rule out."""

_MAGIC = b"PAR1"
_END_BYTES = 8
"""Length of the footer, and magic."""
_TAIL_BYTES = 64 * 1024
"""Bytes of the first read at the end of a file: nearly always the whole footer."""


class ParquetFooter(msgspec.Struct, frozen=True):
    """The footer of a file."""

    metadata: pq.FileMetaData
    """`pyarrow.parquet.FileMetaData` whose column chunks are safe to read."""
    statistics: ChunkStatistics
    """Use these instead of those of the metadata."""
    _reader: pq.core.ParquetReader

    @property
    def schema_arrow(self) -> pa.Schema:
        """`pyarrow.Schema`."""
        return self._reader.schema_arrow


def read_footer(handle: pa.NativeFile, **options: object) -> ParquetFooter:
    """The footer of an open file, in one request.

    ArrowInvalid or OSError: it is not a Parquet file, cannot be read, or its footer contradicts
    itself.
    """
    size = handle.size()
    tail = _read_tail(handle, size, _TAIL_BYTES)
    needed = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
    if len(tail) < needed <= size:
        tail = _read_tail(handle, size, needed)
    footer = memoryview(tail)[len(tail) - needed : -_END_BYTES]
    source = pa.BufferReader(tail)
    reader = of_whole = open_parquet_reader(source, **options)
    metadata = reader.metadata
    if len(tail) < size:
        source = pa.PythonFile(_UnreadFile(size), mode="r")
        of_whole = open_parquet_reader(source, metadata=metadata)
    check_chunks(of_whole, source)
    return ParquetFooter(metadata, ChunkStatistics(metadata, bytes(footer)), reader)


def _read_tail(handle: pa.NativeFile | pa.PythonFile, size: int, length: int) -> bytes:
    length = min(size, length)
    found: bytes = handle.read_at(length, size - length)
    return found


def check_chunks(reader: pq.core.ParquetReader, source: pa.NativeFile) -> None:
    """Check that `RowGroupMetaData.column` can be called for every column of every row group.

    Arrow checks all chunks, and catches exceptions, before it prefetches bytes. Here it prefetches
    from a closed file. `reader` is a `ParquetReader` that prefetches; only its metadata can be read
    afterwards. `source` is what it was opened with, of the size of the Parquet file. ArrowInvalid
    or OSError: it cannot, or a chunk ends after the end of the file.
    """
    source.close()
    groups, leaves = range(reader.metadata.num_row_groups), range(reader.metadata.num_columns)
    try:
        for _ in reader.iter_batches(1, groups, leaves, use_threads=False):
            break
    except pa.ArrowInvalid as error:
        # Errors of the Parquet library are OSErrors.
        if "closed" not in str(error):
            raise


class ChunkBounds(msgspec.Struct, frozen=True):
    """The statistics of one column in one row group; None if unknown."""

    minimum: bool | float | bytes | None = None
    """Value of the physical type, as in `pyarrow.parquet.Statistics.min_raw`."""
    maximum: bool | float | bytes | None = None
    null_count: int | None = None


def decimal_bound(raw: int | bytes, scale: int) -> Decimal:
    """The value of a bound of a decimal, which is a number or big-endian bytes."""
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
    return Decimal(unscaled).scaleb(-scale, _EXACT)


class ChunkStatistics:
    """Reads the statistics of column chunks in a footer.

    The metadata must have passed `check_chunks`; `footer` is what they were read from. If it is not
    Thrift in the usual form, or has more chunks than `max_chunks`, all statistics are unknown.
    """

    def __init__(
        self, metadata: pq.FileMetaData, footer: bytes, max_chunks: int = _MOST_CHUNKS
    ) -> None:
        self.metadata = metadata
        self.footer = footer
        self._max_chunks = max_chunks

    def of(self, leaf: int) -> list[ChunkBounds]:
        """The statistics of one column by row group."""
        kind = self._physical_type(leaf)
        if self._has_few_chunks:
            with suppress(IndexError, RecursionError):
                return [self._read_bounds(group[leaf], kind) for group in self.layout.chunks]
        return [ChunkBounds()] * self.metadata.num_row_groups

    @property
    def _has_few_chunks(self) -> bool:
        metadata = self.metadata
        return bool(metadata.num_row_groups * metadata.num_columns <= self._max_chunks)

    def of_pages(self, handle: pa.NativeFile, group: int, leaf: int) -> list[ChunkBounds] | None:
        """The bounds of the data pages of a column chunk by the file's page index; None if it has
        none, or in an unusual form.
        """
        if not self._has_few_chunks:
            return None
        kind = self._physical_type(leaf)
        try:
            cursor = Cursor(self.footer, self.layout.chunks[group][leaf].start)
            position = length = 0
            for field, type_ in cursor.fields():
                if field == _COLUMN_INDEX_POSITION:
                    position = cursor.integer()
                elif field == _COLUMN_INDEX_LENGTH:
                    length = cursor.integer()
                else:
                    cursor.skip(type_)
            is_known = self._is_ordered and position > 0 and 0 < length <= _MAX_INDEX_BYTES
            if not is_known or position + length > handle.size():
                return None
            return _read_column_index(handle.read_at(length, position), kind)
        except (IndexError, RecursionError):
            return None

    def _physical_type(self, leaf: int) -> str:
        column = self.metadata.schema.column(leaf)
        for group in range(self.metadata.num_row_groups):
            found = self.metadata.row_group(group).column(leaf).physical_type
            if found != column.physical_type:
                raise pa.ArrowInvalid(
                    f"the footer says that column {column.path} holds {column.physical_type}, and "
                    f"that it holds {found} in row group {group}"
                )
        return str(column.physical_type)

    def _read_bounds(self, chunk: ChunkPosition, kind: str) -> ChunkBounds:
        if chunk.statistics is None:
            return ChunkBounds()
        cursor = Cursor(self.footer, chunk.statistics)
        null_count, bounds = None, {}
        for field, type_ in cursor.fields():
            if field == _NULL_COUNT:
                null_count = cursor.integer()
            elif field in _BOUNDS:
                bounds[field] = _decode_bound(cursor.binary(), kind)
            else:
                cursor.skip(type_)
        lowest, highest = bounds.get(_MIN_VALUE), bounds.get(_MAX_VALUE)
        if not self._is_ordered:
            # The deprecated bounds use signed comparison, which is correct only for numbers.
            lowest, highest = bounds.get(_MIN), bounds.get(_MAX)
        if lowest is None or highest is None or not (self._is_ordered or kind in _FORMATS):
            return ChunkBounds(null_count=null_count)
        return ChunkBounds(lowest, highest, null_count)

    @cached_property
    def layout(self) -> FooterLayout:
        """Where the parts of the footer are. IndexError or RecursionError: they cannot be found."""
        chunks: list[list[ChunkPosition]] = []
        metadata = FileMetadata.parse(
            self.footer, lambda cursor: chunks.append(_chunks_of_group(cursor))
        )
        width, count = self.metadata.num_columns, self.metadata.num_row_groups
        if [len(group) for group in chunks] != [width] * count:
            raise IndexError("not every row group has as many columns as the schema")
        return FooterLayout(metadata, chunks)

    @cached_property
    def _is_ordered(self) -> bool:
        """Whether the order of the bounds of all columns is known."""
        start = self.layout.metadata.column_orders_at
        if start is None:
            return False
        cursor = Cursor(self.footer, start)
        known = [_has_type_order(cursor) for _ in range(cursor.list_header()[0])]
        return bool(sum(known) == self.metadata.num_columns)


class ChunkPosition(msgspec.Struct, frozen=True):
    """Where the `ColumnChunk` of one column in one row group is in a footer."""

    start: int
    statistics: int | None


class FooterLayout(msgspec.Struct, frozen=True):
    """Where the parts of a footer are."""

    metadata: FileMetadata
    chunks: list[list[ChunkPosition]]
    """By row group and column."""


def _chunks_of_group(cursor: Cursor) -> list[ChunkPosition]:
    if not cursor.find(_GROUP_COLUMNS):
        return []
    found = [_position_of_chunk(cursor) for _ in range(cursor.list_header()[0])]
    cursor.skip(STRUCT)
    return found


def _position_of_chunk(cursor: Cursor) -> ChunkPosition:
    start, statistics = cursor.position, None
    if cursor.find(_CHUNK_METADATA):
        if cursor.find(_STATISTICS):
            statistics = cursor.position
            cursor.skip(STRUCT)
            cursor.skip(STRUCT)
        cursor.skip(STRUCT)
    return ChunkPosition(start, statistics)


def _read_column_index(data: bytes, kind: str) -> list[ChunkBounds] | None:
    """The pages of a `ColumnIndex`; IndexError if it is not one."""
    cursor = Cursor(data)
    lists: dict[int, list[Any]] = {}
    for field, type_ in cursor.fields():
        count = cursor.list_header()[0] if type_ == LIST else 0
        if field == _NULL_PAGES:
            lists[field] = [cursor.boolean() for _ in range(count)]
        elif field in _PAGE_BOUNDS:
            lists[field] = [_decode_bound(cursor.binary(), kind) for _ in range(count)]
        elif field == _NULL_COUNTS:
            lists[field] = [cursor.integer() for _ in range(count)]
        elif type_ == LIST:
            break
        else:
            cursor.skip(type_)
    null_pages, lowest, highest = (lists.get(f, []) for f in (_NULL_PAGES, *_PAGE_BOUNDS))
    nulls = lists.get(_NULL_COUNTS) or [None] * len(null_pages)
    if not null_pages or {*map(len, (lowest, highest, nulls))} != {len(null_pages)}:
        return None
    return [
        ChunkBounds(null_count=count) if is_null else ChunkBounds(low, high, count)
        for is_null, low, high, count in zip(null_pages, lowest, highest, nulls, strict=True)
    ]


def _has_type_order(cursor: Cursor) -> bool:
    has = cursor.find(_TYPE_ORDER)
    if has:
        cursor.skip(STRUCT)
        cursor.skip(STRUCT)
    return has


def _decode_bound(value: bytes, kind: str) -> bool | float | bytes | None:
    """A bound of a physical type; None if the type has no order."""
    if kind in _BINARY:
        return value
    format_ = _FORMATS.get(kind)
    if format_ is None or len(value) != struct.calcsize(format_):
        return None
    (decoded,) = struct.unpack(format_, value)
    return None if math.isnan(decoded) else decoded


class _UnreadFile:
    """A file of which only the size is known."""

    closed = False

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (self._size_bytes if whence == io.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self.closed = True
