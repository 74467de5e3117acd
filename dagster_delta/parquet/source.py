"""Opens data files, and decides from their footers how to decode them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_delta.errors import DataFileMissing, DeltaError, InvalidTable, MemoryExhausted
from dagster_delta.parquet.batch_sizes import (
    BATCH_BYTES,
    BATCH_ROWS,
    longest_entry,
    may_expand,
)
from dagster_delta.protocol.checkpoint.parquet_footer import ParquetFooter, read_footer
from dagster_delta.protocol.checkpoint.parquet_reader import open_parquet_reader, storage_failure
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from dagster_delta.protocol.checkpoint.parquet_footer import ChunkStatistics

_INT96_UNIT = "us"
"""INT96 is read as microseconds: it holds times outside the range of nanoseconds."""
STREAM_BYTES = 256 * 1024
"""Bytes read at once from a column of a local file: it takes a third less memory than the whole."""
_MAX_INDEX_BYTES = 2
"""Maximum bytes per value, dictionary included, of a repetitive column."""


def open_parquet(
    handle: pa.NativeFile,
    *,
    footer: pq.FileMetaData = None,
    dictionaries: Sequence[int] = (),
    buffer_bytes: int = STREAM_BYTES,
    fetches_ahead: bool = False,
    verifies_pages: bool = False,
) -> pq.core.ParquetReader:
    """A `ParquetReader` over an open data file.

    `dictionaries`: indexes of Parquet columns to decode into dictionary arrays.
    `buffer_bytes`: read at once from a column; 0 to read columns whole.
    `fetches_ahead`: whether columns that are near each other are read together.
    """
    return open_parquet_reader(
        handle,
        metadata=footer,
        read_dictionary=list(dictionaries) or None,
        pre_buffer=fetches_ahead,
        buffer_size=buffer_bytes,
        coerce_int96_timestamp_unit=_INT96_UNIT,
        page_checksum_verification=verifies_pages,
    )


def read_data_footer(handle: pa.NativeFile) -> ParquetFooter:
    """The footer of an open data file."""
    return read_footer(handle, coerce_int96_timestamp_unit=_INT96_UNIT)


def repetitive_columns(
    footer: pq.FileMetaData, group: int, parquet_columns: Sequence[int]
) -> list[int]:
    """Those of the Parquet columns that are top-level text with few distinct values.

    Decoding them as dictionaries, and the dictionary arrays afterwards, takes half the time.
    """
    row_group = footer.row_group(group)
    found = []
    for index in parquet_columns:
        if not _is_top_level_text(footer.schema.column(index)):
            continue
        chunk = row_group.column(index)
        if chunk.has_dictionary_page and (
            chunk.total_uncompressed_size <= chunk.num_values * _MAX_INDEX_BYTES
        ):
            found.append(index)
    return found


def columns_with_long_entries(
    handle: pa.NativeFile, statistics: ChunkStatistics, group: int, parquet_columns: Sequence[int]
) -> list[int]:
    """Those of the Parquet columns that are top-level text with long entries in the dictionary.

    Any row may have such an entry, so the decoded size of rows is known only from their indexes
    into the dictionary.
    """
    footer = statistics.metadata
    row_group, schema = footer.row_group(group), footer.schema
    expandable = [
        index
        for index in parquet_columns
        if _is_top_level_text(schema.column(index))
        and row_group.column(index).has_dictionary_page
        and may_expand(row_group.column(index), schema.column(index))
        and not _is_short(statistics.text_bytes(index, group), row_group.column(index))
    ]
    if not expandable:
        return []
    reader = open_parquet(handle, footer=footer, dictionaries=expandable)
    first = next(reader.iter_batches(1, [group], expandable, use_threads=False), None)
    if first is None:
        return []
    # The columns of a batch are in the order of the file.
    return [
        index
        for index, column in zip(sorted(expandable), first.columns, strict=True)
        if longest_entry(column.dictionary) * BATCH_ROWS > BATCH_BYTES
    ]


def _is_short(text_bytes: int | None, chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether the values of a row group take no more than a batch or their pages, if the footer is
    right: a writer may have counted otherwise, so `BatchSizes` begins with few rows all the same.
    """
    most = max(chunk.total_uncompressed_size, BATCH_BYTES)
    return text_bytes is not None and 0 <= text_bytes <= most


def _is_top_level_text(column: pq.ColumnSchema) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY" and column.path == column.name)


@contextmanager
def naming_data_file(store: ObjectStore, path: str) -> Iterator[None]:
    """Errors in this block name the table and the data file, and say whether the file is missing,
    the storage failed, or the bytes are bad.
    """
    table = store.location.uri
    try:
        yield
    except DeltaError as error:
        error.table = error.table or table
        error.file = error.file or path
        raise
    except FileNotFoundError as error:
        raise DataFileMissing(
            "the log refers to a data file that is missing: restore the file, or restore the "
            "table to an older version",
            table=table,
            file=path,
        ) from error
    except MemoryError as error:
        raise MemoryExhausted.of_file(error, table=table, file=path) from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        failure = storage_failure(error, table=table, file=path)
        if failure is not None:
            raise failure from error
        if store.local_path("") is None:
            # Over HTTP, the error page of a proxy does not decode either. Reading
            # from the store shows whether the object exists.
            with suppress(FileNotFoundError):
                store.read_range(path, 0, 1)
        raise InvalidTable(
            f"the data file cannot be read ({error}): it is cut or damaged; restore it from a "
            "copy, or restore the table to an older version",
            table=table,
            file=path,
        ) from error
