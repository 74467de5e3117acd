"""Reassembles shredded variants.

A writer may split variants into typed columns: a variant, a field or an element then has an encoded
`value` and a `typed_value` of one type. Each row fills the one that fits; objects may fill both.
Columns of scalars are encoded buffer by buffer; objects and arrays row by row.

Spec: Parquet, Variant Shredding; Variant Binary Encoding (Encoding types).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import TypeAlias

import pyarrow as pa

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import DeltaError, InvalidTable, UnsupportedFeature
from dagster_delta.nested_arrays import (
    children_of,
    is_list_like,
    plain_array,
    rebuild_struct,
)
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE
from dagster_delta.protocol.values.arrow_values import array_of
from dagster_delta.protocol.variant.binary import (
    VARIANT_NULL,
    BasicType,
    PrimitiveId,
    VariantNames,
    decode_names,
    encode_array,
    encode_object,
    encode_text,
    header_byte,
    object_fields,
)
from dagster_delta.sql.types import BINARY

_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())

_Encoded: TypeAlias = list[bytes | None]
"""One encoded value per row; None if the row has none."""
_Names: TypeAlias = Sequence[VariantNames | None]
"""The dictionary of each row; None if the variant is null."""


def reassemble(array: pa.StructArray, column: str) -> pa.StructArray:
    """The variants of a file, shredded or not, as a `pyarrow.StructArray` of `VARIANT_STORAGE`.

    `column`: dotted logical path, for errors.
    """
    try:
        parts = _split_parts(array, "metadata")
        metadata = parts["metadata"].cast(pa.binary())
        if metadata.null_count > array.null_count:
            raise InvalidTable(
                "a variant has no metadata: restore an older version of the table or rewrite the "
                "file"
            )
        # Spec: where a variant is required and missing, readers return the variant null.
        if "typed_value" not in parts:
            values = pc.fill_null(parts["value"], VARIANT_NULL)
        else:
            values = _binary_array(_replace_missing(_encoded_values(parts, _row_names(metadata))))
        return rebuild_struct(array, [values, metadata], VARIANT_STORAGE)
    except DeltaError as error:
        error.column = error.column or column
        raise


def _split_parts(array: pa.Array, *required: str) -> dict[str, pa.Array]:
    """The parts of a group: `value`, `typed_value`, or both."""
    # Spec: the columns are accessed by name, not by position.
    names = [field.name for field in array.type] if pa.types.is_struct(array.type) else []
    known = {"value", "typed_value"}.intersection(names)
    if not known or sorted(names) != sorted({*known, *required}):
        raise _not_a_variant(array.type)
    parts = dict(zip(names, map(plain_array, array.flatten()), strict=True))
    if "value" in parts:
        if parts["value"].type not in _BYTES:
            raise _not_a_variant(array.type)
        parts["value"] = parts["value"].cast(pa.binary())
    return parts


def _encoded_values(parts: dict[str, pa.Array], names: _Names) -> _Encoded:
    """The encoded values of a group; None if a row has neither part."""
    residual = parts["value"].to_pylist() if "value" in parts else [None] * len(names)
    typed = parts.get("typed_value")
    if typed is None:
        return residual
    if pa.types.is_struct(typed.type):
        return _encoded_objects(typed, residual, names)
    encode = _encoded_arrays if is_list_like(typed.type) else _encoded_scalars
    return [_choose_encoding(*both) for both in zip(encode(typed, names), residual, strict=True)]


def _choose_encoding(encoded: bytes | None, residual: bytes | None) -> bytes | None:
    if encoded is None:
        return residual
    # Spec: engines should fail if both are present and the value is not an object.
    if residual is not None:
        raise _wrongly_shredded("it has two values at one place")
    return encoded


def _encoded_objects(typed: pa.StructArray, residual: _Encoded, names: _Names) -> _Encoded:
    fields = [field.name for field in typed.type]
    if len(set(fields)) < len(fields):
        raise _not_a_variant(typed.type)
    # The fields of an object are sorted by name.
    columns = sorted(
        (name, _encoded_values(_split_parts(plain_array(child)), names))
        for name, child in zip(fields, typed.flatten(), strict=True)
    )
    objects: _Encoded = []
    for row, is_object in enumerate(typed.is_valid().to_pylist()):
        known, rest = names[row], residual[row]
        if not is_object or known is None:
            objects.append(rest)
            continue
        found = [
            (_field_id(known, name), value)
            for name, values in columns
            if (value := values[row]) is not None
        ]
        if rest is not None:
            found = _merge_fields(found, rest, known, set(fields))
        objects.append(encode_object([field[0] for field in found], [field[1] for field in found]))
    return objects


def _field_id(known: VariantNames, name: str) -> int:
    # Spec: all field names of a variant, whether shredded or not, must be present in the metadata.
    field_id = known.ids.get(name)
    if field_id is None:
        raise _wrongly_shredded(f"its dictionary lacks the name of its field {name}")
    return field_id


def _merge_fields(
    fields: list[tuple[int, bytes]], rest: bytes, known: VariantNames, shredded: set[str]
) -> list[tuple[int, bytes]]:
    """The fields of a partially shredded object, joined with those that have no column."""
    others = object_fields(rest)
    if others is None:
        raise _wrongly_shredded("it is an object by its columns and none by its value")
    # Spec: the value of a partially shredded object never contains fields that have a column.
    if twice := shredded.intersection(known.name(field_id) for field_id, _ in others):
        raise _wrongly_shredded(f"the field {min(twice)} is both in a column and outside of it")
    return sorted(fields + others, key=lambda field: known.name(field[0]))


def _encoded_arrays(typed: pa.ListArray, names: _Names) -> _Encoded:
    lengths = pc.list_value_length(typed).to_pylist()
    parts = _split_parts(plain_array(children_of(typed)[0]))
    element_names = [*chain.from_iterable(map(repeat, names, [length or 0 for length in lengths]))]
    # Spec: an array has no missing elements; where a variant is required, missing means null.
    elements = iter(_replace_missing(_encoded_values(parts, element_names)))
    return [
        None if length is None else encode_array([next(elements) for _ in range(length)])
        for length in lengths
    ]


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
    pa.timestamp("us"): PrimitiveId.TIMESTAMP_NTZ,
    pa.timestamp("us", "UTC"): PrimitiveId.TIMESTAMP,
    pa.timestamp("ns"): PrimitiveId.TIMESTAMP_NTZ_NANOS,
    pa.timestamp("ns", "UTC"): PrimitiveId.TIMESTAMP_NANOS,
}
_DECIMALS = (
    (9, PrimitiveId.DECIMAL4, 4),
    (18, PrimitiveId.DECIMAL8, 8),
    (38, PrimitiveId.DECIMAL16, 16),
)
"""Digits at most, type and bytes."""


def _encoded_scalars(array: pa.Array, _names: _Names) -> _Encoded:
    kind, types = array.type, pa.types
    if types.is_boolean(kind):
        ids = {True: PrimitiveId.TRUE, False: PrimitiveId.FALSE}
        return [
            None if value is None else _encode_header(ids[value]) for value in array.to_pylist()
        ]
    if kind in _TEXTS:
        texts = array.cast(pa.string()).cast(pa.binary()).to_pylist()
        return [None if text is None else encode_text(text) for text in texts]
    if kind in _BYTES:
        header = _encode_header(PrimitiveId.BINARY)
        return [
            None if content is None else header + len(content).to_bytes(4, "little") + content
            for content in array.cast(pa.binary()).to_pylist()
        ]
    if types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        # Spec: the width in the file, which the precision decides, is that of the variant's type.
        _, primitive_id, size = next(row for row in _DECIMALS if kind.precision <= row[0])
        header = _encode_header(primitive_id) + bytes((kind.scale,))
        return _fixed_width(header, array.cast(pa.decimal128(kind.precision, kind.scale)), size)
    if types.is_timestamp(kind) and kind.tz:
        kind = pa.timestamp(kind.unit, "UTC")
    if kind not in _FIXED_WIDTH:
        raise _not_a_variant(kind)
    return _fixed_width(_encode_header(_FIXED_WIDTH[kind]), array, kind.byte_width)


def _encode_header(primitive_id: int) -> bytes:
    return header_byte(BasicType.PRIMITIVE, primitive_id)


def _fixed_width(header: bytes, array: pa.Array, size: int) -> _Encoded:
    """The low `size` bytes of each value of an array, in the byte order of the memory."""
    width = array.type.byte_width
    memory = memoryview(array.buffers()[1])[width * array.offset :]
    starts = range(0, width * len(array), width)
    return [
        header + memory[start : start + size] if is_valid else None
        for start, is_valid in zip(starts, array.is_valid().to_pylist(), strict=True)
    ]


def _row_names(metadata: pa.Array) -> _Names:
    """The dictionary of each row of a `pyarrow.BinaryArray`; most rows share one."""
    encoded = metadata.dictionary_encode()
    dictionaries = [decode_names(names) for names in encoded.dictionary.to_pylist()]
    return [None if index is None else dictionaries[index] for index in encoded.indices.to_pylist()]


def _replace_missing(values: _Encoded) -> list[bytes]:
    return [VARIANT_NULL if value is None else value for value in values]


def _not_a_variant(data_type: pa.DataType) -> InvalidTable:
    return InvalidTable(
        f"the data file holds {data_type} where a column is of type variant, which the Parquet "
        "format does not shred so: restore an older version of the table or rewrite the file"
    )


def _wrongly_shredded(what: str) -> InvalidTable:
    return InvalidTable(
        f"a shredded variant is invalid: {what}; restore an older version of the table or "
        "rewrite the file"
    )


def _binary_array(values: list[bytes]) -> pa.Array:
    try:
        return array_of(values, BINARY)
    except OverflowError as error:
        raise UnsupportedFeature(
            f"the variants of {len(values)} rows take more than 2 GiB, the limit of a binary Arrow "
            "array: read the table with the Spark engine"
        ) from error
