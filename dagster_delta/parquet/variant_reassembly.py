"""Reassembles shredded variants.

A writer may split variants into typed columns: a variant, a field or an element then has an encoded
`value` and a `typed_value` of one type. Each row fills the one that fits; objects may fill both.
Columns of scalars are encoded buffer by buffer; objects and arrays row by row.

Spec: Parquet, Variant Shredding; Variant Binary Encoding (Encoding types).
"""

from __future__ import annotations

from array import array as buffer_of
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain, repeat
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from dagster_delta.errors import DeltaError, InvalidTable, UnsupportedFeature
from dagster_delta.parquet.nested_arrays import (
    is_list_like,
    list_elements,
    plain_array,
    plain_type,
    rebuild_struct,
)
from dagster_delta.protocol.values.arrow_schema import VARIANT_STORAGE
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

_Encoded: TypeAlias = list[bytes | None]
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


def _scalar_encoder(data_type: pa.DataType) -> Callable[[pa.Array], _Encoded] | None:
    """The encoder for arrays of a type; None if the type is never used for shredding."""
    types = pa.types
    if types.is_boolean(data_type):
        return _encode_booleans
    if types.is_string(data_type) or types.is_large_string(data_type):
        return _encode_texts
    if types.is_string_view(data_type):
        return _encode_texts
    if _is_binary_like(data_type):
        return _encode_binaries
    if types.is_decimal(data_type):
        return _decimal_encoder(data_type)
    if primitive_id := _FIXED_WIDTH.get(data_type):
        return partial(_encode_fixed_width, header_byte(BasicType.PRIMITIVE, primitive_id))
    if types.is_timestamp(data_type) and data_type.unit in _TIMESTAMPS:
        primitive_id = _TIMESTAMPS[data_type.unit][data_type.tz is not None]
        return partial(_encode_fixed_width, header_byte(BasicType.PRIMITIVE, primitive_id))
    return None


def _is_binary_like(data_type: pa.DataType) -> bool:
    """Whether an Arrow type holds bytes of any length."""
    types = pa.types
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
    )


def _encode_booleans(array: pa.BooleanArray) -> _Encoded:
    encoded = {
        True: header_byte(BasicType.PRIMITIVE, PrimitiveId.TRUE),
        False: header_byte(BasicType.PRIMITIVE, PrimitiveId.FALSE),
        None: None,
    }
    return [encoded[each] for each in array.to_pylist()]


def _encode_texts(array: pa.Array) -> _Encoded:
    texts = array.cast(pa.string()).cast(pa.binary()).to_pylist()
    return [None if text is None else encode_text(text) for text in texts]


def _encode_binaries(array: pa.Array) -> _Encoded:
    header = header_byte(BasicType.PRIMITIVE, PrimitiveId.BINARY)
    return [
        None if each is None else header + len(each).to_bytes(4, "little") + each
        for each in array.cast(pa.binary()).to_pylist()
    ]


def _encode_fixed_width(header: bytes, array: pa.Array, size: int | None = None) -> _Encoded:
    """The values of an array, encoded in the byte order of the memory.

    `size`: number of low bytes of each value to encode; None for all.
    """
    width = array.type.byte_width
    memory = memoryview(array.buffers()[1])[width * array.offset :]
    used = width if size is None else size
    encoded: _Encoded = [
        header + memory[start : start + used] for start in range(0, width * len(array), width)
    ]
    if array.null_count:
        for row, is_valid in enumerate(array.is_valid().to_pylist()):
            if not is_valid:
                encoded[row] = None
    return encoded


def _decimal_encoder(data_type: pa.DataType) -> Callable[[pa.Array], _Encoded] | None:
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


_Names: TypeAlias = Sequence[VariantNames | None]
"""The dictionary of each row; None if the variant is null."""


class _Scalar(msgspec.Struct, frozen=True):
    """A typed value without fields or elements."""

    encode: Callable[[pa.Array], _Encoded]


class _Object(msgspec.Struct, frozen=True):
    """A typed object: fields by name, in the order of an encoded object."""

    fields: tuple[tuple[str, int, _Group], ...]
    """Name, position among the struct's children, and shape of each field."""


class _Array(msgspec.Struct, frozen=True):
    """A typed array."""

    element: _Group


class _Group(msgspec.Struct, frozen=True):
    """A struct of `value` and `typed_value`; a file may omit one of them."""

    value: int | None
    """Position among the struct's children."""
    typed_value: tuple[int, _Scalar | _Object | _Array] | None


class VariantReassembly(msgspec.Struct, frozen=True):
    """How to convert the variants of one column of a file to unshredded variants."""

    column: str
    """Dotted logical path, for errors."""
    _metadata: int
    _root: _Group

    @classmethod
    def plan(cls, storage: pa.DataType, column: str) -> VariantReassembly:
        """The plan for a shredding schema.

        `storage`: `pyarrow.StructType` of the variant in the file; it may be unshredded.
        """
        names = [each.name for each in storage]
        if names.count("metadata") != 1:
            raise _not_a_variant(storage, column)
        root = _plan_group(storage, column, "metadata")
        return cls(column, names.index("metadata"), root)

    def apply(self, array: pa.StructArray) -> pa.StructArray:
        """The variants of a `pyarrow.StructArray` as one of `VARIANT_STORAGE`."""
        try:
            return self._apply(array)
        except DeltaError as error:
            error.column = error.column or self.column
            raise

    def _apply(self, array: pa.StructArray) -> pa.StructArray:
        children = array.flatten()
        metadata = plain_array(children[self._metadata]).cast(pa.binary())
        if metadata.null_count > array.null_count:
            raise InvalidTable(
                "a variant has no metadata: restore an older version of the table or rewrite the "
                "file"
            )
        # Spec: where a variant is required and missing, readers return the variant null.
        if self._root.typed_value is None:
            values = pc.fill_null(_values(self._root, array, children), VARIANT_NULL)
        else:
            values = _binary_array(_present(_read_group(self._root, array, _row_names(metadata))))
        return rebuild_struct(array, [values, metadata], VARIANT_STORAGE)


# -- planning -----------------------------------------------------------------------------------


def _plan_group(storage: pa.DataType, column: str, *besides: str) -> _Group:
    """The shape of a struct of `value` and `typed_value`, at least one of them."""
    names = [each.name for each in storage] if pa.types.is_struct(storage) else []
    # Spec: the columns are accessed by name, not by position.
    known = {"value", "typed_value"}.intersection(names)
    if not known or sorted(names) != sorted({*known, *besides}):
        raise _not_a_variant(storage, column)
    value = names.index("value") if "value" in known else None
    if value is not None and not _is_binary_like(plain_type(storage.field(value).type)):
        raise _not_a_variant(storage, column)
    if "typed_value" not in known:
        return _Group(value, None)
    position = names.index("typed_value")
    return _Group(value, (position, _plan_typed(plain_type(storage.field(position).type), column)))


def _plan_typed(data_type: pa.DataType, column: str) -> _Scalar | _Object | _Array:
    if pa.types.is_struct(data_type):
        names = [each.name for each in data_type]
        if len(set(names)) < len(names):
            raise _not_a_variant(data_type, column)
        fields = [
            (each.name, position, _plan_group(plain_type(each.type), column))
            for position, each in enumerate(data_type)
        ]
        return _Object(tuple(sorted(fields, key=lambda field: field[0])))
    if is_list_like(data_type):
        return _Array(_plan_group(plain_type(data_type.value_type), column))
    encode = _scalar_encoder(data_type)
    if encode is None:
        raise _not_a_variant(data_type, column)
    return _Scalar(encode)


def _not_a_variant(data_type: pa.DataType, column: str) -> InvalidTable:
    return InvalidTable(
        f"the data file holds {data_type} where column {column} is of type variant, which the "
        "Parquet format does not shred so: restore an older version of the table or rewrite the "
        "file",
        column=column,
    )


# -- objects and arrays -------------------------------------------------------------------------


def _values(group: _Group, array: pa.StructArray, children: Sequence[pa.Array]) -> pa.Array:
    """The `value` column of a group, as a `pyarrow.BinaryArray`."""
    if group.value is None:
        return pa.nulls(len(array), pa.binary())
    return plain_array(children[group.value]).cast(pa.binary())


def _row_names(metadata: pa.Array) -> _Names:
    """The dictionary of each row of a `pyarrow.BinaryArray`; most rows share one."""
    encoded = metadata.dictionary_encode()
    dictionaries = [decode_names(each) for each in encoded.dictionary.to_pylist()]
    return [None if index is None else dictionaries[index] for index in encoded.indices.to_pylist()]


def _read_group(group: _Group, array: pa.StructArray, names: _Names) -> _Encoded:
    """The encoded values of a `pyarrow.StructArray`; None if a row has neither child."""
    children = array.flatten()
    residual: _Encoded = _values(group, array, children).to_pylist()
    if group.typed_value is None:
        return residual
    position, shape = group.typed_value
    typed = plain_array(children[position])
    if typed.null_count == len(typed):
        return residual
    match shape:
        case _Object():
            return _read_objects(shape, typed, residual, names)
        case _Array():
            encoded = _read_arrays(shape, typed, names)
        case _Scalar():
            encoded = shape.encode(typed)
    return [_either(*both) for both in zip(encoded, residual, strict=True)]


def _either(encoded: bytes | None, residual: bytes | None) -> bytes | None:
    if encoded is None:
        return residual
    # Spec: engines should fail if both are present and the value is not an object.
    if residual is not None:
        raise _wrongly_shredded("it has two values at one place")
    return encoded


def _read_objects(
    shape: _Object, typed: pa.StructArray, residual: _Encoded, names: _Names
) -> _Encoded:
    children = typed.flatten()
    columns = [
        (name, _read_group(group, plain_array(children[position]), names))
        for name, position, group in shape.fields
    ]
    shredded = {name for name, _ in columns}
    objects: _Encoded = []
    for row, is_object in enumerate(typed.is_valid().to_pylist()):
        known, rest = names[row], residual[row]
        if not is_object or known is None:
            objects.append(rest)
            continue
        fields = [
            (_field_id(known, name), value)
            for name, values in columns
            if (value := values[row]) is not None
        ]
        if rest is not None:
            fields = _merge(fields, rest, known, shredded)
        objects.append(
            encode_object([field[0] for field in fields], [field[1] for field in fields])
        )
    return objects


def _field_id(known: VariantNames, name: str) -> int:
    # Spec: all field names of a variant, whether shredded or not, must be present in the metadata.
    field_id = known.ids.get(name)
    if field_id is None:
        raise _wrongly_shredded(f"its dictionary lacks the name of its field {name}")
    return field_id


def _merge(
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


def _read_arrays(shape: _Array, typed: pa.ListArray, names: _Names) -> _Encoded:
    lengths = pc.list_value_length(typed).to_pylist()
    elements = plain_array(list_elements(typed))
    element_names = [*chain.from_iterable(map(repeat, names, [length or 0 for length in lengths]))]
    # Spec: an array has no missing elements; where a variant is required, missing means null.
    encoded = _present(_read_group(shape.element, elements, element_names))
    arrays: _Encoded = []
    start = 0
    for length in lengths:
        if length is None:
            arrays.append(None)
        else:
            arrays.append(encode_array(encoded[start : start + length]))
            start += length
    return arrays


def _present(values: _Encoded) -> list[bytes]:
    return [VARIANT_NULL if value is None else value for value in values]


def _wrongly_shredded(what: str) -> InvalidTable:
    return InvalidTable(
        f"a shredded variant is invalid: {what}; restore an older version of the table or "
        "rewrite the file"
    )


def _binary_array(values: list[bytes]) -> pa.Array:
    """A `pyarrow.BinaryArray`; built by its buffers, as `pyarrow.array` would import pandas."""
    try:
        offsets = buffer_of("i", accumulate(map(len, values), initial=0))
    except OverflowError as error:
        raise UnsupportedFeature(
            f"the variants of {len(values)} rows take more than 2 GiB, the limit of a binary Arrow "
            "array: read the table with the Spark engine"
        ) from error
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
