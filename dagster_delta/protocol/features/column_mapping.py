"""Column mapping: logical names to the physical names and ids in data files.

Spec: Column Mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, cast

import pyarrow as pa
from msgspec.structs import replace

from dagster_delta.errors import InvalidTable
from dagster_delta.protocol.schema import (
    DataType,
    StructField,
    StructType,
    inner_parts,
    inner_types,
    walk_fields,
    with_inner_types,
)
from dagster_delta.protocol.table_properties import ColumnMappingMode
from dagster_delta.protocol.values.arrow_schema import to_arrow_type

ID_KEY = "delta.columnMapping.id"
PHYSICAL_NAME_KEY = "delta.columnMapping.physicalName"
NESTED_IDS_KEY = "delta.columnMapping.nested.ids"
"""Ids of array elements and map entries by their dotted path from the physical name of the field;
only tables that stay readable as Iceberg have them."""

PARQUET_FIELD_ID_KEY = b"PARQUET:field_id"
"""Key of a Parquet field id in Arrow field metadata."""

_D = TypeVar("_D", bound=DataType)


def physical_name(field: StructField, mode: ColumnMappingMode = "name") -> str:
    """The name of a field in data files, statistics and partition values."""
    if mode == "none":
        return field.name
    name = field.metadata.get(PHYSICAL_NAME_KEY)
    if not isinstance(name, str) or not name:
        raise InvalidTable(
            f"the table maps columns by {mode}, and column {field.name} has no physical name "
            f"({PHYSICAL_NAME_KEY}): the schema is damaged; restore an older version of the table",
            column=field.name,
        )
    return name


def field_id(field: StructField) -> int | None:
    """The column id of a field, or None if it has none."""
    value = field.metadata.get(ID_KEY)
    return value if isinstance(value, int) else None


def assign_column_mapping(
    schema: StructType,
    mode: ColumnMappingMode,
    *,
    max_column_id: int,
    new_name: Callable[[], str],
    keep_logical_names: bool = False,
    nested_ids: bool = False,
) -> tuple[StructType, int]:
    """The schema with an id and a physical name on every field, and the new largest id.

    What a field already has is kept. Spec: Writer Requirements for Column Mapping. Unmapped fields
    keep their name as the physical name if `keep_logical_names`: required when mapping is turned
    on, because data files with that name exist. With `nested_ids`, elements of arrays and entries
    of maps get ids too, as Iceberg requires.
    """
    if mode == "none":
        return schema, max_column_id
    last_id = max([max_column_id, *_assigned_ids(schema)])

    def assign(field: StructField) -> StructField:
        nonlocal last_id
        metadata = dict(field.metadata)
        if field_id(field) is None:
            last_id += 1
            metadata[ID_KEY] = last_id
        if PHYSICAL_NAME_KEY not in metadata:
            metadata[PHYSICAL_NAME_KEY] = field.name if keep_logical_names else new_name()
        if nested_ids:
            ids = dict(_nested_ids(field))
            for path in _nested_paths(field.data_type, str(metadata[PHYSICAL_NAME_KEY])):
                if path not in ids:
                    last_id += 1
                    ids[path] = last_id
            if ids:
                metadata[NESTED_IDS_KEY] = ids
        return replace(field, metadata=metadata)

    return map_fields(schema, assign), last_id


def _nested_paths(data_type: DataType, path: str) -> Iterator[str]:
    """Paths below a field down to the next struct, whose fields have their own ids."""
    if isinstance(data_type, StructType):
        return
    for step, inner in inner_parts(data_type):
        yield f"{path}.{step}"
        yield from _nested_paths(inner, f"{path}.{step}")


def _assigned_ids(schema: StructType) -> list[int]:
    ids: list[int] = []
    for _, field in walk_fields(schema):
        ids.append(field_id(field) or 0)
        ids.extend(_nested_ids(field).values())
    return ids


def map_fields(data_type: _D, change: Callable[[StructField], StructField]) -> _D:
    """The type with `change` applied to every field, at every depth."""
    return cast("_D", _map_data_type(data_type, change))


def _map_data_type(data_type: DataType, change: Callable[[StructField], StructField]) -> DataType:
    if isinstance(data_type, StructType):
        return StructType(
            tuple(
                replace(changed, data_type=_map_data_type(changed.data_type, change))
                for changed in map(change, data_type)
            )
        )
    inner = inner_types(data_type)
    if not inner:
        return data_type
    return with_inner_types(data_type, [_map_data_type(part, change) for part in inner])


def physical_arrow_schema(schema: StructType, mode: ColumnMappingMode) -> pa.Schema:
    """The pyarrow.Schema that data files of a table must have.

    Physical names at every depth, nullability kept and, under mapping, `PARQUET:field_id` on every
    field that has an id.
    """
    return pa.schema([_physical_arrow_field(field, mode) for field in schema])


def _physical_arrow_field(field: StructField, mode: ColumnMappingMode) -> pa.Field:
    name = physical_name(field, mode)
    nested_ids = {} if mode == "none" else _nested_ids(field)
    return pa.field(
        name,
        _physical_arrow_type(field.data_type, mode, nested_ids, name),
        field.nullable,
        None if mode == "none" else _field_id_metadata(field_id(field)),
    )


def _physical_arrow_type(
    data_type: DataType, mode: ColumnMappingMode, nested_ids: Mapping[str, int], path: str
) -> pa.DataType:
    def step(part: StructField) -> pa.Field:
        here = f"{path}.{part.name}"
        inner = _physical_arrow_type(part.data_type, mode, nested_ids, here)
        return pa.field(part.name, inner, part.nullable, _field_id_metadata(nested_ids.get(here)))

    if isinstance(data_type, StructType):
        return to_arrow_type(data_type, lambda field: _physical_arrow_field(field, mode))
    return to_arrow_type(data_type, step)


def _field_id_metadata(number: int | None) -> dict[bytes, bytes] | None:
    return None if number is None else {PARQUET_FIELD_ID_KEY: str(number).encode()}


def _nested_ids(field: StructField) -> Mapping[str, int]:
    ids = field.metadata.get(NESTED_IDS_KEY)
    return cast("Mapping[str, int]", ids) if isinstance(ids, Mapping) else {}
