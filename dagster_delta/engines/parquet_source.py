"""Opening Parquet files with the allocator that suits decoding."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from dagster_delta.storage.object_store import ObjectStore

__all__ = ["count_file_rows", "decoding_pool", "open_parquet"]


@cache
def decoding_pool() -> Any:
    """The `pyarrow.MemoryPool` for decoded columns.

    Decoding allocates and frees large buffers all the time. jemalloc keeps the pages for the next
    ones, where mimalloc, the usual default, gives them back to the system: the same scan took two
    to three times as long with it, most of that in the kernel.
    """
    if "jemalloc" in pa.supported_memory_backends():
        return pa.jemalloc_memory_pool()
    return pa.default_memory_pool()


def open_parquet(handle: Any, *, footer: Any = None) -> Any:
    """A `pyarrow.parquet.core.ParquetReader` over an open file.

    `pyarrow.parquet.ParquetFile` wraps the same reader and takes no memory pool; everything used
    here (`schema_arrow`, `metadata`, `iter_batches`) is what it calls itself.

    Args:
        handle: `pyarrow.NativeFile` of the file.
        footer: its `pyarrow.parquet.FileMetaData` where that is known already.
    """
    from pyarrow.parquet.core import ParquetReader

    reader = ParquetReader(memory_pool=decoding_pool())
    # INT96 holds times far outside what nanoseconds can count.
    reader.open(handle, metadata=footer, coerce_int96_timestamp_unit="us")
    return reader


def count_file_rows(store: ObjectStore, path: str) -> int:
    """The rows of a data file by its footer, deleted ones counted.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it is no Parquet file, or the store refused or failed.
    """
    return int(open_parquet(store.open_input(path)).metadata.num_rows)
