"""Reading many data files as one stream of record batches of the table's schema.

Several workers decode ahead of the consumer; the order is that of the files and of the rows in
them, and no more than a fixed number of bytes waits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_delta.engines.parquet.read.data_file import data_files
from dagster_delta.engines.parquet.read.data_file_reader import DataFileReader
from dagster_delta.engines.parquet.read.ordered_prefetch import BatchSource, prefetch_in_order
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.checkpoint.parquet_reader import decoding_pool
from dagster_delta.protocol.features.table_configuration import TableConfiguration
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_delta.sql.expressions import SqlExpression

__all__ = ["deletion_vectors_of", "read_ahead", "read_files"]

MAX_BUFFERED_BYTES = 24 * 1024 * 1024
"""Arrow bytes that wait for the consumer."""
SMALL_BATCH_ROWS = 16_384
"""Batches of fewer rows are put together, so that many small files do not make many batches."""
SMALL_BATCH_BYTES = 4 * 1024 * 1024
"""Batches of more Arrow bytes stay as they are, however few rows they have."""

_REMOTE_THREADS = 8
_MAX_LOCAL_THREADS = 16


def read_files(
    store: ObjectStore,
    files: pa.Table,
    configuration: TableConfiguration,
    columns: Sequence[str],
    *,
    where: SqlExpression | None = None,
    threads: int | None = None,
    verifies_pages: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The live rows of many data files in file order, decoded by several threads.

    Args:
        store: store of the table.
        files: `pyarrow.Table` with the columns of `LIVE_FILE_SCHEMA`.
        configuration: of the version that is read.
        columns: logical top-level columns, in order.
        where: exact filter, evaluated by the embedded SQL engine.
        threads: workers; by default one per core, and more where the store is not local.
        verifies_pages: whether pages are held against the checksums that they carry.

    Raises:
        DataFileMissing, CorruptDeletionVector, InvalidTable, UnsupportedFeature, StorageFailure,
        InvalidArgument (from the filter).
    """
    reader = DataFileReader(
        store,
        configuration,
        columns,
        where=where,
        expected_vectors=deletion_vectors_of(files),
        verifies_pages=verifies_pages,
    )
    return read_ahead(store, reader.sources(data_files(files)), threads=threads)


def read_ahead(
    store: ObjectStore, sources: Iterable[BatchSource], *, threads: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches of all sources in order, several sources at work at once; small ones are merged.

    Args:
        store: what the sources read from.
        sources: those of a `DataFileReader`, or what was made of them; what they bring that is no
            batch comes through as it is, in its place.
        threads: workers; by default one per core, and more where the store is not local.

    Raises:
        Whatever a source raises.
    """
    return _merge_small(
        prefetch_in_order(
            sources,
            threads=threads or _thread_count(store),
            max_buffered_bytes=MAX_BUFFERED_BYTES,
        )
    )


def deletion_vectors_of(files: pa.Table) -> Iterable[DeletionVectorDescriptor]:
    """The deletion vectors that the files of a `pyarrow.Table` have."""
    column = files.column("deletion_vector")
    if column.null_count == len(column):
        return ()
    return [DeletionVectorDescriptor(**each) for each in column.drop_null().to_pylist()]


def _thread_count(store: ObjectStore) -> int:
    if store.local_path("") is None:
        return _REMOTE_THREADS
    return max(2, min(os.cpu_count() or 2, _MAX_LOCAL_THREADS))


def _merge_small(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    waiting: list[Any] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        is_small = isinstance(batch, pa.RecordBatch) and batch.num_rows < SMALL_BATCH_ROWS
        if is_small:
            size_bytes = batch.nbytes
            is_small = size_bytes < SMALL_BATCH_BYTES
        if is_small:
            waiting.append(batch)
            waiting_rows += batch.num_rows
            waiting_bytes += size_bytes
        is_enough = waiting_rows >= SMALL_BATCH_ROWS or waiting_bytes >= SMALL_BATCH_BYTES
        if waiting and (not is_small or is_enough):
            yield from _merge(waiting)
            waiting, waiting_rows, waiting_bytes = [], 0, 0
        if not is_small:
            yield batch
    if waiting:
        yield from _merge(waiting)


def _merge(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) == 1 or not batches[0].num_columns:
        return batches
    merged: list[Any] = pa.Table.from_batches(batches).combine_chunks(decoding_pool()).to_batches()
    return merged
