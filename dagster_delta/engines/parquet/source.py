"""Opening Parquet files with the allocator that suits decoding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from dagster_delta.storage.object_store import ObjectStore

__all__ = ["count_file_rows", "decoding_pool", "open_parquet"]

_MAX_INDEX_BYTES = 2
"""Bytes per value, dictionary included, up to which a column counts as repetitive."""


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


def open_parquet(handle: Any, *, footer: Any = None, dictionaries: Sequence[int] = ()) -> Any:
    """A `pyarrow.parquet.core.ParquetReader` over an open file.

    `pyarrow.parquet.ParquetFile` wraps the same reader and takes no memory pool; everything used
    here (`schema_arrow`, `metadata`, `iter_batches`) is what it calls itself.

    Args:
        handle: `pyarrow.NativeFile` of the file.
        footer: its `pyarrow.parquet.FileMetaData` where that is known already.
        dictionaries: indexes of Parquet columns to decode into dictionary arrays.
    """
    from pyarrow.parquet.core import ParquetReader

    reader = ParquetReader(memory_pool=decoding_pool())
    # INT96 holds times far outside what nanoseconds can count.
    reader.open(
        handle,
        metadata=footer,
        read_dictionary=list(dictionaries) or None,
        coerce_int96_timestamp_unit="us",
    )
    return reader


def repetitive_columns(footer: Any, group: int, parquet_columns: Sequence[int]) -> list[int]:
    """Those of the Parquet columns that are top-level text with few distinct values.

    Decoding them as dictionaries, and the dictionary arrays afterwards, takes half the time.

    Args:
        footer: `pyarrow.parquet.FileMetaData` of the file.
        group: index of the row group that is looked at.
        parquet_columns: indexes of the columns that will be decoded.
    """
    row_group = footer.row_group(group)
    found = []
    for index in parquet_columns:
        column = footer.schema.column(index)
        if column.physical_type != "BYTE_ARRAY" or column.path != column.name:
            continue
        chunk = row_group.column(index)
        if chunk.has_dictionary_page and (
            chunk.total_uncompressed_size <= chunk.num_values * _MAX_INDEX_BYTES
        ):
            found.append(index)
    return found


def count_file_rows(store: ObjectStore, path: str) -> int:
    """The rows of a data file by its footer, deleted ones counted.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it is no Parquet file, or the store refused or failed.
    """
    return int(open_parquet(store.open_input(path)).metadata.num_rows)
