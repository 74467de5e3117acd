"""Rows of data files by position: collected as bitmaps, selected by a join, and their ids.

Deletion vectors are a small table that Spark joins to the rows of their files. One row is a chunk
of 65,536 rows of one file, with a bit per deleted row, packed into 64-bit words: testing a row
costs a hash lookup and a shift, for any share of deleted rows.

Spec: Deletion Vectors; Row Tracking (reader requirements).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.arrow.row_matching import bitmap_of
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.spark.read.file_keys import (
    FILE_KEY,
    ROW_INDEX,
    hash_long,
    keys_of_files,
    missed_file,
)
from dagster_delta.engines.spark.session.session import frame_of, functions_of
from dagster_delta.errors import InvalidTable
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.row_tracking import MaterializedColumns
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.sql.tokens import quote
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame


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
    vectors = [DeletionVectorDescriptor(**file) for file in files["deletion_vector"].to_pylist()]
    paths = [decode_path(file) for file in files["path"].to_pylist()]
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
    offsets = np.concatenate(([0], np.cumsum([len(word) for word in words]))).astype(np.int32)
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


_BUCKET, _BITS = "__delta_bucket", "__delta_bits"
_CHUNK, _WORDS = "__delta_chunk", "__delta_mark_words"

# Number of bits of one bitmap of `bitmap_construct_agg`.
_BUCKET_ROWS = 32_768


@dataclass(frozen=True, slots=True)
class FileIndex:
    """Data files by the keys in rows of a read with positions."""

    paths: Mapping[int, str]
    """Path as in the log."""

    @classmethod
    def of(cls, files: pa.Table, store: ObjectStore, *, version: int) -> FileIndex:
        """The index of the files of a plan."""
        keys = keys_of_files(files, store).tolist()
        paths = dict(zip(keys, files["path"].to_pylist(), strict=True))
        if len(paths) != len(keys):
            raise InvalidTable(
                "two files of the table have the same name, or the same 64-bit hash of it, so "
                'Spark would mix up their rows: change the table with engine="arrow"',
                table=store.location.uri,
                version=version,
            )
        return cls(paths)

    def by_path(self, rows: Mapping[int, BitMap64], *, table: str) -> dict[str, BitMap64]:
        """Bitmaps by path instead of by key."""
        unknown = [row for row in rows if row not in self.paths]
        if unknown:
            raise InvalidTable(
                "Spark reports another path for a data file than the log does; give the full URI "
                'of the table, or change it with engine="arrow"',
                table=table,
            )
        return {self.paths[key]: bitmap for key, bitmap in rows.items()}


def collect_rows(rows: DataFrame) -> dict[int, BitMap64]:
    """Indexes of the rows of a frame with positions, by the key of their file.

    The executors build the bitmaps; the driver gets one bit per row at most.
    """
    bitmaps: dict[int, BitMap64] = {}
    for key, *bucket in _buckets(rows, ROW_INDEX, FILE_KEY).collect():
        bitmaps[key] = bitmaps.get(key, BitMap64()) | _bucket_rows(*bucket)
    return bitmaps


def collect_numbers(rows: DataFrame, name: str) -> BitMap64:
    """The distinct numbers in a column of a frame, without nulls."""
    known = rows.where(functions_of(rows).col(name).isNotNull())
    return BitMap64.union(
        BitMap64(), *(_bucket_rows(*each) for each in _buckets(known, name).collect())
    )


def _buckets(rows: DataFrame, name: str, *keys: str) -> DataFrame:
    functions = functions_of(rows)
    number = functions.col(name) + 1
    return rows.groupBy(*keys, functions.bitmap_bucket_number(number).alias(_BUCKET)).agg(
        functions.bitmap_construct_agg(functions.bitmap_bit_position(number)).alias(_BITS)
    )


def _bucket_rows(bucket: int, bits: bytes) -> BitMap64:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return bitmap_of(np.flatnonzero(flags) + (bucket - 1) * _BUCKET_ROWS)


def with_number_marks(rows: DataFrame, number: str, marked: BitMap64, name: str) -> DataFrame:
    """A frame with a boolean column: whether the row's number is in a bitmap."""
    functions = functions_of(rows)
    chunks = list(words_of(marked))
    if not chunks:
        return rows.withColumn(name, functions.lit(False))
    offsets = np.concatenate(([0], np.cumsum([len(words) for _, words in chunks]))).astype(np.int32)
    words = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(np.concatenate([each for _, each in chunks]))
    )
    found = frame_of(
        rows.sparkSession,
        pa.table([pa.array([chunk for chunk, _ in chunks], pa.int64()), words], [_CHUNK, _WORDS]),
        f"{_CHUNK} long, {_WORDS} array<long>",
    )
    chunk = functions.shiftright(functions.col(number), CHUNK_BITS)
    joined = rows.join(functions.broadcast(found), chunk == found[_CHUNK], "left")
    within = functions.col(number).bitwiseAND(CHUNK_ROWS - 1).cast("int")
    word = functions.get(functions.col(_WORDS), functions.shiftright(within, 6))
    bit = functions.call_function("shiftright", functions.coalesce(word, functions.lit(0)), within)
    marked_rows = joined.withColumn(name, bit.bitwiseAND(1) == 1)
    return marked_rows.select(*[functions.col(quote(each)) for each in (*rows.columns, name)])


_KEY, _BASE, _VERSION = "__delta_ids_of", "__delta_base_row_id", "__delta_default_version"


def with_row_ids(rows: DataFrame, plan: ReadPlan, columns: MaterializedColumns) -> DataFrame:
    """The rows of a read with positions; those without a materialized id or version get one from
    their position, by the row ids of the files in the log.
    """
    functions = functions_of(rows)
    files = plan.files
    known = pa.table(
        {
            _KEY: pa.array(keys_of_files(files, plan.store), pa.int64()),
            _BASE: files["base_row_id"],
            _VERSION: files["default_row_commit_version"],
        }
    )
    schema = f"{_KEY} long, {_BASE} long, {_VERSION} long"
    entries = frame_of(rows.sparkSession, known, schema)
    found = functions.col(FILE_KEY) == functions.col(_KEY)
    joined = rows.join(functions.broadcast(entries), found, "left")
    # A silent miss would leave rows without ids.
    missed = missed_file(functions).cast("long")
    is_found = functions.col(_KEY).isNotNull()
    row_id = functions.col(_BASE) + functions.col(ROW_INDEX)
    carried = {
        name: functions.when(is_found, value).otherwise(missed)
        for name, value in zip(columns.names, (row_id, functions.col(_VERSION)), strict=False)
    }
    return joined.select(
        *[
            functions.coalesce(functions.col(quote(name)), carried[name]).alias(name)
            if name in carried
            else functions.col(quote(name))
            for name in rows.columns
        ]
    )
