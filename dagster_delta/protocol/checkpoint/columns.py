"""Columns of a checkpoint converted to this library's types, and the error for columns that do not
convert.

Writers use different types for the same column; any other type counts as damage.

Spec: Checkpoint Schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import CorruptLog, MemoryExhausted
from dagster_delta.protocol.checkpoint.parquet_reader import storage_failure
from dagster_delta.protocol.values.arrow_columns import struct_column
from dagster_delta.protocol.wire_values import DECODING_ERRORS

DELETION_VECTOR_SOURCES = {
    "storage_type": "storageType",
    "path_or_inline_dv": "pathOrInlineDv",
    "offset": "offset",
    "size_in_bytes": "sizeInBytes",
    "cardinality": "cardinality",
}
"""Name of each field of DELETION_VECTOR_TYPE in a checkpoint."""
_MAY_BE_NULL = ("offset",)

_CORRUPTION = (pa.ArrowException, OSError, *DECODING_ERRORS)


@contextmanager
def corruption_named(path: str) -> Iterator[None]:
    """In this block, errors of Parquet and of typed decoding become CorruptLog, and storage errors
    during a read by Arrow become StorageFailure.
    """
    try:
        yield
    except (MemoryExhausted, pa.ArrowCancelled):
        raise
    except MemoryError as error:
        raise MemoryExhausted.of_file(error, file=path) from error
    except _CORRUPTION as error:
        failure = storage_failure(error, file=path)
        if failure is not None:
            raise failure from error
        is_gone = isinstance(error, FileNotFoundError)
        reason = "it was removed meanwhile" if is_gone else "the file is cut or damaged"
        raise CorruptLog(
            f"The checkpoint cannot be read ({error}): {reason}; restore it from a copy, or open "
            "an older version",
            file=path,
        ) from error


def has_column(data_type: pa.Schema | pa.DataType, path: Sequence[str]) -> bool:
    """Whether a `pa.Schema` or a `pa.StructType` has a column at a path of names."""
    for name in path:
        if not isinstance(data_type, pa.Schema) and not pa.types.is_struct(data_type):
            return False
        if data_type.get_field_index(name) < 0:
            return False
        data_type = data_type.field(name).type
    return True


def conform(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    """The column as `data_type`, for any type that writers of checkpoints use.

    ArrowInvalid or ArrowNotImplementedError: the values are of another type.
    """
    if values.type == data_type and not pa.types.is_struct(data_type):
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), data_type)
    if pa.types.is_dictionary(values.type):
        return conform(values.dictionary_decode(), data_type)
    if pa.types.is_struct(data_type):
        return _conform_deletion_vector(values, data_type)
    if pa.types.is_map(data_type):
        return _conform_map(values, data_type)
    return pc.cast(values, data_type)


def required(values: pa.Array | pa.ChunkedArray, name: str) -> pa.Array | pa.ChunkedArray:
    """The column itself, if it has no null."""
    if values.null_count:
        raise pa.ArrowInvalid(f"{values.null_count} of {len(values)} values of {name} are missing")
    return values


def _conform_deletion_vector(values: pa.StructArray, data_type: pa.DataType) -> pa.StructArray:
    if not pa.types.is_struct(values.type):
        raise pa.ArrowInvalid(f"deletionVector is of type {values.type}")
    children = [
        conform(pc.struct_field(values, DELETION_VECTOR_SOURCES[item.name]), item.type)
        if values.type.get_field_index(DELETION_VECTOR_SOURCES[item.name]) >= 0
        else pa.nulls(len(values), item.type)
        for item in data_type
    ]
    # Some writers write a struct of nulls for a missing vector.
    present = pc.is_valid(children[0])
    for item, child in zip(data_type, children, strict=True):
        found = pc.filter(child, present)
        if item.name not in _MAY_BE_NULL:
            required(found, DELETION_VECTOR_SOURCES[item.name])
        if pa.types.is_integer(item.type) and (pc.min(found).as_py() or 0) < 0:
            raise pa.ArrowInvalid(
                f"{DELETION_VECTOR_SOURCES[item.name]} of a deletion vector is negative"
            )
    return struct_column(children, data_type, pc.invert(present))


def _conform_map(values: pa.MapArray, data_type: pa.DataType) -> pa.MapArray:
    if not pa.types.is_map(values.type):
        raise pa.ArrowInvalid(f"a column of type {values.type} is no map of texts")
    offsets = values.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys = conform(values.keys.slice(first, last - first), data_type.key_type)
    items = conform(values.items.slice(first, last - first), data_type.item_type)
    entries = pa.StructArray.from_arrays(
        [keys, items], fields=[data_type.key_field, data_type.item_field]
    )
    relative = pc.subtract(offsets, pa.scalar(first, pa.int32()))
    validity = pc.is_valid(values).buffers()[1] if values.null_count else None
    buffers = [validity, relative.buffers()[1]]
    return pa.Array.from_buffers(data_type, len(values), buffers, children=[entries])


def plain_value(value: Any, data_type: pa.DataType) -> Any:  # noqa: ANN401
    """A value of an action as JSON has it.

    Arrow spells a map as a list of pairs, and a missing field as None. ArrowInvalid: it is a map
    whose keys are nested.
    """
    if isinstance(value, dict):
        return {
            name: plain_value(item, data_type.field(name).type)
            for name, item in value.items()
            if item is not None
        }
    if not pa.types.is_map(data_type) or value is None:
        return value
    if pa.types.is_nested(data_type.key_type):
        raise pa.ArrowInvalid(f"a map has keys of type {data_type.key_type}")
    return dict(value)
