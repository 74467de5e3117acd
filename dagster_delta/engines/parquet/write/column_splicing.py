"""One row group from column chunks that were encoded separately or are in another file.

Pages and statistics of a chunk do not depend on other chunks: the pages are copied and their
positions in the footer are changed, without encoding them again.

Spec: Parquet's file format and its Thrift definition; Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import pyarrow as pa

from dagster_delta.engines.parquet.write.footer_splicing import (
    MAGIC,
    RowGroupBytes,
    footer_of_row_group,
    moved_chunk,
)
from dagster_delta.protocol.checkpoint.thrift_compact import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Cursor,
    field_header,
    list_header_bytes,
    zigzag,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq


_LENGTH_BYTES = 4
_TAIL_BYTES = _LENGTH_BYTES + len(MAGIC)

_FILE_SCHEMA, _FILE_ROW_GROUPS = 2, 4
_GROUP_COLUMNS = 1
_CHUNK_POSITION, _CHUNK_METADATA = 2, 3
_UNCOMPRESSED_BYTES, _COMPRESSED_BYTES = 6, 7


class ColumnBytes(msgspec.Struct, frozen=True):
    """The chunk of one Parquet column in one row group."""

    pages: memoryview | bytes
    metadata: bytes
    """The `ColumnChunk` of a footer."""
    position: int
    """Position of the pages in the file of that footer."""


class FooterBytes(msgspec.Struct, frozen=True):
    """The Thrift metadata of a Parquet file."""

    schema: bytes
    """The elements of the schema."""
    row_groups: tuple[tuple[bytes, ...], ...]
    """The `ColumnChunk` of each column, by row group."""

    @classmethod
    def parse(cls, footer: bytes) -> FooterBytes:
        """The parts of a `FileMetaData`."""
        cursor = Cursor(footer)
        schema, groups = b"", []
        for field, kind in cursor.fields():
            start = cursor.position
            if field == _FILE_ROW_GROUPS:
                count, _ = cursor.list_header()
                groups = [_columns_of_row_group(footer, cursor) for _ in range(count)]
                continue
            cursor.skip(kind)
            if field == _FILE_SCHEMA:
                schema = footer[start : cursor.position]
        return cls(schema, tuple(groups))

    @classmethod
    def of_handle(cls, handle: pa.NativeFile) -> FooterBytes | None:
        """The metadata of an open file; None if it is encrypted.

        `handle`: `pyarrow.NativeFile` of a file that is known to be Parquet.
        """
        size = handle.size()
        tail = handle.read_at(_TAIL_BYTES, size - _TAIL_BYTES)
        if tail[_LENGTH_BYTES:] != MAGIC:
            return None
        length = int.from_bytes(tail[:_LENGTH_BYTES], "little")
        return cls.parse(handle.read_at(length, size - _TAIL_BYTES - length))


def _columns_of_row_group(footer: bytes, cursor: Cursor) -> tuple[bytes, ...]:
    columns = []
    for field, kind in cursor.fields():
        if field != _GROUP_COLUMNS:
            cursor.skip(kind)
            continue
        count, _ = cursor.list_header()
        for _ in range(count):
            start = cursor.position
            cursor.skip(STRUCT)
            columns.append(footer[start : cursor.position])
    return tuple(columns)


def joined_columns(model: bytes, columns: Sequence[ColumnBytes], num_rows: int) -> RowGroupBytes:
    """A row group of the columns, as a writer of all of them would make it.

    `model`: footer of a file without row groups, with the schema of the columns.
    """
    chunks, position, uncompressed, compressed = [], len(MAGIC), 0, 0
    for each in columns:
        chunks.append(moved_chunk(each.metadata, position - each.position))
        position += len(each.pages)
        sizes = _sizes(each.metadata)
        uncompressed, compressed = uncompressed + sizes[0], compressed + sizes[1]
    row_group = b"".join(
        (
            field_header(1, LIST),
            list_header_bytes(len(chunks)),
            *chunks,
            field_header(1, I64),
            zigzag(uncompressed),
            field_header(1, I64),
            zigzag(num_rows),
            # No sorting columns: the field between is omitted.
            field_header(2, I64),
            zigzag(len(MAGIC)),
            field_header(1, I64),
            zigzag(compressed),
            b"\0",
        )
    )
    footer = footer_of_row_group(model, row_group, num_rows)
    return RowGroupBytes(tuple(each.pages for each in columns), footer)


def _sizes(chunk: bytes) -> tuple[int, int]:
    """Bytes of the pages before and after compression."""
    found = {_UNCOMPRESSED_BYTES: 0, _COMPRESSED_BYTES: 0}
    cursor = Cursor(chunk)
    for field, kind in cursor.fields():
        if field != _CHUNK_METADATA:
            cursor.skip(kind)
            continue
        for inner, inner_kind in cursor.fields():
            if inner in found:
                found[inner] = cursor.integer()
            else:
                cursor.skip(inner_kind)
    return found[_UNCOMPRESSED_BYTES], found[_COMPRESSED_BYTES]


_Value: TypeAlias = "frozenset[int] | tuple[_Value] | Mapping[int, _Value]"
"""Types: of a number or text; of the elements of a list; of the fields of a struct by their ids."""

_NUMBER, _LONG, _TEXT = frozenset({I32}), frozenset({I64}), frozenset({BINARY})
_TRUTH = frozenset({TRUE, FALSE})

_METADATA, _CODEC, _STATISTICS = 3, 4, 12
_BOUNDS = frozenset({1, 2, 5, 6})
_STATISTICS_SHAPE: Mapping[int, _Value] = {
    **dict.fromkeys(_BOUNDS, _TEXT),
    **dict.fromkeys((3, 4), _LONG),
    **dict.fromkeys((7, 8), _TRUTH),
}
_METADATA_SHAPE: Mapping[int, _Value] = {
    1: _NUMBER,
    2: (_NUMBER,),
    3: (_TEXT,),
    _CODEC: _NUMBER,
    **dict.fromkeys((5, 6, 7, 9, 11), _LONG),
    _STATISTICS: _STATISTICS_SHAPE,
    13: (dict.fromkeys((1, 2, 3), _NUMBER),),
    16: {1: _LONG, 2: (_LONG,), 3: (_LONG,)},
}
_CHUNK_SHAPE: Mapping[int, _Value] = {2: _LONG, _METADATA: _METADATA_SHAPE}

_NUM_CODECS = 8
_VALUE_BYTES = {"BYTE_ARRAY": 0, "BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8,
                "INT96": 12}  # fmt: skip


def is_movable(chunk: bytes, column: pq.ColumnSchema) -> bool:
    """Whether a `ColumnChunk` refers only to its pages, and Arrow can read it as metadata.

    Indexes and filters are elsewhere in the file. In a new file Arrow reads everything that
    `chunk_metadata` lists; a damaged chunk would crash the process.

    `chunk`: from the footer of a file whose chunks were checked.
    """
    cursor = Cursor(chunk)
    try:
        if not _has_fields(cursor, _CHUNK_SHAPE) or cursor.position != len(chunk):
            return False
        return _codec(chunk) in range(_NUM_CODECS) and _bound_bytes(chunk) >= _VALUE_BYTES.get(
            column.physical_type, column.length
        )
    except IndexError:
        return False


def _has_fields(cursor: Cursor, shape: Mapping[int, _Value]) -> bool:
    last = 0
    for field, kind in cursor.fields():
        if field <= last or field not in shape or not _is_value(cursor, kind, shape[field]):
            return False
        last = field
    return True


def _is_value(cursor: Cursor, kind: int, expected: _Value) -> bool:
    if isinstance(expected, tuple):
        if kind != LIST:
            return False
        count, element = cursor.list_header()
        return all(_is_value(cursor, element, expected[0]) for _ in range(count))
    if isinstance(expected, frozenset):
        cursor.skip(kind)
        return kind in expected
    return kind == STRUCT and _has_fields(cursor, expected)


def _codec(chunk: bytes) -> int:
    cursor = Cursor(chunk)
    return cursor.integer() if cursor.find(_METADATA) and cursor.find(_CODEC) else -1


def _bound_bytes(chunk: bytes) -> int:
    """Bytes of the shortest bound, or those of the chunk if it has none."""
    cursor, shortest = Cursor(chunk), len(chunk)
    if cursor.find(_METADATA) and cursor.find(_STATISTICS):
        for field, kind in cursor.fields():
            if field in _BOUNDS:
                shortest = min(shortest, len(cursor.binary()))
            else:
                cursor.skip(kind)
    return shortest
