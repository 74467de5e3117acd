"""Reads many data files as one stream of record batches of the table's schema.

Several workers decode ahead of the consumer, up to a fixed number of bytes. Files, and the rows in
them, keep their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.parquet.data_file_reader import DataFileReader
from dagster_delta.parquet.opened_file import data_files
from dagster_delta.parquet.ordered_prefetch import BatchSource, prefetch_in_order
from dagster_delta.parquet_format.reader import decoding_pool
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from dagster_delta.parquet.plans import ReadPlan
    from dagster_delta.sql.expressions import SqlExpression

MAX_BUFFERED_BYTES = 24 * 1024 * 1024
"""Maximum Arrow bytes that wait for the consumer."""
SMALL_BATCH_ROWS = 16_384
"""Batches of fewer rows are joined, so that many small files do not give many batches."""
SMALL_BATCH_BYTES = 4 * 1024 * 1024
"""Batches of more Arrow bytes are not joined, even with few rows."""

_FEW_FILES = 4
_LITTLE_BYTES = 256 * 1024
"""Files that are read before threads would start: many groups of OPTIMIZE are no larger."""
_BATCHES_WITHOUT_THREAD = 2
_REMOTE_THREADS = 16
_MAX_LOCAL_THREADS = 16


def read_files(plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """The live rows of the files of a plan, in their order, decoded by several threads."""
    reader = plan_reader(plan, plan.columns, where=plan.where, with_positions=False)
    return read_ahead(plan.store, reader.sources(data_files(plan.files)), files=plan.files)


def read_ahead(
    store: ObjectStore,
    sources: Iterable[BatchSource],
    *,
    files: pa.Table | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches of all sources in order, read concurrently; small batches are joined.

    `sources`: sources of a `DataFileReader`, or sources made from them.
    `files`: what they read, if known: little is read by the caller's thread.
    """
    is_local = store.local_path("") is not None
    if is_local and files is not None and _is_little(files):
        return merge_small(batch for source in sources for batch in source.read())
    is_one_file = is_local and files is not None and files.num_rows == 1
    return merge_small(
        _read_one_file(store, sources) if is_one_file else _read_by_threads(store, sources)
    )


def _read_by_threads(
    store: ObjectStore, sources: Iterable[BatchSource]
) -> Iterator[pa.RecordBatch]:
    return prefetch_in_order(
        sources, threads=_thread_count(store), max_buffered_bytes=MAX_BUFFERED_BYTES
    )


def _read_one_file(store: ObjectStore, sources: Iterable[BatchSource]) -> Iterator[pa.RecordBatch]:
    """The batches of a local file, the first ones of a single row group without a thread: a filter
    often leaves few rows of one, and a thread for them takes longer than they do.
    """
    rest = iter(sources)
    first = list(islice(rest, 2))
    if len(first) == 1:
        batches = iter(first[0].read())
        yield from islice(batches, _BATCHES_WITHOUT_THREAD)
        following = next(batches, None)
        if following is None:
            return
        first = [BatchSource(lambda: chain([following], batches))]

    def every() -> Iterator[BatchSource]:
        # Unlike a chain, it closes what is left when it is closed.
        yield from first
        yield from rest

    yield from _read_by_threads(store, every())


def deletion_vectors_of(files: pa.Table) -> Iterable[DeletionVectorDescriptor]:
    """The deletion vectors that the files of a `pyarrow.Table` have, and their selections."""
    found = []
    for name in {"deletion_vector", "selection"}.intersection(files.column_names):
        column = files.column(name)
        if column.null_count < len(column):
            found += pc.drop_null(column).to_pylist()
    return [DeletionVectorDescriptor(**vector) for vector in found]


def _is_little(files: pa.Table) -> bool:
    return (
        files.num_rows <= _FEW_FILES
        and (pc.sum(files.column("size_bytes")).as_py() or 0) <= _LITTLE_BYTES
    )


def _thread_count(store: ObjectStore) -> int:
    """Workers of a read: one per core, and more if the store is remote."""
    if store.local_path("") is None:
        return _REMOTE_THREADS
    return max(2, min(os.cpu_count() or 2, _MAX_LOCAL_THREADS))


def merge_small(
    batches: Iterable[pa.RecordBatch],
    num_rows: int = SMALL_BATCH_ROWS,
    num_bytes: int = SMALL_BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The same batches, those of fewer rows and Arrow bytes joined until they have one of both."""
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        size_bytes = batch.nbytes if batch.num_rows < num_rows else num_bytes
        is_small = size_bytes < num_bytes
        if is_small:
            waiting.append(batch)
            waiting_rows += batch.num_rows
            waiting_bytes += size_bytes
        if not is_small or waiting_rows >= num_rows or waiting_bytes >= num_bytes:
            yield from _merge_batches(waiting)
            waiting, waiting_rows, waiting_bytes = [], 0, 0
        if not is_small:
            yield batch
    yield from _merge_batches(waiting)


def _merge_batches(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2 or not batches[0].num_columns:
        return batches
    merged: list[pa.RecordBatch] = (
        pa.Table.from_batches(batches).combine_chunks(decoding_pool()).to_batches()
    )
    return merged


def plan_reader(
    plan: ReadPlan,
    columns: Sequence[str],
    *,
    where: SqlExpression | None = None,
    with_positions: bool = True,
) -> DataFileReader:
    """A reader of the files of a plan, for other columns than the plan's.

    Raises:
        InvalidArgument, UnsupportedExpression: `where` is not a condition, or cannot be computed
            here.
    """
    if where is not None:
        where.check_filter()
        where.check_embeddable()
    return DataFileReader(
        plan.store,
        plan.configuration,
        columns,
        where=where,
        expected_vectors=deletion_vectors_of(plan.files),
        with_positions=with_positions,
        verifies_pages=plan.verifies_pages,
    )
