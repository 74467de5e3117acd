"""One row group from column chunks that were encoded separately or are in another file.

Pages and statistics of a chunk do not depend on other chunks: the pages are copied and their
positions in the footer are changed, without encoding them again.

Spec: Parquet's file format and its Thrift definition.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from dagster_delta.engines.parquet.write.footer_splicing import (
    MAGIC,
    RowGroupBytes,
    footer_of_row_group,
    moved_chunk,
)
from dagster_delta.protocol.checkpoint.thrift_compact import (
    I64,
    LIST,
    STRUCT,
    Cursor,
    field_header,
    list_header_bytes,
    zigzag,
)

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
