"""Rows of data files by position: collected as bitmaps, selected by a join, and their ids.

Spec: Deletion Vectors; Row Tracking (reader requirements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from dagster_delta.engines.arrow.row_matching import bitmap_of
from dagster_delta.engines.plans import ReadPlan
from dagster_delta.engines.spark.read.deletion_vectors import CHUNK_BITS, CHUNK_ROWS, words_of
from dagster_delta.engines.spark.read.file_keys import (
    FILE_KEY,
    ROW_INDEX,
    keys_of_files,
    missed_file,
)
from dagster_delta.engines.spark.session.columns import quote
from dagster_delta.engines.spark.session.session import frame_of, functions_of
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.features.row_tracking import MaterializedColumns
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        unknown = [each for each in rows if each not in self.paths]
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
    """The rows of a read with positions; those without a materialised id or version get one from
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
