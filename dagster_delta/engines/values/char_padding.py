"""Pads texts of CHAR(n) with blanks to n characters when they are read, as Spark does.

Files have them as written, with or without blanks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dagster_delta.engines.values.nested_arrays import (
    list_elements,
    map_entries,
    rebuild_list,
    rebuild_map,
    rebuild_struct,
)
from dagster_delta.protocol.features.text_limits import char_length
from dagster_delta.protocol.schema import ArrayType, DataType, MapType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["with_padded_text"]


def with_padded_text(array: pa.Array, declared: DataType | None) -> pa.Array:
    """A `pyarrow.Array` of a column with its texts padded; longer texts do not change.

    Args:
        array: of the Arrow type of the column.
        declared: see `padded_type`; None changes nothing.
    """
    length = char_length(declared)
    if length is not None:
        return pc.utf8_rpad(array, width=length, padding=" ")
    match declared:
        case StructType(fields):
            inner = {each.name: each.data_type for each in fields}
            children = [
                with_padded_text(child, inner.get(field.name))
                for child, field in zip(array.flatten(), array.type, strict=True)
            ]
            return rebuild_struct(array, children, array.type)
        case ArrayType(element_type):
            elements = with_padded_text(list_elements(array), element_type)
            return rebuild_list(array, elements, array.type)
        case MapType(key_type, value_type):
            keys, values = map_entries(array)
            return rebuild_map(
                array,
                with_padded_text(keys, key_type),
                with_padded_text(values, value_type),
                array.type,
            )
    return array
