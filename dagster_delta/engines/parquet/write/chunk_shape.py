"""Whether the metadata of a column chunk can go into the footer of another file.

Spec: Parquet's Thrift definition; Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from dagster_delta.protocol.checkpoint.thrift_compact import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Cursor,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_Value: TypeAlias = "frozenset[int] | tuple[_Value] | Mapping[int, _Value]"
"""Types: of a number or text; of the elements of a list; of the fields of a struct by their ids."""

_NUMBER, _LONG, _TEXT = frozenset({I32}), frozenset({I64}), frozenset({BINARY})
_TRUTH = frozenset({TRUE, FALSE})

_METADATA, _CODEC, _STATISTICS = 3, 4, 12
_BOUNDS = frozenset({1, 2, 5, 6})
_STATISTICS_SHAPE: Mapping[int, _Value] = {
    **dict.fromkeys(_BOUNDS, _TEXT),
    **dict.fromkeys((3, 4), _LONG),
    **dict.fromkeys((7, 8), _TRUTH),
}
_METADATA_SHAPE: Mapping[int, _Value] = {
    1: _NUMBER,
    2: (_NUMBER,),
    3: (_TEXT,),
    _CODEC: _NUMBER,
    **dict.fromkeys((5, 6, 7, 9, 11), _LONG),
    _STATISTICS: _STATISTICS_SHAPE,
    13: (dict.fromkeys((1, 2, 3), _NUMBER),),
    16: {1: _LONG, 2: (_LONG,), 3: (_LONG,)},
}
_CHUNK_SHAPE: Mapping[int, _Value] = {2: _LONG, _METADATA: _METADATA_SHAPE}

_NUM_CODECS = 8
_VALUE_BYTES = {"BYTE_ARRAY": 0, "BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8,
                "INT96": 12}  # fmt: skip


def is_movable(chunk: bytes, column: pq.ColumnSchema) -> bool:
    """Whether a `ColumnChunk` refers only to its pages, and Arrow can read it as metadata.

    Indexes and filters are elsewhere in the file. In a new file Arrow reads everything that
    `chunk_metadata` lists; a damaged chunk would crash the process.

    `chunk`: from the footer of a file whose chunks were checked.
    """
    cursor = Cursor(chunk)
    try:
        if not _has_fields(cursor, _CHUNK_SHAPE) or cursor.position != len(chunk):
            return False
        return _codec(chunk) in range(_NUM_CODECS) and _bound_bytes(chunk) >= _VALUE_BYTES.get(
            column.physical_type, column.length
        )
    except IndexError:
        return False


def _has_fields(cursor: Cursor, shape: Mapping[int, _Value]) -> bool:
    last = 0
    for field, kind in cursor.fields():
        if field <= last or field not in shape or not _is_value(cursor, kind, shape[field]):
            return False
        last = field
    return True


def _is_value(cursor: Cursor, kind: int, expected: _Value) -> bool:
    if isinstance(expected, tuple):
        if kind != LIST:
            return False
        count, element = cursor.list_header()
        return all(_is_value(cursor, element, expected[0]) for _ in range(count))
    if isinstance(expected, frozenset):
        cursor.skip(kind)
        return kind in expected
    return kind == STRUCT and _has_fields(cursor, expected)


def _codec(chunk: bytes) -> int:
    cursor = Cursor(chunk)
    return cursor.integer() if cursor.find(_METADATA) and cursor.find(_CODEC) else -1


def _bound_bytes(chunk: bytes) -> int:
    """Bytes of the shortest bound, or those of the chunk if it has none."""
    cursor, shortest = Cursor(chunk), len(chunk)
    if cursor.find(_METADATA) and cursor.find(_STATISTICS):
        for field, kind in cursor.fields():
            if field in _BOUNDS:
                shortest = min(shortest, len(cursor.binary()))
            else:
                cursor.skip(kind)
    return shortest
