"""Splits nested Arrow arrays into their children and rebuilds them.

Slices, null lists with hidden elements and null structs with hidden children need care; only this
module handles them. All arrays are `pyarrow.Array`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import dagster_delta.arrow_compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray


def index_of(numbers: NDArray[np.integer[Any]]) -> pa.Array:
    """Numbers of a numpy array as a `pa.Int64Array`; `pyarrow.array` would import pandas."""
    data = np.ascontiguousarray(numbers, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def numbers_of(values: pa.Array) -> NDArray[Any]:
    """The numbers of an array without nulls; `to_numpy` would import pandas, where installed."""
    return np.from_dlpack(values) if len(values) else np.empty(0, dtype=np.int64)


def runs_of(values: NDArray[Any]) -> Iterator[slice]:
    """The places of equal values beside each other, run by run."""
    starts = np.flatnonzero(np.diff(values)) + 1
    for start, stop in pairwise([0, *starts.tolist(), len(values)]):
        if start < stop:
            yield slice(start, stop)


def is_list_like(data_type: pa.DataType) -> bool:
    """Whether an Arrow type is one of the five list types (a map is not)."""
    return bool(
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
        or pa.types.is_list_view(data_type)
        or pa.types.is_large_list_view(data_type)
    )


def mask_of(bits: NDArray[np.bool_]) -> pa.BooleanArray:
    """Bits of a numpy array as a `pa.BooleanArray`; `pyarrow.array` would import pandas."""
    data = pa.py_buffer(np.packbits(bits, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(bits), [None, data])


def bits_of(mask: pa.BooleanArray) -> NDArray[np.bool_]:
    """A `pa.BooleanArray` without nulls as a numpy array."""
    data = np.frombuffer(mask.buffers()[1], dtype=np.uint8)
    bits = np.unpackbits(data, count=mask.offset + len(mask), bitorder="little")
    return bits[mask.offset :].view(bool)


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values without dictionaries, runs and extension types."""
    while True:
        if isinstance(data_type, pa.Bool8Type):
            data_type = pa.bool_()
        elif isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        elif pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
            data_type = data_type.value_type
        else:
            return data_type


def plain_array(array: pa.Array) -> pa.Array:
    """The array of `plain_type`: dictionaries decoded, runs expanded, extensions unwrapped."""
    while True:
        if isinstance(array.type, pa.Bool8Type):
            array = array.storage.cast(pa.bool_())
        elif isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = _repeated(array.dictionary, array.indices)
        elif pa.types.is_run_end_encoded(array.type):
            array = _repeated(array.values, _run_numbers(array))
        else:
            return array


def _repeated(values: pa.Array, places: pa.Array) -> pa.Array:
    # No kernel takes values from views.
    without_views = WITHOUT_VIEWS.get(values.type)
    return (values if without_views is None else values.cast(without_views)).take(places)


WITHOUT_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""The types that stand in for views, of which Arrow's kernels neither take nor group values."""


def _run_numbers(array: pa.RunEndEncodedArray) -> pa.Array:
    """The run of each value of a run-end encoded array."""
    places = np.arange(array.offset, array.offset + len(array))
    return pa.array(np.searchsorted(np.from_dlpack(array.run_ends), places, side="right"))


def null_mask(array: pa.Array) -> pa.BooleanArray | None:
    """A mask for the constructors of nested arrays; None if nothing is null."""
    return array.is_null() if array.null_count else None


def list_numbers(array: pa.Array) -> pa.Array:
    """Position of the list, or map, of each element or entry: a `numpy.ndarray`."""
    shape = _as_list_of_entries(array) if pa.types.is_map(array.type) else array
    return np.repeat(np.arange(len(array)), np.diff(_offsets(shape).to_numpy()))


def rebuild_struct(
    array: pa.StructArray, children: list[pa.Array], data_type: pa.StructType
) -> pa.StructArray:
    """A struct array as long and as null as `array` over new children."""
    if not children:
        return pa.StructArray.from_buffers(data_type, len(array), [_validity(array)])
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=null_mask(array))


def children_of(array: pa.Array) -> list[pa.Array]:
    """The fields of a struct array, the elements of a list array, or the keys and values of a map
    array: everything that is inside non-null lists and maps, in order.
    """
    if is_list_like(array.type):
        return [pc.list_flatten(array)]
    if pa.types.is_map(array.type):
        array = pc.list_flatten(_as_list_of_entries(array))
    children: list[pa.Array] = array.flatten()
    return children


def with_children(array: pa.Array, children: list[pa.Array], data_type: pa.DataType) -> pa.Array:
    """An array of a nested type, shaped like `array` over new children (as of `children_of`).

    A list of entries is the shape of a map too.
    """
    if pa.types.is_struct(data_type):
        return rebuild_struct(array, children, data_type)
    shape = _as_list_of_entries(array) if pa.types.is_map(array.type) else array
    kind = pa.MapArray if pa.types.is_map(data_type) else pa.ListArray
    return kind.from_arrays(_offsets(shape), *children, type=data_type, mask=null_mask(array))


def inner_fields(data_type: pa.DataType) -> list[pa.Field]:
    """The fields inside a nested Arrow type, in the order of `children_of`."""
    if pa.types.is_map(data_type):
        return [data_type.key_field, data_type.item_field]
    return list(data_type) if pa.types.is_struct(data_type) else [data_type.value_field]


def count_leaves(data_type: pa.DataType) -> int:
    """Number of Parquet columns of an Arrow type."""
    if not pa.types.is_nested(data_type):
        return 1
    return sum(count_leaves(field.type) for field in inner_fields(data_type))


def leaf_ranges(fields: list[pa.Field]) -> list[range]:
    """Indexes of the Parquet columns of each field."""
    ranges = []
    start = 0
    for field in fields:
        stop = start + count_leaves(field.type)
        ranges.append(range(start, stop))
        start = stop
    return ranges


def with_inner_fields(data_type: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    """The nested Arrow type with other fields inside, in the order of `inner_fields`."""
    if pa.types.is_struct(data_type):
        return pa.struct(fields)
    if pa.types.is_map(data_type):
        key, item = fields
        return pa.map_(key.with_nullable(False), item, data_type.keys_sorted)
    (element,) = fields
    if pa.types.is_fixed_size_list(data_type):
        return pa.list_(element, data_type.list_size)
    return pa.large_list(element) if pa.types.is_large_list(data_type) else pa.list_(element)


def rename_nested(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """The same values as `data_type`, which may differ only in the names of struct fields and in
    whether the parts of variants are required, and may lack struct fields of type null.
    """
    if array.type == data_type:
        return array
    if not pa.types.is_nested(data_type):
        return array.cast(data_type)
    fields, found = inner_fields(data_type), children_of(array)
    if len(found) > len(fields):
        found = [child for child in found if not pa.types.is_null(child.type)]
    children = [
        _without_hidden_nulls(rename_nested(child, field.type), field)
        for child, field in zip(found, fields, strict=True)
    ]
    return with_children(array, children, data_type)


def _without_hidden_nulls(child: pa.Array, field: pa.Field) -> pa.Array:
    # Only values below a null struct are null there, and the Parquet writer checks them too.
    return child if field.nullable or not child.null_count else pc.fill_null(child, b"")


def _as_list_of_entries(array: pa.MapArray) -> pa.ListArray:
    # A cast would check the values, and refuse required fields below null structs.
    entries = pa.StructArray.from_arrays(
        [array.keys, array.items], fields=[array.type.key_field, array.type.item_field]
    )
    data_type = pa.list_(pa.field("entries", entries.type, nullable=False))
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers()[:2], offset=array.offset, children=[entries]
    )


def _offsets(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.zeros(len(array) + 1, dtype=np.int32)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=offsets[1:])
    return pa.array(offsets)


def _validity(array: pa.Array) -> pa.Buffer | None:
    if not array.null_count:
        return None
    return pc.is_valid(array).buffers()[1]


_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with views as plain text and bytes, at every depth.

    Arrow-rs records view types in files, and polars exports them; no kernel filters or takes them.
    """
    types = [_plain(kind) for kind in rows.schema.types]
    if types == rows.schema.types:
        return rows
    fields = [field.with_type(kind) for field, kind in zip(rows.schema, types, strict=True)]
    return rows.cast(pa.schema(fields, rows.schema.metadata))


@cache
def _plain(data_type: pa.DataType) -> pa.DataType:
    if not pa.types.is_nested(data_type) or "list_view" in str(data_type):
        return _PLAIN.get(data_type, data_type)
    fields = [field.with_type(_plain(field.type)) for field in inner_fields(data_type)]
    return with_inner_fields(data_type, fields)


def rows_without_columns(count: int) -> pa.RecordBatch:
    """A `pyarrow.RecordBatch` of rows that have no columns."""
    nothing = pa.struct([])
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(nothing, count, [None]))
