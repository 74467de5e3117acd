"""Rows of data files by position: collected as bitmaps, selected by a join, and their ids.

Deletion vectors are a small table that Spark joins to the rows of their files. One row is a chunk
of 65,536 rows of one file, with a bit per deleted row, packed into 64-bit words: testing a row
costs a hash lookup and a shift, for any share of deleted rows.

Spec: Deletion Vectors; Row Tracking (reader requirements).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.arrow.predicate_matching import bitmap_of
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.spark.read.file_keys import (
    FILE_KEY,
    ROW_INDEX,
    check_distinct,
    file_number,
    keys_of_files,
    value_of_file,
)
from dagster_delta.engines.spark.session.session import frame_of, functions_of
from dagster_delta.errors import InvalidTable
from dagster_delta.nested_arrays import runs_of
from dagster_delta.parquet.deletion_vectors import DeletionVectorLoader
from dagster_delta.protocol.actions import DeletionVectorDescriptor
from dagster_delta.protocol.features.row_tracking import MaterializedColumns
from dagster_delta.protocol.statistics.statistics import parse_statistics_json
from dagster_delta.protocol.values.partition_values import decode_path
from dagster_delta.sql.typed import quote
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame


_CHUNK_BITS = 16
"""A chunk holds two to the power of this many rows, as many as a container of a roaring bitmap."""
CHUNK_ROWS = 1 << _CHUNK_BITS
_FILE_BITS = 40
"""The index of a row in its file has fewer bits."""
_LOADING_THREADS = 16
_WORD_BITS = 64

Chunk = tuple[int, "NDArray[np.int64]"]
"""Number of a chunk, and its words: bit `i % 64` of word `i / 64` is set where row `i` of the chunk
is marked; trailing zero words are omitted."""


def row_number(file: Column, row_index: Column) -> Column:
    """A unique number for each row of some files.

    `file`: number of the row's file.
    """
    return file * (1 << _FILE_BITS) + row_index


def without_deleted_rows(rows: DataFrame, name: str, bitmaps: Sequence[BitMap64]) -> DataFrame:
    """The rows of files without those that their deletion vectors delete.

    `name`: column with the `row_number`.
    `bitmaps`: the deletion vectors, in the order of the numbers of the files.
    """
    chunks = [
        ((file << (_FILE_BITS - _CHUNK_BITS)) + chunk, words)
        for file, bitmap in enumerate(bitmaps)
        for chunk, words in _split_into_chunks(bitmap)
    ]
    return _without_marked(rows, name, chunks)


def without_numbers(rows: DataFrame, name: str, marked: BitMap64) -> DataFrame:
    """The rows whose number, in the named column, is not in a bitmap."""
    return _without_marked(rows, name, list(_split_into_chunks(marked)))


def _without_marked(rows: DataFrame, name: str, chunks: Sequence[Chunk]) -> DataFrame:
    """Spark takes the size of an anti join for that of its left side; that of other joins it takes
    for the product of both, and then no longer broadcasts the result.
    """
    functions = functions_of(rows)
    if not chunks:
        return rows
    offsets = np.cumsum([0, *(len(words) for _, words in chunks)]).astype(np.int32)
    words = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(np.concatenate([words for _, words in chunks]))
    )
    numbers = pa.array([number for number, _ in chunks], pa.int64())
    marked = frame_of(
        rows.sparkSession,
        pa.table([numbers, words], [_CHUNK, _WORDS]),
        f"{_CHUNK} long, {_WORDS} array<long>",
    )
    row = rows[quote(name)]
    within = row.bitwiseAND(CHUNK_ROWS - 1).cast("int")
    word = functions.get(marked[_WORDS], functions.shiftright(within, 6))
    bit = functions.call_function("shiftright", word, within).bitwiseAND(1)
    is_marked = (functions.shiftright(row, _CHUNK_BITS) == marked[_CHUNK]) & (bit == 1)
    return rows.join(functions.broadcast(marked), is_marked, "left_anti")


def load_bitmaps(files: pa.Table, store: ObjectStore) -> list[BitMap64]:
    """The deletion vector of each file.

    `files`: pyarrow.Table with the columns of `LIVE_FILE_SCHEMA`, all with a deletion vector.
    """
    num_rows = parse_statistics_json(files["stats"], ())["num_records"].to_pylist()
    vectors = [DeletionVectorDescriptor(**file) for file in files["deletion_vector"].to_pylist()]
    paths = [decode_path(file) for file in files["path"].to_pylist()]
    loader = DeletionVectorLoader(store, vectors)

    def load(vector: DeletionVectorDescriptor, path: str, rows: int | None) -> BitMap64:
        return loader.load(vector, data_file=path, num_rows=rows)

    with ThreadPoolExecutor(_LOADING_THREADS) as pool:
        return list(pool.map(load, vectors, paths, num_rows))


def _split_into_chunks(bitmap: BitMap64) -> Iterator[Chunk]:
    """The chunks in which the bitmap has a row."""
    rows = np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)
    for run in runs_of(rows >> _CHUNK_BITS):
        yield int(rows[run.start] >> _CHUNK_BITS), _pack_words(rows[run])


def _pack_words(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A bit per row of one chunk, in order."""
    within = rows & (CHUNK_ROWS - 1)
    bits = np.zeros((int(within[-1]) // _WORD_BITS + 1) * _WORD_BITS, np.uint8)
    bits[within] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


_BUCKET, _BITS = "__delta_bucket", "__delta_bits"
_CHUNK, _WORDS = "__delta_chunk", "__delta_mark_words"

# Number of bits of one bitmap of `bitmap_construct_agg`.
_BUCKET_ROWS = 32_768


class FileIndex(msgspec.Struct, frozen=True):
    """Data files by the keys in rows of a read with positions."""

    paths: Mapping[int, str]
    """Path as in the log."""

    @classmethod
    def of(cls, files: pa.Table, store: ObjectStore, *, version: int) -> FileIndex:
        """The index of the files of a plan."""
        keys = keys_of_files(files, store)
        check_distinct(keys, table=store.location.uri, version=version)
        return cls(dict(zip(keys.tolist(), files["path"].to_pylist(), strict=True)))

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
    for key, *bucket in _build_buckets(rows, ROW_INDEX, FILE_KEY).collect():
        bitmaps[key] = bitmaps.get(key, BitMap64()) | _bucket_rows(*bucket)
    return bitmaps


def collect_numbers(rows: DataFrame, name: str) -> BitMap64:
    """The distinct numbers in a column of a frame, without nulls."""
    known = rows.where(functions_of(rows).col(name).isNotNull())
    return BitMap64.union(
        BitMap64(), *(_bucket_rows(*bucket) for bucket in _build_buckets(known, name).collect())
    )


def _build_buckets(rows: DataFrame, name: str, *keys: str) -> DataFrame:
    functions = functions_of(rows)
    number = functions.col(name) + 1
    return rows.groupBy(*keys, functions.bitmap_bucket_number(number).alias(_BUCKET)).agg(
        functions.bitmap_construct_agg(functions.bitmap_bit_position(number)).alias(_BITS)
    )


def _bucket_rows(bucket: int, bits: bytes) -> BitMap64:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return bitmap_of(np.flatnonzero(flags) + (bucket - 1) * _BUCKET_ROWS)


def with_row_ids(rows: DataFrame, plan: ReadPlan, columns: MaterializedColumns) -> DataFrame:
    """The rows of a read with positions; those without a materialized id or version get one from
    their position, by the row ids of the files in the log.
    """
    if not plan.files.num_rows:
        return rows
    functions, session = functions_of(rows), rows.sparkSession
    keys = keys_of_files(plan.files, plan.store)
    check_distinct(keys, table=plan.store.location.uri, version=plan.version)
    number = file_number(functions.col(FILE_KEY), keys, session)
    base, version = (
        value_of_file(number, plan.files[name].to_pylist(), "bigint", session)
        for name in ("base_row_id", "default_row_commit_version")
    )
    carried = dict(zip(columns.names, (base + functions.col(ROW_INDEX), version), strict=False))
    return rows.select(
        *[
            functions.coalesce(functions.col(quote(name)), carried[name]).alias(name)
            if name in carried
            else functions.col(quote(name))
            for name in rows.columns
        ]
    )
