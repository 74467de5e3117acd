"""Deletion vectors as a small table that Spark joins to the rows of their files.

One row is a chunk of 65,536 rows of one file, with a bit per deleted row, packed into
64-bit words: testing a row costs a hash lookup and a shift, for any share of deleted rows.

Spec: Deletion Vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dagster_delta.engines.rows.deletion_vector_loader import DeletionVectorLoader
from dagster_delta.engines.spark.read.file_keys import hash_long
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyroaring import BitMap64

CHUNK_BITS = 16
"""A chunk holds two to the power of this many rows, as many as a container of a roaring bitmap."""

CHUNK_ROWS = 1 << CHUNK_BITS
_LOADING_THREADS = 16
_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """All chunks of the files of one scan."""

    keys: NDArray[np.int64]
    """`xxhash64(path, row_index >> 16)` of each chunk."""
    words: pa.ListArray
    """pyarrow.ListArray of int64: bit `i % 64` of word `i / 64` is set where row `i` of the chunk
    is deleted; trailing zero words are omitted."""
    files: NDArray[np.int64]
    """Position in the scan of the file that each chunk belongs to."""


def load_bitmaps(files: pa.Table, store: ObjectStore, num_rows: Sequence[int]) -> list[BitMap64]:
    """The deletion vector of each file.

    `files`: pyarrow.Table with the columns of `LIVE_FILE_SCHEMA`, all with a deletion vector.
    `num_rows`: physical number of rows of each file.
    """
    vectors = [DeletionVectorDescriptor(**each) for each in files["deletion_vector"].to_pylist()]
    paths = [decode_path(each) for each in files["path"].to_pylist()]
    loader = DeletionVectorLoader(store, vectors)

    def load(vector: DeletionVectorDescriptor, path: str, rows: int) -> BitMap64:
        return loader.load(vector, data_file=path, num_rows=rows)

    with ThreadPoolExecutor(_LOADING_THREADS) as pool:
        return list(pool.map(load, vectors, paths, num_rows))


def chunk_table(
    bitmaps: Sequence[BitMap64], num_rows: Sequence[int], path_keys: NDArray[np.int64]
) -> ChunkTable:
    """Every chunk of every file, those without a deleted row included.

    A row whose chunk is missing thus differs from a row that is not deleted.

    `num_rows`: physical number of rows of each file.
    """
    counts = -(-np.array(num_rows, np.int64) // CHUNK_ROWS)
    files = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    chunks = np.arange(len(files)) - np.repeat(starts, counts)
    keys = hash_long(chunks, path_keys[files])
    words = [
        each
        for bitmap, count in zip(bitmaps, counts.tolist(), strict=True)
        for each in _words_by_chunk(bitmap, count)
    ]
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in words]))).astype(np.int32)
    values = np.concatenate(words) if words else np.empty(0, np.int64)
    return ChunkTable(keys, pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)), files)


def words_of(bitmap: BitMap64) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Number and words of each chunk in which the bitmap has a row; see `ChunkTable`."""
    rows = np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)
    bounds = np.flatnonzero(np.diff(rows >> CHUNK_BITS)) + 1
    for part in np.split(rows, bounds):
        if len(part):
            yield int(part[0] >> CHUNK_BITS), _words(part)


def _words_by_chunk(bitmap: BitMap64, count: int) -> Iterator[NDArray[np.int64]]:
    deleted = np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)
    bounds = np.searchsorted(deleted, np.arange(count + 1, dtype=np.int64) << CHUNK_BITS)
    for chunk in range(count):
        yield _words(deleted[bounds[chunk] : bounds[chunk + 1]])


def _words(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bit per row of one chunk, in order."""
    within = rows & (CHUNK_ROWS - 1)
    length = int(within[-1]) // _WORD_BITS + 1 if len(within) else 0
    bits = np.zeros(length * _WORD_BITS, np.uint8)
    bits[within] = 1
    return np.packbits(bits, bitorder="little").view("<i8")
