"""The footers of Parquet files, with a checksum that Parquet has none of.

Pages carry one, and the footer that says where they are and what they hold does not: a bit that
turns over in it makes other statistics, other counts and other names, and some of these end the
process in Arrow. Files that are written here have twelve bytes before the footer, where readers
see nothing: a mark, and the CRC-32 of what follows up to the length.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_delta.protocol.checkpoint.parquet_reader import open_parquet_reader

__all__ = ["chunk_statistics", "copy_sealed", "open_footer", "sealed", "with_sealed_footer"]

_MARK = b"DltFtCrc"
_SEAL_BYTES = len(_MARK) + 4
_MAGIC = b"PAR1"
_END_BYTES = 8
"""Length of the footer, and magic."""
_TAIL_BYTES = 64 * 1024
"""What is read of a file at first: nearly always the whole footer."""
_COPIED_BYTES = 4 * 1024 * 1024


def sealed(footer: bytes | memoryview) -> bytes:
    """What stands before a footer.

    Args:
        footer: the Thrift metadata alone.
    """
    return _MARK + zlib.crc32(footer).to_bytes(4, "little")


def with_sealed_footer(file: bytes) -> bytes:
    """A whole file with the checksum in it."""
    view = memoryview(file)
    start = len(file) - _END_BYTES - _footer_length(file)
    return b"".join((view[:start], sealed(view[start:-_END_BYTES]), view[start:]))


def copy_sealed(file: Path, sink: Any) -> int:
    """Write a whole file of the local disk with the checksum in it, some megabytes at a time.

    Args:
        file: Parquet file without the checksum.
        sink: what takes the bytes by `write`.

    Returns:
        Number of bytes written.
    """
    with file.open("rb") as source:
        size = source.seek(-_END_BYTES, os.SEEK_END) + _END_BYTES
        remaining = size - _END_BYTES - _footer_length(source.read())
        source.seek(0)
        while remaining:
            some = source.read(min(remaining, _COPIED_BYTES))
            sink.write(some)
            remaining -= len(some)
        end = source.read()
    sink.write(sealed(memoryview(end)[:-_END_BYTES]))
    sink.write(end)
    return size + _SEAL_BYTES


def open_footer(handle: Any, **options: Any) -> Any:
    """A `ParquetReader` of a file of which nothing but the footer can be read, in one request.

    Args:
        handle: `pyarrow.NativeFile` of the file.
        options: as for `open_parquet_reader`.

    Raises:
        pyarrow.ArrowInvalid, OSError: it is no Parquet file, cannot be read, or its footer does not
            have the checksum that stands before it.
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
        raise pa.ArrowInvalid("the footer does not have the checksum that stands before it")
    return open_parquet_reader(pa.BufferReader(tail), **options)


def chunk_statistics(metadata: Any, group: int, leaf: int) -> Any:
    """The `pyarrow.parquet.Statistics` of one column in one row group; None where it has none.

    Args:
        metadata: `pyarrow.parquet.FileMetaData`.
        group: index of the row group.
        leaf: index of the leaf column.

    Raises:
        pyarrow.ArrowInvalid: the footer contradicts itself about the type of the column, where
            Arrow would end the process.
    """
    chunk, column = metadata.row_group(group).column(leaf), metadata.schema.column(leaf)
    if chunk.physical_type != column.physical_type:
        raise pa.ArrowInvalid(
            f"the footer says that column {column.path} holds {column.physical_type}, and that it "
            f"holds {chunk.physical_type} in row group {group}"
        )
    return chunk.statistics


def _read_tail(handle: Any, size: int, length: int) -> bytes:
    length = min(size, length)
    found: bytes = handle.read_at(length, size - length)
    return found


def _footer_length(tail: bytes) -> int:
    return int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
