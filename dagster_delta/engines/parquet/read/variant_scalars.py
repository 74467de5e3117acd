"""Encodes the scalar typed columns of a shredded variant.

Spec: Parquet, Variant Shredding (Shredded Value Types); Variant Binary Encoding (Encoding types).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from dagster_delta.protocol.variant.binary import (
    BasicType,
    PrimitiveId,
    encode_text,
    header_byte,
)

__all__ = ["Encoded", "is_binary_like", "scalar_encoder"]

Encoded: TypeAlias = list[bytes | None]
"""One encoded value per row; None if the row has none."""

_FIXED_WIDTH = {
    pa.int8(): PrimitiveId.INT8,
    pa.int16(): PrimitiveId.INT16,
    pa.int32(): PrimitiveId.INT32,
    pa.int64(): PrimitiveId.INT64,
    pa.float32(): PrimitiveId.FLOAT,
    pa.float64(): PrimitiveId.DOUBLE,
    pa.date32(): PrimitiveId.DATE,
    pa.time64("us"): PrimitiveId.TIME,
    # UUID is the only shredded type of fixed-size bytes; older writers omit its annotation.
    pa.binary(16): PrimitiveId.UUID,
}
_TIMESTAMPS = {
    "us": (PrimitiveId.TIMESTAMP_NTZ, PrimitiveId.TIMESTAMP),
    "ns": (PrimitiveId.TIMESTAMP_NTZ_NANOS, PrimitiveId.TIMESTAMP_NANOS),
}


def scalar_encoder(data_type: pa.DataType) -> Callable[[pa.Array], Encoded] | None:
    """The encoder for arrays of a type; None if the type is never used for shredding."""
    types = pa.types
    if types.is_boolean(data_type):
        return _encode_booleans
    if types.is_string(data_type) or types.is_large_string(data_type):
        return _encode_texts
    if types.is_string_view(data_type):
        return _encode_texts
    if is_binary_like(data_type):
        return _encode_binaries
    if types.is_decimal(data_type):
        return _decimal_encoder(data_type)
    if primitive_id := _FIXED_WIDTH.get(data_type):
        return partial(_encode_fixed_width, header_byte(BasicType.PRIMITIVE, primitive_id))
    if types.is_timestamp(data_type) and data_type.unit in _TIMESTAMPS:
        primitive_id = _TIMESTAMPS[data_type.unit][data_type.tz is not None]
        return partial(_encode_fixed_width, header_byte(BasicType.PRIMITIVE, primitive_id))
    return None


def is_binary_like(data_type: pa.DataType) -> bool:
    """Whether an Arrow type holds bytes of any length."""
    types = pa.types
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
    )


def _encode_booleans(array: pa.BooleanArray) -> Encoded:
    encoded = {
        True: header_byte(BasicType.PRIMITIVE, PrimitiveId.TRUE),
        False: header_byte(BasicType.PRIMITIVE, PrimitiveId.FALSE),
        None: None,
    }
    return [encoded[each] for each in array.to_pylist()]


def _encode_texts(array: pa.Array) -> Encoded:
    texts = array.cast(pa.string()).cast(pa.binary()).to_pylist()
    return [None if each is None else encode_text(each) for each in texts]


def _encode_binaries(array: pa.Array) -> Encoded:
    header = header_byte(BasicType.PRIMITIVE, PrimitiveId.BINARY)
    return [
        None if each is None else header + len(each).to_bytes(4, "little") + each
        for each in array.cast(pa.binary()).to_pylist()
    ]


def _encode_fixed_width(header: bytes, array: pa.Array, size: int | None = None) -> Encoded:
    """The values of an array, encoded in the byte order of the memory.

    Args:
        header: bytes before each value.
        array: `pyarrow.Array` of a type of fixed width.
        size: number of low bytes of each value to encode; None for all.
    """
    width = array.type.byte_width
    memory = memoryview(array.buffers()[1])[width * array.offset :]
    used = width if size is None else size
    encoded: Encoded = [
        header + memory[start : start + used] for start in range(0, width * len(array), width)
    ]
    if array.null_count:
        for row, is_valid in enumerate(array.is_valid().to_pylist()):
            if not is_valid:
                encoded[row] = None
    return encoded


def _decimal_encoder(data_type: pa.DataType) -> Callable[[pa.Array], Encoded] | None:
    precision, scale = data_type.precision, data_type.scale
    if not (precision <= 38 and 0 <= scale <= precision):
        return None
    # Spec: the width in the file, which the precision decides, is the width of the variant's type.
    primitive_id, size = next(
        (primitive_id, size)
        for most, primitive_id, size in (
            (9, PrimitiveId.DECIMAL4, 4),
            (18, PrimitiveId.DECIMAL8, 8),
            (38, PrimitiveId.DECIMAL16, 16),
        )
        if precision <= most
    )
    header = header_byte(BasicType.PRIMITIVE, primitive_id) + bytes((scale,))
    storage = pa.decimal128(precision, scale)
    return lambda array: _encode_fixed_width(header, array.cast(storage), size)
