"""Defaults that readers use for files that are older than the column.

A column can be added with a default without rewriting files. The metadata of its field then holds
the value for every file that lacks the column; a file that has the column keeps its values, nulls
included. The value is computed when the column is added; later defaults of the column do not change
it. Readers without support would return nulls, so the table lists a reader feature that stops them.

    "dagsterDelta.existingDefault": {"type": "integer", "value": "7"}

The type is that of the column when it was added. The value is text as in `partitionValues`, with
two exceptions: strings are unchanged, empty ones too, and bytes are hexadecimal.

Spec: none of the protocol's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

import dagster_delta.arrow_compute as pc
from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.features.column_mapping import physical_name
from dagster_delta.protocol.features.type_widening import is_widening
from dagster_delta.protocol.schema import (
    DataType,
    DecimalType,
    PrimitiveType,
    StructField,
    StructType,
    data_type_from_json,
    walk_fields,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_columns import string_column
from dagster_delta.protocol.values.arrow_schema import to_arrow_type
from dagster_delta.protocol.values.arrow_values import scalar_of
from dagster_delta.protocol.values.partition_values import (
    parse_partition_column,
    serialize_partition_value,
)

EXISTING_DEFAULT_KEY = "dagsterDelta.existingDefault"
"""Field metadata: type and text of the value in files that lack the column."""

EXISTING_DEFAULTS_FEATURE = "dagsterDelta.existingDefaults"
"""The table feature under which field metadata has such values."""

_STRING, _BINARY = PrimitiveType("string"), PrimitiveType("binary")
_WITHOUT_DEFAULT = frozenset({"variant", "void"})


def is_default_type(data_type: DataType) -> bool:
    """Whether the metadata can hold values of the type: it can if the type is atomic."""
    match data_type:
        case PrimitiveType(name):
            return name not in _WITHOUT_DEFAULT
        case DecimalType():
            return True
        case _:
            return False


def has_existing_default(field: StructField) -> bool:
    """Whether files that lack the field have a value for it."""
    return EXISTING_DEFAULT_KEY in field.metadata


def with_existing_default(field: StructField, value: object) -> StructField:
    """The field with a value for files that lack it.

    The value is as Arrow's `as_py` gives it.
    """
    if field.data_type == _STRING:
        text: str | None = str(value)
    elif field.data_type == _BINARY and isinstance(value, bytes):
        text = value.hex()
    else:
        text = serialize_partition_value(value, field.data_type, column=field.name)
    spelled = {"type": str(field.data_type), "value": text}
    return replace(field, metadata={**field.metadata, EXISTING_DEFAULT_KEY: spelled})


def existing_default(field: StructField) -> pa.Scalar | None:
    """The value of a field in files that lack it."""
    spelled = field.metadata.get(EXISTING_DEFAULT_KEY)
    if spelled is None:
        return None
    try:
        return _parse_default(spelled, field.data_type)
    except (
        InvalidTable, KeyError, TypeError, ValueError, ArithmeticError, pa.ArrowException
    ):  # fmt: skip
        raise InvalidTable(
            f"the metadata of column {field.name} has {EXISTING_DEFAULT_KEY} = {spelled!r}, which "
            f"is not a value of type {field.data_type}: the schema is damaged; restore an older "
            "version of the table",
            column=field.name,
        ) from None


def _parse_default(spelled: Any, data_type: DataType) -> pa.Scalar:  # noqa: ANN401
    older, text = data_type_from_json(spelled["type"]), spelled["value"]
    if not isinstance(text, str) or not (older == data_type or is_widening(older, data_type)):
        raise TypeError("it is not text, or of another type")
    if older == _STRING:
        return scalar_of(text, older)
    if older == _BINARY:
        return scalar_of(bytes.fromhex(text), older)
    value = parse_partition_column(string_column([text]), older)
    if value.null_count:
        raise ValueError("null is not a default")
    # As when files from before the column was widened are read.
    return pc.cast(value, to_arrow_type(data_type))[0]


def fields_with_existing_default(
    schema: StructType,
) -> Iterator[tuple[tuple[str, ...], StructField]]:
    """The fields that have a value in files that lack them, with their logical paths."""
    return ((path, field) for path, field in walk_fields(schema) if has_existing_default(field))


def check_existing_defaults(schema: StructType) -> None:
    """Refuse a schema whose defaults for existing rows cannot be read."""
    for path, field in fields_with_existing_default(schema):
        _ = existing_default(field)
        if len(schema.fields_along(path)) < len(path):
            column = ".".join(path)
            raise InvalidTable(
                f"field {column} lies in an array or a map and has {EXISTING_DEFAULT_KEY}, which "
                "only columns and fields of structs can have; restore an older version of the "
                "table",
                column=column,
            )


def with_existing_defaults_of(
    newer: StructType, older: StructType, mode: ColumnMappingMode, older_mode: ColumnMappingMode
) -> StructType:
    """The newer schema plus the defaults that its fields had in an older schema and lost since."""
    known = {physical_name(field, older_mode): field for field in older}

    def carry(field: StructField) -> StructField:
        before = known.get(physical_name(field, mode))
        if before is None:
            return field
        if isinstance(field.data_type, StructType) and isinstance(before.data_type, StructType):
            inside = with_existing_defaults_of(field.data_type, before.data_type, mode, older_mode)
            return replace(field, data_type=inside)
        if has_existing_default(field) or not has_existing_default(before):
            return field
        value = {EXISTING_DEFAULT_KEY: before.metadata[EXISTING_DEFAULT_KEY]}
        return replace(field, metadata={**field.metadata, **value})

    return StructType(tuple(map(carry, newer)))
