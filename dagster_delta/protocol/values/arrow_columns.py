"""Arrow columns from Python lists, by their buffers.

`pyarrow.array` imports pandas, if installed, at its first Python value, which takes longer than
opening most tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, cast

import pyarrow as pa

import dagster_delta.arrow_compute as pc

STRING_MAP = pa.map_(pa.string(), pa.string())

MIN_SLICE_ROWS = 4096
"""If a chunk has at least this many rows per dropped row, slices are faster than a copy."""


def string_column(values: Sequence[str | None]) -> pa.Array:
    """A `pa.StringArray` of the values, which have less than 2 GiB of text in total."""
    validity = validity_of(values)
    texts = [value or "" for value in values] if validity is not None else values
    data = "".join(cast("Sequence[str]", texts)).encode()
    if data.isascii():
        offsets = array("i", accumulate(map(len, cast("Sequence[str]", texts)), initial=0))
    else:
        lengths = (len((text or "").encode()) for text in texts)
        offsets = array("i", accumulate(lengths, initial=0))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def integer_column(values: Sequence[int | None], data_type: pa.DataType | None = None) -> pa.Array:
    """A `pa.Int64Array`, or one of `data_type` (int32 or int64)."""
    data_type = pa.int64() if data_type is None else data_type
    validity = validity_of(values)
    numbers = values if validity is None else [value or 0 for value in values]
    data = array("q" if data_type.bit_width == 64 else "i", cast("Sequence[int]", numbers))
    return pa.Array.from_buffers(data_type, len(values), [validity, pa.py_buffer(data)])


def index_column(values: Iterable[int]) -> pa.Array:
    """A `pa.Int64Array` without nulls."""
    data = array("q", values)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def boolean_column(values: Sequence[bool | None]) -> pa.BooleanArray:
    """A `pa.BooleanArray`."""
    bits = _bitmap(bytes(bool(value) for value in values))
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity_of(values), bits])


def map_column(values: Sequence[Mapping[str, str | None] | None]) -> pa.MapArray:
    """A `pa.MapArray` of string to string."""
    if not any(values) and None not in values:
        return _empty_maps(len(values))
    maps = [value or {} for value in values]
    offsets = array("i", accumulate(map(len, maps), initial=0))
    keys = string_column(list(chain.from_iterable(maps)))
    items = string_column(list(chain.from_iterable(mapping.values() for mapping in maps)))
    entries = pa.StructArray.from_arrays(
        [keys, items], fields=[STRING_MAP.key_field, STRING_MAP.item_field]
    )
    buffers = [validity_of(values), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(STRING_MAP, len(values), buffers, children=[entries])


def struct_column(
    children: list[pa.Array], data_type: pa.StructType, absent: pa.BooleanArray
) -> pa.StructArray:
    """A `pa.StructArray` of the children, null where `absent` is true."""
    # `StructArray.from_arrays` loads all of `pyarrow.compute` for its mask.
    validity = pc.invert(absent).buffers()[1]
    return pa.Array.from_buffers(data_type, len(absent), [validity], children=children)


def nested_column(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """A `pa.Array` of structs and lists of text, integers, booleans and maps of text."""
    if pa.types.is_struct(data_type):
        fields = list(data_type)
        children = [
            nested_column(
                [None if value is None else value.get(field.name) for value in values], field.type
            )
            for field in fields
        ]
        return struct_column(
            children, data_type, boolean_column([value is None for value in values])
        )
    if pa.types.is_list(data_type):
        lists = [value or () for value in values]
        offsets = array("i", accumulate(map(len, lists), initial=0))
        held = nested_column(list(chain.from_iterable(lists)), data_type.value_type)
        buffers = [validity_of(values), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(data_type, len(values), buffers, children=[held])
    if pa.types.is_map(data_type):
        return map_column(values)
    if pa.types.is_boolean(data_type):
        return boolean_column(values)
    if pa.types.is_integer(data_type):
        return integer_column(values, data_type)
    return string_column(values)


def _empty_maps(length: int) -> pa.MapArray:
    none = string_column([])
    entries = pa.StructArray.from_arrays(
        [none, none], fields=[STRING_MAP.key_field, STRING_MAP.item_field]
    )
    offsets = pa.py_buffer(bytes(4 * (length + 1)))
    return pa.Array.from_buffers(STRING_MAP, length, [None, offsets], children=[entries])


def whole_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one `pa.Array`."""
    if isinstance(column, pa.ChunkedArray):
        if not column.num_chunks:
            # Arrow combines no chunks by a conversion from Python, for which it imports pandas.
            return pa.nulls(0, column.type)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def chunks_where(values: pa.Array, mask: pa.BooleanArray) -> list[pa.Array]:
    """The rows of a `pa.Array` where the mask is true, copied only if many are false.

    Copying 100,000 structs of statistics takes longer than decoding them.
    """
    num_dropped = len(mask) - mask.true_count
    if not num_dropped:
        return [values]
    if num_dropped * MIN_SLICE_ROWS > len(mask) or pa.types.is_map(values.type):
        return [pc.filter(values, mask)]
    return list(slices_where(values, mask))


def slices_where(values: pa.Array, mask: pa.BooleanArray) -> Iterator[pa.Array]:
    """The runs of rows of a `pa.Array` where the mask, without nulls, is true; not copied."""
    start = 0
    for dropped in (*pc.indices_nonzero(pc.invert(mask)).to_pylist(), len(values)):
        if start < dropped:
            yield values.slice(start, dropped - start)
        start = dropped + 1


def validity_of(values: Sequence[object]) -> pa.Buffer | None:
    """The `pa.Buffer` that marks the values that are not None; None if all are."""
    if None not in values:
        return None
    return _bitmap(bytes(value is not None for value in values))


def _bitmap(flags: bytes) -> pa.Buffer:
    flag_bytes = pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)])
    return pc.cast(flag_bytes, pa.bool_()).buffers()[1]
