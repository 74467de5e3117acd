"""Opening Parquet bytes with an allocator that suits decoding, and without a file system."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.errors import StorageFailure

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FETCHED_BYTES = 64 * 1024 * 1024
"""Compressed bytes of one file that are fetched ahead of decoding them."""


def open_parquet_reader(
    source: pa.NativeFile | pa.PythonFile, **options: object
) -> pq.core.ParquetReader:
    """A `pyarrow.parquet.core.ParquetReader` over an open file.

    `pyarrow.parquet.ParquetFile` wraps the same reader and accepts no memory pool; it calls the
    same methods as used here (`schema_arrow`, `metadata`, `iter_batches`). ArrowInvalid or OSError:
    it is not a Parquet file, or cannot be read.
    """
    # Import it from its module: `pyarrow.parquet` first loads every file system that Arrow
    # supports, which takes as long as finding one file among 100,000.
    from pyarrow._parquet import ParquetReader

    reader = ParquetReader(memory_pool=decoding_pool())
    reader.open(source, **options)
    return reader


def storage_failure(
    error: BaseException | None, *, table: str | None = None, file: str
) -> StorageFailure | None:
    """The storage failure during a read by Arrow, or None for another error.

    Arrow's decoder raises the same OSError for bad bytes as the operating system does for a failed
    read, but only that sets `errno`. Stores raise a StorageFailure of their own.
    """
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
        return None
    if not error.errno:
        return None
    return StorageFailure.of_system(error, "A file could not be read", table=table, file=file)


def column_ranges(
    footer: pq.FileMetaData, group: int, parquet_columns: Sequence[int]
) -> list[tuple[int, int]]:
    """Offset and length in bytes of columns of a row group."""
    row_group = footer.row_group(group)
    found = []
    for index in parquet_columns:
        chunk = row_group.column(index)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        found.append((start, chunk.total_compressed_size))
    return found


@cache
def decoding_pool() -> pa.MemoryPool:
    """The `pyarrow.MemoryPool` for decoded columns.

    Decoding allocates and frees large buffers all the time. jemalloc keeps the pages for the next
    buffers. mimalloc, the usual default, returns them to the system and requests huge pages, which
    Linux must assemble first: with it, the same scan took two to three times as long, and so did
    opening a table of a million files, mostly in the kernel.
    """
    if "jemalloc" in pa.supported_memory_backends():
        return pa.jemalloc_memory_pool()
    return pa.default_memory_pool()


def release_scratch_memory() -> None:
    """Release unused memory of this thread in the default memory pool.

    Arrow allocates scratch memory from the default pool, whichever pool it decodes or encodes with,
    and mimalloc keeps many times the allocated size per thread: tens of megabytes for two or three.
    """
    pa.default_memory_pool().release_unused()
