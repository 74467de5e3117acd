"""Which file a row of a Spark scan came from, and what the log says of that file.

Spark computes `xxhash64(_metadata.file_path)` beside the rows; the same numbers are computed here
for the files of the plan, so that the driver knows before the scan that no two of them collide.
The names of a few files with deletion vectors are compared instead, which costs a row less.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dagster_delta.engines.spark.session.session import functions_of
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.values.partition_values import decode_path, encode_uri
from dagster_delta.storage.locations import spark_path
from dagster_delta.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession

FILE_KEY = "__delta_file_key"
"""Column of a read with positions: the key of the row's file, see `keys_of_files`."""
ROW_INDEX = "__delta_row"
"""Column of a read with positions: index of the row in its file."""

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_SEED = np.uint64(42)

# With `__globPaths__` off, one path that looks like a pattern makes Spark read every other path
# twice.
_PATTERN = re.compile(r"[{}\[\]*?\\]")


def is_misread_by_spark(path: str) -> bool:
    """Whether Spark's Parquet source would skip a file, fail on its name or read others twice.

    Names that begin with `_` or `.` are hidden; Hadoop normalises empty and dotted path segments,
    and its local file system reads the text before a colon as a scheme.
    """
    location = path.partition(":")[2].removeprefix("//")
    name = location.rpartition("/")[2]
    return (
        name.startswith((".", "_"))
        or name.endswith("._COPYING_")
        or ":" in name
        or "//" in location
        or "/./" in location
        or "/../" in location
        or _PATTERN.search(path) is not None
    )


def file_keys(paths: Sequence[str]) -> NDArray[np.int64]:
    """`xxhash64(path)` of each path, as Spark computes it."""
    keys = np.empty(len(paths), np.uint64)
    encoded = [path.encode() for path in paths]
    by_length: dict[int, list[int]] = {}
    for index, path in enumerate(encoded):
        by_length.setdefault(len(path), []).append(index)
    with np.errstate(over="ignore"):
        for length, members in by_length.items():
            joined = b"".join(encoded[index] for index in members)
            rows = np.frombuffer(joined, np.uint8).reshape(len(members), length)
            keys[members] = _hash_rows(rows)
    return keys.view(np.int64)


def keys_of_files(files: pa.Table, store: ObjectStore) -> NDArray[np.int64]:
    """The key of each live file, `xxhash64(_metadata.file_path)` for those that Spark reads."""
    uris = (store.resolve_uri(decode_path(file)) for file in files["path"].to_pylist())
    return file_keys([encode_uri(spark_path(uri)) for uri in uris])


def _hash_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """XXH64 of rows of equal length, all of them at once."""
    count, length = rows.shape
    striped = length - length % 32
    if striped:
        words = np.ascontiguousarray(rows[:, :striped]).view("<u8")
        state = _mix_stripes(words)
    else:
        state = np.full(count, _SEED + _P5, np.uint64)
    state = state + np.uint64(length)
    offset = striped
    for _ in range((length - offset) // 8):
        word = np.ascontiguousarray(rows[:, offset : offset + 8]).view("<u8")[:, 0]
        state = _mix_long(state, word)
        offset += 8
    if length - offset >= 4:
        half = np.ascontiguousarray(rows[:, offset : offset + 4]).view("<u4")[:, 0]
        state = state ^ (half.astype(np.uint64) * _P1)
        state = _rotate_left(state, 23) * _P2 + _P3
        offset += 4
    for index in range(offset, length):
        state = state ^ (rows[:, index].astype(np.uint64) * _P5)
        state = _rotate_left(state, 11) * _P1
    return _mix_bits(state)


def _mix_stripes(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    count = words.shape[0]
    lanes: list[NDArray[np.uint64]] = [
        np.full(count, start, np.uint64)
        for start in (_SEED + _P1 + _P2, _SEED + _P2, _SEED, _SEED - _P1)
    ]
    for index in range(0, words.shape[1], 4):
        for lane in range(4):
            lanes[lane] = _rotate_left(lanes[lane] + words[:, index + lane] * _P2, 31) * _P1
    state = _rotate_left(lanes[0], 1) + _rotate_left(lanes[1], 7)
    state = state + _rotate_left(lanes[2], 12) + _rotate_left(lanes[3], 18)
    for lane_state in lanes:
        state = (state ^ (_rotate_left(lane_state * _P2, 31) * _P1)) * _P1 + _P4
    return state


def _mix_long(state: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = state ^ (_rotate_left(word * _P2, 31) * _P1)
    return _rotate_left(state, 27) * _P1 + _P4


def _mix_bits(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _rotate_left(value: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


_OTHER_PATH = (
    "dagster_delta: Spark reports another path for a data file than the log does; give the full "
    'URI of the table, or read it with engine="arrow"'
)
_MAX_LITERALS = 2_000
"""Values of files that are part of the plan's text; those of more files are a subquery."""


def file_number(key: Column, keys: NDArray[np.int64], session: SparkSession) -> Column:
    """The number of a row's file, as a Spark expression of its key.

    It needs no join, so that Spark keeps its estimate of the size, and skips files by a filter on
    what `value_of_file` makes of it. A row of a file that is not among them is an error: Spark
    would otherwise return deleted rows, or rows with values of another file.

    `keys`: of the files, in the order of their numbers.
    """
    functions, count = functions_of(session), len(keys)
    buckets: list[list[int]] = [[] for _ in range(count)]
    for number, bucket in enumerate((keys % count).tolist()):
        buckets[bucket].append(number)
    known = [keys[numbers].tolist() for numbers in buckets]
    # It names the key as seldom as it can: filters compute it each time.
    bucket_of_key = functions.pmod(key, functions.lit(count)).cast("int")

    def of_bucket(values: list[list[int]]) -> Column:
        return functions.get(_make_constant(values, "array<array<bigint>>", session), bucket_of_key)

    position = functions.array_position(of_bucket(known), key).cast("int") - 1
    missed = functions.raise_error(_OTHER_PATH)
    return functions.coalesce(functions.get(of_bucket(buckets), position), missed.cast("bigint"))


_MAX_NAMES = 4
"""A query takes 0.8 to 0.9 of the time by the hash with two files, 1.0 with 8 and 1.2 with 16."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._=-]+")
"""The name of a file that no version of Spark escapes."""


def file_number_by_name(rows: DataFrame, paths: Sequence[str]) -> Column | None:
    """The number of a row's file, as a Spark expression; None if the files are many, or their names
    do not tell them apart.

    `paths`: of the files, see `spark_path`, in the order of their numbers.
    """
    names = [path.rpartition("/")[2] for path in paths]
    if len(names) > _MAX_NAMES or len(set(names)) < len(names):
        return None
    if not all(map(_PLAIN_NAME.fullmatch, names)):
        return None
    functions = functions_of(rows)
    name = rows.metadataColumn("_metadata").getField("file_name")
    number: Column = functions.when(name == names[0], 0)
    for index, known in enumerate(names[1:], 1):
        number = number.when(name == known, index)
    return number.otherwise(functions.raise_error(_OTHER_PATH).cast("int")).cast("bigint")


def value_of_file(
    number: Column, values: Sequence[str | int | bool | None], kind: str, session: SparkSession
) -> Column:
    """The value of a row's file, as a Spark expression of its number.

    `values`: of the files, in the order of their numbers.
    `kind`: their type in Spark SQL.
    """
    table = _make_constant(values, f"array<{kind}>", session)
    return functions_of(session).get(table, number.cast("int"))


def _make_constant(values: Sequence[object], kind: str, session: SparkSession) -> Column:
    functions = functions_of(session)
    text = msgspec.json.encode(values).decode()
    if len(values) <= _MAX_LITERALS:
        return functions.from_json(functions.lit(text), kind)
    rows = session.createDataFrame([(text,)], "text string")
    return rows.select(functions.from_json("text", kind)).scalar()


def check_distinct(keys: NDArray[np.int64], *, table: str, version: int) -> None:
    """Check that no two files have one key. Raises InvalidTable if two have."""
    if len(np.unique(keys)) != len(keys):
        raise InvalidTable(
            "two files of the table have the same name, or the same 64-bit hash of it, so Spark "
            'would mix up their rows: use engine="arrow"',
            table=table,
            version=version,
        )
