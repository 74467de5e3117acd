"""Arrow columns from Python lists, by their buffers.

`pyarrow.array` imports pandas, if installed, at its first Python value, which takes longer than
opening most tables.
"""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Iterable, Mapping, Sequence, Sized
from decimal import Context, Decimal
from itertools import accumulate, chain, pairwise
from typing import Any, cast

import pyarrow as pa

import dagster_delta.arrow_compute as pc

STRING_MAP = pa.map_(pa.string(), pa.string())

_EXACT = Context(prec=100)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001  both kinds of timestamp count from it
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)

_MIN_SLICE_ROWS = 4096
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


def integer_column(values: Sequence[int | None]) -> pa.Array:
    """A `pa.Int64Array`."""
    validity = validity_of(values)
    numbers = values if validity is None else [value or 0 for value in values]
    data = array("q", cast("Sequence[int]", numbers))
    return pa.Array.from_buffers(pa.int64(), len(values), [validity, pa.py_buffer(data)])


def boolean_column(values: Sequence[bool | None]) -> pa.BooleanArray:
    """A `pa.BooleanArray`."""
    bits = _pack_bitmap(bytes(bool(value) for value in values))
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity_of(values), bits])


def map_column(values: Sequence[Mapping[str, str | None] | None]) -> pa.MapArray:
    """A `pa.MapArray` of string to string."""
    if not any(values) and None not in values:
        return _empty_maps(len(values))
    maps = [value or {} for value in values]
    keys = string_column(list(chain.from_iterable(maps)))
    items = string_column(list(chain.from_iterable(mapping.values() for mapping in maps)))
    entries = pa.StructArray.from_arrays(
        [keys, items], fields=[STRING_MAP.key_field, STRING_MAP.item_field]
    )
    buffers = [validity_of(values), _build_offsets(maps)]
    return pa.Array.from_buffers(STRING_MAP, len(values), buffers, children=[entries])


def struct_column(
    children: list[pa.Array], data_type: pa.StructType, absent: pa.BooleanArray
) -> pa.StructArray:
    """A `pa.StructArray` of the children, null where `absent` is true."""
    # `StructArray.from_arrays` loads all of `pyarrow.compute` for its mask.
    validity = pc.invert(absent).buffers()[1]
    return pa.Array.from_buffers(data_type, len(absent), [validity], children=children)


def column_of(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """A `pa.Array` of any type; maps are of text.

    Structs are dicts, or objects with an attribute for each field. Timestamps with a time zone
    need one, others must not have one. A value that does not fit raises what Python or Arrow raise:
    ValueError, OverflowError, TypeError, ArithmeticError, ArrowException.
    """
    types = pa.types
    if types.is_struct(data_type):
        return _build_structs(values, data_type)
    if types.is_list(data_type):
        lists = [value or () for value in values]
        held = column_of(list(chain.from_iterable(lists)), data_type.value_type)
        buffers = [validity_of(values), _build_offsets(lists)]
        return pa.Array.from_buffers(data_type, len(values), buffers, children=[held])
    if types.is_map(data_type):
        return map_column(values)
    if types.is_boolean(data_type):
        return boolean_column(values)
    if types.is_decimal(data_type):
        return _build_decimals(values, data_type)
    if types.is_binary(data_type):
        contents = [value or b"" for value in values]
        buffers = [validity_of(values), _build_offsets(contents), pa.py_buffer(b"".join(contents))]
        return pa.Array.from_buffers(data_type, len(values), buffers)
    if types.is_floating(data_type):
        data = array("d", [0.0 if value is None else value for value in values])
        buffers = [validity_of(values), pa.py_buffer(data)]
        numbers = pa.Array.from_buffers(pa.float64(), len(values), buffers)
        return pc.cast(numbers, data_type, safe=False)
    if types.is_string(data_type):
        return string_column(values)
    if types.is_temporal(data_type):
        count = _to_days if types.is_date(data_type) else _to_microseconds
        values = [None if value is None else count(value) for value in values]
    found = integer_column(values)
    if types.is_timestamp(data_type):
        return found.view(data_type)
    # No date is cast from 64 bits.
    return pc.cast(pc.cast(found, pa.int32()) if types.is_date(data_type) else found, data_type)


def _build_offsets(parts: Iterable[Sized]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate(map(len, parts), initial=0)))


def _to_days(day: dt.date) -> int:
    return day.toordinal() - _EPOCH_DAY


def _to_microseconds(moment: dt.datetime) -> int:
    offset = moment.utcoffset() or dt.timedelta(0)
    return (moment.replace(tzinfo=None) - offset - _EPOCH) // _MICROSECOND


def _build_decimals(values: Sequence[Decimal | int | None], target: pa.DataType) -> pa.Array:
    data = b"".join(
        _to_unscaled(value, target).to_bytes(16, "little", signed=True) for value in values
    )
    return pa.Array.from_buffers(target, len(values), [validity_of(values), pa.py_buffer(data)])


def _to_unscaled(value: Decimal | int | None, target: pa.DataType) -> int:
    if value is None:
        return 0
    scaled = _EXACT.scaleb(Decimal(value), target.scale)
    unscaled = int(scaled)
    if unscaled != scaled or abs(unscaled) >= 10**target.precision:
        raise ValueError(f"{value} does not fit {target}")
    return unscaled


def _build_structs(values: Sequence[Any], data_type: pa.StructType) -> pa.StructArray:
    if values.count(None) == len(values):
        return pa.nulls(len(values), data_type)
    children = []
    for field in data_type:
        name = field.name
        children.append(column_of([_get_member(value, name) for value in values], field.type))
    return struct_column(children, data_type, boolean_column([value is None for value in values]))


def _get_member(value: Any, name: str) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return value.get(name)
    return None if value is None else getattr(value, name)


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


def chunks_where(
    values: pa.Array, mask: pa.BooleanArray, *, may_cut: bool = True
) -> list[pa.Array]:
    """The rows of a `pa.Array` where the mask, without nulls, is true; copied only if many are
    false, or if it may not be cut into slices.

    Copying 100,000 structs of statistics takes longer than decoding them.
    """
    num_dropped = len(mask) - mask.true_count
    if not num_dropped:
        return [values]
    is_dense = num_dropped * _MIN_SLICE_ROWS <= len(mask)
    if not may_cut or not is_dense or pa.types.is_map(values.type):
        return [pc.filter(values, mask)]
    dropped = pc.indices_nonzero(pc.invert(mask)).to_pylist()
    runs = pairwise([-1, *dropped, len(values)])
    return [values.slice(before + 1, at - before - 1) for before, at in runs if at - before > 1]


def validity_of(values: Sequence[object]) -> pa.Buffer | None:
    """The `pa.Buffer` that marks the values that are not None; None if all are."""
    if None not in values:
        return None
    return _pack_bitmap(bytes(value is not None for value in values))


def _pack_bitmap(flags: bytes) -> pa.Buffer:
    flag_bytes = pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)])
    return pc.cast(flag_bytes, pa.bool_()).buffers()[1]
