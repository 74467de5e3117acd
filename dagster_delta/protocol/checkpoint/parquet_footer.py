"""The footers of Parquet files, with a checksum that Parquet itself does not define.

Pages have a checksum, but the footer has none: a flipped bit in it changes statistics, counts and
names, and some of these end the process in Arrow. Data files written here have twelve bytes before
the footer, which readers ignore: a mark, and the CRC-32 of the footer up to its length.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from dagster_delta.protocol.checkpoint.chunk_metadata import (
    ChunkStatistics,
    check_chunks,
    unread_file,
)
from dagster_delta.protocol.checkpoint.parquet_reader import open_parquet_reader

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MARK = b"DltFtCrc"
_SEAL_BYTES = len(_MARK) + 4
_MAGIC = b"PAR1"
_END_BYTES = 8
"""Length of the footer, and magic."""
_TAIL_BYTES = 64 * 1024
"""Bytes of the first read at the end of a file: nearly always the whole footer."""


def sealed(footer: bytes | memoryview) -> bytes:
    """The bytes before a footer."""
    return _MARK + zlib.crc32(footer).to_bytes(4, "little")


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

    ArrowInvalid or OSError: it is not a Parquet file, cannot be read, its footer does not match its
    checksum, or contradicts itself.
    """
    size = handle.size()
    tail = _read_tail(handle, size, _TAIL_BYTES)
    needed = _footer_length(tail) + _END_BYTES + _SEAL_BYTES
    if len(tail) < needed <= size:
        tail = _read_tail(handle, size, needed)
    seal = tail[max(0, len(tail) - needed) :][:_SEAL_BYTES]
    footer = memoryview(tail)[len(tail) - needed + _SEAL_BYTES : -_END_BYTES]
    is_sealed = len(tail) >= needed and tail.endswith(_MAGIC) and seal.startswith(_MARK)
    if is_sealed and seal != sealed(footer):
        raise pa.ArrowInvalid("the footer does not match the checksum before it")
    source = pa.BufferReader(tail)
    reader = of_whole = open_parquet_reader(source, **options)
    metadata = reader.metadata
    if len(tail) < size:
        source = unread_file(size)
        of_whole = open_parquet_reader(source, metadata=metadata)
    check_chunks(of_whole, source)
    return ParquetFooter(metadata, ChunkStatistics(metadata, bytes(footer)), reader)


def _read_tail(handle: pa.NativeFile | pa.PythonFile, size: int, length: int) -> bytes:
    length = min(size, length)
    found: bytes = handle.read_at(length, size - length)
    return found


def _footer_length(tail: bytes) -> int:
    return int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
